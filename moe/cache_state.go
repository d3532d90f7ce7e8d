package moe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Resident is one expert of a cache's resident set, for a later run that starts with it.
type Resident struct {
	Layer, Expert int32
	Uses          uint32 // Demand calls that have held it, in this run and those that it was loaded from
	Protected     bool   // in the policy's protected segment (slru)
}

// Keeper is a Source whose resident set outlives it: the cached one.
type Keeper interface {
	Source

	// Residents returns the resident set, the next to be evicted first. It is an error while experts are held.
	Residents() ([]Resident, error)

	// Load reads experts into a source that nothing was demanded from yet, in file order, and leaves them resident in the
	// order of the list, as Residents returns it. Of a list that does not fit in the budget it takes the most used, and of
	// equally used ones those that are evicted last; Loaded tells how many were left. What it reads counts in Loaded and in
	// no other counter, so that the run that follows is measured apart. A list with an expert that the model does not have,
	// or has twice, is an error and nothing is read. After another error (a failed read, ctx done) the source is of no use
	// but to be closed.
	Load(ctx context.Context, list []Resident) (Loaded, error)
}

// Loaded is what Load did.
type Loaded struct {
	Experts int // now resident
	Left    int // of the list, that did not fit
	Reads   int64
	Bytes   int64 // as read, padding included
	Seconds float64
}

// protecting is a policy that tells a segment of experts that were used again from the rest.
type protecting interface{ protects(id int32) bool }

func (p *slru) protects(id int32) bool { return p.isProtected[id] }

// adopting is a policy whose order follows from more than the order of insertions: it takes over ids, all that it has,
// the next to be evicted first, with their uses.
type adopting interface {
	adopt(ids []int32, uses []uint32)
}

// use counts a demand of an expert.
func (c *Cache) use(id int32) {
	if c.uses[id] < math.MaxUint32 {
		c.uses[id]++
	}
}

// Residents returns the resident set, the next to be evicted first.
func (c *Cache) Residents() ([]Resident, error) {
	if len(c.held) > 0 {
		return nil, fmt.Errorf("moe: cache: resident set while %d experts are held: release them first", len(c.held))
	}
	list := make([]Resident, 0, c.entries)
	p, _ := c.policy.(protecting)
	for id := c.policy.First(); id >= 0; id = c.policy.Next(id) {
		layer, expert := c.Locate(id)
		list = append(list, Resident{Layer: int32(layer), Expert: int32(expert), Uses: c.uses[id], Protected: p != nil && p.protects(id)})
	}
	return list, nil
}

// Fit checks a list of residents and returns those that the budget holds together, in the list's order: the most used, and
// of equally used ones the last.
func (c *Cache) Fit(list []Resident) ([]Resident, error) {
	seen := make(map[int32]bool, len(list))
	for i, r := range list {
		if r.Layer < 0 || int(r.Layer) >= len(c.layers) || r.Expert < 0 || int(r.Expert) >= c.layers[r.Layer].Experts {
			return nil, fmt.Errorf("moe: cache: resident %d is expert %d of layer %d: the model has none", i, r.Expert, r.Layer)
		}
		id := c.ID(int(r.Layer), int(r.Expert))
		if seen[id] {
			return nil, fmt.Errorf("moe: cache: resident %d: expert %d of layer %d stands in the list twice", i, r.Expert, r.Layer)
		}
		seen[id] = true
	}
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(list[b].Uses, list[a].Uses), cmp.Compare(b, a))
	})
	left := c.budget
	take := make([]bool, len(list))
	n := 0
	for _, i := range order {
		// A smaller expert behind one that does not fit could go in; the cut stays plain instead.
		if left -= c.layers[list[i].Layer].SlotBytes; left < 0 {
			break
		}
		take[i] = true
		n++
	}
	fit := make([]Resident, 0, n)
	for i, r := range list {
		if take[i] {
			fit = append(fit, r)
		}
	}
	return fit, nil
}

// adopt puts the policy in the order of the list, which is what is resident, and begins to count anew.
func (c *Cache) adopt(list []Resident) {
	ids, uses := make([]int32, len(list)), make([]uint32, len(list))
	for i, r := range list {
		ids[i], uses[i] = c.ID(int(r.Layer), int(r.Expert)), r.Uses
		c.uses[ids[i]] = r.Uses
	}
	c.stats = CacheStats{Loaded: int64(len(list))}
	if p, ok := c.policy.(adopting); ok {
		p.adopt(ids, uses)
		return
	}
	for _, id := range ids {
		c.policy.Remove(id)
	}
	for i, r := range list {
		c.policy.Insert(ids[i], c.layers[r.Layer].SlotBytes)
	}
	for i, r := range list {
		if p, ok := c.policy.(protecting); ok && r.Protected && !p.protects(ids[i]) {
			c.policy.Touch(ids[i])
		}
	}
}

var _ Keeper = (*cachedSource)(nil)

func (s *cachedSource) Residents() ([]Resident, error) { return s.cache.Residents() }

func (s *cachedSource) Load(ctx context.Context, list []Resident) (Loaded, error) {
	start := time.Now()
	if st := s.Stats(); st.Demanded+st.Prefetched+int64(st.Entries) > 0 || s.loaded.Experts > 0 {
		return Loaded{}, errors.New("moe: cache: load into a cache that is in use")
	}
	fit, err := s.cache.Fit(list)
	if err != nil {
		return Loaded{}, err
	}
	for _, wave := range s.fileOrder(fit) {
		if err := ctx.Err(); err != nil {
			return Loaded{}, err
		}
		layer := int(wave[0].Layer)
		ids := make([]int32, len(wave))
		for i, r := range wave {
			ids[i] = r.Expert
		}
		if err := s.bring(layer, ids); err != nil {
			return Loaded{}, err
		}
	}
	s.cache.adopt(fit)
	var st Stats
	s.lanes.fill(&st)
	s.loaded = Loaded{Experts: len(fit), Left: len(list) - len(fit), Reads: st.Reads, Bytes: st.BytesRead, Seconds: time.Since(start).Seconds()}
	s.lanes.reset()
	s.waited = 0
	return s.loaded, nil
}

// bring makes experts of a layer, ascending, resident: they fit together with what is resident.
func (s *cachedSource) bring(layer int, ids []int32) error {
	for len(ids) > 0 {
		n, err := s.Demand(layer, ids)
		if err != nil {
			return err
		}
		for i := range n {
			if _, err = s.Expert(i); err != nil {
				break
			}
		}
		s.Release()
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// fileOrder cuts a list into waves by layer, ordered by where the layer's first expert of the wave lies.
func (s *cachedSource) fileOrder(list []Resident) [][]Resident {
	byLayer := make([][]Resident, len(s.layout.Experts))
	for _, r := range list {
		byLayer[r.Layer] = append(byLayer[r.Layer], r)
	}
	waves := slices.DeleteFunc(byLayer, func(w []Resident) bool { return len(w) == 0 })
	for _, w := range waves {
		slices.SortFunc(w, func(a, b Resident) int { return cmp.Compare(a.Expert, b.Expert) })
	}
	first := func(w []Resident) Extent {
		x := &s.layout.Experts[w[0].Layer][w[0].Expert]
		for p := range projections {
			if t := x.at(p); t.Len > 0 {
				return *t
			}
		}
		return Extent{}
	}
	slices.SortFunc(waves, func(a, b []Resident) int {
		x, y := first(a), first(b)
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Off, y.Off))
	})
	return waves
}

// reset begins to count anew; no read is in flight.
func (l *lanes) reset() {
	l.reads.Store(0)
	l.errors.Store(0)
	l.bytes.Store(0)
	l.nanos.Store(0)
}
