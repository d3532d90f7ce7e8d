package store

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
)

var _ Sparer = (*cachedSource)(nil)

// TestDemandBut: what the caller has elsewhere changes no decision, is not read, and is read when it is asked for.
func TestDemandBut(t *testing.T) {
	leakCheck(t)
	const nLayer, nExpert = 4, 8
	l := testModel(t, nLayer, nExpert)
	open := func() Sparer {
		s, err := NewCached(l, CacheConfig{BudgetBytes: WorkingSet(l, nExpert) / 3, Policy: "lru", Lanes: 2, MinBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s.(Sparer)
	}
	s, plain := open(), open()
	defer mustClose(t, s)
	defer mustClose(t, plain)
	rng := rand.New(rand.NewPCG(7, 8))
	a, b := make([]uint8, nExpert), make([]uint8, nExpert)
	spared := int64(0)
	filled := map[[2]int]bool{} // of the resident ones, those that were read
	for range 400 {
		layer := 1 + rng.IntN(nLayer-1)
		for rest := someExperts(rng, nExpert, 1+rng.IntN(nExpert)); len(rest) > 0; {
			has := make([]bool, len(rest))
			for i := range has {
				has[i] = rng.IntN(2) == 0
			}
			for il := 1; il < nLayer; il++ {
				s.Residency(il, a)
				plain.Residency(il, b)
				if !bytes.Equal(a, b) {
					t.Fatalf("layer %d: residency %v, without sparing %v", il, a, b)
				}
				for e, r := range a {
					filled[[2]int{il, e}] = filled[[2]int{il, e}] && r != 0
				}
			}
			s.Residency(layer, a)
			n, err := s.DemandBut(layer, rest, has)
			if err != nil {
				t.Fatal(err)
			}
			m, err := plain.Demand(layer, rest)
			if err != nil || n != m {
				t.Fatalf("%d held, %v; without sparing %d", n, err, m)
			}
			left := 0
			for i := range n {
				want := int64(0)
				key := [2]int{layer, int(rest[i])}
				if !has[i] {
					left++
					if !filled[key] {
						want = l.Experts[layer][rest[i]].bytes()
						filled[key] = true
					}
				} else if a[rest[i]] == 0 {
					spared++
				}
				if got := s.ReadBytes(i); got != want {
					t.Fatalf("expert %d of %v, %v of which the caller has: %d bytes read, want %d", i, rest, has, got, want)
				}
			}
			for range left {
				i, x, err := s.Next(context.Background())
				if err != nil || has[i] {
					t.Fatalf("expert %d, which the caller has: %v; %v", i, has, err)
				}
				checkExpert(t, l, layer, int(rest[i]), x)
			}
			if i, _, err := s.Next(context.Background()); err == nil || s.Ready() {
				t.Fatalf("one too many: %d", i)
			}
			if i := rng.IntN(n); rng.IntN(3) == 0 { // after all
				x, err := s.Expert(i)
				if err != nil {
					t.Fatal(err)
				}
				checkExpert(t, l, layer, int(rest[i]), x)
				filled[[2]int{layer, int(rest[i])}] = true
			}
			s.Release()
			plain.Release()
			rest = rest[n:]
		}
	}
	st, all := s.Stats(), plain.Stats()
	if st.Hits != all.Hits || st.Misses != all.Misses || st.Evictions != all.Evictions || st.Entries != all.Entries || spared == 0 || st.BytesRead >= all.BytesRead {
		t.Errorf("%+v, without sparing %+v, %d spared", st, all, spared)
	}
	checkStats(t, st)
	if _, err := s.DemandBut(1, []int32{1, 2}, []bool{true}); err == nil {
		t.Error("one word on two experts: no error")
	}
}
