package replay

import (
	"errors"
	"fmt"
	"io"

	"sluice/dump"
	"sluice/moe"
)

// cell is one routing decision: the rows of one token in one layer. Its slices are overwritten by the next one.
type cell struct {
	turn, phase, step, layer int
	seq                      int // 0 in a trace of one sequence
	pass                     int64
	line                     int  // of the first row
	newCall                  bool // first cell of a layer call
	unknown                  int  // rows whose weight is not a finite number
	drops                    int  // rows that the recorded run dropped

	slot, expert []int32
	weight       []float64
	miss         []bool
	bytes        []int64
	dropped      []bool

	ahead      []int32 // experts of the next layer that the call asked for; on its first cell only
	aheadBytes int64   // what of them was read
}

func (c *cell) clear() {
	c.unknown, c.drops, c.ahead, c.aheadBytes = 0, 0, c.ahead[:0], 0
	c.slot, c.expert, c.weight = c.slot[:0], c.expert[:0], c.weight[:0]
	c.miss, c.bytes, c.dropped = c.miss[:0], c.bytes[:0], c.dropped[:0]
}

func (c *cell) add(r *dump.TraceRow) {
	c.slot, c.expert = append(c.slot, int32(r.Slot)), append(c.expert, int32(r.Expert))
	c.weight, c.miss = append(c.weight, r.Weight), append(c.miss, r.Residency == dump.Miss)
	c.bytes, c.dropped = append(c.bytes, r.ExpertBytes), append(c.dropped, r.Dropped)
	if r.WeightUnknown {
		c.unknown++
	}
	if r.Dropped {
		c.drops++
	}
}

// known copies the rows with a known weight into dst and returns dst; c itself when that is all of them.
func (c *cell) known(dst *cell) *cell {
	if c.unknown == 0 {
		return c
	}
	dst.clear()
	dst.turn, dst.phase, dst.step, dst.layer, dst.seq, dst.pass, dst.newCall = c.turn, c.phase, c.step, c.layer, c.seq, c.pass, c.newCall
	for i, w := range c.weight {
		if w-w != 0 { // NaN or infinite
			continue
		}
		dst.slot, dst.expert = append(dst.slot, c.slot[i]), append(dst.expert, c.expert[i])
		dst.weight, dst.miss = append(dst.weight, w), append(dst.miss, c.miss[i])
		dst.bytes, dst.dropped = append(dst.bytes, c.bytes[i]), append(dst.dropped, c.dropped[i])
		if c.dropped[i] {
			dst.drops++
		}
	}
	return dst
}

// Scan says what was met in a trace, whatever it was read for.
type Scan struct {
	Rows       uint64          `json:"rows"`
	Unknown    int64           `json:"rows_weight_unknown"` // their weight is nan or inf
	Passes     int64           `json:"passes,omitempty"`    // forward passes, where the trace says which rows are one
	ShortCells int64           `json:"short_cells"`         // cells with fewer rows than n_expert_used
	Torn       *dump.TornError `json:"-"`                   // the trace ends within a row; nil: it does not
}

// rowBlock is rows on their way from the parser to the replay, which run beside each other: each costs about as much.
type rowBlock struct {
	rows  [512]dump.TraceRow
	line  [512]int
	ahead [512]aheadRow // where the trace has columns for it
	ids   []int32       // of all of them
	n     int
	err   error // after the rows
}

// readRows parses blocks until the trace ends or none come back any more.
func readRows(tr *dump.TraceReader, free <-chan *rowBlock, full chan<- *rowBlock) {
	defer close(full)
	cols := columnsOf(tr)
	for b := range free {
		b.ids = b.ids[:0]
		for b.n = 0; b.n < len(b.rows); b.n++ {
			if b.err = tr.Next(&b.rows[b.n]); b.err != nil {
				break
			}
			b.line[b.n] = tr.Line()
			if cols.there() {
				if b.err = b.readAhead(tr, cols); b.err != nil {
					break
				}
			}
		}
		full <- b
		if b.err != nil {
			return
		}
	}
}

// scan hands every cell of a trace to each, in file order. k: n_expert_used. A torn tail ends the trace as its end would,
// and is noted. When it returns nothing reads tr any more.
func scan(tr *dump.TraceReader, k int, s *Scan, each func(*cell) error) (err error) {
	const blocks = 4
	free, full := make(chan *rowBlock, blocks), make(chan *rowBlock, blocks) // none of the sends below ever waits
	for range blocks {
		free <- new(rowBlock)
	}
	go readRows(tr, free, full)
	defer func() {
		close(free)
		for range full {
		}
		s.Rows = tr.Rows()
	}()
	sc := scanner{k: k, s: s, seqs: tr.Seqs(), each: each, slotCell: make([]uint64, k), prev: cell{turn: -1}}
	for b := range full {
		for i := range b.n {
			if err := sc.row(&b.rows[i], b.line[i]); err != nil {
				return err
			}
			if a := &b.ahead[i]; a.there { // of this row
				sc.c.ahead, sc.c.aheadBytes = append(sc.c.ahead, b.ids[a.from:a.to]...), sc.c.aheadBytes+a.bytes
			}
		}
		if b.err != nil {
			if b.err != io.EOF && !errors.As(b.err, &s.Torn) {
				return b.err
			}
			return sc.flush()
		}
		free <- b
	}
	return nil // not reached: the last block has an error
}

// scanner puts rows together to cells.
type scanner struct {
	k        int
	seqs     bool // the trace says which rows are one call
	s        *Scan
	each     func(*cell) error
	c, prev  cell
	cells    uint64
	slotCell []uint64 // by slot: number of the cell that had it last
}

func (sc *scanner) row(r *dump.TraceRow, line int) error {
	c := &sc.c
	if r.Slot >= sc.k {
		return fmt.Errorf("line %d: slot %d: the preamble's n_expert_used is %d", line, r.Slot, sc.k)
	}
	// A slot that comes twice is another call at the same place, as after a session's context was emptied.
	if len(c.slot) > 0 && (r.Step != c.step || r.Layer != c.layer || r.Turn != c.turn || r.Phase != c.phase || r.Seq != c.seq || r.Pass != c.pass || sc.slotCell[r.Slot] == sc.cells) {
		if err := sc.flush(); err != nil {
			return err
		}
	}
	if len(c.slot) == 0 {
		sc.cells++
		c.turn, c.phase, c.step, c.layer, c.seq, c.pass, c.line = r.Turn, r.Phase, r.Step, r.Layer, r.Seq, r.Pass, line
	}
	sc.slotCell[r.Slot] = sc.cells
	c.add(r)
	return nil
}

// flush hands the open cell out.
func (sc *scanner) flush() error {
	c, prev := &sc.c, &sc.prev
	if len(c.slot) == 0 {
		return nil
	}
	if sc.seqs {
		if c.pass != prev.pass || sc.s.Passes == 0 {
			sc.s.Passes++
		}
		c.newCall = c.pass != prev.pass || c.layer != prev.layer
	} else {
		c.newCall = c.turn != prev.turn || c.phase != prev.phase || c.layer != prev.layer || c.phase == dump.Decode || c.step <= prev.step
	}
	prev.turn, prev.phase, prev.layer, prev.step, prev.pass = c.turn, c.phase, c.layer, c.step, c.pass
	sc.s.Unknown += int64(c.unknown)
	if len(c.slot) < sc.k {
		sc.s.ShortCells++
	}
	err := sc.each(c)
	c.clear()
	return err
}

// topK is the preamble's n_expert_used, which no replay can do without.
func topK(m *dump.TraceMeta) (int, error) {
	switch {
	case m.NUsed <= 0:
		return 0, errors.New("no n_expert_used in the preamble: a threshold is a fraction of 1/n_expert_used, and nothing says of what")
	case m.NUsed > moe.MaxExperts:
		return 0, fmt.Errorf("n_expert_used %d in the preamble, at most %d", m.NUsed, moe.MaxExperts)
	}
	return m.NUsed, nil
}
