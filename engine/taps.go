package engine

import (
	"sluice/dump"
	"sluice/engine/model"
	"sluice/moe"
)

// taps are the recordings that the configuration arms, and whoever else wants to be told.
func (e *Engine) taps() (all []moe.Tap, err error) {
	c := &e.cfg
	if w := c.SelDump; w != nil {
		if w.TakesRows() != e.several() {
			return nil, model.Settingf("a selection dump that says whose records are: %t, of an engine for %d sequences", w.TakesRows(), c.Seqs)
		}
		all = append(all, &selTap{w, e.dumpRows()})
	}
	if w := c.Trace; w != nil {
		if w.TakesRows() != e.several() {
			return nil, model.Settingf("a route trace that says whose rows are: %t, of an engine for %d sequences", w.TakesRows(), c.Seqs)
		}
		all = append(all, &traceTap{w: w, rows: e.dumpRows()})
	}
	return append(all, c.Taps...), nil
}

// several says whether recordings tell whose each row is.
func (e *Engine) several() bool { return e.cfg.Seqs > 1 }

// dumpRows is room for a pass's rows in the recordings' words; nil where they are one sequence's.
func (e *Engine) dumpRows() []dump.Row {
	if !e.several() {
		return nil
	}
	return make([]dump.Row, e.cfg.Batch)
}

// rowsOf translates rows.
func rowsOf(dst []dump.Row, rows []moe.Row) []dump.Row {
	for i, r := range rows {
		dst[i] = dump.Row{Seq: r.Seq, Turn: r.Turn, Phase: uint8(r.Phase), Step: r.Step}
	}
	return dst[:len(rows)]
}

// selTap writes the selection dump.
type selTap struct {
	w    *dump.SelWriter
	rows []dump.Row
}

func (t *selTap) Routed(o *moe.Observed) error {
	if t.rows == nil {
		return t.w.Record(o.Layer, o.T, o.K, o.Expert, o.Weight)
	}
	return t.w.RecordRows(o.Layer, o.T, o.K, o.Expert, o.Weight, rowsOf(t.rows, o.Rows), o.Pass)
}

func (*selTap) Computed(*moe.Observed) error { return nil }

// traceTap writes the route trace.
type traceTap struct {
	w    *dump.TraceWriter
	rows []dump.Row
	c    dump.TraceCall
}

func (*traceTap) Routed(*moe.Observed) error { return nil }

func (t *traceTap) Computed(o *moe.Observed) error {
	c, first := &t.c, &o.Rows[0]
	c.Layer, c.T, c.K = o.Layer, o.T, o.K
	if t.rows == nil {
		c.Turn, c.Phase, c.Pos0 = int(first.Turn), int(first.Phase), int(first.Step)
	} else {
		c.Rows, c.Pass = rowsOf(t.rows, o.Rows), o.Pass
	}
	c.Expert, c.Weight, c.Dropped = o.Expert, o.Weight, o.Dropped
	c.Resident, c.ReadBytes = o.Resident, o.Read
	if t.w.TakesAhead() {
		c.Ahead, c.AheadBytes = o.Ahead, o.AheadBytes
	}
	return t.w.Call(c)
}
