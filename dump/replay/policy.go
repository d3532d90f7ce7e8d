package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"sluice/moe/store"
)

// CachePolicies returns the names that CacheConfig.Policies takes under OrderBatch. Under OrderLive it is store.Policies().
//
//	belady    evicts what is used again last, if ever: the best that can be done where all experts have one size
//	lru, slru the engine's own
//	lfu       evicts what was used least often so far, the longest unused among equals; uses count on after an eviction
//	random    evicts anything: what no information is worth
//	layer     lru, the budget cut into equal parts by layer: a layer evicts only its own
//	layerlfu  lfu in the same parts
func CachePolicies() []string {
	return []string{"belady", "lru", "lfu", "slru", "random", "layer", "layerlfu"}
}

// checkPolicies refuses an unknown name, and one given twice.
func checkPolicies(names, known []string) error {
	for i, n := range names {
		if !slices.Contains(known, n) {
			return fmt.Errorf("unknown cache policy %q: want one of %s", n, strings.Join(known, ", "))
		}
		if slices.Contains(names[:i], n) {
			return fmt.Errorf("cache policy %s twice", n)
		}
	}
	return nil
}

// lookup is one lookup as policies see it.
type lookup struct {
	id    int32
	bytes int64
	next  uint32
	freq  uint32
	stamp uint64
}

// evictor orders the residents of a cache under OrderBatch. Of one batch it is told the hits and misses, then asked for
// victims, and told that the batch is over. What the batch has is never a victim.
type evictor interface {
	hit(l *lookup)
	miss(l *lookup)
	victim() int32 // taken out; -1: nothing is left outside the batch
	endBatch()
}

// newEvictor returns the policy called name over ids 0..ids-1 and a budget; "layer" and "layerlfu" are lru and lfu here.
func newEvictor(name string, ids int, budget int64, seed uint64) (evictor, error) {
	switch name {
	case "belady":
		return newHeapEvictor(ids, func(l *lookup, seq uint64) (uint64, uint64) { return never - uint64(l.next), seq }), nil
	case "lfu", "layerlfu":
		return newHeapEvictor(ids, func(l *lookup, _ uint64) (uint64, uint64) { return uint64(l.freq), l.stamp }), nil
	case "random":
		return &randomEvictor{pos: make([]int32, ids), rng: rand.New(rand.NewPCG(seed, 0))}, nil
	case "layer":
		name = "lru"
	}
	p, err := store.NewPolicy(name, ids, budget)
	if err != nil {
		return nil, err
	}
	return &liveEvictor{p: p, batch: 1, mark: make([]uint64, ids)}, nil
}

// liveEvictor is one of the engine's policies.
type liveEvictor struct {
	p     store.Policy
	batch uint64
	mark  []uint64 // by id: the batch that had it last
}

func (e *liveEvictor) hit(l *lookup) {
	e.mark[l.id] = e.batch
	e.p.Touch(l.id)
}

func (e *liveEvictor) miss(l *lookup) {
	e.mark[l.id] = e.batch
	e.p.Insert(l.id, l.bytes)
}

func (e *liveEvictor) victim() int32 {
	id := e.p.First()
	for id >= 0 && e.mark[id] == e.batch {
		id = e.p.Next(id)
	}
	if id >= 0 {
		e.p.Remove(id)
	}
	return id
}

func (e *liveEvictor) endBatch() { e.batch++ }

// heapEvictor evicts by a key that a resident keeps until its next lookup. The batch's own stay outside the heap until
// the batch is over.
type heapEvictor struct {
	key   func(l *lookup, seq uint64) (a, b uint64) // evicted first: least a, then least b
	heap  []keyed
	pos   []int32  // by id: index in heap
	seq   []uint64 // by id: number of the miss that brought it in
	n     uint64   // misses
	batch []keyed
}

type keyed struct {
	a, b uint64
	id   int32
}

func (x *keyed) less(y *keyed) bool { return x.a < y.a || x.a == y.a && x.b < y.b }

func newHeapEvictor(ids int, key func(*lookup, uint64) (uint64, uint64)) *heapEvictor {
	return &heapEvictor{key: key, pos: make([]int32, ids), seq: make([]uint64, ids)}
}

func (e *heapEvictor) hit(l *lookup) {
	e.remove(int(e.pos[l.id]))
	e.enter(l)
}

func (e *heapEvictor) miss(l *lookup) {
	e.seq[l.id] = e.n
	e.n++
	e.enter(l)
}

func (e *heapEvictor) enter(l *lookup) {
	a, b := e.key(l, e.seq[l.id])
	e.batch = append(e.batch, keyed{a, b, l.id})
}

func (e *heapEvictor) victim() int32 {
	if len(e.heap) == 0 {
		return -1
	}
	id := e.heap[0].id
	e.remove(0)
	return id
}

func (e *heapEvictor) endBatch() {
	for _, k := range e.batch {
		e.heap = append(e.heap, k)
		e.up(len(e.heap)-1, k)
	}
	e.batch = e.batch[:0]
}

func (e *heapEvictor) remove(i int) {
	k := e.heap[len(e.heap)-1]
	e.heap = e.heap[:len(e.heap)-1]
	if i == len(e.heap) {
		return
	}
	if i > 0 && k.less(&e.heap[(i-1)/2]) {
		e.up(i, k)
		return
	}
	e.down(i, k)
}

func (e *heapEvictor) up(i int, k keyed) {
	for i > 0 {
		p := (i - 1) / 2
		if !k.less(&e.heap[p]) {
			break
		}
		e.put(i, e.heap[p])
		i = p
	}
	e.put(i, k)
}

func (e *heapEvictor) down(i int, k keyed) {
	for {
		c := 2*i + 1
		if c >= len(e.heap) {
			break
		}
		if c+1 < len(e.heap) && e.heap[c+1].less(&e.heap[c]) {
			c++
		}
		if !e.heap[c].less(&k) {
			break
		}
		e.put(i, e.heap[c])
		i = c
	}
	e.put(i, k)
}

func (e *heapEvictor) put(i int, k keyed) {
	e.heap[i] = k
	e.pos[k.id] = int32(i)
}

// randomEvictor evicts anything with equal probability.
type randomEvictor struct {
	ids   []int32
	pos   []int32 // by id: index in ids
	batch []int32
	rng   *rand.Rand
}

func (e *randomEvictor) hit(l *lookup) {
	e.take(e.pos[l.id])
	e.batch = append(e.batch, l.id)
}

func (e *randomEvictor) miss(l *lookup) { e.batch = append(e.batch, l.id) }

func (e *randomEvictor) take(i int32) int32 {
	id, last := e.ids[i], e.ids[len(e.ids)-1]
	e.ids[i], e.pos[last] = last, i
	e.ids = e.ids[:len(e.ids)-1]
	return id
}

func (e *randomEvictor) victim() int32 {
	if len(e.ids) == 0 {
		return -1
	}
	return e.take(int32(e.rng.IntN(len(e.ids))))
}

func (e *randomEvictor) endBatch() {
	for _, id := range e.batch {
		e.pos[id] = int32(len(e.ids))
		e.ids = append(e.ids, id)
	}
	e.batch = e.batch[:0]
}
