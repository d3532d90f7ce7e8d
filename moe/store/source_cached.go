package store

import (
	"context"
	"fmt"
	"os"
	"time"
)

// CacheConfig configures NewCached.
type CacheConfig struct {
	BudgetBytes int64    // memory for experts, padding included
	Policy      string   // one of Policies()
	Lanes       int      // reads in flight at once, 1..MaxLanes
	Direct      bool     // read past the page cache where possible; Notes tell where it is not
	MinBytes    int64    // one token's working set (WorkingSet): a smaller budget is refused
	Force       bool     // take a budget below MinBytes, as long as every single expert fits
	Observer    Observer // told of reads and decisions; nil: nobody
}

// MaxLanes bounds CacheConfig.Lanes: each is an OS thread, and no device gains from more.
const MaxLanes = 256

// cachedSource keeps experts in slots under a budget and reads what is missing. Cache decides; this carries it out.
type cachedSource struct {
	layout *Layout
	cache  *Cache
	shapes []slotShape // by layer
	class  []int       // by layer: index into memory.sizes
	memory slotMemory
	slots  []*slot // by id; nil: not resident
	ins    inputs
	direct bool
	lanes  *lanes
	watch  Observer // nil: nobody

	arrived chan struct{} // capacity 1: some slot's reads have finished since the last look

	notes   []string
	layer   int    // of the last Demand
	taken   []bool // by place in the last Demand: handed out by Next, or not asked for
	began   []bool // by place: its reads were started for this Demand
	first   int    // of them, the first that is false
	left    int    // how many are false
	waited  time.Duration
	wanted  int64 // see Stats.BytesWanted
	loaded  Loaded
	failed  int64
	suspect bool // a read of a held expert has failed
	closed  bool
}

// NewCached returns a source that keeps at most c.BudgetBytes of experts in memory outside the Go heap and reads the
// others when they are demanded. It refuses a budget below c.MinBytes unless forced, and always one that does not hold
// the largest single expert; the error says how much is needed. Files are opened anew by their paths; a file without a
// path is copied from its mapping or reader.
func NewCached(l *Layout, c CacheConfig) (Source, error) { return newCached(linux{}, l, c) }

func newCached(sys system, l *Layout, c CacheConfig) (*cachedSource, error) {
	if c.Lanes < 1 || c.Lanes > MaxLanes {
		return nil, fmt.Errorf("moe: cache: %d lanes: want 1..%d", c.Lanes, MaxLanes)
	}
	if c.BudgetBytes <= 0 {
		return nil, fmt.Errorf("moe: cache budget %d bytes: want more than 0", c.BudgetBytes)
	}
	if c.MinBytes < 0 || c.MinBytes == 0 && !c.Force {
		return nil, fmt.Errorf("moe: cache: working set of %d bytes: want more than 0", c.MinBytes)
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	s := &cachedSource{layout: l, watch: c.Observer, arrived: make(chan struct{}, 1)}
	s.memory.arrived = s.arrived
	if err := s.plan(c, int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	s.memory.sys = sys
	var err error
	if s.ins, s.notes, err = openInputs(sys, l, c.Direct); err != nil {
		return nil, err
	}
	s.direct = s.ins.direct()
	most, reads := 0, 0
	for _, experts := range l.Experts {
		n := 0
		for e := range experts {
			for p := range projections {
				n += int(pieces(experts[e].at(p).Len + slotAlign))
			}
		}
		most, reads = max(most, len(experts)), max(reads, n)
	}
	s.taken, s.began = make([]bool, 0, most), make([]bool, 0, most)
	s.lanes = startLanes(c.Lanes, reads, c.Observer)
	return s, nil
}

// plan computes the slots of each layer and builds the bookkeeping.
func (s *cachedSource) plan(c CacheConfig, pageSize int64) error {
	l := s.layout
	s.shapes, s.class = make([]slotShape, len(l.Experts)), make([]int, len(l.Experts))
	s.memory.budget = c.BudgetBytes
	layers := make([]CacheLayer, len(l.Experts))
	classes := make(map[int64]int)
	ids, largest := 0, 0
	for i, experts := range l.Experts {
		if len(experts) == 0 {
			continue
		}
		s.shapes[i] = newSlotShape(experts, pageSize)
		size := s.shapes[i].bytes
		class, ok := classes[size]
		if !ok {
			class = len(s.memory.sizes)
			classes[size] = class
			s.memory.sizes = append(s.memory.sizes, size)
		}
		s.class[i] = class
		layers[i] = CacheLayer{Experts: len(experts), SlotBytes: size}
		ids += len(experts)
		if size > s.shapes[largest].bytes {
			largest = i
		}
	}
	s.memory.free = make([][]*slot, len(s.memory.sizes))
	if need := s.shapes[largest].bytes; c.BudgetBytes < need {
		return fmt.Errorf("moe: cache budget of %d bytes holds no expert of layer %d: needs at least %d MiB for one, %d MiB for one token",
			c.BudgetBytes, largest, mebibytes(need), mebibytes(max(need, c.MinBytes)))
	}
	if c.BudgetBytes < c.MinBytes && !c.Force {
		return fmt.Errorf("moe: cache budget of %d bytes is below one token's working set: needs %d MiB (%d bytes)",
			c.BudgetBytes, mebibytes(c.MinBytes), c.MinBytes)
	}
	var all int64
	for _, l := range layers {
		all += int64(l.Experts) * l.SlotBytes
	}
	s.memory.fixed = len(s.memory.sizes) == 1 || all <= c.BudgetBytes
	switch {
	case all <= c.BudgetBytes:
		s.memory.room = all
	case s.memory.fixed:
		s.memory.room = c.BudgetBytes / s.memory.sizes[0] * s.memory.sizes[0]
	}
	if s.memory.room < hugePage {
		s.memory.room = 0 // no large page to gain
	}
	policy, err := NewPolicy(c.Policy, ids, c.BudgetBytes)
	if err != nil {
		return err
	}
	s.slots = make([]*slot, ids)
	s.cache, err = NewCache(policy, c.BudgetBytes, layers)
	return err
}

func (s *cachedSource) Residency(layer int, dst []uint8) { s.cache.Residency(layer, dst) }

func (s *cachedSource) Demand(layer int, experts []int32) (int, error) {
	return s.DemandBut(layer, experts, nil)
}

func (s *cachedSource) DemandBut(layer int, experts []int32, has []bool) (int, error) {
	if has != nil && len(has) != len(experts) {
		return 0, fmt.Errorf("moe: demand of layer %d: %d experts, %d words on them", layer, len(experts), len(has))
	}
	if s.closed {
		return 0, fmt.Errorf("moe: demand of layer %d: %w", layer, errClosed)
	}
	n, err := s.cache.Demand(layer, experts)
	if err != nil {
		return 0, err
	}
	s.layer, s.first, s.left, s.taken, s.began = layer, 0, n, s.taken[:n], s.began[:n]
	clear(s.taken)
	clear(s.began)
	// The choice of what to evict must not depend on which reads have finished, and a slot with a read in flight must not
	// be reused: so wait. Only a caller that releases without having asked for the expert meets this.
	for _, id := range s.cache.Evicted() {
		s.free(id)
	}
	held, missed := s.cache.Held(), s.cache.Missed()
	// All memory first, then the reads: if memory is short nothing is in flight yet.
	for i, id := range held {
		if !missed[i] {
			continue
		}
		if s.slots[id], err = s.memory.get(s.class[layer]); err != nil {
			for j, id := range held[:i] {
				if missed[j] {
					s.memory.put(s.slots[id])
					s.slots[id] = nil
				}
			}
			s.cache.Abort()
			return 0, fmt.Errorf("moe: layer %d expert %d: %w", layer, experts[i], err)
		}
	}
	misses := 0
	for i, id := range held {
		sl := s.slots[id]
		if missed[i] {
			misses++
			sl.hollow, sl.ready = true, true
		}
		switch {
		case has != nil && has[i]:
			s.take(i)
		case sl.hollow:
			s.read(i)
		}
	}
	if s.watch != nil {
		s.watch.ObserveDemand(layer, n-misses, misses, len(s.cache.Evicted()))
	}
	return n, nil
}

func (s *cachedSource) Prefetch(layer int, experts []int32, maxBytes int64) error {
	if s.closed {
		return fmt.Errorf("moe: prefetch of layer %d: %w", layer, errClosed)
	}
	if err := s.cache.Prefetch(layer, experts, maxBytes); err != nil {
		return err
	}
	for _, id := range s.cache.Evicted() {
		s.free(id)
	}
	ahead := s.cache.Ahead()
	for i, id := range ahead {
		sl, err := s.memory.get(s.class[layer])
		if err != nil {
			for _, id := range ahead[i:] {
				s.cache.Remove(id)
				s.failed++
			}
			return fmt.Errorf("moe: prefetch of layer %d: %w", layer, err)
		}
		s.slots[id] = sl
		s.start(sl, layer, int(id-s.cache.ID(layer, 0)), true)
	}
	return nil
}

// pieces is the number of reads that so many bytes are brought in.
func pieces(n int64) int64 { return (n + readPiece - 1) / readPiece }

// start issues the reads of one expert into its slot, all together.
func (s *cachedSource) start(sl *slot, layer, expert int, canWait bool) {
	x := &s.layout.Experts[layer][expert]
	s.wanted += x.bytes()
	sl.reads = sl.reads[:0]
	for p := range projections {
		t := x.at(p)
		if t.Len == 0 {
			continue
		}
		in := s.ins[t.File]
		dst, skip := s.shapes[layer].region(sl.mem, p, t, in.align)
		sl.expert.set(p, dst[skip:skip+t.Len:skip+t.Len])
		off, end := t.Off-skip, t.Off+t.Len
		n := pieces(end - off)
		for size := alignUp((end-off+n-1)/n, slotAlign); off < end; off += size {
			r := sl.add()
			r.in, r.dst, r.off, r.want = in, dst, off, int(min(size, end-off))
			r.what = [3]int32{int32(layer), int32(expert), int32(p)}
			if off+size < end {
				r.dst, dst = dst[:size], dst[size:]
			}
		}
	}
	// Counted before the first is submitted: a read that finishes at once must not end the group.
	sl.group.pending.Store(int32(len(sl.reads)))
	for i := range sl.reads {
		s.lanes.submit(&sl.reads[i], canWait)
	}
}

// free waits for a slot that is no longer resident and gives its memory back.
func (s *cachedSource) free(id int32) {
	sl := s.slots[id]
	s.slots[id] = nil
	s.await(sl)
	s.memory.put(sl)
}

// await blocks until a slot's reads have finished.
func (s *cachedSource) await(sl *slot) {
	if sl.look() {
		return
	}
	start := time.Now()
	for !sl.look() {
		<-s.arrived
	}
	s.waited += time.Since(start)
}

// arrival returns the first expert that is in memory and has not been handed out, -1 when there is none.
func (s *cachedSource) arrival() int {
	held := s.cache.Held()
	for i := s.first; i < len(held); i++ {
		if !s.taken[i] && s.slots[held[i]].look() {
			return i
		}
	}
	return -1
}

func (s *cachedSource) Ready() bool { return s.left > 0 && s.arrival() >= 0 }

func (s *cachedSource) Next(ctx context.Context) (int, Expert, error) {
	if s.left == 0 {
		return -1, Expert{}, errNoneLeft
	}
	i := s.arrival()
	if i < 0 {
		start := time.Now()
		for ; i < 0; i = s.arrival() {
			select {
			case <-s.arrived:
			case <-ctx.Done():
				s.waited += time.Since(start)
				return -1, Expert{}, ctx.Err()
			}
		}
		s.waited += time.Since(start)
	}
	s.take(i)
	x, err := s.Expert(i)
	return i, x, err
}

// take notes that the i-th held expert needs no Next any more.
func (s *cachedSource) take(i int) {
	s.taken[i] = true
	s.left--
	for s.first < len(s.taken) && s.taken[s.first] {
		s.first++
	}
}

// read starts the reads of the i-th held expert, whose slot is hollow.
func (s *cachedSource) read(i int) {
	id := s.cache.Held()[i]
	sl := s.slots[id]
	sl.hollow, sl.ready, s.began[i] = false, false, true
	s.start(sl, s.layer, int(id-s.cache.ID(s.layer, 0)), false)
}

func (s *cachedSource) Expert(i int) (Expert, error) {
	id := s.cache.Held()[i]
	sl := s.slots[id]
	if sl.hollow {
		s.read(i)
	}
	s.await(sl)
	if sl.err != nil {
		s.suspect = true
		_, e := s.cache.Locate(id)
		return Expert{}, fmt.Errorf("moe: layer %d expert %d: %w", s.layer, e, sl.err)
	}
	return sl.expert, nil
}

func (s *cachedSource) ReadBytes(i int) int64 {
	id := s.cache.Held()[i]
	if !s.began[i] {
		return 0
	}
	return s.layout.Experts[s.layer][id-s.cache.ID(s.layer, 0)].bytes()
}

func (s *cachedSource) Release() {
	s.left = 0
	if !s.suspect {
		s.cache.Release()
		return
	}
	// A read has failed: the caller may have given up before it met the other failures of this call.
	var bad []int32
	for _, id := range s.cache.Held() {
		sl := s.slots[id]
		s.await(sl)
		if sl.err != nil {
			bad = append(bad, id)
		}
	}
	s.cache.Release()
	for _, id := range bad {
		s.cache.Remove(id)
		s.free(id)
	}
	s.failed += int64(len(bad))
	s.suspect = false
}

func (s *cachedSource) Stats() Stats {
	c := s.cache.Stats()
	st := Stats{
		Demanded: c.Hits + c.Misses, Hits: c.Hits, Misses: c.Misses, Loaded: c.Loaded,
		Prefetched: c.Prefetched, PrefetchUsed: c.PrefetchUsed, PrefetchWasted: c.PrefetchWasted,
		PrefetchBytes: c.PrefetchBytes, PrefetchUsedBytes: c.PrefetchUsedBytes, PrefetchWastedBytes: c.PrefetchWastedBytes,
		Entries: c.Entries, Evictions: c.Evictions, Failed: s.failed, BytesWanted: s.wanted,
		WaitSeconds: s.waited.Seconds(), ResidentBytes: s.memory.mapped, BudgetBytes: c.BudgetBytes, Direct: s.direct,
	}
	s.lanes.fill(&st)
	return st
}

func (s *cachedSource) Notes() []string {
	return append(append([]string(nil), s.notes...), s.ins.notes()...)
}

func (s *cachedSource) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.cache.Release()
	s.lanes.close()
	for id, sl := range s.slots {
		if sl != nil {
			s.free(int32(id))
		}
	}
	err := s.memory.close()
	if err != nil {
		err = fmt.Errorf("moe: %w", err)
	}
	if e := s.ins.close(); err == nil {
		err = e
	}
	return err
}
