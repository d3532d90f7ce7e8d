//go:build cuda

package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"unsafe"

	dev "sluice/cuda/kernels"
)

// opened returns the first device, closed without leaks when the test ends.
func opened(t *testing.T) *Device {
	t.Helper()
	d, err := Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error("Close:", err)
		}
	})
	return d
}

// on runs f on the device's thread. The test ends where f has an error.
func on(t *testing.T, d *Device, f func() error) {
	t.Helper()
	if err := d.Do(f); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // Do carries it to the test
	}
	return v
}

func check(errs ...error) {
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}

// pattern returns n bytes that differ from their neighbours.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
	return b
}

func TestCUDAInfo(t *testing.T) {
	d := opened(t)
	i := d.Info()
	if i.Name == "" || i.Major < 5 || i.Driver < minDriver || i.Total < 1<<20 || i.Free < 1 || i.Free > i.Total || i.SMs < 1 || i.L2 < 1 {
		t.Errorf("Info() = %+v", i)
	}
}

// What goes up comes back, for sizes that are no multiple of anything, through every kind of copy.
func TestCUDACopies(t *testing.T) {
	d := opened(t)
	before := d.Counters()
	on(t, d, func() error {
		s := must(d.NewStream())
		for _, n := range []int{1, 3, 4, 255, 4096, 100_001} {
			want := pattern(n, byte(n))
			a, b := must(d.Alloc(int64(n), "a")), must(d.Alloc(int64(n), "b"))
			in, out := must(d.Pin(int64(n), "in")), must(d.Pin(int64(n), "out"))
			if a.Ptr%256 != 0 {
				t.Errorf("Alloc(%d) at %#x, want a multiple of 256", n, a.Ptr)
			}
			got := make([]byte, n)
			check(d.Upload(a.Ptr, want), s.CopyWithin(b.Ptr, a.Ptr, int64(n)), s.Sync(), d.Download(got, b.Ptr))
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes up, across and down: changed", n)
			}
			want = pattern(n, byte(n)+100)
			copy(in.Bytes, want)
			check(s.CopyIn(a.Ptr, in.Bytes), s.CopyOut(out.Bytes, a.Ptr), s.Sync())
			if !bytes.Equal(out.Bytes, want) {
				t.Errorf("%d bytes through pinned memory: changed", n)
			}
			check(s.Zero(a.Ptr, int64(n)), s.Sync(), d.Download(got, a.Ptr))
			if !bytes.Equal(got, make([]byte, n)) {
				t.Errorf("%d bytes zeroed: not zero", n)
			}
			check(a.Free(), b.Free(), in.Free(), out.Free(), a.Free())
		}
		check(d.Upload(0, nil), d.Download(nil, 0), s.CopyIn(0, nil), s.Close(), s.Close())
		return nil
	})
	c := d.Counters().Sub(before)
	bytes := int64(1 + 3 + 4 + 255 + 4096 + 100_001)
	want := Counters{CopiesIn: 12, BytesIn: 2 * bytes, CopiesOut: 18, BytesOut: 3 * bytes, CopiesWithin: 6, BytesWithin: bytes, Syncs: 6 * 6}
	if c != want {
		t.Errorf("counted %+v,\nwant    %+v", c, want)
	}
}

func words(b []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// A program runs the range it is asked for, with the arguments last set, and allocates nothing.
func TestCUDAProgram(t *testing.T) {
	d := opened(t)
	const n = 8
	on(t, d, func() error {
		m, s := must(d.Alloc(4*n, "words")), must(d.NewStream())
		var ls []dev.Launch
		for i := range n {
			ls = append(ls, dev.Probe(m.Ptr.At(int64(4*i)), uint32(100+i)))
		}
		p := must(d.NewProgram(ls))
		read := func() []uint32 {
			b := make([]byte, 4*n)
			check(s.Sync(), d.Download(b, m.Ptr))
			return words(b)
		}
		check(s.Zero(m.Ptr, 4*n), p.Run(s, 2, 5), p.Run(s, 7, 7))
		if got := read(); got[1] != 0 || got[2] != 102 || got[4] != 104 || got[5] != 0 {
			t.Errorf("launches 2..4 of %d left %v", n, got)
		}
		p.Set(3, 1, 7)
		p.SetGrid(3, [3]uint32{2, 1, 1})
		check(p.Run(s, 0, p.Len()))
		if got := read(); got[0] != 100 || got[3] != 7 || got[7] != 107 {
			t.Errorf("all launches, with argument 1 of the fourth set to 7, left %v", got)
		}
		if a := testing.AllocsPerRun(20, func() { check(p.Run(s, 0, n)) }); a != 0 {
			t.Errorf("Run allocates %v times", a)
		}
		check(s.Sync(), p.Close(), m.Free(), s.Close())
		return nil
	})
}

func TestCUDAProgramRefused(t *testing.T) {
	d := opened(t)
	on(t, d, func() error {
		if _, err := d.NewProgram([]dev.Launch{{Func: "no_such_kernel", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}}); err == nil || !strings.Contains(err.Error(), "no_such_kernel") {
			t.Errorf("a kernel that does not exist: %v, want an error that names it", err)
		}
		m, s := must(d.Alloc(4, "word")), must(d.NewStream())
		good, bad := dev.Probe(m.Ptr, 1), dev.Probe(m.Ptr, 2)
		bad.Block[0] = 2048
		p := must(d.NewProgram([]dev.Launch{good, bad}))
		err := p.Run(s, 0, 2)
		if err == nil || !strings.Contains(err.Error(), "probe (number 1") {
			t.Errorf("a block of 2048 threads: %v, want an error that names the launch", err)
		}
		check(s.Sync(), p.Close(), m.Free(), s.Close())
		return nil
	})
}

// A graph does what was captured, with the arguments of then, once for each launch.
func TestCUDAGraph(t *testing.T) {
	d := opened(t)
	on(t, d, func() error {
		m, s, side := must(d.Alloc(8, "words")), must(d.NewStream()), must(d.NewStream())
		out := must(d.Pin(8, "out"))
		fork, join := must(d.NewEvent()), must(d.NewEvent())
		p := must(d.NewProgram([]dev.Launch{dev.Probe(m.Ptr, 11), dev.Probe(m.Ptr.At(4), 22)}))
		before := d.Counters()
		g := must(d.Capture(s, func() error {
			check(s.Zero(m.Ptr, 8), fork.Record(s), side.Wait(fork), p.Run(side, 1, 2), p.Run(s, 0, 1), join.Record(side), s.Wait(join))
			return s.CopyOut(out.Bytes, m.Ptr)
		}))
		if c := d.Counters().Sub(before); c != (Counters{}) {
			t.Errorf("capturing counted %+v, want nothing", c)
		}
		if g.Kernels() != 2 {
			t.Errorf("the graph has %d kernels, want 2", g.Kernels())
		}
		p.Set(0, 1, 33)
		for range 3 {
			clear(out.Bytes)
			check(g.Launch(s), s.Sync())
			if got := words(out.Bytes); got[0] != 11 || got[1] != 22 {
				t.Errorf("the graph left %v, want [11 22]", got)
			}
		}
		want := Counters{GraphLaunches: 3, GraphKernels: 6, CopiesOut: 3, BytesOut: 24, Syncs: 3}
		if c := d.Counters().Sub(before); c != want {
			t.Errorf("three launches counted %+v, want %+v", c, want)
		}
		if a := testing.AllocsPerRun(20, func() { check(g.Launch(s)) }); a != 0 {
			t.Errorf("Launch allocates %v times", a)
		}
		check(s.Sync(), g.Close(), g.Close(), p.Close(), fork.Close(), join.Close(), m.Free(), out.Free(), s.Close(), side.Close())
		return nil
	})
}

// A failed capture is the error of what failed, and the stream works again.
func TestCUDACaptureFails(t *testing.T) {
	d := opened(t)
	on(t, d, func() error {
		s := must(d.NewStream())
		boom := errors.New("boom")
		if _, err := d.Capture(s, func() error { return boom }); !errors.Is(err, boom) {
			t.Errorf("Capture of a function with an error: %v", err)
		}
		m := must(d.Alloc(4, "word"))
		check(s.Zero(m.Ptr, 4), s.Sync(), m.Free(), s.Close())
		return nil
	})
}

// A stream that waits for a value goes on when another stream writes it, and when the host does in mapped memory.
func TestCUDAWaitValue(t *testing.T) {
	d := opened(t)
	on(t, d, func() error {
		flag, word := must(d.Pin(4, "flag")), must(d.Alloc(8, "words"))
		s, other := must(d.NewStream()), must(d.NewStream())
		p := must(d.NewProgram([]dev.Launch{dev.Probe(word.Ptr, 5)}))
		check(s.Zero(word.Ptr, 8), s.WaitValue(flag.Ptr, 1), p.Run(s, 0, 1))
		if done, err := s.Query(); err != nil || done {
			t.Errorf("a stream that waits: Query = %v, %v", done, err)
		}
		binary.LittleEndian.PutUint32(flag.Bytes, 3) // at least 1
		check(s.Sync())
		check(s.WaitValue(word.Ptr.At(4), 9), other.WriteValue(word.Ptr.At(4), 9), s.Sync(), other.Sync())
		got := make([]byte, 8)
		check(d.Download(got, word.Ptr))
		if w := words(got); w[0] != 5 || w[1] != 9 {
			t.Errorf("words %v, want [5 9]", w)
		}
		if done, err := s.Query(); err != nil || !done {
			t.Errorf("an empty stream: Query = %v, %v", done, err)
		}
		check(p.Close(), flag.Free(), word.Free(), s.Close(), other.Close())
		return nil
	})
}

func TestCUDAEvents(t *testing.T) {
	d := opened(t)
	on(t, d, func() error {
		s, m := must(d.NewStream()), must(d.Alloc(1<<20, "block"))
		a, b := must(d.NewEvent()), must(d.NewEvent())
		check(a.Record(s), s.Zero(m.Ptr, m.Bytes), b.Record(s), b.Sync())
		if done, err := a.Query(); err != nil || !done {
			t.Errorf("a past event: Query = %v, %v", done, err)
		}
		if sec, err := Elapsed(a, b); err != nil || !(sec >= 0 && sec < 10) {
			t.Errorf("Elapsed = %v s, %v", sec, err)
		}
		check(a.Close(), b.Close(), m.Free(), s.Close())
		return nil
	})
}

func TestCUDAOutOfMemory(t *testing.T) {
	d := opened(t)
	total := d.Info().Total
	on(t, d, func() error {
		_, err := d.Alloc(total+1, "everything and more")
		var no *NoMemoryError
		if !errors.As(err, &no) || no.Asked != total+1 || no.Free < 1 || no.Free > total {
			t.Errorf("Alloc of more than there is: %v", err)
		}
		for _, word := range []string{"everything and more", "asked for", "free"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v: does not say %q", err, word)
			}
		}
		return nil
	})
}

func TestCUDALeaks(t *testing.T) {
	d, err := Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	on(t, d, func() error {
		must(d.Alloc(100, "cache"))
		must(d.Alloc(28, "cache"))
		must(d.Pin(10, "ring"))
		must(d.NewStream())
		return nil
	})
	err = d.Close()
	var leak *LeakError
	if !errors.As(err, &leak) {
		t.Fatalf("Close with four objects held: %v", err)
	}
	want := []Leak{{"cache", 2, 128}, {"pinned ring", 1, 10}, {"stream", 1, 0}}
	if leak.Count != 4 || leak.Bytes != 138 || len(leak.By) != 3 || leak.By[0] != want[0] || leak.By[1] != want[1] || leak.By[2] != want[2] {
		t.Errorf("%+v, want %+v", leak, want)
	}
	if err := d.Close(); err != nil {
		t.Error("second Close:", err)
	}
	if err := d.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Do on a closed device: %v", err)
	}
}

// Devices come and go without leaving anything behind.
func TestCUDAOpenMany(t *testing.T) {
	for range 20 {
		d, err := Open(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		on(t, d, func() error {
			m := must(d.Alloc(1<<10, "m"))
			return m.Free()
		})
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCUDANoSuchDevice(t *testing.T) {
	for _, ordinal := range []int{-1, 64} {
		if d, err := Open(nil, ordinal); err == nil || !strings.Contains(err.Error(), "the driver has") {
			t.Errorf("Open(%d) = %v, %v", ordinal, d, err)
		}
	}
}

// Functions from many goroutines run one at a time on one thread, whose own calls do not wait for themselves.
func TestCUDADo(t *testing.T) {
	d := opened(t)
	var wg sync.WaitGroup
	n := 0
	for range 16 {
		wg.Go(func() {
			for range 50 {
				_ = d.Do(func() error {
					n++
					return d.Do(func() error { n++; return nil })
				})
			}
		})
	}
	wg.Wait()
	if n != 16*50*2 {
		t.Errorf("%d calls ran, want %d", n, 16*50*2)
	}
	nothing := func() error { return nil }
	if a := testing.AllocsPerRun(20, func() { _ = d.Do(nothing) }); a != 0 {
		t.Errorf("Do allocates %v times", a)
	}
	if err := d.Do(func() error { return errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Do lost its error: %v", err)
	}
}

func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestCUDAMisuse(t *testing.T) {
	d := opened(t)
	for name, f := range map[string]func(){
		"Alloc outside Do": func() { d.Alloc(1, "x") },
		"Alloc of nothing": func() { d.Do(func() error { d.Alloc(0, "x"); return nil }) },
		"Close inside Do":  func() { d.Do(d.Close) },
		"CopyIn of memory that is not pinned": func() {
			d.Do(func() error {
				s := must(d.NewStream())
				defer s.Close()
				return s.CopyIn(0, make([]byte, 8))
			})
		},
		"a panic in Do": func() { d.Do(func() error { panic("mine") }) },
	} {
		if panics(f) == nil {
			t.Errorf("%s: no panic", name)
		}
	}
	if err := d.Do(func() error { return nil }); err != nil {
		t.Error("after panics:", err)
	}
}
