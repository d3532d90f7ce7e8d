package engine

import (
	"sluice/dump"
	"sluice/moe"
)

// taps are the recordings that the configuration arms.
func (e *Engine) taps() (all []moe.Tap) {
	if w := e.cfg.SelDump; w != nil {
		all = append(all, selTap{w})
	}
	if w := e.cfg.Trace; w != nil {
		all = append(all, &traceTap{w: w})
	}
	return append(all, e.cfg.Taps...)
}

// selTap writes the selection dump.
type selTap struct{ w *dump.SelWriter }

func (t selTap) Routed(o *moe.Observed) error {
	return t.w.Record(o.Layer, o.T, o.K, o.Expert, o.Weight)
}

func (selTap) Computed(*moe.Observed) error { return nil }

// traceTap writes the route trace.
type traceTap struct {
	w *dump.TraceWriter
	c dump.TraceCall
}

func (*traceTap) Routed(*moe.Observed) error { return nil }

func (t *traceTap) Computed(o *moe.Observed) error {
	c, first := &t.c, &o.Rows[0]
	c.Turn, c.Phase, c.Pos0, c.Layer, c.T, c.K = int(first.Turn), int(first.Phase), int(first.Step), o.Layer, o.T, o.K
	c.Expert, c.Weight, c.Dropped = o.Expert, o.Weight, o.Dropped
	c.Resident, c.ReadBytes = o.Resident, o.Read
	if t.w.TakesAhead() {
		c.Ahead, c.AheadBytes = o.Ahead, o.AheadBytes
	}
	return t.w.Call(c)
}
