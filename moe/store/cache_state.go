package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// CacheState is what a cache has come to, for a later run that starts with it and then decides as this one would have
// gone on.
type CacheState struct {
	Residents []Resident // the next to be evicted first
	Gone      []Resident // not resident, but used before, by layer and expert
	// NextUse is what the next use adds to a score, 1 or more and below 2^60, in a policy that has scores (lrfu); 0: there
	// are none.
	NextUse float64
}

// Resident is one expert of a cache's state.
type Resident struct {
	Layer, Expert int32
	Uses          uint32  // Demand calls that have held it, in this run and those that it was loaded from
	Protected     bool    // in the policy's protected segment (slru)
	Unused        bool    // brought by a prefetch and not demanded since
	Score         float64 // of the policy, where it has scores
}

// maxScore is above every score: use counts that are below 2^60 and halve in 2^20 uses add up to 2^81.
const maxScore = 1 << 90

// Keeper is a Source whose cache outlives it: the cached one.
type Keeper interface {
	Source

	// State returns what the cache has come to. It is an error while experts are held.
	State() (CacheState, error)

	// Load reads experts into a source that nothing was demanded from yet, in file order, and leaves the cache as State
	// described it. Of residents that do not fit in the budget it takes the most used, and of equally used ones those that
	// are evicted last; Loaded tells how many were left. What it reads counts in Loaded and in no other counter, so that the
	// run that follows is measured apart. A state with an expert that the model does not have, or has twice, or with scores
	// that no policy makes, is an error and nothing is read. After another error (a failed read, ctx done) the source is of
	// no use but to be closed.
	Load(ctx context.Context, st CacheState) (Loaded, error)

	// Settle waits until no read is in flight: a prefetch may be at the end of a run, and counts once it is done. The time
	// counts nowhere.
	Settle()
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

// scoring is a policy whose order follows from scores, which experts keep when they are evicted. restore takes over ids,
// all that it has, with the scores of all ids.
type scoring interface {
	scores() (use float64, score []float64) // by id; the policy's memory
	restore(ids []int32, use float64, score []float64)
}

// use counts a demand of an expert.
func (c *Cache) use(id int32) {
	if c.uses[id] < math.MaxUint32 {
		c.uses[id]++
	}
}

// State returns what the cache has come to.
func (c *Cache) State() (st CacheState, err error) {
	if len(c.held) > 0 {
		return st, fmt.Errorf("moe: cache: state while %d experts are held: release them first", len(c.held))
	}
	var score []float64
	if p, ok := c.policy.(scoring); ok {
		st.NextUse, score = p.scores()
	}
	describe := func(id int32) Resident {
		layer, expert := c.Locate(id)
		r := Resident{Layer: int32(layer), Expert: int32(expert), Uses: c.uses[id], Unused: c.flags[id]&flagUnused != 0}
		if score != nil {
			r.Score = score[id]
		}
		return r
	}
	st.Residents = make([]Resident, 0, c.entries)
	p, _ := c.policy.(protecting)
	for id := c.policy.First(); id >= 0; id = c.policy.Next(id) {
		r := describe(id)
		r.Protected = p != nil && p.protects(id)
		st.Residents = append(st.Residents, r)
	}
	for id, f := range c.flags {
		if f&flagResident == 0 && (c.uses[id] > 0 || score != nil && score[id] > 0) {
			st.Gone = append(st.Gone, describe(int32(id)))
		}
	}
	return st, nil
}

// Start makes a cache that was not used yet go on as the one whose state it is, as loading a source's does, for a replay
// that reads nothing. It returns how many residents did not fit. Errors as Keeper.Load's before it reads.
func (c *Cache) Start(st CacheState) (left int, err error) {
	if c.entries > 0 || c.stats != (CacheStats{}) {
		return 0, errors.New("moe: cache: load into a cache that is in use")
	}
	fit, err := c.fit(st)
	if err != nil {
		return 0, err
	}
	for _, r := range fit {
		c.insert(c.ID(int(r.Layer), int(r.Expert)), c.layers[r.Layer].SlotBytes)
	}
	c.adopt(st, fit)
	return len(st.Residents) - len(fit), nil
}

// fit checks a state and returns those of its residents that the budget holds together, in its order: the most used, and
// of equally used ones the last.
func (c *Cache) fit(st CacheState) ([]Resident, error) {
	list := st.Residents
	if st.NextUse != 0 && !(st.NextUse >= 1 && st.NextUse < lrfuRescale) {
		return nil, fmt.Errorf("moe: cache: state: a use counts %v: want 1 or more and below 2^60", st.NextUse)
	}
	seen := make(map[int32]bool, len(list)+len(st.Gone))
	for what, part := range map[string][]Resident{"resident": list, "gone": st.Gone} {
		for i := range part {
			if err := c.checkResident(&part[i], st.NextUse != 0, seen); err != nil {
				return nil, fmt.Errorf("moe: cache: %s %d %w", what, i, err)
			}
		}
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

// checkResident checks one expert of a state, and that it was not seen before.
func (c *Cache) checkResident(r *Resident, scored bool, seen map[int32]bool) error {
	if r.Layer < 0 || int(r.Layer) >= len(c.layers) || r.Expert < 0 || int(r.Expert) >= c.layers[r.Layer].Experts {
		return fmt.Errorf("is expert %d of layer %d: the model has none", r.Expert, r.Layer)
	}
	id := c.ID(int(r.Layer), int(r.Expert))
	if seen[id] {
		return fmt.Errorf("is expert %d of layer %d, which stands in the state twice", r.Expert, r.Layer)
	}
	seen[id] = true
	if !(r.Score >= 0 && r.Score < maxScore) || r.Score > 0 && !scored {
		return fmt.Errorf("(expert %d of layer %d) has the score %v", r.Expert, r.Layer, r.Score)
	}
	return nil
}

// adopt puts the policy in the order of fit, those of the state's residents that are resident, and begins to count anew.
func (c *Cache) adopt(st CacheState, fit []Resident) {
	ids, uses := make([]int32, len(fit)), make([]uint32, len(fit))
	clear(c.uses)
	for i, r := range fit {
		ids[i], uses[i] = c.ID(int(r.Layer), int(r.Expert)), r.Uses
		c.uses[ids[i]] = r.Uses
		if c.flags[ids[i]] &^= flagUnused; r.Unused {
			c.flags[ids[i]] |= flagUnused
		}
	}
	for _, r := range st.Gone {
		c.uses[c.ID(int(r.Layer), int(r.Expert))] = r.Uses
	}
	c.stats = CacheStats{Loaded: int64(len(fit))}
	if p, ok := c.policy.(scoring); ok && st.NextUse > 0 {
		score := make([]float64, len(c.flags))
		for _, list := range [][]Resident{st.Residents, st.Gone} {
			for _, r := range list {
				score[c.ID(int(r.Layer), int(r.Expert))] = r.Score
			}
		}
		p.restore(ids, st.NextUse, score)
		return
	}
	if p, ok := c.policy.(adopting); ok {
		p.adopt(ids, uses)
		return
	}
	for _, id := range ids {
		c.policy.Remove(id)
	}
	for i, r := range fit {
		c.policy.Insert(ids[i], c.layers[r.Layer].SlotBytes)
	}
	for i, r := range fit {
		if p, ok := c.policy.(protecting); ok && r.Protected && !p.protects(ids[i]) {
			c.policy.Touch(ids[i])
		}
	}
}

var _ Keeper = (*cachedSource)(nil)

func (s *cachedSource) State() (CacheState, error) { return s.cache.State() }

func (s *cachedSource) Settle() {
	waited := s.waited
	for _, sl := range s.slots {
		if sl != nil {
			s.await(sl)
		}
	}
	s.waited = waited
}

func (s *cachedSource) Load(ctx context.Context, st CacheState) (Loaded, error) {
	start := time.Now()
	if now := s.Stats(); now.Demanded+now.Prefetched+int64(now.Entries) > 0 || s.loaded.Experts > 0 {
		return Loaded{}, errors.New("moe: cache: load into a cache that is in use")
	}
	fit, err := s.cache.fit(st)
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
	s.cache.adopt(st, fit)
	var now Stats
	s.lanes.fill(&now)
	s.loaded = Loaded{Experts: len(fit), Left: len(st.Residents) - len(fit), Reads: now.Reads, Bytes: now.BytesRead, Seconds: time.Since(start).Seconds()}
	s.lanes.reset()
	s.waited, s.wanted = 0, 0
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
