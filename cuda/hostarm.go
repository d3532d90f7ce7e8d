//go:build cuda

package cuda

import (
	"fmt"

	"sluice/moe"
)

// hostLayer computes a layer on the host arm: router logits to the host, the plain steps of package moe there, and the
// table back to where the device would have made it.
func (w *walk) hostLayer(st *steps, il int) error {
	at, n, k := &st.layers[il], w.n, w.cfg.NExpertUsed
	if err := w.launch(st, at.start, at.route); err != nil {
		return err
	}
	rlog := w.pin.rlog.Bytes[:4*n*w.m.NExpert]
	if err := w.compute.CopyOut(rlog, w.b.rlog); err != nil {
		return err
	}
	if err := w.compute.Sync(); err != nil {
		return err
	}
	var resident []uint8
	if w.watched {
		resident = w.resident(il)
	}
	c := &w.call
	*c = moe.Call{Layer: il, T: n, Router: w.routers[il], Logits: float32s(rlog), Resident: resident, Sel: w.sel, Table: w.table}
	c.Drop, c.Exempt = w.pass.Drops(w.c.Drop)
	if err := w.timer.route(w, il, func() error { return w.arm.Route(c) }); err != nil {
		w.locate(err)
		return fmt.Errorf("cuda: %w", err)
	}
	w.drops.Add(c)
	if err := w.taps.routed(il, w.sel.Expert[:n*k], w.sel.Weight[:n*k]); err != nil {
		return err
	}
	enc := w.pin.table.Bytes[:st.table.EncodedBytes()]
	st.table.Encode(enc, w.table, n)
	if err := w.compute.CopyIn(st.table.Offsets, enc); err != nil {
		return err
	}
	w.ids = w.ids[:0]
	for e := range w.m.NExpert {
		if w.table.Offsets[e+1] > w.table.Offsets[e] {
			w.ids = append(w.ids, int32(e))
		}
	}
	w.timer.entries(il, len(w.table.Token), len(w.ids))
	w.countExperts(il, len(w.ids))
	if err := w.hostExperts(st, il); err != nil {
		return err
	}
	w.reached = il + 1
	return w.taps.computed(il, w.sel.Dropped[:n*k])
}

// hostExperts computes the experts in w.ids.
func (w *walk) hostExperts(st *steps, il int) error {
	at := &st.layers[il]
	if !w.ahead {
		return w.launch(st, at.route, at.end)
	}
	if err := w.launch(st, at.route, at.experts); err != nil { // the shared expert is computed while the others come
		return err
	}
	if w.d.opt.NoOverlap {
		if err := w.compute.Sync(); err != nil {
			return err
		}
	}
	if err := w.runWaves(st, il, w.ids, w.table.Offsets); err != nil {
		return err
	}
	w.nextResidency(il)
	err := w.launch(st, at.combine, at.end)
	w.timer.part = nil
	return err
}
