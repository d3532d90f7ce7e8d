package replay

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sluice/dump"
	"sluice/moe/store"
)

// maxIDs bounds the experts of all layers together: a replay keeps state for each, and for each policy and budget again.
// The largest models have some 25,000.
const maxIDs = 1 << 18

// maxBytes bounds the experts of all layers together, so that no sum of sizes overflows.
const maxBytes = 1 << 56

// maxPadding bounds what a slot has beyond an expert's bytes.
const maxPadding = 1 << 30

// geometry is what a trace's preamble says of the experts. Ids are dense: base[layer] + expert.
type geometry struct {
	k, nExpert int
	size       []int64 // by layer: logical bytes of one expert; 0: not stated
	slot       []int64 // by layer: what it takes of this engine's cache, padding included
	slotsKnown bool    // slot comes from the preamble, not from size
	base       []int32 // by layer
	layerOf    []int32 // by id
	ids        int
	total      int64 // bytes of all experts
}

// newGeometry refuses a preamble that leaves sizes open: hit rates over unknown sizes would be fiction.
func newGeometry(m *dump.TraceMeta) (*geometry, error) {
	k, err := topK(m)
	if err != nil {
		return nil, err
	}
	switch {
	case m.NExpert <= 0:
		return nil, errors.New("no n_expert in the preamble: a cache replay needs the number of experts")
	case k > m.NExpert:
		return nil, fmt.Errorf("n_expert_used %d above n_expert %d in the preamble", k, m.NExpert)
	}
	layers := 0
	for _, l := range m.Layers {
		if l.ExpertBytes > 0 {
			layers = max(layers, l.Layer+1)
		}
	}
	if layers == 0 {
		return nil, errors.New("no layer sizes (layer= expert_bytes=) in the preamble: a cache replay with unknown sizes would be fiction")
	}
	g := &geometry{k: k, nExpert: m.NExpert, size: make([]int64, layers), base: make([]int32, layers)}
	for _, l := range m.Layers {
		if l.ExpertBytes > 0 {
			g.size[l.Layer] = l.ExpertBytes
		}
	}
	for i, s := range g.size {
		g.base[i] = int32(g.ids)
		if s == 0 {
			continue
		}
		if g.ids += m.NExpert; g.ids > maxIDs {
			return nil, fmt.Errorf("more than %d experts over all layers in the preamble", maxIDs)
		}
		if s > (maxBytes-g.total)/int64(m.NExpert) {
			return nil, fmt.Errorf("layer %d: expert_bytes %d: all experts together exceed %d bytes", i, s, int64(maxBytes))
		}
		g.total += s * int64(m.NExpert)
		for range m.NExpert {
			g.layerOf = append(g.layerOf, int32(i))
		}
	}
	return g, g.readSlots(m)
}

// readSlots reads what one expert of each layer takes of the run's cache. Without it expert_bytes stand in.
func (g *geometry) readSlots(m *dump.TraceMeta) error {
	g.slot = g.size
	list := m.Fact(dump.FactSlotBytes)
	if list == "" {
		return nil
	}
	g.slotsKnown, g.slot = true, make([]int64, len(g.size))
	words := strings.Split(list, ",")
	for i := range g.slot {
		if g.size[i] == 0 {
			continue
		}
		if i >= len(words) {
			return fmt.Errorf("%s: %d layers in the preamble, want %d", dump.FactSlotBytes, len(words), len(g.size))
		}
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil || n < g.size[i] || n > g.size[i]+maxPadding {
			return fmt.Errorf("%s: layer %d: %.20q, want its expert_bytes %d and some padding", dump.FactSlotBytes, i, words[i], g.size[i])
		}
		g.slot[i] = n
	}
	return nil
}

// allSlots is what all experts take of a cache.
func (g *geometry) allSlots() (n int64) {
	for _, slot := range g.slot {
		n += slot * int64(g.nExpert)
	}
	return n
}

// check refuses a row's layer of unknown size.
func (g *geometry) check(c *cell) error {
	if c.layer >= len(g.size) || g.size[c.layer] == 0 {
		return fmt.Errorf("line %d: layer %d has rows, but no expert_bytes in the preamble: a cache replay with unknown sizes would be fiction", c.line, c.layer)
	}
	return nil
}

// unequal tells whether experts of different layers have different sizes.
func (g *geometry) unequal() bool {
	first := int64(0)
	for _, s := range g.size {
		if s == 0 {
			continue
		}
		if first == 0 {
			first = s
		}
		if s != first {
			return true
		}
	}
	return false
}

// tokenBytes is what one token touches over all layers, by the sizes given: nUsed experts in each.
func (g *geometry) tokenBytes(size []int64) int64 {
	sum := int64(0)
	for _, s := range size {
		sum += s * int64(g.k) // k <= nExpert, and the sum over all experts was checked
	}
	return sum
}

// newLiveCache is the engine's cache over this trace's experts, as it begins.
func (g *geometry) newLiveCache(policy string, budget int64, start *Start) (*liveCache, error) {
	p, err := store.NewPolicy(policy, g.ids, budget)
	if err != nil {
		return nil, err
	}
	layers := make([]store.CacheLayer, len(g.size))
	for i, s := range g.slot {
		if g.size[i] > 0 {
			layers[i] = store.CacheLayer{Experts: g.nExpert, SlotBytes: s}
		}
	}
	c, err := store.NewCache(p, budget, layers)
	if err != nil {
		return nil, err
	}
	return &liveCache{Cache: c, g: g, budget: budget}, start.begin(c)
}

// sizeOf is the bytes of an id.
func (g *geometry) sizeOf(id int32) int64 { return g.size[g.layerOf[id]] }
