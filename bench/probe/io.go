package probe

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// IOConfig says how a file's device is measured. The zero value of a field is its default.
type IOConfig struct {
	Path   string
	Blocks []int64 // sizes of a read in bytes, multiples of MinBlock; default 64 KiB to 4 MiB
	Lanes  []int   // numbers of threads that read at the same time; default 1, 2, 4 and 8
	Bytes  int64   // read per measurement, all lanes together, at most the file; default 256 MiB
	Repeat int     // timed passes of each measurement; default 3
	Seed   uint64  // of the order of the blocks
}

// MinBlock is the alignment of direct reads here: it suits devices with sectors of 512 and of 4096 bytes.
const MinBlock = 4096

const (
	defaultIOBytes = 256 << 20
	maxBlock       = 1 << 30
)

// IO is one measurement: blocks of a size in random order, each lane with one read in flight.
type IO struct {
	Block  int64   `json:"block_bytes"`
	Lanes  int     `json:"lanes"`
	Bytes  int64   `json:"bytes"`            // per pass
	Median float64 `json:"bytes_per_second"` // of the passes
	Min    float64 `json:"min_bytes_per_second"`
	Max    float64 `json:"max_bytes_per_second"`
}

// IOResult is everything that was measured of one file.
type IOResult struct {
	Path  string   `json:"path"`
	Size  int64    `json:"size_bytes"`
	Rows  []IO     `json:"rows"`
	Notes []string `json:"notes,omitempty"`
}

// Best is the measurement with the largest median.
func (r *IOResult) Best() IO {
	best := IO{}
	for _, x := range r.Rows {
		if x.Median > best.Median {
			best = x
		}
	}
	return best
}

// MeasureIO reads a file past the page cache, as the expert cache does, and returns the bandwidth for each block size and
// number of lanes: the ceiling of streaming from where that file lies. Passes of all combinations take turns, so that a
// drift of the device hits all alike; a pass takes its blocks from the whole file, in an order that does not come back
// until every block was read. A file system that refuses direct reads is an error: through the page cache it is memory that
// would be measured. Device caches, and a host's below a virtual machine, count as part of the device.
func MeasureIO(ctx context.Context, c IOConfig) (*IOResult, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	st, err := os.Stat(c.Path)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("probe: %s is no regular file", c.Path)
	}
	r := &IOResult{Path: c.Path, Size: st.Size()}
	if largest := slices.Max(c.Blocks); r.Size < largest*int64(slices.Max(c.Lanes)) {
		return nil, fmt.Errorf("probe: %s has %d bytes, want %d or more: a block of %d for each of %d lanes",
			c.Path, r.Size, largest*int64(slices.Max(c.Lanes)), largest, slices.Max(c.Lanes))
	}
	if c.Bytes > r.Size {
		r.Notes = append(r.Notes, fmt.Sprintf("%d MiB a pass instead of %d: the file has no more", r.Size>>20, c.Bytes>>20))
		c.Bytes = r.Size
	}
	f, err := openDirect(c.Path)
	if err != nil {
		return nil, fmt.Errorf("probe: %s: direct reads: %w", c.Path, err)
	}
	defer f.close()
	type combo struct {
		block   int64
		lanes   int
		order   []int32
		next    int
		seconds []float64
	}
	var combos []*combo
	for _, b := range c.Blocks {
		for _, n := range c.Lanes {
			k := &combo{block: b, lanes: n}
			rng := rand.New(rand.NewPCG(c.Seed, uint64(b)<<8|uint64(n)))
			for _, i := range rng.Perm(int(r.Size / b)) {
				k.order = append(k.order, int32(i))
			}
			combos = append(combos, k)
		}
	}
	for range c.Repeat {
		for _, k := range combos {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			blocks := max(int(c.Bytes/k.block), k.lanes)
			offsets := make([]int64, blocks)
			for i := range offsets {
				offsets[i] = int64(k.order[k.next%len(k.order)]) * k.block
				k.next++
			}
			sec, err := timeReads(f, offsets, k.block, k.lanes)
			if err != nil {
				return nil, fmt.Errorf("probe: %s: %w", c.Path, err)
			}
			k.seconds = append(k.seconds, sec)
		}
	}
	for _, k := range combos {
		slices.Sort(k.seconds)
		n := int64(max(int(c.Bytes/k.block), k.lanes)) * k.block
		b := float64(n)
		r.Rows = append(r.Rows, IO{Block: k.block, Lanes: k.lanes, Bytes: n, Median: b / median(k.seconds),
			Min: b / k.seconds[len(k.seconds)-1], Max: b / k.seconds[0]})
	}
	return r, nil
}

func (c *IOConfig) fill() error {
	if c.Blocks == nil {
		c.Blocks = []int64{64 << 10, 256 << 10, 1 << 20, 4 << 20}
	}
	if c.Lanes == nil {
		c.Lanes = []int{1, 2, 4, 8}
	}
	if c.Bytes == 0 {
		c.Bytes = defaultIOBytes
	}
	if c.Repeat == 0 {
		c.Repeat = 3
	}
	for _, b := range c.Blocks {
		if b < MinBlock || b > maxBlock || b%MinBlock != 0 {
			return fmt.Errorf("probe: blocks of %d bytes, want multiples of %d from %d to %d", b, MinBlock, MinBlock, maxBlock)
		}
	}
	for _, n := range c.Lanes {
		if n < 1 || n > maxThreads {
			return fmt.Errorf("probe: %d lanes, want 1..%d", n, maxThreads)
		}
	}
	switch {
	case len(c.Blocks) == 0 || len(c.Lanes) == 0:
		return fmt.Errorf("probe: %d block sizes and %d numbers of lanes, want one or more of each", len(c.Blocks), len(c.Lanes))
	case c.Bytes < MinBlock:
		return fmt.Errorf("probe: %d bytes to read, want %d or more", c.Bytes, MinBlock)
	case c.Repeat < 1:
		return fmt.Errorf("probe: %d passes, want 1 or more", c.Repeat)
	}
	return nil
}

// timeReads reads a block at each offset, the lanes taking every n-th one, and returns the seconds from the common start
// to the last end.
func timeReads(f *directFile, offsets []int64, block int64, lanes int) (sec float64, err error) {
	mem, free, err := alignedMemory(int64(lanes) * block)
	if err != nil {
		return 0, err
	}
	defer free()
	errs := make([]error, lanes)
	sec = timeThreads(lanes, func(i int) uint64 {
		buf := mem[int64(i)*block : int64(i+1)*block]
		for k := i; k < len(offsets); k += lanes {
			if err := f.readAt(buf, offsets[k]); err != nil {
				errs[i] = err
				return 0
			}
		}
		return uint64(buf[0])
	})
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return sec, nil
}

// WriteText prints a table in GB/s, a row for each block size and a column for each number of lanes.
func (r *IOResult) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d MiB, direct reads, GB/s: median (lowest..highest)\n", filepath.Base(r.Path), r.Size>>20)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var block int64
	for i, x := range r.Rows {
		if i == 0 {
			fmt.Fprint(t, "KiB a read")
			for _, y := range r.Rows {
				if y.Block == x.Block {
					fmt.Fprintf(t, "\t%d lanes", y.Lanes)
				}
			}
		}
		if x.Block != block {
			fmt.Fprintf(t, "\n%d", x.Block>>10)
			block = x.Block
		}
		fmt.Fprintf(t, "\t%.2f (%.2f..%.2f)", x.Median/1e9, x.Min/1e9, x.Max/1e9)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	best := r.Best()
	_, err := fmt.Fprintf(w, "best: %.2f GB/s with reads of %d KiB over %d lanes\n", best.Median/1e9, best.Block>>10, best.Lanes)
	return err
}
