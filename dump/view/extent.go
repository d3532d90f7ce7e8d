package view

import (
	"fmt"
	"slices"
)

// Limits of a page.
const (
	maxLayers  = 1024
	maxExperts = 1 << 16 // a sidecar may state more, ids are below
	maxMarks   = 200     // turn marks on the time axis; more would be a solid line
)

// extent is what the first pass finds.
type extent struct {
	layers  []int // that have cells, ascending
	index   []int // by layer: its place in layers
	experts int   // highest id + 1
	ticks   int64
	turns   int
	marks   []int64 // ticks at which turns begin, the first one left out
	slots   uint64
	unknown uint64 // slots whose weight is no number
	kMin    int
	kMax    int
	seen    [maxLayers]bool
	lastT   int
}

func (x *extent) cell(c *cell) error {
	if c.layer >= maxLayers {
		return fmt.Errorf("view: layer %d: a page shows layers below %d", c.layer, maxLayers)
	}
	x.seen[c.layer] = true
	if c.turn > x.lastT {
		x.lastT = c.turn
		if len(x.marks) < maxMarks {
			x.marks = append(x.marks, c.tick)
		}
	}
	x.turns, x.ticks = max(x.turns, c.turn+1), max(x.ticks, c.tick+1)
	k := len(c.slots)
	if x.slots == 0 {
		x.kMin = k
	}
	x.kMin, x.kMax = min(x.kMin, k), max(x.kMax, k)
	x.slots += uint64(k)
	for i := range c.slots {
		e := c.slots[i].expert
		x.experts = max(x.experts, e+1) // ids are below maxExperts in both formats
		if !c.slots[i].known {
			x.unknown++
		}
	}
	return nil
}

func (x *extent) finish() {
	x.index = make([]int, maxLayers)
	for il, seen := range x.seen {
		if seen {
			x.index[il] = len(x.layers)
			x.layers = append(x.layers, il)
		}
	}
	x.layers = slices.Clip(x.layers)
}
