package replay

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"sluice/dump"
	"sluice/moe"
)

// columns are what a trace has beside those that every trace has: the places of the columns in which a run says what it read
// ahead (dump.TraceMeta.Ahead) among those that the reader does not know, -1 where there is none; and whether the rows say
// sequence and pass.
type columns struct {
	list, bytes int
	seqs        bool
}

func columnsOf(tr *dump.TraceReader) columns {
	names := tr.ExtraColumns()
	return columns{slices.Index(names, dump.AheadColumn), slices.Index(names, dump.AheadBytesColumn), tr.Seqs()}
}

func (c columns) there() bool { return c.list >= 0 && c.bytes >= 0 }

// aheadRow is what one row says of it.
type aheadRow struct {
	there    bool
	from, to int // of the block's ids
	bytes    int64
}

// readAhead reads the columns of the block's row that was just parsed.
func (b *rowBlock) readAhead(tr *dump.TraceReader, cols columns) error {
	row, a := &b.rows[b.n], &b.ahead[b.n]
	list := row.Extra[cols.list]
	if *a = (aheadRow{}); len(row.Extra[cols.bytes]) == 0 && len(list) == 0 {
		return nil
	}
	var err error
	*a = aheadRow{there: true, from: len(b.ids)}
	if a.bytes, err = tr.AheadBytes(); err != nil {
		return err
	}
	for len(list) > 0 {
		word, rest, _ := bytes.Cut(list, []byte(" "))
		e, err := strconv.ParseInt(string(word), 10, 32)
		if err != nil || e < 0 {
			return fmt.Errorf("line %d: column %s: %.20q, want an expert", b.line[b.n], dump.AheadColumn, word)
		}
		b.ids, list = append(b.ids, int32(e)), rest
	}
	a.to = len(b.ids)
	return nil
}

// prefetch says what a layer call asks for ahead of the next layer's, as the engine's prefetcher does.
type prefetch struct {
	g        *geometry
	mode     moe.Prefetch      // "": nothing, or nothing that can be replayed
	max      int64             // bytes of the budget that one call may ask for; 0: the default of moe.PrefetchBound
	last     map[int][][]int32 // by sequence and layer: what the last token chose
	list     []int32           // asked for
	named    []bool            // by expert: in list
	recorded bool              // the trace has the columns
	left     moe.Prefetch      // the run's mode, where the replay leaves it out on purpose
	why      string            // the run read ahead, and this is why the replay cannot
}

// newPrefetch reads ahead as the run did, or, onDemand, nothing.
func newPrefetch(g *geometry, m *dump.TraceMeta, cols columns, onDemand bool) (*prefetch, error) {
	a := &prefetch{g: g, mode: moe.Prefetch(m.Fact(dump.FactPrefetch)), last: map[int][][]int32{}, named: make([]bool, g.nExpert), recorded: cols.there()}
	if s := m.Fact(dump.FactPrefetchBytes); s != "" {
		var err error
		if a.max, err = strconv.ParseInt(s, 10, 64); err != nil || a.max < 0 {
			return nil, fmt.Errorf("prefetch_bytes %.20q in the preamble: want 0 or more", s)
		}
	}
	switch {
	case onDemand:
		a.mode, a.left = "", a.mode
	case a.mode == "", a.mode == moe.PrefetchLastToken:
	case a.mode == moe.PrefetchNextLayer: // only the run knew what it asked for, and recorded it
		if !cols.there() {
			a.mode, a.why = "", fmt.Sprintf("what prefetch %s asked for is not in the trace (no column %s): the release that recorded it did not say", moe.PrefetchNextLayer, dump.AheadColumn)
		}
	default:
		a.mode, a.why = "", fmt.Sprintf("prefetch %.20q is not known", a.mode)
	}
	return a, nil
}

// asked is what a layer call asks for.
type asked struct {
	layer   int
	experts []int32 // distinct, the most wanted first
	rows    int     // that ask
}

// asks returns what a call asks for once all that it demands is in hand. It is told of every call once, in order. The result
// holds until the next call.
func (a *prefetch) asks(c *layerCall) asked {
	next := c.layer + 1
	switch a.mode {
	case moe.PrefetchLastToken:
		next %= len(a.g.size)
		rows := a.lastTokens(c, next)
		if a.g.size[next] > 0 {
			return asked{next, a.list, rows}
		}
	case moe.PrefetchNextLayer:
		if next < len(a.g.size) && a.g.size[next] > 0 {
			return asked{next, c.ahead, c.tokens}
		}
	}
	return asked{}
}

// lastTokens notes what the last token of each of the call's sequences chose, and fills the list with what those of the
// sequences that decode chose in the next layer before. It returns how many do.
func (a *prefetch) lastTokens(c *layerCall, next int) (rows int) {
	for _, e := range a.list {
		a.named[e] = false
	}
	a.list = a.list[:0]
	for _, sp := range c.spans {
		last := a.last[sp.seq]
		if last == nil {
			last = make([][]int32, len(a.g.size))
			a.last[sp.seq] = last
		}
		last[c.layer] = append(last[c.layer][:0], c.last[sp.from:sp.to]...)
		if sp.phase != dump.Decode {
			continue
		}
		rows++
		for _, e := range last[next] {
			if !a.named[e] {
				a.named[e] = true
				a.list = append(a.list, e)
			}
		}
	}
	return rows
}

// bound is how many bytes of the budget a call may ask for.
func (a *prefetch) bound(ask asked, budget int64) int64 {
	return moe.PrefetchBound(a.max, a.g.slot[ask.layer], budget, ask.rows)
}
