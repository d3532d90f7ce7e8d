package store

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// oneSizeModel is two layers of experts of one size, large enough for large pages.
func oneSizeModel(t testing.TB, nExpert int) *Layout {
	t.Helper()
	const unit = 100_000
	path := filepath.Join(t.TempDir(), "model.gguf")
	data := make([]byte, 2*nExpert*3*unit+100)
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	l := &Layout{Files: []File{{Name: "model.gguf", Path: path, Map: data}}, Experts: make([][]ExpertExtents, 2)}
	off := int64(100)
	for layer := range l.Experts {
		l.Experts[layer] = make([]ExpertExtents, nExpert)
		for e := range nExpert {
			for p := range projections {
				*l.Experts[layer][e].at(p) = Extent{Off: off, Len: unit}
				off += unit
			}
		}
	}
	return l
}

// TestSlotsOfOneMapping: slots that keep their size are cut from one mapping, which is no larger than the budget; they hold
// what they should while they are used again and again, and all of it is given back.
func TestSlotsOfOneMapping(t *testing.T) {
	leakCheck(t)
	const nExpert = 16
	l := oneSizeModel(t, nExpert)
	all := WorkingSet(l, nExpert)
	for _, budget := range []int64{all * 5 / 16, all - 1, all, 10 * all} {
		sys := newFaultSystem()
		maps := 0
		sys.onMap = func(n int) error {
			if n >= hugePage {
				maps++
			}
			return nil
		}
		s := mustCached(t, sys, l, CacheConfig{BudgetBytes: budget})
		rng := rand.New(rand.NewPCG(1, uint64(budget)))
		for range 60 {
			demandAll(t, l, s, rng.IntN(2), someExperts(rng, nExpert, 4))
			if err := s.Prefetch(rng.IntN(2), someExperts(rng, nExpert, 2), 1<<30); err != nil {
				t.Fatal(err)
			}
		}
		st := s.Stats()
		checkStats(t, st)
		if maps != 1 || int64(sys.peak) > budget || st.ResidentBytes > budget || (st.Evictions > 0) != (budget < all) {
			t.Errorf("budget %d of %d: %d mappings, %d bytes at most; %+v", budget, all, maps, sys.peak, st)
		}
		mustClose(t, s)
		if s.Stats().ResidentBytes != 0 {
			t.Errorf("%d bytes resident after the end", s.Stats().ResidentBytes)
		}
		sys.checkClosed(t)
	}
}

// TestSlotsOfNoMemory: when the mapping is refused the demand fails, and a later one tries again.
func TestSlotsOfNoMemory(t *testing.T) {
	leakCheck(t)
	l := oneSizeModel(t, 16)
	sys := newFaultSystem()
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: 1 << 30})
	short := true
	sys.onMap = func(int) error {
		if short {
			return unix.ENOMEM
		}
		return nil
	}
	if _, err := s.Demand(0, []int32{1, 2}); !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "experts' slots") {
		t.Errorf("%v", err)
	}
	if err := s.Prefetch(0, []int32{1, 2}, 1<<30); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%v", err)
	}
	if st := s.Stats(); st.Entries != 0 || st.ResidentBytes != 0 {
		t.Errorf("%+v", st)
	}
	short = false
	demandAll(t, l, s, 0, []int32{1, 2})
	mustClose(t, s)
	sys.checkClosed(t)
}
