//go:build cuda

package cuda

import (
	"sluice/kernels"
	"sluice/moe/store"

	dev "sluice/cuda/kernels"
	"sluice/engine/model"
)

// projection is one matrix of an expert inside its slot.
type projection struct {
	typ        kernels.Type
	rows, cols int
	off        int64
}

// expertShape is where the matrices of a layer's experts lie in a slot: gate, up and down, one behind the other.
type expertShape struct {
	proj  [3]projection
	bytes int64
}

func shapeOf(f *model.MoE) (s expertShape) {
	for i, t := range []*model.Experts{&f.Gate, &f.Up, &f.Down} {
		s.proj[i] = projection{t.Type, t.Rows, t.Cols, s.bytes}
		s.bytes += dev.DeviceBytes(t.Type, t.Rows, t.Cols)
	}
	return s
}

// slotClass is the slots of one size: those of the layers whose experts have it. A slot is never cut or joined, so that
// none is ever too small for the experts that may come to it.
type slotClass struct {
	bytes  int64
	layers int
	slots  int
}

// slotClasses groups the layers' shapes by size, in the order in which sizes appear; of is each layer's class.
func slotClasses(shapes []expertShape) (classes []slotClass, of []int) {
	of = make([]int, len(shapes))
	for i, s := range shapes {
		c := 0
		for c < len(classes) && classes[c].bytes != s.bytes {
			c++
		}
		if c == len(classes) {
			classes = append(classes, slotClass{bytes: s.bytes})
		}
		classes[c].layers++
		of[i] = c
	}
	return classes, of
}

// allBytes is the memory of all experts.
func allBytes(classes []slotClass, nExpert int) (n int64) {
	for _, c := range classes {
		n += c.bytes * int64(c.layers) * int64(nExpert)
	}
	return n
}

// leastBytes is the memory that one token needs: a layer's k experts at once, in each size that layers have.
func leastBytes(classes []slotClass, k int) (n int64) {
	for _, c := range classes {
		n += c.bytes * int64(k)
	}
	return n
}

// shareSlots gives each class its slots of a budget that holds leastBytes but not all: k first, and of the rest as much as
// the share of its layers' experts in the model.
func shareSlots(classes []slotClass, nExpert, k int, budget int64) {
	all, left := allBytes(classes, nExpert), budget-leastBytes(classes, k)
	for i := range classes {
		c := &classes[i]
		total := c.bytes * int64(c.layers) * int64(nExpert)
		more := int64(float64(left) * (float64(total) / float64(all)) / float64(c.bytes))
		c.slots = int(min(int64(k)+more, int64(c.layers)*int64(nExpert)))
	}
}

// planBudget says how much device memory experts get of free bytes: all, if all fit with room to spare, else what the
// room leaves. asked 0 is free choice. It is an error if that is less than one token needs.
func planBudget(classes []slotClass, nExpert, k int, asked, free int64) (budget int64, err error) {
	all, least := allBytes(classes, nExpert), leastBytes(classes, k)
	switch {
	case asked > 0:
		budget = asked
	default:
		budget = free - reserve(free)
	}
	if budget >= all {
		return all, nil
	}
	if budget >= least {
		return budget, nil
	}
	if asked > 0 {
		return 0, model.Settingf("device expert cache of %s: one token's experts of a layer need %s", size(asked), slotSum(classes, k))
	}
	return 0, model.Settingf("device memory: %s are free, %s of them stay free, and one token's experts of a layer need %s: a smaller context (-c) or prompt chunk (-b), or fewer sequences, may make the room",
		size(free), size(reserve(free)), slotSum(classes, k))
}

// reserve is device memory left free where nobody said how much to take: the driver's own, a graph's, another session's.
func reserve(free int64) int64 { return min(max(free/16, 32<<20), 1<<30, free/2) }

// newCaches is the bookkeeping of the slots: one cache a class, each over all layers, so that an expert has the same id
// everywhere.
func newCaches(classes []slotClass, of []int, nExpert int) ([]*store.Cache, error) {
	caches := make([]*store.Cache, len(classes))
	for i, c := range classes {
		layers := make([]store.CacheLayer, len(of))
		for il := range layers {
			if of[il] == i {
				layers[il] = store.CacheLayer{Experts: nExpert, SlotBytes: c.bytes}
			}
		}
		budget := int64(c.slots) * c.bytes
		p, err := store.NewPolicy("lru", c.layers*nExpert, budget)
		if err != nil {
			return nil, err
		}
		if caches[i], err = store.NewCache(p, budget, layers); err != nil {
			return nil, err
		}
	}
	return caches, nil
}
