//go:build cuda

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	dev "sluice/cuda/kernels"
	"sluice/moe/store"
)

// runAhead is how many layer calls the device may have before it that the host has not answered. Launches are put into
// the stream before anybody knows what is missing, so that a call that lacks nothing costs no round trip; but a stream that
// waits takes no more than about a thousand launches, and the host must not be stuck at one when its answer is awaited.
const runAhead = 2

// spinLooks is how often the host looks for a message before it sleeps in between: about 50 microseconds of a core, in which
// a device computes a layer. A sleep costs more than that, and experts that are read take longer than any.
const spinLooks = 50_000

// beginServing gives the pass's layer calls their sequence numbers.
func (w *walk) beginServing(st *steps) error {
	w.served, w.base = 0, w.seq
	if w.watched {
		w.src.Residency(0, w.resident(0))
	}
	if w.host {
		return nil
	}
	for il := range st.layers {
		at, seq := st.layers[il].post, dev.I32(int(w.base+uint32(il)+1))
		st.prog.Set(at, dev.PostSeqArg, seq)
		if !w.watched {
			st.prog.Set(at+1, dev.ReleaseSeqArg, seq)
		}
	}
	return nil
}

// resident is a layer's row of residency before the call, as the source has it, which the drop kernel reads in place.
func (w *walk) resident(il int) []uint8 {
	n := w.m.NExpert
	return w.pin.resid.Bytes[il*n : (il+1)*n]
}

// aheadLayer launches a layer whose experts all fit together, whether they are there or not.
func (w *walk) aheadLayer(st *steps, il int) error {
	at := &st.layers[il]
	early := at.experts // the shared expert is computed while the others come
	if w.d.opt.NoOverlap {
		early = at.shared
	}
	if err := w.launch(st, at.start, early); err != nil {
		return err
	}
	w.seq++
	if err := w.timer.fetch(w, il, func() error { return w.compute.WaitValue(w.b.flag, w.seq) }); err != nil {
		return err
	}
	if err := w.launch(st, early, at.end); err != nil {
		return err
	}
	return w.serveUpTo(il + 1 - runAhead)
}

// serveUpTo answers the layer calls below n.
func (w *walk) serveUpTo(n int) error {
	for w.served < n {
		il := w.served
		if err := w.message(il); err != nil {
			return err
		}
		lacked, err := w.bring(il, w.ids)
		if err != nil {
			return err
		}
		w.nextResidency(il)
		// Without the source's word on it the device has gone on by itself where nothing was missing.
		if lacked || w.watched {
			if err := w.d.stage.stream.WriteValue(w.b.flag, w.base+uint32(il)+1); err != nil {
				return err
			}
		}
		w.served++
		w.reached = w.served
	}
	return nil
}

// nextResidency notes the state before the next layer's call, once this one's is settled.
func (w *walk) nextResidency(il int) {
	if w.watched && il+1 < len(w.m.Layers) {
		w.src.Residency(il+1, w.resident(il+1))
	}
}

// message waits for a layer's message, and fills w.ids with the experts it names.
func (w *walk) message(il int) error {
	n := w.m.NExpert
	stride := postStride(n)
	b := w.pin.posts.Bytes[int64(il)*stride:]
	seq := w.base + uint32(il) + 1
	for looks := 0; dev.PostSeq(b) != seq; looks++ {
		if looks < spinLooks {
			continue
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		// A kernel that failed posts nothing.
		if idle, err := w.compute.Query(); err != nil {
			return err
		} else if idle && dev.PostSeq(b) != seq {
			return fmt.Errorf("cuda: layer %d: the device ended without saying which experts it needs", il)
		}
		// The thread sleeps, not the goroutine: that is bound to it, and a switch costs both more than the sleep.
		nap := unix.Timespec{Nsec: 20_000}
		_ = unix.Nanosleep(&nap, nil) // cut short by a signal: looks again sooner
	}
	var err error
	if w.ids, err = dev.DecodePost(b[:dev.PostBytes(n)], n, 0, w.ids[:0]); err != nil {
		w.locate(err)
		return fmt.Errorf("cuda: %w", err)
	}
	if w.n == 1 || !w.driven(il) {
		w.countExperts(il, len(w.ids))
	}
	return w.ctx.Err()
}

// countExperts adds a layer call's experts to the weight bytes.
func (w *walk) countExperts(il, n int) { w.done += int64(n) * w.m.Layout.ExpertBytes(il) }

// bring sees to it that the experts of a layer call, which have room together, are on the device behind what the staging
// stream has to do; lacked says whether one was not. The source hears of all of them where its word counts.
func (w *walk) bring(il int, ids []int32) (lacked bool, err error) {
	w.clock.manage(w)
	defer w.clock.managed(w)
	var missing []int32
	if !w.x.resident {
		var n int
		if n, missing, err = w.x.hold(il, ids); err == nil && n < len(ids) {
			err = fmt.Errorf("cuda: layer %d: %d experts at once, slots for %d", il, len(ids), n)
		}
		settled := false
		defer func() { // after a fault of the file's mapping too
			if !settled {
				err = w.x.settle(il, cmp.Or(err, errGivenUp))
			}
		}()
		if err == nil {
			err = w.fetch(il, ids, missing)
		}
		if err != nil {
			return false, err
		}
		settled = true
		return len(missing) > 0, w.x.settle(il, nil)
	}
	return false, w.fetch(il, ids, nil)
}

// errGivenUp stands for whatever ended a hold.
var errGivenUp = errors.New("cuda: experts were not brought")

// fetch copies what is missing.
func (w *walk) fetch(il int, ids, missing []int32) error {
	w.tallyCalls(il, len(ids), len(missing))
	ask, has := missing, []bool(nil)
	if w.watched {
		ask, has = ids, w.has[:0]
		for _, e := range ids {
			_, lacks := slices.BinarySearch(missing, e)
			has = append(has, !lacks)
		}
		w.has = has
	}
	w.taking = il
	if err := throughSource(w.ctx, w.src, il, ask, has, w.take); err != nil {
		return fmt.Errorf("cuda: layer %d: %w", il, err)
	}
	if w.d.opt.NoOverlap && len(missing) > 0 {
		return w.d.stage.stream.Sync()
	}
	return nil
}

// takeExpert takes one expert from the source.
func (w *walk) takeExpert(e int, x store.Expert, read int64) error {
	il := w.taking
	w.taps.read(il, e, read)
	if w.x.resident {
		return nil
	}
	if _, missing := slices.BinarySearch(w.x.missing, int32(e)); !missing {
		return nil
	}
	return w.x.copyIn(il, e, w.x.at(il, e), x)
}

func (w *walk) tallyCalls(il, asked, missing int) {
	w.timer.brought(il, missing)
	if w.x.resident {
		return
	}
	w.stats.Hits += int64(asked - missing)
	w.stats.Misses += int64(missing)
	w.stats.CopiedBytes += int64(missing) * w.x.shapes[il].bytes
	s, _ := w.x.stats()
	w.stats.Evictions = s.Evictions - w.evicted
}
