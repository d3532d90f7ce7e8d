package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestSourcesAgree compares every byte of every source with a plain look into the files, at unaligned offsets.
func TestSourcesAgree(t *testing.T) {
	leakCheck(t)
	const nLayer, nExpert = 6, 8
	l := testModel(t, nLayer, nExpert)
	inMemory := &Layout{Files: slices.Clone(l.Files), Experts: l.Experts}
	readers := &Layout{Files: slices.Clone(l.Files), Experts: l.Experts}
	for i := range l.Files {
		inMemory.Files[i].Path = ""
		readers.Files[i] = File{Name: "reader", ReaderAt: bytes.NewReader(l.Files[i].Map)}
	}
	budget := WorkingSet(l, nExpert) / 3
	for _, tc := range []struct {
		name string
		open func() (Source, error)
		note string // a note that there must be; other tests see to the rest
	}{
		{"mapped", func() (Source, error) { return NewMapped(l) }, ""},
		{"resident", func() (Source, error) { return NewResident(l) }, ""},
		{"resident from memory", func() (Source, error) { return NewResident(inMemory) },
			"direct I/O off for 2 of 2 files, buffered reads instead: model-0.gguf: it is in memory"},
		{"resident from readers", func() (Source, error) { return NewResident(readers) }, "it is in memory"},
		{"cached", func() (Source, error) {
			return NewCached(l, CacheConfig{BudgetBytes: budget, Policy: "lru", Lanes: 3, MinBytes: 1})
		}, ""},
		{"cached direct", func() (Source, error) {
			return NewCached(l, CacheConfig{BudgetBytes: budget, Policy: "slru", Lanes: 3, Direct: true, MinBytes: 1})
		}, ""},
		{"cached from memory", func() (Source, error) {
			return NewCached(inMemory, CacheConfig{BudgetBytes: budget, Policy: "slru", Lanes: 1, Direct: true, MinBytes: 1})
		}, "it is in memory"},
		{"cached from readers", func() (Source, error) {
			return NewCached(readers, CacheConfig{BudgetBytes: budget, Policy: "lru", Lanes: 1, MinBytes: 1})
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := tc.open()
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, s)
			if notes := strings.Join(s.Notes(), "\n"); !strings.Contains(notes, tc.note) {
				t.Errorf("notes %q, want %q", notes, tc.note)
			} else if notes != "" {
				t.Log(notes)
			}
			rng := rand.New(rand.NewPCG(5, 6))
			for range 200 {
				layer := 1 + rng.IntN(nLayer-1)
				demandAll(t, l, s, layer, someExperts(rng, nExpert, 1+rng.IntN(nExpert)))
			}
			st := s.Stats()
			if st.Demanded != st.Hits+st.Misses || st.Demanded < 200 || st.ReadErrors != 0 {
				t.Errorf("%+v", st)
			}
			if strings.HasPrefix(tc.name, "cached") {
				checkStats(t, st)
				if st.Reads != projections*st.Misses || st.Evictions == 0 || st.BytesRead == 0 || st.ReadSeconds <= 0 {
					t.Errorf("%+v", st)
				}
			} else if st.Misses != 0 || st.Entries != (nLayer-1)*nExpert {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestFixedSources(t *testing.T) {
	l := testModel(t, 3, 4)
	sys := newFaultSystem()
	s, err := newResident(sys, l)
	if err != nil {
		t.Fatal(err)
	}
	residency := make([]uint8, 4)
	s.Residency(1, residency)
	if !bytes.Equal(residency, []byte{1, 1, 1, 1}) {
		t.Errorf("residency %v", residency)
	}
	n, err := s.Demand(1, []int32{0, 2})
	if n != 2 || err != nil || s.ReadBytes(0) != 0 {
		t.Errorf("demand: %d, %v", n, err)
	}
	if _, err := s.Demand(1, []int32{3}); err == nil || !strings.Contains(err.Error(), "2 experts are held") {
		t.Errorf("demand while held: %v", err)
	}
	s.Release()
	for _, bad := range [][]int32{{1, 0}, {4}, {-1}} {
		if _, err := s.Demand(2, bad); err == nil {
			t.Errorf("demand of %v taken", bad)
		}
	}
	if _, err := s.Demand(0, []int32{0}); err == nil {
		t.Error("demand of a dense layer taken")
	}
	if _, err := s.Demand(3, []int32{0}); err == nil {
		t.Error("demand past the layers taken")
	}
	var logical int64
	for layer := range l.Experts {
		logical += l.ExpertBytes(layer) * int64(len(l.Experts[layer]))
	}
	// Tensors beside each other share a span, so that little is padded.
	if st := s.Stats(); st.ResidentBytes != int64(sys.mapped) || st.ResidentBytes < logical || st.ResidentBytes > logical+4*slotAlign+int64(os.Getpagesize())*2 {
		t.Errorf("%d bytes of experts: %+v", logical, st)
	}
	mustClose(t, s)
	sys.checkClosed(t)
	if st := s.Stats(); st.ResidentBytes != 0 {
		t.Errorf("after close: %+v", st)
	}

	l.Files[1].Map = nil
	if _, err := NewMapped(l); err == nil || err.Error() != "moe: model-1.gguf: not mapped" {
		t.Errorf("mapped without a mapping: %v", err)
	}
}

func TestCachedConfig(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 6, 8)
	working := WorkingSet(l, 4)
	largest := newSlotShape(l.Experts[2], int64(os.Getpagesize())).bytes
	good := CacheConfig{BudgetBytes: working, Policy: "lru", Lanes: 1, MinBytes: working}
	with := func(f func(*CacheConfig)) CacheConfig { c := good; f(&c); return c }
	for _, tc := range []struct {
		name string
		c    CacheConfig
		want string
	}{
		{"good", good, ""},
		{"lanes 0", with(func(c *CacheConfig) { c.Lanes = 0 }), "0 lanes: want 1..256"},
		{"lanes negative", with(func(c *CacheConfig) { c.Lanes = -4 }), "-4 lanes"},
		{"lanes absurd", with(func(c *CacheConfig) { c.Lanes = 257 }), "257 lanes"},
		{"budget 0", with(func(c *CacheConfig) { c.BudgetBytes = 0 }), "cache budget 0 bytes: want more than 0"},
		{"budget negative", with(func(c *CacheConfig) { c.BudgetBytes = -1 }), "cache budget -1 bytes"},
		{"working set 0", with(func(c *CacheConfig) { c.MinBytes = 0 }), "working set of 0 bytes"},
		{"working set negative, forced", with(func(c *CacheConfig) { c.MinBytes, c.Force = -1, true }), "working set of -1 bytes"},
		{"unknown policy", with(func(c *CacheConfig) { c.Policy = "lur" }), `unknown cache policy "lur": want one of lru, slru`},
		{"no policy", with(func(c *CacheConfig) { c.Policy = "" }), `unknown cache policy ""`},
		{"below the working set", with(func(c *CacheConfig) { c.BudgetBytes-- }),
			fmt.Sprintf("is below one token's working set: needs 1 MiB (%d bytes)", working)},
		{"below the working set, forced", with(func(c *CacheConfig) { c.BudgetBytes, c.Force = largest, true }), ""},
		{"below one slot, forced", with(func(c *CacheConfig) { c.BudgetBytes, c.Force = largest-1, true }),
			"holds no expert of layer 2: needs at least 1 MiB for one, 1 MiB for one token"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := NewCached(l, tc.c)
			if err == nil {
				mustClose(t, s)
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	for n, want := range map[int64]int64{1: 1, 1 << 20: 1, 1<<20 + 1: 2} {
		if got := mebibytes(n); got != want {
			t.Errorf("%d bytes: got %d MiB, want %d", n, got, want)
		}
	}
}

// TestCachedSmall goes through one expert's life by hand.
func TestCachedSmall(t *testing.T) {
	l := testModel(t, 3, 4)
	slot := newSlotShape(l.Experts[1], int64(os.Getpagesize())).bytes
	s := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: 2 * slot})
	defer mustClose(t, s)
	residency := func() []uint8 {
		r := make([]uint8, 4)
		s.Residency(1, r)
		return r
	}
	n, err := s.Demand(1, []int32{0, 1, 3})
	if n != 2 || err != nil || s.ReadBytes(0) != l.ExpertBytes(1) {
		t.Fatalf("demand: %d, %v", n, err)
	}
	// Resident from the demand on, whether the reads have finished or not.
	if r := residency(); !bytes.Equal(r, []byte{1, 1, 0, 0}) {
		t.Errorf("residency %v", r)
	}
	if _, err := s.Demand(1, []int32{3}); err == nil || !strings.Contains(err.Error(), "while 2 experts are held: release them first") {
		t.Errorf("demand while held: %v", err)
	}
	for range 2 { // Expert may be asked again
		for i := range n {
			x, err := s.Expert(i)
			if err != nil {
				t.Fatal(err)
			}
			checkExpert(t, l, 1, i, x)
			if cap(x.Gate) != len(x.Gate) {
				t.Error("capacity reaches past the weights")
			}
		}
	}
	s.Release()
	s.Release()
	if n, err := s.Demand(1, []int32{1, 3}); n != 2 || err != nil || s.ReadBytes(0) != 0 || s.ReadBytes(1) == 0 {
		t.Fatalf("second demand: %d, %v", n, err)
	}
	if n, err := s.Demand(1, nil); n != 0 || err == nil {
		t.Errorf("empty demand while held: %d, %v", n, err)
	}
	s.Release()
	if n, err := s.Demand(1, nil); n != 0 || err != nil {
		t.Errorf("empty demand: %d, %v", n, err)
	}
	if r := residency(); !bytes.Equal(r, []byte{0, 1, 0, 1}) {
		t.Errorf("residency %v", r)
	}
	st := s.Stats()
	if st.Demanded != 4 || st.Hits != 1 || st.Misses != 3 || st.Evictions != 1 || st.Entries != 2 || st.ResidentBytes != 2*slot || st.Lanes != 2 {
		t.Errorf("%+v", st)
	}
	mustClose(t, s)
	if _, err := s.Demand(1, []int32{0}); err == nil || !strings.Contains(err.Error(), "source closed") {
		t.Errorf("demand after close: %v", err)
	}
}

// TestDecisionsIgnoreTiming runs one sequence of demands with other lanes, delays, direct reads and file systems, and
// wants the same hits and the same residency at every step.
func TestDecisionsIgnoreTiming(t *testing.T) {
	leakCheck(t)
	const nLayer, nExpert = 6, 8
	l := testModel(t, nLayer, nExpert)
	for _, policy := range Policies() {
		var want string
		for lanes := range 4 {
			sys := newFaultSystem()
			if lanes > 0 {
				sys.dio, sys.statxKnow, sys.statxSays = 512, true, 512
				sys.onPread = func(bool, []byte, int64) (int, error, bool) {
					if rand.IntN(8) == 0 {
						time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
					}
					return 0, nil, false
				}
			}
			s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 3), Policy: policy, Lanes: 1 + lanes, Direct: lanes%2 == 1})
			var did strings.Builder
			rng := rand.New(rand.NewPCG(8, 9))
			residency := make([]uint8, nExpert)
			for range 150 {
				layer := 1 + rng.IntN(nLayer-1)
				s.Residency(layer, residency)
				ids := someExperts(rng, nExpert, 1+rng.IntN(nExpert))
				n, err := s.Demand(layer, ids)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&did, layer, residency, ids, n)
				// Some callers give up in the middle.
				for i := range rng.IntN(n + 1) {
					x, err := s.Expert(i)
					if err != nil {
						t.Fatal(err)
					}
					checkExpert(t, l, layer, int(ids[i]), x)
				}
				s.Release()
				checkStats(t, s.Stats())
			}
			if want == "" {
				want = did.String()
			} else if did.String() != want {
				t.Errorf("%s, %d lanes: other decisions", policy, 1+lanes)
			}
			if int64(sys.peak) > WorkingSet(l, 3)+slotAlign { // and the page of the test read
				t.Errorf("%d bytes were mapped, the budget is %d", sys.peak, WorkingSet(l, 3))
			}
			mustClose(t, s)
			sys.checkClosed(t)
		}
	}
}

// TestCachedStress gives a cache that holds the top-k experts of one layer and nothing more to many lanes, with slots in
// memory that the race detector sees: two reads of one slot at a time would show.
func TestCachedStress(t *testing.T) {
	leakCheck(t)
	const nLayer, nExpert, k = 6, 16, 4
	l := testModel(t, nLayer, nExpert)
	for _, policy := range Policies() {
		sys := newFaultSystem()
		sys.heap, sys.dio, sys.statxKnow, sys.statxSays = true, 512, true, 512
		sys.onPread = func(_ bool, p []byte, _ int64) (int, error, bool) {
			if rand.IntN(20) == 0 {
				time.Sleep(50 * time.Microsecond)
			}
			return 0, nil, false
		}
		largest := newSlotShape(l.Experts[2], int64(os.Getpagesize())).bytes
		s := mustCached(t, sys, l, CacheConfig{BudgetBytes: k * largest, Policy: policy, Lanes: 8, Direct: true})
		rng := rand.New(rand.NewPCG(10, 11))
		for range 120 {
			for layer := 1; layer < nLayer; layer++ {
				ids := someExperts(rng, nExpert, k)
				if rng.IntN(4) == 0 { // released with reads in flight: the next one must wait for their slots
					if _, err := s.Demand(layer, ids); err != nil {
						t.Fatal(err)
					}
					s.Release()
					continue
				}
				demandAll(t, l, s, layer, ids)
			}
		}
		st := s.Stats()
		checkStats(t, st)
		if st.Evictions == 0 || !st.Direct || st.ReadErrors != 0 {
			t.Errorf("%+v", st)
		}
		mustClose(t, s)
		sys.checkClosed(t)
	}
}

func TestTwoSourcesOneFile(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	a := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: WorkingSet(l, 2), Direct: true})
	b := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: WorkingSet(l, 2), Policy: "slru"})
	rng := rand.New(rand.NewPCG(12, 13))
	for range 50 {
		demandAll(t, l, a, 1+rng.IntN(3), someExperts(rng, 8, 3))
		demandAll(t, l, b, 1+rng.IntN(3), someExperts(rng, 8, 3))
	}
	mustClose(t, a)
	demandAll(t, l, b, 1, []int32{0, 1, 2, 3, 4, 5, 6, 7})
	mustClose(t, b)
}

func TestCloseInFlight(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 4, 8)
	sys := newFaultSystem()
	gate := make(chan struct{})
	var started atomic.Int32
	sys.onPread = func(bool, []byte, int64) (int, error, bool) {
		started.Add(1)
		<-gate
		return 0, nil, false
	}
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8), Lanes: 2})
	if _, err := s.Demand(1, []int32{0, 1, 2, 3, 4, 5}); err != nil {
		t.Fatal(err)
	}
	for started.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(gate) })
	mustClose(t, s)
	sys.checkClosed(t)
	// The two reads that had started were waited for, those in the queue were given up.
	if st := s.Stats(); st.Reads != 2 {
		t.Errorf("%+v", st)
	}
}

// TestLargeOffsets reads past 4 GiB in a sparse file.
func TestLargeOffsets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const off = 5<<30 + 4095
	data := []byte("experts lie far out")
	if _, err := f.WriteAt(data, off); err != nil {
		t.Skipf("no sparse files here: %v", err)
	}
	l := &Layout{Files: []File{{Name: "large", Path: path, ReaderAt: f}},
		Experts: [][]ExpertExtents{{{Up: Extent{Off: off, Len: int64(len(data))}}, {Up: Extent{Off: 1<<31 - 4, Len: 16}}}}}
	for _, direct := range []bool{false, true} {
		s := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: 1 << 20, Direct: direct})
		if n, err := s.Demand(0, []int32{0, 1}); n != 2 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		a, err := s.Expert(0)
		if err != nil || !bytes.Equal(a.Up, data) || a.Gate != nil || a.Down != nil {
			t.Errorf("direct %v: got %q, %v", direct, a.Up, err)
		}
		b, err := s.Expert(1)
		if err != nil || !bytes.Equal(b.Up, make([]byte, 16)) {
			t.Errorf("direct %v: got %q, %v", direct, b.Up, err)
		}
		mustClose(t, s)
	}
}

// TestResidentChunks reads a span of several chunks, with experts across their boundaries.
func TestResidentChunks(t *testing.T) {
	leakCheck(t)
	const nExpert, size = 3, residentChunk - 100
	data := make([]byte, 77+nExpert*size)
	rng := rand.New(rand.NewPCG(16, 17))
	for i := 0; i < len(data); i += 61 {
		data[i] = byte(rng.Uint32())
	}
	l := &Layout{Files: []File{{Name: "big", Path: filepath.Join(t.TempDir(), "big"), Map: data}}, Experts: make([][]ExpertExtents, 1)}
	if err := os.WriteFile(l.Files[0].Path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	for e := range nExpert {
		l.Experts[0] = append(l.Experts[0], ExpertExtents{Up: Extent{Off: 77 + int64(e)*size, Len: size}})
	}
	s, err := NewResident(l)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	if st := s.Stats(); st.Reads != 3 || st.ResidentBytes != alignUp(int64(len(data)), int64(os.Getpagesize())) {
		t.Errorf("%+v", st)
	}
	n, err := s.Demand(0, []int32{0, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		x, _ := s.Expert(i)
		if want := l.Experts[0][i].Up; !bytes.Equal(x.Up, data[want.Off:want.Off+want.Len]) {
			t.Errorf("expert %d differs", i)
		}
	}
}

// TestTailIsZero fills a slot, reuses it for the extents that end with their file, and wants zeros behind them.
func TestTailIsZero(t *testing.T) {
	l := testModel(t, 2, 4)
	last := l.Experts[1][3].Down
	if int64(len(l.Files[last.File].Map)) != last.Off+last.Len || (last.Off+last.Len)%slotAlign == 0 {
		t.Fatal("the last expert does not end with its file inside a block")
	}
	for _, direct := range []bool{false, true} {
		s := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: WorkingSet(l, 1), Direct: direct})
		demandAll(t, l, s, 1, []int32{0})
		mem := s.slots[s.cache.ID(1, 0)].mem
		for i := range mem {
			mem[i] = 0xff
		}
		demandAll(t, l, s, 1, []int32{3})
		tail, skip := s.shapes[1].region(s.slots[s.cache.ID(1, 3)].mem, 2, &last, 1)
		tail = tail[skip+last.Len:]
		if len(tail) == 0 || !bytes.Equal(tail, make([]byte, len(tail))) {
			t.Errorf("direct %v: %d bytes behind the file are not all zero", direct, len(tail))
		}
		mustClose(t, s)
	}
}

func TestReplacedFile(t *testing.T) {
	l := testModel(t, 3, 4)
	f, err := os.Open(l.Files[1].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l.Files[1].ReaderAt = f
	if s, err := NewResident(l); err != nil {
		t.Fatal(err)
	} else {
		mustClose(t, s)
	}
	other := l.Files[1].Path + ".new"
	if err := os.WriteFile(other, l.Files[1].Map, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, l.Files[1].Path); err != nil {
		t.Fatal(err)
	}
	if _, err := NewResident(l); err == nil || !strings.Contains(err.Error(), "replaced by another file") {
		t.Errorf("replaced: %v", err)
	}
	l.Files[1].ReaderAt = nil
	if err := os.Truncate(l.Files[1].Path, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := NewResident(l); err == nil || !strings.Contains(err.Error(), "1000 bytes, experts end at") {
		t.Errorf("shortened: %v", err)
	}
	if err := os.Remove(l.Files[1].Path); err != nil {
		t.Fatal(err)
	}
	_, err = NewCached(l, CacheConfig{BudgetBytes: 1 << 30, Policy: "lru", Lanes: 1, MinBytes: 1})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("removed: %v", err)
	}
}

func TestSourceAllocates(t *testing.T) {
	const nLayer, nExpert, k = 6, 16, 4
	l := testModel(t, nLayer, nExpert)
	mapped, err := NewMapped(l)
	if err != nil {
		t.Fatal(err)
	}
	// Half of one token's working set: everything is a miss, and slots change their size all the time.
	small := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: WorkingSet(l, k) / 2})
	large := mustCached(t, linux{}, l, CacheConfig{BudgetBytes: WorkingSet(l, nExpert), Policy: "slru"})
	for name, s := range map[string]Source{"mapped": mapped, "misses": small, "hits": large} {
		rng := rand.New(rand.NewPCG(14, 15))
		var ids [64][]int32
		for i := range ids {
			ids[i] = someExperts(rng, nExpert, k)
		}
		residency := make([]uint8, nExpert)
		step := 0
		one := func() {
			layer := 1 + step%(nLayer-1)
			rest := ids[step%len(ids)]
			s.Residency(layer, residency)
			for len(rest) > 0 {
				n, err := s.Demand(layer, rest)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Prefetch(1+(step+1)%(nLayer-1), ids[(step+1)%len(ids)][:2], 1<<20); err != nil {
					t.Fatal(err)
				}
				for range n {
					s.Ready()
					i, _, err := s.Next(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					s.ReadBytes(i)
				}
				s.Release()
				rest = rest[n:]
			}
			_ = s.Stats()
			step++
		}
		for range 2000 { // free lists reach their size
			one()
		}
		if n := testing.AllocsPerRun(500, one); n != 0 {
			t.Errorf("%s: %v allocations per layer call", name, n)
		}
		mustClose(t, s)
	}
}

func BenchmarkSourceMiss(b *testing.B) {
	const nLayer, nExpert, k = 6, 16, 4
	l := testModel(b, nLayer, nExpert)
	for _, direct := range []bool{false, true} {
		for _, lanes := range []int{1, 4} {
			b.Run(fmt.Sprintf("direct=%v/lanes=%d", direct, lanes), func(b *testing.B) {
				slot := newSlotShape(l.Experts[1], int64(os.Getpagesize())).bytes
				s := mustCached(b, linux{}, l, CacheConfig{BudgetBytes: k * slot, Lanes: lanes, Direct: direct})
				defer mustClose(b, s)
				ids := [2][]int32{{0, 3, 5, 9}, {1, 4, 6, 12}}
				b.SetBytes(k * l.ExpertBytes(1))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					n, err := s.Demand(1, ids[i%2])
					if n != k || err != nil {
						b.Fatal(n, err)
					}
					for i := range n {
						if _, err := s.Expert(i); err != nil {
							b.Fatal(err)
						}
					}
					s.Release()
				}
				if st := s.Stats(); st.Hits != 0 {
					b.Errorf("not every demand was a miss: %+v", st)
				}
			})
		}
	}
}
