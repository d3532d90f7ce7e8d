//go:build cuda

package cuda

import (
	"context"
	"errors"
	"fmt"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// walk is one engine on a device: a model.Backend. Everything but Close runs one call at a time, and all of it inside
// Device.Do.
type walk struct {
	d     *Device
	s     *weights
	x     *experts
	c     model.Config
	cfg   *model.Config // c
	m     *model.Model
	src   store.Source
	rec   *model.Recorder
	notes []string
	frees []func() error // in the order of taking

	host bool // the host arm: routing is the host's work
	// The source is asked for every expert of every layer call, because its residency decides on drops or is recorded.
	// Otherwise it is asked for what the device lacks.
	watched bool
	ahead   bool // experts may be missing: the host brings them while the device has gone on

	compute *driver.Stream
	b       buffers
	at      status
	fixed   dev.Table   // Err, which no call lays out anew
	cache   []dev.Cache // by layer
	pool    *pool
	pin     pinned

	progs map[progKey]*steps
	heads map[headKey]*head
	uses  int64 // of programs
	each  eachLogits

	// The pass that runs.
	pass    pass
	ctx     context.Context
	do      func() error // run, bound once
	guarded func() error // walk, bound once
	st      *steps
	n       int    // rows
	begun   bool   // the first layer was launched
	reached int    // layers whose routing is done, after an error
	served  int    // layer calls that the host has answered
	base    uint32 // sequence number before the first layer's

	routers []*moe.Router // by layer
	moved   []dev.Row     // what the rows on the device are, where they are those of a next step
	seq     uint32        // of the last layer call that waits, or waited, for the flag
	dirty   bool          // a fault word may be set

	arm   moe.Arm // host arm
	call  moe.Call
	table *moe.Table
	sel   *moe.Selection

	ids     []int32 // of a layer call
	has     []bool  // of them, those that the source need not read
	take    func(e int, x store.Expert, read int64) error
	taking  int           // layer that take works for
	came    *driver.Event // what a layer call lacked is on the device
	through *driver.Event // a wave has been computed

	taps    taps
	drops   model.DropCount
	stale   bool  // drops are behind the device's
	done    int64 // weight bytes, but for the experts' that the device counts
	tally   bool  // the device has counted some
	stats   model.DeviceStats
	evicted int64 // by sessions before this one
	timer   timer
	clock   clock
}

func newWalk(d *Device, c model.Config) (_ *walk, err error) {
	s, err := d.open(c.Model)
	if err != nil {
		return nil, err
	}
	w := &walk{d: d, s: s, c: c, m: c.Model, src: c.Source, rec: c.Recorder, host: c.Arm == model.ArmHost,
		progs: map[progKey]*steps{}, heads: map[headKey]*head{}}
	w.cfg, w.at = &w.c, layStatus(&c)
	w.pass.want, w.moved = make([]int, 0, c.Seqs), make([]dev.Row, 0, c.Seqs)
	if w.routers, err = c.Routers(); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	w.do, w.guarded, w.take = w.run, w.walk, w.takeExpert
	s.walks++
	defer func() {
		if err != nil {
			err = errors.Join(err, w.release())
		}
	}()
	if d.stage.note != "" {
		w.notes = append(w.notes, d.stage.note)
	}
	if !w.host {
		for il, r := range w.routers {
			if err := checkRouter(c.Model, il, r); err != nil {
				return nil, err
			}
		}
	}
	// Decided with the source alone, so that no device changes it.
	w.watched = c.Source.Stats().BudgetBytes > 0 && (c.Drop != nil || c.Watch)
	if w.compute, err = own(w, d.drv.NewStream, (*driver.Stream).Close); err != nil {
		return nil, err
	}
	if err := w.takeMemory(); err != nil {
		return nil, err
	}
	if err := w.openExperts(); err != nil {
		return nil, err
	}
	if err := w.takeRest(); err != nil {
		return nil, err
	}
	w.stats.Resident, w.stats.BudgetBytes = w.x.resident, w.x.budget
	was, slots := w.x.stats()
	w.stats.Slots, w.evicted = slots, was.Evictions
	w.describe()
	return w, nil
}

// describe tells the recorder what the ops work on.
func (w *walk) describe() {
	w.rec.Describe(w.m, max(1, w.d.info.SMs), func(t kernels.Type) kernels.ActKind {
		if dev.Quantised(t) {
			return kernels.ActQ8_0 // Q8_1 has the same codes and scales
		}
		return kernels.ActF32
	})
	x := w.x
	switch {
	case x.resident:
		w.notes = append(w.notes, fmt.Sprintf("%s of dense weights, all %d experts (%s)", size(w.s.bytes), w.stats.Slots, size(x.budget)))
	default:
		w.notes = append(w.notes, fmt.Sprintf("%s of dense weights, room for %d of %d experts (%s of %s, lru)", size(w.s.bytes),
			w.stats.Slots, len(x.shapes)*x.nExpert, size(x.budget), size(allBytes(x.classes, x.nExpert))))
	}
	if w.c.Drop != nil && !w.watched {
		w.notes = append(w.notes, "nothing can be dropped: the host holds all experts")
	}
}

// Close implements model.Backend.
func (w *walk) Close() error { return w.d.drv.Do(w.release) }

func (w *walk) release() error {
	if w.s == nil {
		return nil
	}
	var err error
	if w.compute != nil {
		err = w.compute.Sync()
	}
	for _, p := range w.progs {
		err = errors.Join(err, p.close())
	}
	for _, h := range w.heads {
		err = errors.Join(err, h.prog.Close())
	}
	for _, p := range w.each.progs {
		err = errors.Join(err, p.Close())
	}
	err = errors.Join(err, w.timer.close())
	for i := len(w.frees) - 1; i >= 0; i-- {
		err = errors.Join(err, w.frees[i]())
	}
	w.frees, w.progs, w.heads, w.each.progs = nil, nil, nil, nil
	w.s.walks--
	w.s = nil
	return err
}
