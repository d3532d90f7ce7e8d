//go:build cuda

package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/moe/store"
)

// experts is a model's routed experts as far as they are on the device: all of them, or some in slots by least recent
// use. Kernels find them through a table of pointers, a row a layer.
type experts struct {
	s        *weights
	nExpert  int
	shapes   []expertShape // by layer
	classes  []slotClass
	of       []int // class by layer
	budget   int64
	resident bool

	mems   []*driver.Mem // of a layer if resident, else of a class
	ptrs   *driver.Mem   // uint64 [layers][nExpert][3]
	put    *driver.Program
	caches []*store.Cache // by class; nil if resident
	slot   [][]int32      // by class: slot of an expert's id, -1 if it has none
	empty  [][]int32      // by class: slots nobody has

	missing []int32 // of the demand that runs
}

// openExperts takes device memory for the experts of a session with k of them a token, within budget bytes, as
// planBudget has said.
func openExperts(s *weights, k int, budget int64) (_ *experts, err error) {
	x := &experts{s: s, nExpert: s.model.NExpert, budget: budget}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.free())
		}
	}()
	for i := range s.model.Layers {
		x.shapes = append(x.shapes, shapeOf(s.model.Layers[i].Experts()))
	}
	x.classes, x.of = slotClasses(x.shapes)
	x.resident = budget >= allBytes(x.classes, x.nExpert)
	drv := s.d.drv
	if x.ptrs, err = drv.Alloc(int64(len(x.shapes))*dev.PtrRowBytes(x.nExpert), "table of expert pointers"); err != nil {
		return nil, err
	}
	if x.put, err = drv.NewProgram([]dev.Launch{dev.Publish(x.ptrs.Ptr, 0, 0, 0)}); err != nil {
		return nil, err
	}
	if err := s.d.stage.stream.Zero(x.ptrs.Ptr, x.ptrs.Bytes); err != nil {
		return nil, err
	}
	take := func(n int64, what string) error {
		m, err := drv.Alloc(n, what)
		if err == nil {
			x.mems = append(x.mems, m)
		}
		return err
	}
	if x.resident {
		for il, sh := range x.shapes {
			if err := take(sh.bytes*int64(x.nExpert), fmt.Sprintf("experts of layer %d", il)); err != nil {
				return nil, err
			}
		}
		return x, nil
	}
	shareSlots(x.classes, x.nExpert, k, budget)
	for _, c := range x.classes {
		if err := take(c.bytes*int64(c.slots), fmt.Sprintf("%d expert slots of %s", c.slots, size(c.bytes))); err != nil {
			return nil, err
		}
		slot, empty := make([]int32, c.layers*x.nExpert), make([]int32, c.slots)
		for j := range slot {
			slot[j] = -1
		}
		for j := range empty {
			empty[j] = int32(c.slots - 1 - j)
		}
		x.slot, x.empty = append(x.slot, slot), append(x.empty, empty)
	}
	x.missing = make([]int32, 0, x.nExpert)
	x.caches, err = newCaches(x.classes, x.of, x.nExpert)
	return x, err
}

func (x *experts) free() error {
	var err error
	for _, m := range append(x.mems, x.ptrs) {
		if m != nil {
			err = errors.Join(err, m.Free())
		}
	}
	if x.put != nil {
		err = errors.Join(err, x.put.Close())
	}
	return err
}

// row is a layer's row of the table of pointers.
func (x *experts) row(il int) dev.Ptr { return x.ptrs.Ptr.At(int64(il) * dev.PtrRowBytes(x.nExpert)) }

// publish writes an expert's entry; at 0 takes it back.
func (x *experts) publish(il, e int, at dev.Ptr) error {
	var p [3]dev.Ptr
	if at != 0 {
		for i := range p {
			p[i] = at.At(x.shapes[il].proj[i].off)
		}
	}
	x.put.Set(0, dev.PublishEntryArg, x.row(il).At(24*int64(e)).Cell())
	x.put.Set(0, dev.PublishGateArg, p[0].Cell())
	x.put.Set(0, dev.PublishUpArg, p[1].Cell())
	x.put.Set(0, dev.PublishDownArg, p[2].Cell())
	return x.put.Run(x.s.d.stage.stream, 0, 1)
}

// copyIn copies an expert's weights to its place and publishes it, behind what the staging stream has to do. w may go
// when it returns.
func (x *experts) copyIn(il, e int, at dev.Ptr, w store.Expert) error {
	sh, stage := &x.shapes[il], x.s.d.stage
	for i, src := range [3][]byte{w.Gate, w.Up, w.Down} {
		p := &sh.proj[i]
		if want := p.rows * p.typ.RowBytes(p.cols); len(src) != want {
			return fmt.Errorf("cuda: layer %d expert %d: %d bytes, want %d", il, e, len(src), want)
		}
		if err := stage.matrix(p.typ, at.At(p.off), p.rows, p.cols, src); err != nil {
			return err
		}
	}
	return x.publish(il, e, at)
}

// at is where an expert's weights lie, or are to lie.
func (x *experts) at(il, e int) dev.Ptr {
	sh := &x.shapes[il]
	if x.resident {
		return x.mems[il].Ptr.At(int64(e) * sh.bytes)
	}
	c := x.of[il]
	return x.mems[c].Ptr.At(int64(x.slot[c][x.caches[c].ID(il, e)]) * sh.bytes)
}

// fill copies all experts to the device, through the source in the order of the layers.
func (x *experts) fill(ctx context.Context, src store.Source) error {
	ids := make([]int32, x.nExpert)
	for e := range ids {
		ids[e] = int32(e)
	}
	for il := range x.shapes {
		if err := throughSource(ctx, src, il, ids, nil, func(e int, w store.Expert, _ int64) error {
			return x.copyIn(il, e, x.at(il, e), w)
		}); err != nil {
			return fmt.Errorf("cuda: layer %d: %w", il, err)
		}
	}
	return x.s.d.stage.stream.Sync()
}

// throughSource demands experts and hands out each, in as many parts as the source holds together; read is what had to be
// read for it. Those of has, which may be nil, are demanded and not handed out.
func throughSource(ctx context.Context, src store.Source, il int, ids []int32, has []bool, each func(e int, w store.Expert, read int64) error) error {
	if _, ok := src.(store.Sparer); !ok {
		has = nil // it hands out all
	}
	for len(ids) > 0 {
		n, err := demand(src, il, ids, has)
		if err != nil {
			return err
		}
		for at := range n {
			if has != nil && has[at] {
				continue
			}
			i, w, err := src.Next(ctx)
			if err == nil {
				err = each(int(ids[i]), w, src.ReadBytes(i))
			}
			if err != nil {
				src.Release()
				if i >= 0 {
					err = fmt.Errorf("expert %d: %w", ids[i], err)
				}
				return err
			}
		}
		src.Release()
		if ids = ids[n:]; has != nil {
			has = has[n:]
		}
	}
	return nil
}

// demand is the source's Demand, which spares it what the device has.
func demand(src store.Source, il int, ids []int32, has []bool) (int, error) {
	if s, ok := src.(store.Sparer); ok && has != nil {
		return s.DemandBut(il, ids, has)
	}
	return src.Demand(il, ids)
}

// hold makes slots for the first n experts of ids, as many as there are slots for at once, and says which of those have
// to be copied (missing, valid until the next call). What made room is taken out of the table of pointers first. settle
// ends the hold.
func (x *experts) hold(il int, ids []int32) (n int, missing []int32, err error) {
	c := x.of[il]
	cache := x.caches[c]
	if n, err = cache.Demand(il, ids); err != nil {
		return 0, nil, err
	}
	for _, id := range cache.Evicted() {
		layer, e := cache.Locate(id)
		x.drop(c, id)
		err = errors.Join(err, x.publish(layer, e, 0))
	}
	x.missing = x.missing[:0]
	for i, id := range cache.Held() {
		if cache.Missed()[i] {
			last := len(x.empty[c]) - 1
			x.slot[c][id], x.empty[c] = x.empty[c][last], x.empty[c][:last]
			x.missing = append(x.missing, ids[i])
		}
	}
	return n, x.missing, err
}

// drop gives the slot of an expert back.
func (x *experts) drop(class int, id int32) {
	x.empty[class] = append(x.empty[class], x.slot[class][id])
	x.slot[class][id] = -1
}

// settle ends a hold. After an error what was missing is not there.
func (x *experts) settle(il int, failed error) error {
	c := x.of[il]
	cache := x.caches[c]
	if failed == nil {
		cache.Release()
		return nil
	}
	for i, id := range cache.Held() {
		if cache.Missed()[i] {
			_, e := cache.Locate(id)
			failed = errors.Join(failed, x.publish(il, e, 0))
			x.drop(c, id)
		}
	}
	cache.Abort()
	return failed
}

// present says whether the device has an expert.
func (x *experts) present(il, e int) bool {
	if x.resident {
		return true
	}
	c := x.of[il]
	return x.slot[c][x.caches[c].ID(il, e)] >= 0
}

// stats adds up the classes.
func (x *experts) stats() (s store.CacheStats, slots int) {
	for _, c := range x.caches {
		one := c.Stats()
		s.Hits += one.Hits
		s.Misses += one.Misses
		s.Evictions += one.Evictions
		s.Entries += one.Entries
	}
	for _, c := range x.classes {
		if slots += c.slots; x.resident {
			slots += c.layers * x.nExpert
		}
	}
	return s, slots
}

// slotSum says what k experts a class come to.
func slotSum(classes []slotClass, k int) string {
	parts := make([]string, len(classes))
	for i, c := range classes {
		parts[i] = fmt.Sprintf("%d slots of %s", k, size(c.bytes))
	}
	return fmt.Sprintf("%s, together %s", strings.Join(parts, " and "), size(leastBytes(classes, k)))
}

// size is a number of bytes in a user's words.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
