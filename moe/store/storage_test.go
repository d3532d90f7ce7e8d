package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// faultSystem is the operating system with faults in its way. It also plays a file system with direct I/O, whatever the
// one below does: a descriptor opened with O_DIRECT refuses reads that are not aligned to dio.
type faultSystem struct {
	linux
	dio       int64  // alignment that direct reads are held to; 0: the real file system decides
	statxSays uint32 // alignment that statx reports; 0 with statxKnown: not supported
	statxKnow bool
	heap      bool // memory from the Go heap, so that the race detector sees it

	onOpen  func(path string, flags int) error
	onPread func(direct bool, p []byte, off int64) (n int, err error, handled bool)
	onMap   func(n int) error

	mu            sync.Mutex
	fds           map[int]bool // open descriptors; true: direct
	mapped, peak  int
	preads, dioOK int
}

func newFaultSystem() *faultSystem { return &faultSystem{fds: map[int]bool{}} }

func (s *faultSystem) open(path string, flags int) (int, error) {
	if s.onOpen != nil {
		if err := s.onOpen(path, flags); err != nil {
			return -1, err
		}
	}
	direct := flags&unix.O_DIRECT != 0
	if s.dio > 0 {
		flags &^= unix.O_DIRECT
	}
	fd, err := s.linux.open(path, flags)
	if err == nil {
		s.mu.Lock()
		s.fds[fd] = direct
		s.mu.Unlock()
	}
	return fd, err
}

func (s *faultSystem) close(fd int) error {
	s.mu.Lock()
	delete(s.fds, fd)
	s.mu.Unlock()
	return s.linux.close(fd)
}

func (s *faultSystem) dioAlign(fd int) (mem, off uint32, known bool) {
	if s.dio > 0 || s.statxKnow {
		return s.statxSays, s.statxSays, s.statxKnow
	}
	return s.linux.dioAlign(fd)
}

func (s *faultSystem) pread(fd int, p []byte, off int64) (int, error) {
	s.mu.Lock()
	direct := s.fds[fd]
	s.preads++
	s.mu.Unlock()
	if s.onPread != nil {
		if n, err, handled := s.onPread(direct, p, off); handled {
			return n, err
		}
	}
	if direct && s.dio > 0 {
		if addr := int64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))); (addr|off|int64(len(p)))%s.dio != 0 {
			return -1, unix.EINVAL
		}
		s.mu.Lock()
		s.dioOK++
		s.mu.Unlock()
	}
	return s.linux.pread(fd, p, off)
}

func (s *faultSystem) account(n int) {
	s.mu.Lock()
	s.mapped += n
	s.peak = max(s.peak, s.mapped)
	s.mu.Unlock()
}

func (s *faultSystem) mmap(n, most int) ([]byte, error) {
	if s.onMap != nil {
		if err := s.onMap(n); err != nil {
			return nil, err
		}
	}
	s.account(n)
	if s.heap {
		return heapPages(n), nil
	}
	return s.linux.mmap(n, most)
}

func (s *faultSystem) remap(mem []byte, n int) ([]byte, error) {
	if s.onMap != nil {
		if err := s.onMap(n); err != nil {
			return nil, err
		}
	}
	s.account(n - len(mem))
	if s.heap {
		return heapPages(n), nil
	}
	return s.linux.remap(mem, n)
}

func (s *faultSystem) munmap(mem []byte) error {
	s.account(-len(mem))
	if s.heap {
		return nil
	}
	return s.linux.munmap(mem)
}

// heapPages returns page-aligned memory of the Go heap.
func heapPages(n int) []byte {
	page := os.Getpagesize()
	b := make([]byte, n+page)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[skip : skip+n : skip+n]
}

// checkClosed fails when descriptors or memory are left over.
func (s *faultSystem) checkClosed(t *testing.T) {
	t.Helper()
	if len(s.fds) != 0 || s.mapped != 0 {
		t.Errorf("left open: descriptors %v, %d bytes mapped", s.fds, s.mapped)
	}
}

// testModel writes two files of random bytes and lays experts out in them the way GGUF does: per layer and projection one
// tensor of all experts, tensors padded to 32 bytes, so that hardly an extent starts or ends at a block boundary. Layer 0
// is dense. The last extent ends with its file. Files are mapped (their bytes are in Map).
func testModel(t testing.TB, nLayer, nExpert int) *Layout {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	l := &Layout{Experts: make([][]ExpertExtents, nLayer)}
	ends := [2]int64{1000, 40} // behind the headers
	for layer := 1; layer < nLayer; layer++ {
		f := layer % 2
		l.Experts[layer] = make([]ExpertExtents, nExpert)
		// Layers alternate between two sizes, as mixed quantisations do.
		unit := int64(3000 + 2600*(layer/2%2))
		for p := range projections {
			ends[f] = alignUp(ends[f], 32)
			n := unit + int64(p)*144
			for e := range nExpert {
				*l.Experts[layer][e].at(p) = Extent{File: f, Off: ends[f], Len: n}
				ends[f] += n
			}
		}
	}
	dir := t.TempDir()
	for f, end := range ends {
		data := make([]byte, end)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		path := filepath.Join(dir, fmt.Sprintf("model-%d.gguf", f))
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		l.Files = append(l.Files, File{Name: filepath.Base(path), Path: path, Map: data})
	}
	return l
}

// checkExpert compares an expert's bytes with a plain look into the files.
func checkExpert(t testing.TB, l *Layout, layer, expert int, got Expert) {
	t.Helper()
	for p, b := range [][]byte{got.Gate, got.Up, got.Down} {
		x := l.Experts[layer][expert].at(p)
		if want := l.Files[x.File].Map[x.Off : x.Off+x.Len]; !bytes.Equal(b, want) {
			t.Fatalf("layer %d expert %d: %s: %d bytes differ from the %d of the file", layer, expert, projectionNames[p], len(b), len(want))
		}
	}
}

// demandAll takes experts through the source in as many waves as it needs and checks every byte.
func demandAll(t testing.TB, l *Layout, s Source, layer int, experts []int32) {
	t.Helper()
	for len(experts) > 0 {
		n, err := s.Demand(layer, experts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			x, err := s.Expert(i)
			if err != nil {
				t.Fatal(err)
			}
			checkExpert(t, l, layer, int(experts[i]), x)
		}
		s.Release()
		experts = experts[n:]
	}
}

// someExperts returns k distinct ids below n, ascending.
func someExperts(rng *rand.Rand, n, k int) []int32 {
	ids := make([]int32, 0, k)
	for e := range n {
		if rng.IntN(n-e) < k-len(ids) {
			ids = append(ids, int32(e))
		}
	}
	return ids
}

func checkStats(t testing.TB, st Stats) {
	t.Helper()
	if st.Demanded != st.Hits+st.Misses || int64(st.Entries) != st.Misses+st.Prefetched-st.Evictions-st.Failed ||
		st.PrefetchUsed+st.PrefetchWasted > st.Prefetched ||
		st.ResidentBytes > st.BudgetBytes {
		t.Errorf("inconsistent counters: %+v", st)
	}
}

// leakCheck fails the test when a goroutine outlives it.
func leakCheck(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
}

func mustCached(t testing.TB, sys system, l *Layout, c CacheConfig) *cachedSource {
	t.Helper()
	if c.Policy == "" {
		c.Policy = "lru"
	}
	if c.Lanes == 0 {
		c.Lanes = 2
	}
	c.Force = true
	s, err := newCached(sys, l, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t testing.TB, s Source) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
