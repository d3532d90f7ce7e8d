package moe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLoadGoesOn: a source that starts with another's resident set has it in the same order, decides like that one from
// there on (but lrfu, whose scores are not in a list), and what it read for the start is told apart.
func TestLoadGoesOn(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 6, 12)
	for _, policy := range Policies() {
		t.Run("policy="+policy, func(t *testing.T) {
			c := CacheConfig{BudgetBytes: 2 * WorkingSet(l, 3), Policy: policy}
			a, b := mustCached(t, newFaultSystem(), l, c), mustCached(t, newFaultSystem(), l, c)
			rng := rand.New(rand.NewPCG(7, 7))
			for range 200 {
				demandAll(t, l, a, 1+rng.IntN(5), someExperts(rng, 12, 3))
			}
			list, err := a.Residents()
			if err != nil {
				t.Fatal(err)
			}
			got, err := b.Load(t.Context(), list)
			if err != nil || got.Experts != len(list) || got.Left != 0 || got.Bytes < int64(got.Experts) || got.Reads < int64(3*got.Experts) || !(got.Seconds > 0) {
				t.Fatalf("%+v, %v for %d experts", got, err, len(list))
			}
			if again, err := b.Residents(); err != nil || !reflect.DeepEqual(again, list) {
				t.Errorf("loaded %v (%v), want %v", again, err, list)
			}
			if st := b.Stats(); st.Demanded != 0 || st.Hits != 0 || st.Misses != 0 || st.BytesRead != 0 || st.Reads != 0 || st.WaitSeconds != 0 ||
				st.Entries != len(list) || st.Loaded != int64(len(list)) || st.ResidentBytes > st.BudgetBytes {
				t.Errorf("counters after loading: %+v", st)
			}
			was := a.Stats()
			ra, rb := make([]uint8, 12), make([]uint8, 12)
			for i := range 300 {
				layer, ids := 1+rng.IntN(5), someExperts(rng, 12, 3)
				a.Residency(layer, ra)
				b.Residency(layer, rb)
				if policy != "lrfu" && !reflect.DeepEqual(ra, rb) {
					t.Fatalf("call %d: residency %v, without a break %v", i, rb, ra)
				}
				demandAll(t, l, a, layer, ids)
				demandAll(t, l, b, layer, ids)
			}
			sa, sb := a.Stats(), b.Stats()
			if policy != "lrfu" && (sb.Hits != sa.Hits-was.Hits || sb.Misses != sa.Misses-was.Misses || sb.BytesRead != sa.BytesRead-was.BytesRead) ||
				int64(sb.Entries) != sb.Misses+sb.Loaded-sb.Evictions {
				t.Errorf("loaded %+v\nwithout a break %+v since %+v", sb, sa, was)
			}
			mustClose(t, a)
			mustClose(t, b)
		})
	}
}

// TestLoadIntoLess: what does not fit is left by use, then by recency.
func TestLoadIntoLess(t *testing.T) {
	c, err := NewCache(newLRU(6), 30, []CacheLayer{{Experts: 6, SlotBytes: 10}})
	if err != nil {
		t.Fatal(err)
	}
	list := []Resident{{Expert: 5, Uses: 9}, {Expert: 1, Uses: 2}, {Expert: 0, Uses: 2}, {Expert: 4, Uses: 1}, {Expert: 3, Uses: 2}}
	fit, err := c.Fit(list)
	if want := []Resident{list[0], list[2], list[4]}; err != nil || !reflect.DeepEqual(fit, want) {
		t.Errorf("fit %v, %v, want %v", fit, err, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	for _, tc := range []struct {
		name, want string
		list       []Resident
	}{
		{"layer past the end", "expert 0 of layer 4", []Resident{{Layer: 4}}},
		{"negative layer", "layer -1", []Resident{{Layer: -1}}},
		{"dense layer", "expert 0 of layer 0", []Resident{{Layer: 0}}},
		{"expert past the end", "expert 8 of layer 2", []Resident{{Layer: 2, Expert: 8}}},
		{"negative expert", "expert -3", []Resident{{Layer: 2, Expert: -3}}},
		{"twice", "twice", []Resident{{Layer: 1}, {Layer: 2}, {Layer: 1}}},
	} {
		s := mustCached(t, newFaultSystem(), l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
		if _, err := s.Load(t.Context(), tc.list); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", tc.name, err, tc.want)
		}
		if st := s.Stats(); st.Entries != 0 || st.Reads != 0 {
			t.Errorf("%s: %+v", tc.name, st)
		}
		mustClose(t, s)
	}
	s := mustCached(t, newFaultSystem(), l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
	demandAll(t, l, s, 1, []int32{0})
	if _, err := s.Load(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a cache in use: %v", err)
	}
	if _, err := s.Demand(1, []int32{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Residents(); err == nil || !strings.Contains(err.Error(), "held") {
		t.Errorf("held experts: %v", err)
	}
	mustClose(t, s)
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
			if _, err := s.Load(tc.ctx, list); !errors.Is(err, tc.want) {
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
