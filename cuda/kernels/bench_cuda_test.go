//go:build cuda

package kernels_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
)

// The benchmarks time one launch at a time by events, with the device's L2 full of something else, and set what a kernel
// moves in that time beside a copy on the same device. Take a fixed number of rounds: -test.benchtime=20x. On an emulated
// device the figures mean nothing; SLUICE_TINY=1 makes everything small enough for it.

func tiny() bool { return os.Getenv("SLUICE_TINY") == "1" }

// benchCase is a kernel at work on one shape.
type benchCase struct {
	name  string // key=value parts
	bytes int64  // that have to be moved: weights and activations read once, results written once
	flops int64  // of products and attention, two a multiply-add
	setup func(b testing.TB) dev.Launch
}

// BenchmarkCUDACopy: the reference, a copy within the device that no cache holds. Its bytes are those read and written.
func BenchmarkCUDACopy(b *testing.B) {
	c := copyCase()
	b.Run(c.name, func(b *testing.B) { c.report(b, c.time(b)) })
}

func BenchmarkCUDAKernel(b *testing.B) {
	for _, c := range benchCases(shapesForBench()) {
		b.Run(c.name, func(b *testing.B) { c.report(b, c.time(b)) })
	}
}

// copyRate is the bytes a second of the reference, measured when it is first asked for.
var copyRate struct {
	sync.Once
	bytesPerSecond float64
}

func copied(b *testing.B) float64 {
	copyRate.Do(func() {
		c, times := copyCase(), []float64(nil)
		work := c.start(b, l2Floats())
		for range 20 {
			times = append(times, seconds(b, work))
		}
		copyRate.bytesPerSecond = float64(c.bytes) / median(times)
	})
	return copyRate.bytesPerSecond
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// seconds executes a round.
func seconds(t testing.TB, round func() (float64, error)) (s float64) {
	on(t, func() (err error) {
		s, err = round()
		return err
	})
	return s
}

// report gives the time of the device in place of the benchmark's own, which has the cache's flushing in it.
func (c benchCase) report(b *testing.B, seconds float64) {
	b.ReportMetric(seconds*1e9, "ns/op")
	if c.bytes > 0 {
		b.ReportMetric(float64(c.bytes)/1e6, "MB")
		b.ReportMetric(float64(c.bytes)/seconds/1e9, "GB/s")
		b.ReportMetric(100*float64(c.bytes)/seconds/copied(b), "%copy")
	}
	if c.flops > 0 {
		b.ReportMetric(float64(c.flops)/seconds/1e9, "GFLOP/s")
	}
}

// time returns the median seconds of the case over the rounds of b.
func (c benchCase) time(b *testing.B) float64 {
	b.ReportAllocs()
	work := c.start(b, l2Floats())
	var times []float64
	for b.Loop() {
		times = append(times, seconds(b, work))
	}
	return median(times)
}

// start sets the case up, runs it once, which brings its code to the device, and returns a round. Before each, flushing
// floats are read.
func (c benchCase) start(t testing.TB, flushing int) (round func() (seconds float64, err error)) {
	flush := dev.ArgMaxPart(reserve(t, dev.ArgMaxScratch), noise(t, 4*int64(flushing)), 1, flushing)
	var p *driver.Program
	var begin, end *driver.Event
	var copies func() error
	if c.setup == nil {
		to, from := reserve(t, c.bytes/2), noise(t, c.bytes/2)
		copies = func() error { return stream.CopyWithin(to, from, c.bytes/2) }
	}
	launches := []dev.Launch{flush}
	if c.setup != nil {
		launches = append(launches, c.setup(t))
	}
	on(t, func() (err error) {
		if p, err = device.NewProgram(launches); err != nil {
			return err
		}
		if begin, err = device.NewEvent(); err != nil {
			return err
		}
		end, err = device.NewEvent()
		return err
	})
	t.Cleanup(func() {
		on(t, func() error {
			for _, c := range []interface{ Close() error }{p, begin, end} {
				if err := c.Close(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	round = func() (float64, error) {
		// The flush takes longer than the calls that follow it, so that the kernel waits for nothing of the host.
		if err := p.Run(stream, 0, 1); err != nil {
			return 0, err
		}
		if err := begin.Record(stream); err != nil {
			return 0, err
		}
		if err := p.Run(stream, 1, p.Len()); err != nil {
			return 0, err
		}
		if copies != nil {
			if err := copies(); err != nil {
				return 0, err
			}
		}
		if err := end.Record(stream); err != nil {
			return 0, err
		}
		if err := stream.Sync(); err != nil {
			return 0, err
		}
		s, err := driver.Elapsed(begin, end)
		return max(s, 1e-9), err // the clock counts half microseconds
	}
	seconds(t, round)
	return round
}

// copyCase is the copy of a gigabyte, or of an eighth of what is free.
func copyCase() benchCase {
	n := min(1<<30, device.Info().Free/8) &^ 255
	if tiny() {
		n = 1 << 20
	}
	return benchCase{name: "kernel=copy", bytes: 2 * n}
}

// l2Floats is how many floats are read to have nothing else in L2: four times as much as it holds. They are only read, so
// that there is nothing to write back while the kernel runs.
func l2Floats() int {
	if tiny() {
		return 4096
	}
	return int(max(device.Info().L2, 16<<20))
}

// reserve returns device memory, with whatever is in it, until the test ends. A case too large for the device is skipped.
func reserve(t testing.TB, bytes int64) dev.Ptr {
	t.Helper()
	var m *driver.Mem
	err := device.Do(func() (err error) {
		m, err = device.Alloc(bytes, t.Name())
		return err
	})
	if full := (*driver.NoMemoryError)(nil); errors.As(err, &full) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on(t, m.Free) })
	return m.Ptr
}

// noise returns device memory full of random bits that are finite numbers in every layout: as float32, float16 and
// bfloat16 they are below 2 in magnitude, and so are the scales of the block types, which all start at even addresses.
func noise(t testing.TB, bytes int64) dev.Ptr {
	t.Helper()
	p := reserve(t, bytes)
	r := rand.New(rand.NewPCG(uint64(bytes), 1))
	chunk := make([]byte, min(bytes, 1<<20))
	for i := range chunk {
		chunk[i] = byte(r.Uint32())
		if i%2 == 1 {
			chunk[i] &= 0xbf
		}
	}
	on(t, func() error {
		if err := device.Upload(p, chunk); err != nil {
			return err
		}
		for done := int64(len(chunk)); done < bytes; done *= 2 {
			if err := stream.CopyWithin(p.At(done), p, min(done, bytes-done)); err != nil {
				return err
			}
		}
		return stream.Sync()
	})
	return p
}

// TestCUDABenchmarks runs every benchmark's launch once, small, and wants each kernel of the package's sources among them.
func TestCUDABenchmarks(t *testing.T) {
	ran := map[string]bool{}
	for _, c := range benchCases(tinyShapes) {
		t.Run(c.name, func(t *testing.T) {
			setup := c.setup
			c.setup = func(t testing.TB) dev.Launch {
				l := setup(t)
				ran[l.Func] = true
				return l
			}
			c.start(t, 1000)
		})
	}
	sources, err := filepath.Glob("*.cu")
	if err != nil || len(sources) == 0 {
		t.Skip("coverage: the kernels' sources are not in the working directory")
	}
	for _, s := range sources {
		if s == "recipe.cu" {
			continue // for tests alone
		}
		text, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range kernelName.FindAllStringSubmatch(string(text), -1) {
			if !ran[m[1]] {
				t.Errorf("%s: kernel %s has no benchmark", s, m[1])
			}
		}
	}
}

// kernelName finds kernels written out and, by their macro's first argument, stamped ones.
var kernelName = regexp.MustCompile(`(?m)^(?:extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?|[A-Z_]+\()([a-z]\w+)[(,]`)
