package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadFaults puts faults that a read survives in its way and wants every byte right.
func TestReadFaults(t *testing.T) {
	leakCheck(t)
	type hook = func(direct bool, p []byte, off int64) (int, error, bool)
	// The model of the tests with short reads has experts in its file 1 alone.
	plain := func(l *Layout, p []byte, off int64) int {
		data := l.Files[1].Map
		return copy(p, data[min(off, int64(len(data))):])
	}
	for _, tc := range []struct {
		name  string
		onFD  func(l *Layout) hook
		note  string // expected part of a note with direct reads
		short bool
	}{
		{"short reads", func(l *Layout) hook {
			return func(direct bool, p []byte, off int64) (int, error, bool) {
				return plain(l, p[:1+rand.IntN(len(p))], off), nil, true
			}
		}, "finished buffered", true},
		{"short reads at block boundaries", func(l *Layout) hook {
			return func(direct bool, p []byte, off int64) (int, error, bool) {
				return plain(l, p[:min(len(p), 512)], off), nil, true
			}
		}, "", true},
		{"one byte at a time", func(l *Layout) hook {
			return func(direct bool, p []byte, off int64) (int, error, bool) {
				return plain(l, p[:1], off), nil, true
			}
		}, "finished buffered", true},
		{"interrupted", func(l *Layout) hook {
			return func(bool, []byte, int64) (int, error, bool) {
				if rand.IntN(4) != 0 {
					return -1, unix.EINTR, true
				}
				return 0, nil, false
			}
		}, "", false},
		{"direct reads refused later", func(l *Layout) hook {
			return func(direct bool, p []byte, off int64) (int, error, bool) {
				if direct && off > 0 {
					return -1, unix.EINVAL, true
				}
				return 0, nil, false
			}
		}, "were refused, finished buffered", false},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/direct=%v", tc.name, direct), func(t *testing.T) {
				l := testModel(t, 4, 8)
				if tc.short {
					l.Experts = [][]ExpertExtents{nil, l.Experts[1], nil, nil}
				}
				sys := newFaultSystem()
				sys.dio, sys.statxKnow, sys.statxSays = 512, true, 512
				s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 2), Direct: direct})
				sys.onPread = tc.onFD(l)
				rng := rand.New(rand.NewPCG(1, 1))
				for range 20 {
					layer := 1 + rng.IntN(3)
					if l.Experts[layer] != nil {
						demandAll(t, l, s, layer, someExperts(rng, 8, 3))
					}
				}
				notes := strings.Join(s.Notes(), "\n")
				if direct && !strings.Contains(notes, tc.note) || (!direct || tc.note == "") && notes != "" {
					t.Errorf("notes %q, want %q", notes, tc.note)
				}
				st := s.Stats()
				checkStats(t, st)
				if st.ReadErrors != 0 || st.Direct != direct {
					t.Errorf("%+v", st)
				}
				mustClose(t, s)
				sys.checkClosed(t)
			})
		}
	}
}

// TestReadFails lets reads fail for good and wants an error that says where, counters that add up, and a later demand that
// reads again.
func TestReadFails(t *testing.T) {
	leakCheck(t)
	for _, tc := range []struct {
		name string
		err  error
		want error
	}{
		{"EIO", unix.EIO, unix.EIO},
		{"end of file", nil, io.ErrUnexpectedEOF},
		{"EINVAL on a buffered read", unix.EINVAL, unix.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := testModel(t, 4, 8)
			sys := newFaultSystem()
			s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 8)})
			bad := [2]Extent{l.Experts[1][2].Up, l.Experts[1][5].Gate}
			var broken atomic.Bool
			broken.Store(true)
			sys.onPread = func(_ bool, p []byte, off int64) (int, error, bool) {
				for _, x := range bad {
					if broken.Load() && off <= x.Off && x.Off < off+int64(len(p)) {
						if x == bad[0] && len(p) == int(x.Len) {
							return 100, nil, true // some arrives first
						}
						return 0, tc.err, true
					}
					if broken.Load() && x.Off < off && off < x.Off+x.Len {
						return 0, tc.err, true
					}
				}
				return 0, nil, false
			}
			demandAll(t, l, s, 1, []int32{0, 1})
			n, err := s.Demand(1, []int32{1, 2, 3, 5})
			if n != 4 || err != nil {
				t.Fatal(n, err)
			}
			if x, err := s.Expert(2); err != nil {
				t.Error(err)
			} else {
				checkExpert(t, l, 1, 3, x)
			}
			for range 2 {
				_, err = s.Expert(1)
				want := fmt.Sprintf("moe: layer 1 expert 2: up: read model-1.gguf at offset %d: got 100 of %d bytes: %v", bad[0].Off, bad[0].Len, tc.want)
				if err == nil || err.Error() != want || !errors.Is(err, tc.want) {
					t.Errorf("got  %v\nwant %s", err, want)
				}
			}
			// The caller gives up here and has not met the failure of expert 5.
			s.Release()
			residency := make([]uint8, 8)
			s.Residency(1, residency)
			if got := fmt.Sprint(residency); got != "[1 1 0 1 0 0 0 0]" {
				t.Errorf("residency %s", got)
			}
			st := s.Stats()
			checkStats(t, st)
			if st.Failed != 2 || st.ReadErrors != 2 || st.Entries != 3 || st.Demanded != 6 || st.Hits != 1 {
				t.Errorf("%+v", st)
			}
			broken.Store(false)
			demandAll(t, l, s, 1, []int32{1, 2, 3, 5})
			checkStats(t, s.Stats())
			mustClose(t, s)
			sys.checkClosed(t)
		})
	}
}

// TestFailureUnseen releases without asking for the expert whose read fails: it counts as resident, the next call that
// wants it gets the error, the one after that a new read.
func TestFailureUnseen(t *testing.T) {
	l := testModel(t, 3, 4)
	sys := newFaultSystem()
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 4)})
	sys.onPread = func(bool, []byte, int64) (int, error, bool) { return -1, unix.EIO, true }
	if _, err := s.Demand(1, []int32{2}); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if n, err := s.Demand(1, []int32{2}); n != 1 || err != nil || s.ReadBytes(0) != 0 {
		t.Fatal(n, err)
	}
	if _, err := s.Expert(0); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v", err)
	}
	s.Release()
	sys.onPread = nil
	demandAll(t, l, s, 1, []int32{2})
	st := s.Stats()
	checkStats(t, st)
	if st.Hits != 1 || st.Misses != 2 || st.Failed != 1 {
		t.Errorf("%+v", st)
	}
	mustClose(t, s)
}

// TestMemoryFails lets the n-th mapping of a slot fail, and wants nothing lost or counted, and the next demand to work.
func TestMemoryFails(t *testing.T) {
	leakCheck(t)
	for fail := 1; fail <= 12; fail++ {
		l := testModel(t, 6, 8)
		sys := newFaultSystem()
		s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 4) / 2})
		calls := 0
		sys.onMap = func(int) error {
			if calls++; calls == fail {
				return unix.ENOMEM
			}
			return nil
		}
		failed := 0
		for step := range 60 {
			layer := 1 + step%5
			ids := []int32{int32(step % 3), 3, int32(4 + step%4)}
			before := s.Stats()
			n, err := s.Demand(layer, ids)
			if err != nil {
				failed++
				after := s.Stats()
				if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), fmt.Sprintf("moe: layer %d expert ", layer)) {
					t.Errorf("mapping %d: %v", fail, err)
				}
				if after.Demanded != before.Demanded || after.Reads != before.Reads || after.Misses != before.Misses {
					t.Errorf("mapping %d: before %+v after %+v", fail, before, after)
				}
				demandAll(t, l, s, layer, ids)
			} else {
				for i := range n {
					x, err := s.Expert(i)
					if err != nil {
						t.Fatal(err)
					}
					checkExpert(t, l, layer, int(ids[i]), x)
				}
				s.Release()
			}
			checkStats(t, s.Stats())
		}
		if failed != 1 {
			t.Errorf("mapping %d: %d demands failed", fail, failed)
		}
		mustClose(t, s)
		sys.checkClosed(t)
	}
}

func TestResidentFails(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 6, 8)
	sys := newFaultSystem()
	sys.onPread = func(_ bool, p []byte, off int64) (int, error, bool) { return -1, unix.EIO, len(p) > slotAlign }
	_, err := newResident(sys, l)
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "moe: weights: read model-0.gguf at offset 0: got 0 of ") {
		t.Errorf("got %v", err)
	}
	sys.checkClosed(t)
	sys.onPread = nil
	sys.onMap = func(n int) error {
		if n > slotAlign {
			return unix.ENOMEM
		}
		return nil
	}
	_, err = newResident(sys, l)
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "for weights of model-0.gguf (0 bytes mapped)") {
		t.Errorf("got %v", err)
	}
	sys.checkClosed(t)
}

// TestInFlightIsNotEvicted releases an expert while its read is held up, and demands another that needs its slot.
func TestInFlightIsNotEvicted(t *testing.T) {
	leakCheck(t)
	l := testModel(t, 2, 4)
	sys := newFaultSystem()
	gate := make(chan struct{})
	var held atomic.Int32
	sys.onPread = func(bool, []byte, int64) (int, error, bool) {
		held.Add(1)
		<-gate
		return 0, nil, false
	}
	slot := newSlotShape(l.Experts[1], int64(os.Getpagesize())).bytes
	s := mustCached(t, sys, l, CacheConfig{BudgetBytes: slot, Lanes: 8})
	if _, err := s.Demand(1, []int32{0}); err != nil {
		t.Fatal(err)
	}
	s.Release()
	for held.Load() < projections {
		time.Sleep(time.Millisecond)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		demandAll(t, l, s, 1, []int32{1})
	}()
	time.Sleep(10 * time.Millisecond)
	if n := held.Load(); n != projections {
		t.Errorf("%d reads started while the slot was in flight", n)
	}
	close(gate)
	<-done
	if st := s.Stats(); st.Evictions != 1 || st.Misses != 2 || st.WaitSeconds <= 0 || s.memory.mapped != slot {
		t.Errorf("%+v", st)
	}
	mustClose(t, s)
}

// TestDirectAlignment plays file systems with direct I/O of every kind.
func TestDirectAlignment(t *testing.T) {
	leakCheck(t)
	for _, tc := range []struct {
		name  string
		setup func(s *faultSystem)
		note  string // "": direct reads
	}{
		{"512, told by statx", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 512, true, 512 }, ""},
		{"4096, told by statx", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 4096, true, 4096 }, ""},
		{"1, told by statx", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 1, true, 1 }, ""},
		{"512, not told", func(s *faultSystem) { s.dio = 512 }, ""},
		{"4096, not told", func(s *faultSystem) { s.dio = 4096 }, ""},
		{"16384, told by statx", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 16384, true, 16384 },
			"the file system asks for an alignment of 16384 bytes, slots have 4096"},
		{"16384, not told", func(s *faultSystem) { s.dio = 16384 }, "test read of 4096 bytes with O_DIRECT: invalid argument"},
		{"statx understates", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 4096, true, 512 },
			"test read of 512 bytes with O_DIRECT: invalid argument"},
		{"no power of two", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 512, true, 520 },
			"the file system asks for an alignment of 520 bytes, not a power of two"},
		{"not supported, told by statx", func(s *faultSystem) { s.dio, s.statxKnow, s.statxSays = 512, true, 0 },
			"the file system does not support it for this file"},
		{"refused at open", func(s *faultSystem) {
			s.onOpen = func(_ string, flags int) error {
				if flags&unix.O_DIRECT != 0 {
					return unix.EINVAL
				}
				return nil
			}
		}, "opening with O_DIRECT: invalid argument"},
		{"refused at the first read", func(s *faultSystem) {
			s.dio = 4096
			s.onPread = func(direct bool, _ []byte, _ int64) (int, error, bool) { return -1, unix.EOPNOTSUPP, direct }
		}, "test read of 4096 bytes with O_DIRECT: operation not supported"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := testModel(t, 6, 8)
			sys := newFaultSystem()
			tc.setup(sys)
			s := mustCached(t, sys, l, CacheConfig{BudgetBytes: WorkingSet(l, 3), Direct: true})
			for layer := 1; layer < 6; layer++ {
				demandAll(t, l, s, layer, []int32{0, 1, 2, 3, 4, 5, 6, 7})
			}
			st, notes := s.Stats(), strings.Join(s.Notes(), "\n")
			if tc.note == "" && (notes != "" || !st.Direct || sys.dioOK < int(st.Reads)) {
				t.Errorf("notes %q, %d direct reads, %+v", notes, sys.dioOK, st)
			}
			if tc.note != "" && (st.Direct || notes != "direct I/O off for 2 of 2 files, buffered reads instead: model-0.gguf: "+tc.note) {
				t.Errorf("notes %q, %+v", notes, st)
			}
			mustClose(t, s)
			sys.checkClosed(t)

			r, err := newResident(sys, l)
			if err != nil {
				t.Fatal(err)
			}
			for layer := 1; layer < 6; layer++ {
				demandAll(t, l, r, layer, []int32{0, 1, 2, 3, 4, 5, 6, 7})
			}
			if got := r.Stats().Direct; got != (tc.note == "") {
				t.Errorf("resident: direct %v, notes %q", got, r.Notes())
			}
			mustClose(t, r)
			sys.checkClosed(t)
		})
	}
}
