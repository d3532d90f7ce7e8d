package view

import (
	"context"
	"errors"
	"fmt"
	"io"

	"sluice/dump"
	"sluice/dump/inspect"
)

// maxSlots bounds the routed experts of one token in one layer, so that memory does not grow with a trace that is not one.
const maxSlots = 1 << 16

// cell is what the router chose for one token in one layer. A selection dump has no turn, residency, bytes and drops.
type cell struct {
	layer   int
	tick    int64 // position on the time axis
	turn    int   // counts the turns as they begin, from 0
	pos     int64 // position within its turn: one more than that of the token before
	prefill bool
	slots   []slot
	ahead   int64 // bytes of the next layer's experts that its call read before they were demanded
}

type slot struct {
	expert    int
	weight    float64
	known     bool // weight is a number
	residency int
	bytes     int64
	dropped   bool
}

// end says how a scan ended: what was read, and where the recording is torn.
type end struct {
	records uint64
	torn    *dump.TornError
	trace   dump.TraceMeta // of a trace
	seqs    bool           // a trace of several sequences
}

// scan calls fn for every cell of r, in the order of the file. The cell is overwritten by the next one.
func scan(ctx context.Context, r io.ReadSeeker, kind inspect.Kind, side *dump.SelMeta, fn func(*cell) error) (e end, err error) {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return e, fmt.Errorf("view: %w", err)
	}
	if kind == inspect.Trace {
		err = scanTrace(ctx, r, &e, fn)
	} else {
		err = scanSelection(ctx, r, side, &e, fn)
	}
	if err == io.EOF || errors.As(err, &e.torn) {
		err = nil
	}
	return e, err
}

func scanTrace(ctx context.Context, r io.Reader, e *end, fn func(*cell) error) error {
	t, err := dump.NewTraceReader(r)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	var (
		c   cell
		k   clock
		p   passClock
		row dump.TraceRow
		at  [5]int // turn, phase, step, layer and pass of c
	)
	e.seqs = t.Seqs()
	flush := func() error {
		if len(c.slots) == 0 {
			return nil
		}
		err := fn(&c)
		c.slots, c.ahead = c.slots[:0], 0
		return err
	}
	for err = t.Next(&row); err == nil; err = t.Next(&row) {
		if t.Rows()&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if now := [5]int{row.Turn, row.Phase, row.Step, row.Layer, int(row.Pass)}; now != at || len(c.slots) == 0 {
			if err := flush(); err != nil {
				return err
			}
			if e.seqs {
				c.tick, c.turn, c.pos = p.at(row.Pass, row.Layer), row.Turn, int64(row.Step)
			} else {
				c.tick, c.turn = k.at(row.Turn, row.Step)
				c.pos = c.tick
			}
			at, c.layer, c.prefill = now, row.Layer, row.Phase == dump.Prefill
		}
		if len(c.slots) == maxSlots {
			return fmt.Errorf("view: line %d: more than %d rows of one token and layer", t.Line(), maxSlots)
		}
		ahead, err := t.AheadBytes()
		if err != nil {
			return err
		}
		c.ahead += ahead
		c.slots = append(c.slots, slot{row.Expert, row.Weight, !row.WeightUnknown, row.Residency, row.ExpertBytes, row.Dropped})
	}
	if flushErr := flush(); flushErr != nil { // the cell before the end is whole rows, torn or not
		return flushErr
	}
	e.records, e.trace = t.Rows(), t.Meta()
	return err
}

// scanSelection counts time by layer: the n-th record of a layer is its token n.
func scanSelection(ctx context.Context, in io.Reader, side *dump.SelMeta, e *end, fn func(*cell) error) error {
	r := dump.NewSelReader(in)
	var (
		c     cell
		ticks [256]int64
	)
	rec, err := r.Next()
	for ; err == nil; rec, err = r.Next() {
		if r.Records()&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c.layer, c.tick, c.pos = rec.Layer, ticks[rec.Layer], ticks[rec.Layer]
		ticks[rec.Layer]++
		c.slots = c.slots[:0]
		for i, x := range rec.Expert {
			if side != nil && side.NExpert > 0 && int(x) >= side.NExpert {
				return fmt.Errorf("view: record %d before byte %#x: expert %d, the sidecar says %d experts", r.Records()-1, r.Offset(), x, side.NExpert)
			}
			w := rec.Weight[i]
			c.slots = append(c.slots, slot{expert: int(x), weight: float64(w), known: w-w == 0, residency: dump.Hit})
		}
		if err := fn(&c); err != nil {
			return err
		}
	}
	e.records = r.Records()
	return err
}
