package store

import (
	"fmt"
	"math"

	"sluice/moe"
)

// CacheLayer is one layer's share of a cache's geometry. Experts 0: a dense layer.
type CacheLayer struct {
	Experts   int
	SlotBytes int64 // what one expert takes of the budget, padding included
}

// Cache is the bookkeeping of an expert cache: which experts are resident, held, and evicted next, under a budget of
// bytes. It holds no weights and does no I/O: the cached source and a replay of a recorded run drive the same Cache, and
// what it decides is a function of the sequence of its calls. Not safe for concurrent calls. Demand, Prefetch and Release
// do not allocate.
type Cache struct {
	layers  []CacheLayer
	base    []int32 // id of each layer's expert 0
	policy  Policy
	budget  int64
	used    int64    // bytes of the resident experts
	flags   []uint8  // by id
	uses    []uint32 // by id: Demand calls that held it
	entries int

	held    []int32 // ids of the last Demand
	missed  []bool  // of those, not resident before; same length
	ahead   []int32 // ids that the last Prefetch inserted
	evicted []int32 // ids that the last Demand or Prefetch evicted

	stats CacheStats // but Entries, UsedBytes and BudgetBytes
}

const (
	flagResident = 1 << iota
	flagAhead    // resident by a prefetch, and not demanded since
	flagUnused   // not demanded since it came: by a prefetch of this run, or of the one that the cache was loaded from
	flagHeld
	flagSpared // not to be evicted by the Prefetch that runs
)

// NewCache returns an empty cache of budgetBytes over the layers. policy covers as many ids as the layers have experts,
// and is empty; the cache owns it from now on.
func NewCache(policy Policy, budgetBytes int64, layers []CacheLayer) (*Cache, error) {
	if budgetBytes <= 0 {
		return nil, fmt.Errorf("moe: cache budget %d bytes: want more than 0", budgetBytes)
	}
	c := &Cache{layers: layers, policy: policy, budget: budgetBytes, base: make([]int32, len(layers))}
	ids, most := int64(0), 0
	for i, l := range layers {
		if l.Experts < 0 || l.Experts > 0 && l.SlotBytes <= 0 {
			return nil, fmt.Errorf("moe: cache layer %d: %d experts of %d bytes", i, l.Experts, l.SlotBytes)
		}
		c.base[i] = int32(ids)
		ids += int64(l.Experts)
		if ids > math.MaxInt32 {
			return nil, fmt.Errorf("moe: cache over more than %d experts", math.MaxInt32)
		}
		most = max(most, l.Experts)
	}
	c.flags, c.uses = make([]uint8, ids), make([]uint32, ids)
	c.held, c.missed, c.ahead = make([]int32, 0, most), make([]bool, 0, most), make([]int32, 0, most)
	// One Demand can evict at most everything.
	c.evicted = make([]int32, 0, ids)
	return c, nil
}

// ID returns the dense id of an expert.
func (c *Cache) ID(layer, expert int) int32 { return c.base[layer] + int32(expert) }

// Locate returns the layer and the expert of an id.
func (c *Cache) Locate(id int32) (layer, expert int) {
	for layer = len(c.base) - 1; c.base[layer] > id || c.layers[layer].Experts == 0; layer-- {
	}
	return layer, int(id - c.base[layer])
}

// Residency writes for each expert of the layer moe.Miss when it is not resident, moe.HitAhead when a prefetch made it
// resident and nobody has demanded it since, moe.Hit otherwise; len(dst) is the layer's number of experts.
func (c *Cache) Residency(layer int, dst []uint8) {
	if len(dst) != c.layers[layer].Experts {
		panicResidency(layer, len(dst), c.layers[layer].Experts)
	}
	for e := range dst {
		switch f := c.flags[c.base[layer]+int32(e)]; {
		case f&flagAhead != 0:
			dst[e] = moe.HitAhead
		case f&flagResident != 0:
			dst[e] = moe.Hit
		default:
			dst[e] = moe.Miss
		}
	}
}

// Demand makes the first n >= 1 experts (ascending, distinct) resident and holds them until Release: the longest prefix
// whose slots fit in the budget together. Residents of the prefix are touched first, then the misses are inserted in
// order, each evicting in the policy's order what is not held. Held, Missed and Evicted tell what was decided.
//
// Where not all fit, the prefix leaves less than a slot of the budget, so that every resident later in the list is
// evicted whatever the order: there is nothing to spare it for.
//
// It is an error to demand while experts are held, and when not even one expert fits; nothing has changed then. No
// experts: 0, nil.
func (c *Cache) Demand(layer int, experts []int32) (n int, err error) {
	if layer < 0 || layer >= len(c.layers) {
		return 0, fmt.Errorf("moe: demand of layer %d of %d", layer, len(c.layers))
	}
	slot := c.layers[layer].SlotBytes
	if err := checkDemand(layer, experts, c.layers[layer].Experts, len(c.held)); err != nil {
		return 0, err
	}
	c.missed, c.evicted = c.missed[:0], c.evicted[:0]
	if len(experts) == 0 {
		return 0, nil
	}
	// Nothing is held, so whatever else is resident can go.
	n = int(min(int64(len(experts)), c.budget/slot))
	if n == 0 {
		return 0, fmt.Errorf("moe: layer %d: one expert's slot needs %d MiB (%d bytes), the cache budget is %d bytes",
			layer, mebibytes(slot), slot, c.budget)
	}
	base := c.base[layer]
	for _, e := range experts[:n] {
		id := base + e
		hit := c.flags[id]&flagResident != 0
		switch {
		case c.flags[id]&flagUnused != 0:
			// This is the first use, which a policy must not take for the second.
			c.policy.Remove(id)
			c.policy.Insert(id, slot)
			if c.flags[id]&flagAhead != 0 {
				c.stats.PrefetchUsed++
				c.stats.PrefetchUsedBytes += slot
			}
			c.flags[id] &^= flagAhead | flagUnused
		case hit:
			c.policy.Touch(id)
		}
		if hit {
			c.stats.Hits++
		}
		c.use(id)
		c.flags[id] |= flagHeld
		c.held, c.missed = append(c.held, id), append(c.missed, !hit)
	}
	for i, id := range c.held {
		if c.missed[i] {
			if !c.makeRoom(slot) {
				panic("moe: cache: held experts exceed the budget") // the prefix is bounded
			}
			c.insert(id, slot)
			c.stats.Misses++
		}
	}
	return n, nil
}

// Prefetch makes experts of a layer (distinct, the most wanted first) resident before they are demanded: those that are
// not resident, from the front, as many as have slots of at most maxBytes together. It evicts in the policy's order what
// is neither held nor in the list, and stops where nothing is left to evict. Ahead and Evicted tell what was decided. The
// experts may be held while it runs; an id outside the layer is an error and nothing has changed then.
func (c *Cache) Prefetch(layer int, experts []int32, maxBytes int64) error {
	if layer < 0 || layer >= len(c.layers) {
		return fmt.Errorf("moe: prefetch of layer %d of %d", layer, len(c.layers))
	}
	for _, e := range experts {
		if e < 0 || int(e) >= c.layers[layer].Experts {
			return fmt.Errorf("moe: prefetch of layer %d: expert %d: want 0..%d", layer, e, c.layers[layer].Experts-1)
		}
	}
	c.ahead, c.evicted = c.ahead[:0], c.evicted[:0]
	slot, base := c.layers[layer].SlotBytes, c.base[layer]
	for _, e := range experts {
		c.flags[base+e] |= flagSpared
	}
	for _, e := range experts {
		id := base + e
		if c.flags[id]&flagResident != 0 {
			continue
		}
		if slot > maxBytes || !c.makeRoom(slot) {
			break
		}
		maxBytes -= slot
		c.insert(id, slot)
		c.flags[id] |= flagAhead | flagUnused
		c.ahead = append(c.ahead, id)
		c.stats.Prefetched++
		c.stats.PrefetchBytes += slot
	}
	for _, e := range experts {
		c.flags[base+e] &^= flagSpared
	}
	return nil
}

func (c *Cache) insert(id int32, slot int64) {
	c.policy.Insert(id, slot)
	c.flags[id] |= flagResident
	c.used += slot
	c.entries++
}

// makeRoom evicts until slot more bytes fit, and reports whether they do: what is held or spared stays.
func (c *Cache) makeRoom(slot int64) bool {
	for c.used+slot > c.budget {
		id := c.policy.First()
		for id >= 0 && c.flags[id]&(flagHeld|flagSpared) != 0 {
			id = c.policy.Next(id)
		}
		if id < 0 {
			return false
		}
		c.remove(id)
		c.evicted = append(c.evicted, id)
		c.stats.Evictions++
	}
	return true
}

// remove takes out a resident expert. One that was prefetched and never demanded was read for nothing.
func (c *Cache) remove(id int32) {
	c.policy.Remove(id)
	layer, _ := c.Locate(id)
	if c.flags[id]&flagAhead != 0 {
		c.stats.PrefetchWasted++
		c.stats.PrefetchWastedBytes += c.layers[layer].SlotBytes
	}
	c.flags[id] &^= flagResident | flagAhead | flagUnused
	c.used -= c.layers[layer].SlotBytes
	c.entries--
}

// Held returns the ids that the last Demand holds, in its order; valid until the next call.
func (c *Cache) Held() []int32 { return c.held }

// Missed returns for each held id whether it was a miss; valid until the next Demand.
func (c *Cache) Missed() []bool { return c.missed }

// Ahead returns the ids that the last Prefetch inserted, in order; valid until the next Prefetch.
func (c *Cache) Ahead() []int32 { return c.ahead }

// Evicted returns the ids that the last Demand or Prefetch evicted, in order; valid until the next of either.
func (c *Cache) Evicted() []int32 { return c.evicted }

// Release gives up what is held. Residency does not change.
func (c *Cache) Release() {
	for _, id := range c.held {
		c.flags[id] &^= flagHeld
	}
	c.held = c.held[:0]
}

// Remove takes out an expert whose weights could not be read. An id that is not resident, or held, is a misuse and
// panics.
func (c *Cache) Remove(id int32) {
	if c.flags[id]&(flagResident|flagHeld) != flagResident {
		panic("moe: cache: remove of an expert that is held or not resident")
	}
	c.remove(id)
}

// Abort takes the last Demand back: what it holds is given up, its misses are not resident, and neither its hits nor its
// misses count. Its evictions and touches stand.
func (c *Cache) Abort() {
	for i, id := range c.held {
		c.flags[id] &^= flagHeld
		if c.missed[i] {
			c.remove(id)
			c.stats.Misses--
		} else {
			c.stats.Hits--
		}
	}
	c.held = c.held[:0]
}

// CacheStats are a Cache's counters: Entries == Misses + Prefetched + Loaded - Evictions - removed ones. Bytes are of slots. What
// was prefetched is used once it is demanded, wasted when it goes before, and otherwise still resident.
type CacheStats struct {
	Hits, Misses, Evictions int64
	Loaded                  int64 // that it started with

	Prefetched, PrefetchUsed, PrefetchWasted              int64
	PrefetchBytes, PrefetchUsedBytes, PrefetchWastedBytes int64

	Entries                int
	UsedBytes, BudgetBytes int64
}

// Stats returns the counters so far.
func (c *Cache) Stats() CacheStats {
	s := c.stats
	s.Entries, s.UsedBytes, s.BudgetBytes = c.entries, c.used, c.budget
	return s
}

// mebibytes rounds up to whole MiB.
func mebibytes(n int64) int64 { return (n-1)>>20 + 1 }
