package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"sluice/dump"
	"sluice/dump/inspect"
)

// Options say how fine a page is.
type Options struct {
	Cells int // bound of the largest table; 0: DefaultCells. A page with several recordings divides it among them
}

// Recording is what a page shows of one recording.
type Recording struct {
	Name    string
	Kind    inspect.Kind
	Records uint64   // whole ones; rows of a trace
	Notes   []string // what a reader must know: a torn tail, unknown weights, several experts in one cell

	model, arch string
	facts       [][2]string // further facts of the run, as recorded
	x           extent
	g           grid
	nExpert     int
	layers      []Layer
	tables      tables
}

// tables are the counts that the page draws; see write.go for what each is called there.
type tables struct {
	// layers x expertCells
	picks, hit, prefetch, dropped, known []uint32
	weight, bytes                        []float64

	// layers x timeBins
	tokens, slots, tHit, tPrefetch, tDropped, reused, compared []uint32
	tWeight, tLost, tBytes                                     []float64
	prefill                                                    []uint32 // timeBins: cells of prompts, over all layers

	// layers x partBins x expertCells
	pPicks, pMiss, pDropped []uint32
}

// Analyse reads a recording. name is what the page calls it; side is a dump's sidecar, nil where it has none. A torn tail is
// left out and noted. Memory is bounded by o, not by the file.
func Analyse(ctx context.Context, name string, r io.ReadSeeker, side *dump.SelMeta, o Options) (*Recording, error) {
	kind, err := inspect.Detect(r)
	if err != nil {
		return nil, err
	}
	rec := &Recording{Name: name, Kind: kind}
	e, err := scan(ctx, r, kind, side, rec.x.cell)
	if err != nil {
		return nil, err
	}
	rec.Records = e.records
	if e.torn != nil {
		rec.Notes = append(rec.Notes, "torn tail: "+e.torn.Error())
	}
	if rec.x.slots == 0 {
		if e.torn != nil {
			return nil, fmt.Errorf("view: nothing to show: %w", e.torn)
		}
		return nil, errors.New("view: nothing to show: a header without rows")
	}
	rec.describe(&e, side)
	rec.x.finish()
	cells := o.Cells
	if cells <= 0 {
		cells = DefaultCells
	}
	rec.g = newGrid(len(rec.x.layers), rec.nExpert, rec.x.ticks, cells)
	rec.note()
	rec.allocate()
	counter := newCounter(rec, e.seqs)
	again, err := scan(ctx, r, kind, side, counter.cell)
	if err != nil {
		return nil, err
	}
	if again.records != e.records {
		return nil, fmt.Errorf("view: %d records at the first reading, %d at the second: is it still being written?", e.records, again.records)
	}
	counter.finish()
	return rec, nil
}

// describe takes over what preamble or sidecar say.
func (rec *Recording) describe(e *end, side *dump.SelMeta) {
	stated, used := 0, 0
	if rec.Kind == inspect.Trace {
		m := e.trace
		rec.model, rec.arch, stated, used = m.Model, m.Arch, m.NExpert, m.NUsed
		for _, kv := range m.Extra {
			if kv[0] != "slot_bytes" { // one number a layer, for replays
				rec.facts = append(rec.facts, kv)
			}
		}
	} else if side != nil {
		rec.model, rec.arch, stated, used = side.Model, side.Arch, side.NExpert, side.NUsed
	}
	rec.nExpert = max(rec.x.experts, min(stated, maxExperts))
	if used > 0 {
		rec.facts = append([][2]string{{"experts used", strconv.Itoa(used)}}, rec.facts...)
	}
}

func (rec *Recording) note() {
	x := &rec.x
	if x.unknown > 0 {
		rec.Notes = append(rec.Notes, fmt.Sprintf("%d weights are no number (nan, inf) and count in no sum of weights", x.unknown))
	}
	if x.kMin != x.kMax {
		rec.Notes = append(rec.Notes, fmt.Sprintf("the number of experts per token varies, %d to %d", x.kMin, x.kMax))
	}
	if rec.g.perCell > 1 {
		rec.Notes = append(rec.Notes, fmt.Sprintf("%d experts of neighbouring ids share a cell of the maps", rec.g.perCell))
	}
}

func (rec *Recording) allocate() {
	n, t := len(rec.x.layers), &rec.tables
	size := n * rec.g.expertCells
	for _, p := range []*[]uint32{&t.picks, &t.hit, &t.prefetch, &t.dropped, &t.known} {
		*p = make([]uint32, size)
	}
	t.weight, t.bytes = make([]float64, size), make([]float64, size)
	size = n * int(rec.g.timeBins)
	for _, p := range []*[]uint32{&t.tokens, &t.slots, &t.tHit, &t.tPrefetch, &t.tDropped, &t.reused, &t.compared} {
		*p = make([]uint32, size)
	}
	t.tWeight, t.tLost, t.tBytes = make([]float64, size), make([]float64, size), make([]float64, size)
	t.prefill = make([]uint32, rec.g.timeBins)
	size = n * int(rec.g.partBins) * rec.g.expertCells
	t.pPicks, t.pMiss, t.pDropped = make([]uint32, size), make([]uint32, size), make([]uint32, size)
	rec.layers = make([]Layer, n)
}

// counter is the second pass. Counts are uint32: 2^32 slots in one cell would be a file of 100 GB about one expert.
type counter struct {
	*Recording
	picks  [][]uint64 // layers x experts, not put together, for entropy
	before []before   // by layer, and by the last digits of the turn
	turns  int        // that have a place each
	mark   []uint64   // by expert: the cell that had it last, of any layer
	cells  uint64
	ahead  int64
}

// openTurns is how many turns of a run of several sequences, which go on beside each other, have a token before: memory does
// not grow with the sequences. Of two that are further apart, and share a place, some tokens are not compared.
const openTurns = 256

// before is the token before, in one layer.
type before struct {
	pos     int64
	turn    int
	experts []int
}

func newCounter(rec *Recording, seqs bool) *counter {
	turns := 1
	if seqs {
		turns = openTurns
	}
	c := &counter{Recording: rec, before: make([]before, turns*len(rec.layers)), turns: turns, mark: make([]uint64, rec.nExpert)}
	for range rec.layers {
		c.picks = append(c.picks, make([]uint64, rec.x.experts))
	}
	return c
}

func (c *counter) cell(in *cell) error {
	il := c.x.index[in.layer]
	if in.tick >= c.x.ticks || len(in.slots) == 0 {
		return errors.New("view: the recording has changed between its two readings")
	}
	t, bin, part := &c.tables, in.tick/c.g.timeTicks, in.tick/c.g.partTicks
	at := il*int(c.g.timeBins) + int(bin)
	t.tokens[at]++
	t.slots[at] += uint32(len(in.slots))
	if in.prefill {
		t.prefill[bin]++
	}
	if in.ahead > 0 { // the bytes are those of experts of the layer behind this one
		to := c.x.index[(in.layer+1)%maxLayers] // the first, behind the last
		t.tBytes[to*int(c.g.timeBins)+int(bin)] += float64(in.ahead)
		c.ahead += in.ahead
	}
	l := &c.layers[il]
	l.Tokens++
	for i := range in.slots {
		s := &in.slots[i]
		if s.expert >= c.x.experts {
			return errors.New("view: the recording has changed between its two readings")
		}
		c.picks[il][s.expert]++
		e := il*c.g.expertCells + s.expert/c.g.perCell
		p := (il*int(c.g.partBins)+int(part))*c.g.expertCells + s.expert/c.g.perCell
		t.picks[e]++
		t.pPicks[p]++
		t.bytes[e] += float64(s.bytes)
		t.tBytes[at] += float64(s.bytes)
		if s.known {
			t.known[e]++
			t.weight[e] += s.weight
			t.tWeight[at] += s.weight
		}
		switch s.residency {
		case dump.Hit:
			t.hit[e]++
			t.tHit[at]++
		case dump.HitPrefetch:
			t.prefetch[e]++
			t.tPrefetch[at]++
		default:
			t.pMiss[p]++
		}
		if s.dropped {
			t.dropped[e]++
			t.tDropped[at]++
			t.pDropped[p]++
			if s.known {
				t.tLost[at] += s.weight
			}
		}
	}
	c.reuse(il, at, in)
	return nil
}

// reuse counts how many of a token's experts the token before had in this layer. Only neighbours of one turn are compared.
func (c *counter) reuse(il, at int, in *cell) {
	b := &c.before[il*c.turns+in.turn%c.turns]
	if len(b.experts) > 0 && b.turn == in.turn && b.pos+1 == in.pos {
		c.cells++
		for _, e := range b.experts {
			c.mark[e] = c.cells
		}
		for i := range in.slots {
			if c.mark[in.slots[i].expert] == c.cells {
				c.tables.reused[at]++
			}
		}
		c.tables.compared[at] += uint32(len(in.slots))
	}
	b.pos, b.turn, b.experts = in.pos, in.turn, b.experts[:0]
	for i := range in.slots {
		b.experts = append(b.experts, in.slots[i].expert)
	}
}

func (c *counter) finish() {
	if c.ahead > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%.1f MiB were read ahead of the demand: they are in the bytes over time and by layer, and in no expert's", float64(c.ahead)/(1<<20)))
	}
	for i := range c.layers {
		c.layers[i].finish(c.Recording, i, c.picks[i])
	}
}
