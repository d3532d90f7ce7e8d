package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLoadGoesOn: a source that starts with another's state has it as it was, decides like that one from there on, with
// what was read ahead too, and what it read for the start is told apart.
func TestLoadGoesOn(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 6, 12)
	for _, policy := range Policies() {
		t.Run("policy="+policy, func(t *testing.T) {
			c := CacheConfig{BudgetBytes: 2 * WorkingSet(l, 3), Policy: policy}
			a, b := mustCached(t, newFaultSystem(), l, c), mustCached(t, newFaultSystem(), l, c)
			rng := rand.New(rand.NewPCG(7, 7))
			step := func(sources ...*cachedSource) {
				layer, ids, ahead := 1+rng.IntN(5), someExperts(rng, 12, 3), someExperts(rng, 12, 2)
				for _, s := range sources {
					demandAll(t, l, s, layer, ids)
					if err := s.Prefetch(1+layer%5, ahead, 1<<20); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 200 {
				step(a)
			}
			st, err := a.State()
			if err != nil {
				t.Fatal(err)
			}
			unused := 0
			for _, r := range st.Residents {
				if r.Unused {
					unused++
				}
			}
			if unused == 0 || len(st.Gone) == 0 || (policy == "lrfu") != (st.NextUse > 1) {
				t.Fatalf("%d unused, %d gone, a use counts %v: the case tests nothing", unused, len(st.Gone), st.NextUse)
			}
			got, err := b.Load(t.Context(), st)
			if err != nil || got.Experts != len(st.Residents) || got.Left != 0 || got.Bytes < int64(got.Experts) || got.Reads < int64(3*got.Experts) || !(got.Seconds > 0) {
				t.Fatalf("%+v, %v for %d experts", got, err, len(st.Residents))
			}
			if again, err := b.State(); err != nil || !reflect.DeepEqual(again, st) {
				t.Errorf("loaded %v (%v), want %v", again, err, st)
			}
			if n := b.Stats(); n.Demanded != 0 || n.Hits != 0 || n.Misses != 0 || n.BytesRead != 0 || n.BytesWanted != 0 || n.Reads != 0 || n.WaitSeconds != 0 ||
				n.Entries != len(st.Residents) || n.Loaded != int64(len(st.Residents)) || n.ResidentBytes > n.BudgetBytes {
				t.Errorf("counters after loading: %+v", n)
			}
			// The bookkeeping alone goes on in the same way: that is what a replay has.
			policyAlone, err := NewPolicy(policy, len(b.slots), c.BudgetBytes)
			if err != nil {
				t.Fatal(err)
			}
			alone, err := NewCache(policyAlone, c.BudgetBytes, b.cache.layers)
			if err != nil {
				t.Fatal(err)
			}
			if left, err := alone.Start(st); left != 0 || err != nil {
				t.Fatalf("%d left, %v", left, err)
			}
			if again, err := alone.State(); err != nil || !reflect.DeepEqual(again, st) {
				t.Errorf("started %v (%v), want %v", again, err, st)
			}
			a.Settle()
			was := a.Stats()
			for i := range 300 {
				step(a, b)
				sa, err := a.State()
				if err != nil {
					t.Fatal(err)
				}
				if sb, err := b.State(); err != nil || !reflect.DeepEqual(sa, sb) {
					t.Fatalf("call %d: state %v (%v), without a break %v", i, sb, err, sa)
				}
			}
			a.Settle()
			b.Settle()
			na, nb := a.Stats(), b.Stats()
			if nb.Hits != na.Hits-was.Hits || nb.Misses != na.Misses-was.Misses || nb.BytesRead != na.BytesRead-was.BytesRead ||
				nb.BytesWanted != na.BytesWanted-was.BytesWanted || nb.Prefetched != na.Prefetched-was.Prefetched ||
				int64(nb.Entries) != nb.Misses+nb.Prefetched+nb.Loaded-nb.Evictions {
				t.Errorf("loaded %+v\nwithout a break %+v since %+v", nb, na, was)
			}
			mustClose(t, a)
			mustClose(t, b)
		})
	}
}

// TestLoadOldState: a state without scores goes into lrfu by order and uses.
func TestLoadOldState(t *testing.T) {
	c := newTestCache(t, "lrfu", 30, 1, 6)
	st := CacheState{Residents: []Resident{{Expert: 5, Uses: 1}, {Expert: 1, Uses: 1}, {Expert: 3, Uses: 9}}}
	if left, err := c.Start(st); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	mustDemand(t, c, 0, []int32{0})
	if e := c.Evicted(); len(e) != 1 || e[0] != 5 {
		t.Errorf("evicted %v, want the first of the list", e)
	}
	mustDemand(t, c, 0, []int32{2, 4})
	if st, err := c.State(); err != nil || len(st.Residents) != 3 || st.Residents[2].Expert != 3 {
		t.Errorf("%v, %v: want the most used to stay", st, err)
	}
}

// TestLoadIntoLess: what does not fit is left by use, then by recency.
func TestLoadIntoLess(t *testing.T) {
	c := newTestCache(t, "lru", 30, 1, 6)
	list := []Resident{{Expert: 5, Uses: 9}, {Expert: 1, Uses: 2}, {Expert: 0, Uses: 2}, {Expert: 4, Uses: 1}, {Expert: 3, Uses: 2}}
	fit, err := c.fit(CacheState{Residents: list})
	if want := []Resident{list[0], list[2], list[4]}; err != nil || !reflect.DeepEqual(fit, want) {
		t.Errorf("fit %v, %v, want %v", fit, err, want)
	}
	if left, err := c.Start(CacheState{Residents: list}); left != 2 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	if _, err := c.Start(CacheState{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second start: %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	nan := math.NaN()
	for _, tc := range []struct {
		name, want string
		st         CacheState
	}{
		{"layer past the end", "expert 0 of layer 4", CacheState{Residents: []Resident{{Layer: 4}}}},
		{"negative layer", "layer -1", CacheState{Residents: []Resident{{Layer: -1}}}},
		{"dense layer", "expert 0 of layer 0", CacheState{Residents: []Resident{{Layer: 0}}}},
		{"expert past the end", "expert 8 of layer 2", CacheState{Residents: []Resident{{Layer: 2, Expert: 8}}}},
		{"negative expert", "expert -3", CacheState{Residents: []Resident{{Layer: 2, Expert: -3}}}},
		{"twice", "twice", CacheState{Residents: []Resident{{Layer: 1}, {Layer: 2}, {Layer: 1}}}},
		{"gone and there", "twice", CacheState{NextUse: 1, Residents: []Resident{{Layer: 1}}, Gone: []Resident{{Layer: 1, Score: 1}}}},
		{"gone past the end", "gone 0 is expert 9 of layer 1", CacheState{NextUse: 1, Gone: []Resident{{Layer: 1, Expert: 9}}}},
		{"score without a use", "has the score 2", CacheState{Residents: []Resident{{Layer: 1, Score: 2}}}},
		{"negative score", "has the score -1", CacheState{NextUse: 2, Residents: []Resident{{Layer: 1, Score: -1}}}},
		{"score of no number", "has the score NaN", CacheState{NextUse: 2, Residents: []Resident{{Layer: 1, Score: nan}}}},
		{"infinite score", "has the score +Inf", CacheState{NextUse: 2, Residents: []Resident{{Layer: 1, Score: math.Inf(1)}}}},
		{"use of no number", "counts NaN", CacheState{NextUse: nan}},
		{"use too small", "counts 0.5", CacheState{NextUse: 0.5}},
		{"use too large", "below 2^60", CacheState{NextUse: 1 << 60}},
	} {
		s := mustCached(t, newFaultSystem(), l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
		if _, err := s.Load(t.Context(), tc.st); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", tc.name, err, tc.want)
		}
		if st := s.Stats(); st.Entries != 0 || st.Reads != 0 {
			t.Errorf("%s: %+v", tc.name, st)
		}
		mustClose(t, s)
	}
	s := mustCached(t, newFaultSystem(), l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
	demandAll(t, l, s, 1, []int32{0})
	if _, err := s.Load(t.Context(), CacheState{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a cache in use: %v", err)
	}
	if _, err := s.Demand(1, []int32{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.State(); err == nil || !strings.Contains(err.Error(), "held") {
		t.Errorf("held experts: %v", err)
	}
	mustClose(t, s)
}

// TestLoadAnyScores: scores that do not fit the order, as no run saves them, decide like any others.
func TestLoadAnyScores(t *testing.T) {
	c := newTestCache(t, "lrfu", 30, 1, 6)
	st := CacheState{NextUse: 3, Residents: []Resident{{Expert: 5, Score: 8}, {Expert: 1, Score: 0}, {Expert: 3, Score: 1}}}
	if _, err := c.Start(st); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		mustDemand(t, c, 0, []int32{int32(i % 5), 5})
	}
	if st, err := c.State(); err != nil || len(st.Residents) != 3 || st.Residents[2].Expert != 5 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestLoadFails: a read that fails, memory that is short and a cancelled load end with an error and leak nothing.
func TestLoadFails(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	list := []Resident{{Layer: 3, Expert: 2}, {Layer: 1, Expert: 7}, {Layer: 1, Expert: 0}}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		read error
		want error
	}{
		{"EIO", t.Context(), unix.EIO, unix.EIO},
		{"end of file", t.Context(), nil, io.ErrUnexpectedEOF},
		{"cancelled", cancelled, nil, context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sys := newFaultSystem()
			s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
			sys.onPread = func(bool, []byte, int64) (int, error, bool) { return 0, tc.read, true }
			if _, err := s.Load(tc.ctx, CacheState{Residents: list}); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			mustClose(t, s)
			sys.checkClosed(t)
		})
	}
}

// TestLoadOrder: reads start in the order of the files, whatever the order of the list.
func TestLoadOrder(t *testing.T) {
	l := testModel(t, 4, 8)
	sys := newFaultSystem()
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8), Lanes: 1})
	var list []Resident
	for _, e := range rand.New(rand.NewPCG(1, 9)).Perm(24) {
		list = append(list, Resident{Layer: int32(1 + e/8), Expert: int32(e % 8)})
	}
	var got []string
	for _, wave := range s.fileOrder(list) {
		for _, r := range wave {
			got = append(got, fmt.Sprint(r.Layer, "/", r.Expert))
		}
	}
	// Layer 2 lies in file 0, layers 1 and 3 in file 1.
	var want []string
	for _, layer := range []int{2, 1, 3} {
		for e := range 8 {
			want = append(want, fmt.Sprint(layer, "/", e))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	mustClose(t, s)
}
