package store

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// plainLRFU is the definition: the whole order by score, computed whenever it is asked for.
type plainLRFU struct {
	score       []float64
	use, growth float64
	resident    map[int32]bool
}

func (p *plainLRFU) count(id int32) {
	p.score[id] += p.use
	if p.use *= p.growth; p.use >= lrfuRescale {
		for i := range p.score {
			p.score[i] /= lrfuRescale
		}
		p.use /= lrfuRescale
	}
}

func (p *plainLRFU) order() []int32 {
	var ids []int32
	for id := range p.resident {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		switch sa, sb := p.score[a], p.score[b]; {
		case sa < sb:
			return -1
		case sa > sb:
			return 1
		}
		return int(a - b)
	})
	return ids
}

func walkPolicy(p Policy) (ids []int32) {
	for id := p.First(); id >= 0; id = p.Next(id) {
		ids = append(ids, id)
	}
	return ids
}

// TestLRFUOrder: whatever is left undone until somebody asks, the order is that of the scores, over many rescalings too.
func TestLRFUOrder(t *testing.T) {
	for _, n := range []int{3, 40, 200} {
		rng := rand.New(rand.NewPCG(uint64(n), 5))
		p := newLRFU(n)
		want := &plainLRFU{score: make([]float64, n), use: 1, growth: p.growth, resident: map[int32]bool{}}
		rescaled, last := 0, 1.0
		for i := range 60000 {
			id := int32(rng.IntN(n))
			if rng.IntN(3) > 0 {
				id = int32(rng.IntN(1 + n/4)) // some are used more
			}
			switch {
			case !want.resident[id]:
				p.Insert(id, 1)
				want.count(id)
				want.resident[id] = true
			case rng.IntN(8) == 0:
				p.Remove(id)
				delete(want.resident, id)
			default:
				p.Touch(id)
				want.count(id)
			}
			if p.use < last {
				rescaled++
			}
			last = p.use
			// Sometimes soon, sometimes after thousands of hits.
			if i%997 == 0 || i%5000 > 4960 {
				if got, want := walkPolicy(p), want.order(); !slices.Equal(got, want) {
					t.Fatalf("%d ids, call %d: order %v, want %v", n, i, got, want)
				}
			}
		}
		if n == 3 && rescaled == 0 {
			t.Error("nothing was rescaled: the case tests nothing")
		}
		if !reflect.DeepEqual(p.score, want.score) {
			t.Errorf("%d ids: scores differ", n)
		}
	}
}

// BenchmarkFullCache is a layer call of a cache that holds everything, without any weights: what a policy's bookkeeping
// costs a hit.
func BenchmarkFullCache(b *testing.B) {
	const layers, experts, used = 48, 128, 8
	for _, policy := range Policies() {
		b.Run("policy="+policy, func(b *testing.B) {
			c := newTestCache(b, policy, layers*experts*10, layers, experts)
			rng := rand.New(rand.NewPCG(1, 1))
			var calls [1024][]int32
			for i := range calls {
				calls[i] = someExperts(rng, experts, used)
			}
			all := make([]int32, experts)
			for i := range all {
				all[i] = int32(i)
			}
			for layer := range layers {
				mustDemand(b, c, layer, all)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				mustDemand(b, c, i%layers, calls[i%len(calls)])
				i++
			}
		})
	}
}

func newTestCache(t testing.TB, policy string, budget int64, layers, experts int) *Cache {
	t.Helper()
	p, err := NewPolicy(policy, layers*experts, budget)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]CacheLayer, layers)
	for i := range list {
		list[i] = CacheLayer{Experts: experts, SlotBytes: 10}
	}
	c, err := NewCache(p, budget, list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustDemand(t testing.TB, c *Cache, layer int, experts []int32) {
	if n, err := c.Demand(layer, experts); err != nil || n != len(experts) {
		t.Fatalf("layer %d: %d of %d experts held, %v", layer, n, len(experts), err)
	}
	c.Release()
}
