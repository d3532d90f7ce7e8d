//go:build cuda

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	dev "sluice/cuda/kernels"
	"sluice/engine/model"
	"sluice/moe"
)

// Run implements model.Backend: the whole pass is one Do.
func (w *walk) Run(ctx context.Context, p *model.Pass) error {
	w.ctx, w.n = ctx, len(p.IDs)
	w.pass.begin(p)
	err := w.d.drv.Do(w.do)
	w.ctx, w.pass.Pass = nil, nil
	if err != nil {
		return err
	}
	for i := range p.Spans {
		p.Spans[i].State.(*state).n += p.Spans[i].N
	}
	return nil
}

// run is Run on the device's thread.
func (w *walk) run() error {
	p := &w.pass
	for i, id := range p.IDs {
		if id < 0 || int(id) >= w.m.NVocab {
			return fmt.Errorf("cuda: token id %d at position %d: want 0..%d", id, p.position(i), w.m.NVocab-1)
		}
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	for i := range p.Spans {
		if err := p.Spans[i].State.(*state).grow(p.Spans[i].N); err != nil {
			return err
		}
	}
	if err := w.roomForLogits(); err != nil {
		return err
	}
	st, err := w.steps(progKey{w.n, p.alone})
	if err != nil {
		return err
	}
	w.clock.begin(w)
	w.st, w.reached, w.begun = st, 0, false
	err = w.m.Guard(w.guarded) // experts may come from the file's mapping
	st.runs++
	w.stale = !w.host
	if err != nil {
		w.dirty = true
		w.src.Release()
		if e := w.drain(); e != nil {
			err = errors.Join(err, e)
		} else {
			err = w.blame(err)
			err = errors.Join(err, w.uncount(), w.taps.rescue(st, w.reached))
		}
	}
	w.clock.end(w)
	return err
}

// walk launches the pass and brings its results back. After an error w.reached says how many layers were routed.
func (w *walk) walk() error {
	st := w.st
	if err := w.timer.begin(w); err != nil {
		return err
	}
	if err := w.place(); err != nil {
		return err
	}
	st.aim(w)
	if w.graphed(st) {
		w.begun = true
		if err := w.replay(st); err != nil {
			return err
		}
	} else {
		if err := w.layers(st); err != nil {
			return err
		}
		if err := w.last(st); err != nil {
			return err
		}
		if err := w.results(st); err != nil {
			return err
		}
	}
	if err := w.compute.Sync(); err != nil {
		return err
	}
	if err := w.conclude(st); err != nil {
		return err
	}
	w.count()
	return errors.Join(w.taps.record(st, len(st.layers)), w.timer.end(w))
}

// layers launches all layers, one after the other as far as the host has a part in them.
func (w *walk) layers(st *steps) error {
	if w.rec == nil && !w.host && !w.ahead && w.pass.alone {
		w.begun = true
		return st.prog.Run(w.compute, 0, st.check) // one call for the step
	}
	if err := w.launch(st, 0, st.layers[0].start); err != nil {
		return err
	}
	if w.ahead {
		if err := w.beginServing(st); err != nil {
			return err
		}
	}
	for il := range st.layers {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		w.begun = true
		at := &st.layers[il]
		var err error
		switch {
		case w.host:
			err = w.hostLayer(st, il)
		case !w.ahead:
			err = w.launch(st, at.start, at.end)
		case w.driven(il):
			err = w.drivenLayer(st, il)
		default:
			err = w.aheadLayer(st, il)
		}
		if err != nil {
			return err
		}
		if !w.ahead {
			w.reached = il + 1
		}
	}
	if w.ahead && !w.host {
		return w.serveUpTo(len(st.layers))
	}
	return nil
}

// last launches what comes behind the layers.
func (w *walk) last(st *steps) error {
	if !w.pass.proven() {
		if err := st.prog.Run(w.compute, st.check, st.end); err != nil {
			return err
		}
	}
	return w.choose()
}

// results starts the copies of what the host wants to know.
func (w *walk) results(st *steps) error {
	from, to := int64(0), nextAt+4*int64(w.pass.wanted)
	if w.pass.proven() {
		from = nextAt
	}
	if err := w.compute.CopyOut(w.pin.status.Bytes[from:to], w.b.status.At(from)); err != nil {
		return err
	}
	return w.taps.copyOut(st)
}

// conclude reads the results of a pass that has ended.
func (w *walk) conclude(st *steps) error {
	p, b := &w.pass, w.pin.status.Bytes
	ok := true
	if p.proven() {
		for i := range p.wanted {
			ok = ok && w.chosen(i) >= 0
		}
		if !ok {
			if err := w.d.drv.Download(b[:nextAt], w.b.status); err != nil {
				return err
			}
		}
	} else {
		ok = binary.LittleEndian.Uint64(b[faultAt:])|binary.LittleEndian.Uint64(b[routeAt:]) == 0
	}
	if p.moves() {
		w.moveOn()
	}
	w.reached = len(st.layers)
	if ok {
		return nil
	}
	return w.fault(nil)
}

// fault is the earliest of what is wrong in the pass, in the order in which the steps run: of e, a row of router logits
// without an answer, and of what the device has noted in the copy of its status. nil if there is nothing. w.reached then
// says how many layers were routed by then.
func (w *walk) fault(e *moe.LogitError) error {
	head := w.pin.status.Bytes
	f, bad := dev.ReadFault(binary.LittleEndian.Uint64(head[faultAt:]))
	if e == nil {
		e = dev.DecodeRouteError(binary.LittleEndian.Uint64(head[routeAt:]), 0)
		w.locate(e)
	}
	switch {
	case e != nil && (!bad || f.Layer > e.Layer || f.Layer == e.Layer && f.Where == dev.WhereExperts):
		w.reached = e.Layer
		return fmt.Errorf("cuda: %w", e)
	case bad:
		if w.reached = f.Layer; f.Where == dev.WhereExperts {
			w.reached++
		}
		return fmt.Errorf("cuda: layer %d: %s (token at position %d)", f.Layer, f.Where, w.pass.position(f.Row))
	}
	return nil
}

// locate makes the position of an error that counts rows the row's.
func (w *walk) locate(err error) {
	var e *moe.LogitError
	if errors.As(err, &e) && e != nil {
		e.Position = w.pass.position(e.Position)
	}
}

// blame finds what made a row of router logits unusable, if that ended the pass.
func (w *walk) blame(err error) error {
	var e *moe.LogitError
	if !errors.As(err, &e) {
		return err
	}
	if err := w.d.drv.Download(w.pin.status.Bytes[:nextAt], w.b.status); err != nil {
		return err
	}
	return w.fault(e)
}

// drain waits until nothing of a pass that was given up is under way.
func (w *walk) drain() error {
	var err error
	if w.ahead {
		// What waits for the host goes on without it: an expert that is not there computes to NaN.
		err = w.d.stage.stream.WriteValue(w.b.flag, w.seq)
	}
	return errors.Join(err, w.d.stage.stream.Sync(), w.compute.Sync())
}

// Notes implements model.Backend.
func (w *walk) Notes() []string { return w.notes }

// sums is the place of a layer's record of what was routed and dropped. It goes on from the layer before, the first one
// from the last of the pass before: the last layer's has the session's totals.
func (w *walk) sums(il int) dev.Ptr { return w.b.sums.At(int64(il) * dev.SumsBytes) }

// uncount takes the layers that nobody has reached out of the totals, after a pass that failed: what ran there was routed
// by a stream without experts. The totals are then those of the calls that are recorded.
func (w *walk) uncount() error {
	if w.host || !w.begun || w.reached == w.m.NLayer {
		return nil
	}
	var b [dev.SumsBytes]byte
	if err := w.d.drv.Download(b[:], w.sums(max(0, w.reached-1))); err != nil {
		return err
	}
	if w.reached == 0 {
		dev.RestoreSums(b[:])
	}
	return w.d.drv.Upload(w.sums(w.m.NLayer-1), b[:])
}

// Drops implements model.Backend: what the device has added up is fetched when somebody asks.
func (w *walk) Drops() model.DropCount {
	if w.stale {
		_ = w.d.drv.Do(func() error { // the next pass says it if the device is lost
			var b [dev.SumsBytes]byte
			if err := w.d.drv.Download(b[:], w.sums(w.m.NLayer-1)); err != nil {
				return err
			}
			_, t, _ := dev.DecodeSums(b[:])
			w.drops = model.DropCount{Routed: t.Routed, Dropped: t.Dropped, Mass: t.Mass, MassDropped: t.MassDropped}
			w.stale = false
			return nil
		})
	}
	return w.drops
}

// count adds up the weight bytes that the pass has read.
func (w *walk) count() {
	w.done += int64(w.n * w.m.TokEmbd.Type.RowBytes(w.m.NEmbd))
	for il := range w.m.Layers {
		w.done += w.m.LayerDenseBytes(il)
		if w.n == 1 && !w.ahead && !w.host { // nothing is dropped where nothing can be missing
			w.done += int64(w.cfg.NExpertUsed) * w.m.Layout.ExpertBytes(il)
		}
	}
	w.tally = w.tally || !w.ahead && !w.host && w.n > 1
	for from := 0; from < w.pass.wanted; from += headRows {
		w.countOutput()
	}
}

func (w *walk) countOutput() {
	w.done += int64(len(w.m.Output.Data) + 4*len(w.m.OutNorm.X))
}

// WeightBytes implements model.Backend.
func (w *walk) WeightBytes() int64 {
	total := w.done
	if w.tally {
		_ = w.d.drv.Do(func() error {
			var b [8]byte
			err := w.d.drv.Download(b[:], w.b.tally)
			total += int64(binary.LittleEndian.Uint64(b[:]))
			return err
		})
	}
	return total
}

// DeviceStats is what Engine.DeviceStats returns.
func (w *walk) DeviceStats() model.DeviceStats { return w.stats }
