//go:build cuda

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	dev "sluice/cuda/kernels"
)

// driven says whether a layer's call may need more experts than there are slots for. The host then launches the experts
// itself, in waves, once it knows which they are.
func (w *walk) driven(il int) bool { return w.crowded(il, w.n) }

// crowded is driven for a pass of n rows.
func (w *walk) crowded(il, n int) bool {
	return !w.x.resident && w.x.classes[w.x.of[il]].slots < min(w.m.NExpert, n*w.cfg.NExpertUsed)
}

// drivenLayer computes such a layer on the table arm.
func (w *walk) drivenLayer(st *steps, il int) error {
	at := &st.layers[il]
	if err := w.serveUpTo(il); err != nil {
		return err
	}
	if err := w.launch(st, at.start, at.experts); err != nil {
		return err
	}
	w.seq++ // the message's; nobody waits for the flag
	if err := w.message(il); err != nil {
		return err
	}
	counts := w.pin.counts.Bytes
	if err := w.compute.CopyOut(counts, st.table.Offsets); err != nil {
		return err
	}
	if err := w.compute.Sync(); err != nil {
		return err
	}
	w.countExperts(il, len(w.ids))
	if err := w.runWaves(st, il, w.ids, int32s(counts)); err != nil {
		return err
	}
	w.nextResidency(il)
	w.served++
	w.reached = w.served
	err := w.launch(st, at.combine, at.end)
	w.timer.part = nil
	return err
}

// runWaves computes the experts of a layer call, as many at a time as there are slots for, each wave over its own stretch
// of the table's tiles. offsets are the table's.
func (w *walk) runWaves(st *steps, il int, ids []int32, offsets []int32) error {
	if w.x.resident || len(ids) <= w.x.classes[w.x.of[il]].slots {
		return w.oneWave(st, il, ids)
	}
	first := true
	for rest := ids; len(rest) > 0; {
		held := len(rest)
		if w.watched {
			w.has = w.has[:0]
			for _, e := range rest {
				w.has = append(w.has, w.x.present(il, int(e)))
			}
			var err error
			if held, err = demand(w.src, il, rest, w.has); err != nil {
				return fmt.Errorf("cuda: layer %d: %w", il, err)
			}
		}
		for part, from := rest[:held], 0; len(part) > 0; first = false {
			n, err := w.wave(st, il, part, from, offsets, first)
			if err != nil {
				return err
			}
			part, from = part[n:], from+n
		}
		if w.watched {
			for i, e := range rest[:held] {
				w.taps.read(il, int(e), w.src.ReadBytes(i))
			}
			w.src.Release()
		}
		rest = rest[held:]
	}
	return nil
}

// oneWave computes experts that have room together.
func (w *walk) oneWave(st *steps, il int, ids []int32) error {
	lacked, err := w.bring(il, ids)
	if err != nil {
		return err
	}
	err = w.timer.fetch(w, il, func() error {
		if !lacked {
			return nil
		}
		return errors.Join(w.came.Record(w.d.stage.stream), w.compute.Wait(w.came))
	})
	if err != nil {
		return err
	}
	at := &st.layers[il]
	w.setTiles(st, il, 0, st.table.NTiles)
	err = w.launch(st, at.experts, at.combine)
	w.timer.part = &layerCount{} // the combine is counted with that
	return err
}

// wave brings the first experts of part that have room together and launches them; n says how many that are. from is
// part's place in what the source holds.
func (w *walk) wave(st *steps, il int, part []int32, from int, offsets []int32, first bool) (n int, err error) {
	stage := w.d.stage.stream
	if !first { // their slots are in use until then
		if err := stage.Wait(w.through); err != nil {
			return 0, err
		}
	}
	if n, err = w.bringWave(il, part, from); err != nil {
		return 0, err
	}
	part = part[:n]
	last := part[n-1]
	w.timer.part = &layerCount{int(offsets[last+1] - offsets[part[0]]), n, len(w.x.missing)}
	err = w.timer.fetch(w, il, func() error { return errors.Join(w.came.Record(stage), w.compute.Wait(w.came)) })
	if err != nil {
		return 0, err
	}
	t0, t1 := 0, 0
	for e := range int(last) + 1 {
		if e == int(part[0]) {
			t0 = t1
		}
		t1 += (int(offsets[e+1]-offsets[e]) + dev.TileCols - 1) / dev.TileCols
	}
	w.setTiles(st, il, t0, w.b.numbers.At(4*int64(t1-t0)))
	at := &st.layers[il]
	if err := w.launch(st, at.experts, at.combine); err != nil {
		return 0, err
	}
	w.timer.part = &layerCount{} // the combine, which is one for all waves
	return n, w.through.Record(w.compute)
}

// bringWave is bring for the first experts of part that have room together. Where the source's word counts it holds part
// already, at place from.
func (w *walk) bringWave(il int, part []int32, from int) (n int, err error) {
	w.clock.manage(w)
	defer w.clock.managed(w)
	n, missing, err := w.x.hold(il, part)
	settled := false
	defer func() {
		if !settled {
			err = w.x.settle(il, cmp.Or(err, errGivenUp))
		}
	}()
	if err != nil {
		return 0, err
	}
	w.taking = il
	if !w.watched {
		err = w.fetch(il, part[:n], missing)
	} else {
		w.tallyCalls(il, n, len(missing))
		for i := 0; i < n && err == nil; i++ {
			e := int(part[i])
			if _, lacks := slices.BinarySearch(missing, part[i]); !lacks {
				continue
			}
			x, failed := w.src.Expert(from + i)
			if err = failed; err == nil {
				err = w.x.copyIn(il, e, w.x.at(il, e), x)
			}
			if err != nil {
				err = fmt.Errorf("cuda: layer %d: expert %d: %w", il, e, err)
			}
		}
		if err == nil && w.d.opt.NoOverlap {
			err = w.d.stage.stream.Sync()
		}
	}
	if err != nil {
		return 0, err
	}
	settled = true
	return n, w.x.settle(il, nil)
}

// setTiles makes the layer's launches over tiles begin at tile t0, as many of them as the word at many says.
func (w *walk) setTiles(st *steps, il, t0 int, many dev.Ptr) {
	for _, l := range st.layers[il].tiled {
		st.prog.Set(l.launch, l.tiles, st.table.Tiles.At(12*int64(t0)).Cell())
		st.prog.Set(l.launch, l.tiles+1, many.Cell())
	}
}
