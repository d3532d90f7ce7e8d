package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gates hold reads back by the expert that they are for. Files are read buffered, so that offsets are the extents'.
type gates struct {
	mu   sync.Mutex
	shut map[int64]chan struct{} // by offset of a projection
	seen []int64                 // offsets in the order in which their reads started
}

func (g *gates) hold(l *Layout, layer, expert int) (open func()) {
	c := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut[l.Experts[layer][expert].Up.Off] = c
	return func() { close(c) }
}

func (g *gates) onPread(_ bool, _ []byte, off int64) (int, error, bool) {
	g.mu.Lock()
	c := g.shut[off]
	g.seen = append(g.seen, off)
	g.mu.Unlock()
	if c != nil {
		<-c
	}
	return 0, nil, false
}

// waitReady fails the test when nothing arrives.
func waitReady(t *testing.T, s Source) {
	t.Helper()
	for range 5000 {
		if s.Ready() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("nothing arrives")
}

// TestNextInOrderOfArrival holds single reads back and wants the others handed out meanwhile, the lower first.
func TestNextInOrderOfArrival(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 3, 8)
	sys, g := newFaultSystem(), &gates{shut: map[int64]chan struct{}{}}
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8), Lanes: 16})
	defer mustClose(t, s)
	demandAll(t, l, s, 1, []int32{4, 6})
	sys.onPread = g.onPread
	open0, open7 := g.hold(l, 1, 0), g.hold(l, 1, 7)
	ids := []int32{0, 1, 4, 6, 7}
	if n, err := s.Demand(1, ids); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	next := func() int {
		t.Helper()
		i, x, err := s.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		checkExpert(t, l, 1, int(ids[i]), x)
		return int(ids[i])
	}
	var got []int
	for range 3 {
		waitReady(t, s)
		got = append(got, next())
	}
	// 4 and 6 were there from the start; 1 may have come before, between or behind them.
	if got = slices.DeleteFunc(got, func(e int) bool { return e == 1 }); !slices.Equal(got, []int{4, 6}) {
		t.Errorf("got %v and 1, want 4, 6", got)
	}
	if s.Ready() {
		t.Error("ready although the other reads are held back")
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if i, _, err := s.Next(ctx); i != -1 || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %d, %v", i, err)
	}
	open7()
	if e := next(); e != 7 {
		t.Errorf("got %d, want 7", e)
	}
	open0()
	if e := next(); e != 0 {
		t.Errorf("got %d, want 0", e)
	}
	if i, _, err := s.Next(context.Background()); i != -1 || err == nil || s.Ready() {
		t.Errorf("none left: %d, %v", i, err)
	}
	s.Release()
	checkStats(t, s.Stats())
}

// TestCancelledWait releases what a cancelled wait was for: the reads go on, nobody gets their slots meanwhile, and the
// next demand of the same experts takes what they brought.
func TestCancelledWait(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 3, 4)
	sys, g := newFaultSystem(), &gates{shut: map[int64]chan struct{}{}}
	sys.onPread = g.onPread
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 2), Lanes: 8})
	open := g.hold(l, 1, 2)
	if _, err := s.Demand(1, []int32{2}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.Release()
	time.AfterFunc(10*time.Millisecond, open)
	demandAll(t, l, s, 1, []int32{2})
	if st := s.Stats(); st.Misses != 1 || st.Hits != 1 || st.Reads != projections || st.WaitSeconds <= 0 {
		t.Errorf("%+v", st)
	}
	mustClose(t, s)
	sys.checkClosed(t)
}

// TestPrefetch goes through what a prefetch does to residency, reads and counters.
func TestPrefetch(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	slot := newSlotShape(l.Experts[1], int64(os.Getpagesize())).bytes
	sys, g := newFaultSystem(), &gates{shut: map[int64]chan struct{}{}}
	sys.onPread = g.onPread
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: 6 * slot, Lanes: 1})
	residency := func() string {
		r := make([]uint8, 8)
		s.Residency(1, r)
		return fmt.Sprint(r)
	}
	// The one lane is busy with 0, behind which 3 and 5 wait to be read ahead; 1 is demanded and goes before them.
	open := g.hold(l, 1, 0)
	if _, err := s.Demand(1, []int32{0}); err != nil {
		t.Fatal(err)
	}
	if err := s.Prefetch(1, []int32{3, 5}, 2*slot); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if got := residency(); got != "[1 0 0 2 0 2 0 0]" {
		t.Errorf("residency %s", got)
	}
	if n, err := s.Demand(1, []int32{1, 3}); n != 2 || err != nil || s.ReadBytes(0) == 0 || s.ReadBytes(1) != 0 {
		t.Fatal(n, err)
	}
	open()
	for range 2 {
		i, x, err := s.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		checkExpert(t, l, 1, []int{1, 3}[i], x)
	}
	s.Release()
	if got := residency(); got != "[1 1 0 1 0 2 0 0]" {
		t.Errorf("residency %s", got)
	}
	var order []int64
	g.mu.Lock()
	seen := slices.Clone(g.seen) // 5 may still be on its way
	g.mu.Unlock()
	for _, off := range seen {
		for e, x := range l.Experts[1] {
			if x.Gate.Off == off {
				order = append(order, int64(e))
			}
		}
	}
	if !slices.Equal(order[:3], []int64{0, 1, 3}) {
		t.Errorf("reads started in the order %v, want 0, 1, 3", order)
	}
	// Six others push out everything, 5 before it was of use.
	demandAll(t, l, s, 1, []int32{0, 1, 2, 3, 4, 6})
	st := s.Stats()
	checkStats(t, st)
	if st.Prefetched != 2 || st.PrefetchUsed != 1 || st.PrefetchWasted != 1 || st.PrefetchBytes != 2*slot ||
		st.PrefetchUsedBytes != slot || st.PrefetchWastedBytes != slot || st.Reads != 6*projections+projections {
		t.Errorf("%+v", st)
	}
	if err := s.Prefetch(1, []int32{9}, slot); err == nil {
		t.Error("prefetch of an expert that the layer does not have: taken")
	}
	mustClose(t, s)
	if err := s.Prefetch(1, []int32{0}, slot); !errors.Is(err, errClosed) {
		t.Errorf("prefetch after close: %v", err)
	}
	sys.checkClosed(t)
}

// TestPrefetchFails: a failed read shows when the expert is demanded, a failed mapping at once, and neither spoils the
// counters.
func TestPrefetchFails(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 3, 8)
	sys := newFaultSystem()
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
	var broken atomic.Bool
	broken.Store(true)
	sys.onPread = func(bool, []byte, int64) (int, error, bool) { return -1, unix.EIO, broken.Load() }
	if err := s.Prefetch(1, []int32{2, 3}, 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Demand(1, []int32{2}); err != nil {
		t.Fatal(err)
	}
	if i, _, err := s.Next(context.Background()); i != 0 || !errors.Is(err, unix.EIO) {
		t.Errorf("%d, %v", i, err)
	}
	s.Release()
	if _, err := s.Demand(1, []int32{3}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Expert(0); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v", err)
	}
	s.Release()
	broken.Store(false)
	demandAll(t, l, s, 1, []int32{2})
	checkStats(t, s.Stats())
	maps := 0
	sys.onMap = func(int) error {
		if maps++; maps == 2 {
			return unix.ENOMEM
		}
		return nil
	}
	if err := s.Prefetch(1, []int32{5, 6, 7}, 1<<30); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got %v", err)
	}
	st := s.Stats()
	checkStats(t, st)
	if st.Failed != 3 || st.PrefetchUsed != 2 {
		t.Errorf("%+v", st)
	}
	demandAll(t, l, s, 1, []int32{0, 5, 6, 7})
	mustClose(t, s)
	sys.checkClosed(t)
}

// TestPrefetchStress mixes prefetches that are late, useless and given up with demands in a cache of hardly more than one
// demand, with slots that the race detector sees; decisions are the same however long reads take.
func TestPrefetchStress(t *testing.T) {
	leakCheck(t)
	const nLayer, nExpert, k = 5, 16, 4
	l := testModel(t, nLayer, nExpert)
	largest := newSlotShape(l.Experts[2], int64(os.Getpagesize())).bytes
	for _, policy := range Policies() {
		var want Stats
		for run := range 3 {
			sys := newFaultSystem()
			sys.heap = true
			sys.onPread = func(_ bool, p []byte, _ int64) (int, error, bool) {
				if rand.IntN(20) == 0 {
					time.Sleep(50 * time.Microsecond)
				}
				return 0, nil, false
			}
			s := mustCached(t, sys, l, CacheConfig{BudgetBytes: (k + 2) * largest, Policy: policy, Lanes: 1 + 3*run})
			rng := rand.New(rand.NewPCG(20, 21))
			for range 150 {
				for layer := 1; layer < nLayer; layer++ {
					ids := someExperts(rng, nExpert, k)
					n, err := s.Demand(layer, ids)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Prefetch(1+layer%(nLayer-1), someExperts(rng, nExpert, k), int64(rng.IntN(3))*largest); err != nil {
						t.Fatal(err)
					}
					for range rng.IntN(n + 1) { // some callers give up
						i, x, err := s.Next(context.Background())
						if err != nil {
							t.Fatal(err)
						}
						checkExpert(t, l, layer, int(ids[i]), x)
					}
					s.Release()
				}
			}
			st := s.Stats()
			checkStats(t, st)
			if st.PrefetchUsed == 0 || st.PrefetchWasted == 0 || st.ReadErrors != 0 {
				t.Errorf("%+v", st)
			}
			st.Reads, st.BytesRead, st.ReadSeconds, st.WaitSeconds, st.Lanes = 0, 0, 0, 0, 0
			if run == 0 {
				want = st
			} else if st != want {
				t.Errorf("%s, run %d: %+v, want %+v", policy, run, st, want)
			}
			mustClose(t, s)
			sys.checkClosed(t)
		}
	}
}

// TestLargeExpertsInPieces reads experts above readPiece, begun anywhere in a block, and compares every byte.
func TestLargeExpertsInPieces(t *testing.T) {
	leakCheck(t)
	const size = 2*readPiece + 4321
	data := make([]byte, 777+6*size)
	rng := rand.New(rand.NewPCG(22, 23))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	l := &Layout{Files: []File{{Name: "big", Path: filepath.Join(t.TempDir(), "big"), Map: data}}, Experts: make([][]ExpertExtents, 1)}
	if err := os.WriteFile(l.Files[0].Path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	at := func(i int) Extent { return Extent{Off: 777 + int64(i)*size, Len: size} }
	for e := range 2 {
		l.Experts[0] = append(l.Experts[0], ExpertExtents{Gate: at(3 * e), Up: at(3*e + 1), Down: at(3*e + 2)})
	}
	for _, direct := range []bool{false, true} {
		sys := newFaultSystem()
		sys.dio, sys.statxKnow, sys.statxSays = 512, true, 512
		var mu sync.Mutex
		most := 0
		s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 1), Lanes: 4, Direct: direct})
		sys.onPread = func(_ bool, p []byte, _ int64) (int, error, bool) {
			mu.Lock()
			most = max(most, len(p))
			mu.Unlock()
			return 0, nil, false
		}
		for _, e := range []int32{0, 1, 0} {
			demandAll(t, l, s, 0, []int32{e})
		}
		st := s.Stats()
		checkStats(t, st)
		if st.Reads != 3*projections*3 || most > readPiece || !direct && st.BytesRead != 3*projections*size || len(s.Notes()) != 0 {
			t.Errorf("direct %v: largest read %d, %+v, %q", direct, most, st, s.Notes())
		}
		// One bad piece in the middle fails the projection, by name.
		bad := l.Experts[0][1].Up.Off + readPiece
		sys.onPread = func(_ bool, p []byte, off int64) (int, error, bool) {
			return -1, unix.EIO, off <= bad && bad < off+int64(len(p))
		}
		if _, err := s.Demand(0, []int32{1}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Next(context.Background()); !errors.Is(err, unix.EIO) || !bytes.Contains([]byte(err.Error()), []byte("layer 0 expert 1: up: read big at offset ")) {
			t.Errorf("direct %v: got %v", direct, err)
		}
		s.Release()
		mustClose(t, s)
		sys.checkClosed(t)
	}
}
