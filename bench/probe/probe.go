package probe

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// DefaultBytes is the size of the memory that is read: many times any last-level cache of a desktop or a small
	// server. Machines with hundreds of MiB of cache want more (Config.Bytes).
	DefaultBytes = 512 << 20

	// MinBytes is the least that may be asked for; below it the caches are what is measured.
	MinBytes = 1 << 20

	maxThreads = 1024
)

// The kinds of page.
const (
	Pages4K   = "4k"
	PagesHuge = "huge"
	PagesFile = "file"
)

// Config says what to measure. The zero value measures memory with one thread.
type Config struct {
	Threads   []int  // numbers of threads to read with, each 1 or more; nil: one thread
	Bytes     int64  // of memory read per pass; 0: DefaultBytes
	Available int64  // memory the process may take; 0: unknown. Bytes is cut to a quarter of it, with a note
	Repeat    int    // timed passes after one that warms up; 0: 3
	Dir       string // where the file of PagesFile is made and removed; "": the system's temporary directory
	Compute   bool   // measure the product kernels too
}

// Memory is one measurement of reading.
type Memory struct {
	Pages        string  `json:"pages"`
	Threads      int     `json:"threads"`
	Bytes        int64   `json:"bytes"`            // per pass, all threads together
	HugeBytes    int64   `json:"huge_bytes"`       // of them on huge pages; 0 where the system does not say
	Best         float64 `json:"bytes_per_second"` // fastest pass: the ceiling
	Median       float64 `json:"median_bytes_per_second"`
	BestSeconds  float64 `json:"seconds"`
	TimedRepeats int     `json:"repeats"`
}

// Result is everything that was measured.
type Result struct {
	Memory  []Memory  `json:"memory"`
	Compute []Compute `json:"compute,omitempty"`
	Notes   []string  `json:"notes,omitempty"` // what was asked for and could not be had, and why
}

// Bandwidth is the fastest reading over all kinds of page and numbers of threads, in bytes per second.
func (r *Result) Bandwidth() float64 {
	best := 0.0
	for _, m := range r.Memory {
		best = max(best, m.Best)
	}
	return best
}

// BandwidthOf is Bandwidth of one kind of page, 0 when it was not measured.
func (r *Result) BandwidthOf(pages string) float64 {
	best := 0.0
	for _, m := range r.Memory {
		if m.Pages == pages {
			best = max(best, m.Best)
		}
	}
	return best
}

// PeakFlops is the fastest product over all types and numbers of threads, in operations per second; 0 when it was not
// measured.
func (r *Result) PeakFlops() float64 {
	best := 0.0
	for _, c := range r.Compute {
		best = max(best, c.FlopsPerSecond)
	}
	return best
}

// Run measures. It takes seconds, holds Config.Bytes of memory at a time and gives all of it back. A kind of page that the
// system refuses is a note, not an error; no kind at all is an error. One Run at a time, or the two measure each other.
func Run(ctx context.Context, c Config) (*Result, error) {
	r := &Result{}
	if err := c.fill(r); err != nil {
		return nil, err
	}
	for _, pages := range []string{Pages4K, PagesHuge, PagesFile} {
		if err := c.memory(ctx, r, pages); err != nil {
			return nil, err
		}
	}
	if len(r.Memory) == 0 {
		return nil, fmt.Errorf("probe: no memory could be measured: %s", r.Notes)
	}
	if c.Compute {
		for _, n := range c.Threads {
			if err := compute(ctx, r, n, c.Repeat); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (c *Config) fill(r *Result) error {
	if c.Threads == nil {
		c.Threads = []int{1}
	}
	for _, n := range c.Threads {
		if n < 1 || n > maxThreads {
			return fmt.Errorf("probe: %d threads, want 1..%d", n, maxThreads)
		}
	}
	if c.Repeat == 0 {
		c.Repeat = 3
	}
	if c.Repeat < 0 {
		return fmt.Errorf("probe: %d passes, want 1 or more", c.Repeat)
	}
	if c.Bytes == 0 {
		c.Bytes = DefaultBytes
	}
	if limit := c.Available / 4; c.Available > 0 && c.Bytes > limit {
		r.Notes = append(r.Notes, fmt.Sprintf("read %d MiB instead of %d: %d MiB of memory are available",
			limit>>20, c.Bytes>>20, c.Available>>20))
		c.Bytes = limit
	}
	if c.Bytes < MinBytes {
		return fmt.Errorf("probe: %d bytes to read, want %d or more", c.Bytes, MinBytes)
	}
	c.Bytes -= c.Bytes % int64(os.Getpagesize())
	return nil
}

// memory measures one kind of page with every number of threads.
func (c *Config) memory(ctx context.Context, r *Result, pages string) error {
	region, err := openRegion(pages, c.Bytes, c.Dir)
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("%s pages not measured: %v", pages, err))
		return nil
	}
	defer region.close()
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(region.mem))), len(region.mem)/8)
	for _, n := range c.Threads {
		var sec []float64
		for pass := range c.Repeat + 1 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if s := timePass(words, n); pass > 0 {
				sec = append(sec, s)
			}
		}
		slices.Sort(sec)
		b := float64(c.Bytes)
		r.Memory = append(r.Memory, Memory{Pages: pages, Threads: n, Bytes: c.Bytes, HugeBytes: region.huge,
			Best: b / sec[0], Median: b / median(sec), BestSeconds: sec[0], TimedRepeats: len(sec)})
	}
	if pages == PagesHuge && region.huge < c.Bytes/2 && region.hugeKnown {
		r.Notes = append(r.Notes, fmt.Sprintf("huge pages back only %d of %d MiB: the kernel grants no more", region.huge>>20, c.Bytes>>20))
	}
	return nil
}

// median of ascending values; sec is not empty.
func median(sec []float64) float64 {
	n := len(sec)
	if n%2 == 1 {
		return sec[n/2]
	}
	return (sec[n/2-1] + sec[n/2]) / 2
}

// timePass reads all words once with n threads and returns the seconds from the common start to the last end.
func timePass(words []uint64, n int) float64 {
	return timeThreads(n, func(i int) uint64 {
		lo, hi := len(words)*i/n, len(words)*(i+1)/n
		return readWords(words[lo:hi])
	})
}

// timeThreads runs work(0..n-1), each on a thread of its own, and returns the seconds from the common start to the last
// end. What work returns is kept, so that the compiler cannot drop the reads.
func timeThreads(n int, work func(i int) uint64) float64 {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	kept := make([]uint64, n)
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-start
			kept[i] = work(i)
		})
	}
	ready.Wait()
	t := time.Now()
	close(start)
	done.Wait()
	sec := time.Since(t).Seconds()
	runtime.KeepAlive(kept)
	return max(sec, 1e-9) // a clock that did not move must not give an infinite speed
}

// readWords adds up w. Eight chains and one cache line a step keep the loads, not the additions, as what is waited for.
func readWords(w []uint64) uint64 {
	var a, b, c, d, e, f, g, h uint64
	for len(w) >= 8 {
		p := (*[8]uint64)(w)
		a += p[0]
		b += p[1]
		c += p[2]
		d += p[3]
		e += p[4]
		f += p[5]
		g += p[6]
		h += p[7]
		w = w[8:]
	}
	for _, x := range w {
		a += x
	}
	return a + b + c + d + e + f + g + h
}
