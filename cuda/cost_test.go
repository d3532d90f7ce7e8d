//go:build cuda

package cuda_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
)

func narrowModel(t testing.TB, arch, typ string) *model.Model {
	t.Helper()
	return synthModel(t, narrowConfig(arch, typ))
}

func narrowConfig(arch, typ string) synth.Config {
	g := narrow
	switch arch {
	case "qwen2moe":
		g = sharedNarrow
	case "olmoe":
		g.HeadDim, g.KVHeads = 16, 0
	case "llama":
		g.HeadDim = 16
	}
	return synth.Config{Arch: arch, Type: typ, Seed: 5, Geometry: g}
}

func narrowData(t testing.TB) []byte {
	return build(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 5, Geometry: narrow})
}

// spent is what f asks of the driver.
func spent(t testing.TB, d model.Device, f func()) driver.Counters {
	t.Helper()
	c := d.(*cuda.Device)
	before := c.Counters()
	f()
	return c.Counters().Sub(before)
}

// TestCUDANothingReturns: while all experts are on the device a token waits for the host once, at its end, and brings 4
// bytes back; as a graph it is one launch. A recorded selection adds one copy a token, or a prompt chunk, and no wait.
func TestCUDANothingReturns(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "f16")
	ids := randomIDs(m, 1, 40)
	const tokens = 12
	for _, armed := range []bool{false, true} {
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprintf("armed=%v/graph=%v", armed, graph), func(t *testing.T) {
				d := openDevice(t, cuda.Options{NoGraph: !graph})
				cfg := engine.Config{Device: d, Ctx: 128, Batch: 16}
				if armed {
					cfg.SelDump, _ = armTaps(t, m, t.TempDir())
				}
				s := newSession(t, m, cfg)
				got := spent(t, d, func() {
					if err := s.PrefillAll(background, ids[:32], func(int, []float32) error { return nil }); err != nil {
						t.Fatal(err)
					}
				})
				copies := int64(2 + 2) // a chunk: the status, a block of logits
				if armed {
					copies += 2
				}
				if got.Syncs != 2*2 || got.CopiesOut != copies || got.CopiesIn != 2 {
					t.Errorf("two chunks: %+v, want 4 waits, %d copies out, 2 in", got, copies)
				}
				id, err := s.Greedy(background, ids[32])
				if err != nil {
					t.Fatal(err)
				}
				if id, err = s.Greedy(background, id); err != nil { // captures
					t.Fatal(err)
				}
				got = spent(t, d, func() {
					for range tokens {
						if id, err = s.Greedy(background, id); err != nil {
							t.Fatal(err)
						}
					}
				})
				want := driver.Counters{Syncs: tokens, CopiesOut: tokens, BytesOut: 4 * tokens}
				if armed {
					want.CopiesOut += tokens
					want.BytesOut += tokens * int64(m.NLayer*m.NExpertUsed*8)
				}
				if graph {
					want.GraphLaunches = tokens
				}
				one := got.Launches + got.GraphKernels
				got.Launches, got.GraphKernels = 0, 0
				if got != want {
					t.Errorf("%d tokens: %+v, want %+v", tokens, got, want)
				}
				t.Logf("%d kernels a token of %d layers", one/tokens, m.NLayer)
				// Logits are copied when they are asked for.
				got = spent(t, d, func() {
					if _, err := s.Decode(background, 3); err != nil {
						t.Fatal(err)
					}
				})
				if got.Syncs != 1 || got.CopiesIn != 1 || got.BytesOut-want.BytesOut/tokens != int64(4*m.NVocab) {
					t.Errorf("a token with logits: %+v", got)
				}
			})
		}
	}
}

// TestCUDADecodeAllocates: a decoded token takes no memory of the Go heap that grows with the model.
func TestCUDADecodeAllocates(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "f16")
	d := openDevice(t, cuda.Options{})
	s := newSession(t, m, engine.Config{Device: d, Ctx: 128})
	id := int32(1)
	step := func() {
		var err error
		if id, err = s.Greedy(background, id); err != nil {
			t.Fatal(err)
		}
	}
	step()
	step()
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("%v allocations a token, want 0", n)
	}
}

// TestCUDALeaks: a hundred sessions, of either arm and every size of cache, leave nothing on the device, no pinned memory
// and no goroutine.
func TestCUDALeaks(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "q4_0")
	goroutines := runtime.NumGoroutine()
	for _, slots := range []int{0, 3, 18} {
		d, err := cuda.New(cuda.Options{CacheBytes: expertBytes(m) * int64(slots)})
		if err != nil {
			t.Fatal(err)
		}
		free := int64(0)
		for i := range 34 {
			cfg := engine.Config{Device: d, Ctx: 64, Batch: 8, Arm: []model.Arm{"host", "table"}[i%2]}
			if i%3 == 0 {
				cfg.SelDump, cfg.Trace = armTaps(t, m, t.TempDir())
			}
			s, err := engine.NewSession(m, cfg)
			if err != nil {
				t.Fatal(err)
			}
			greedy(t, m, s, []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			now := d.(*cuda.Device).Free()
			if i == 0 {
				free = now
			} else if now != free && emulated(d) { // on a real one also others, and code that is loaded when it first runs, take some
				t.Fatalf("session %d: %d bytes free, %d after the first", i, now, free)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
}

// TestCUDARepeats: the same input gives the same bits, however often.
func TestCUDARepeats(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "f16")
	d := openDevice(t, cuda.Options{CacheBytes: 4 * expertBytes(m)})
	s := newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16})
	ids := randomIDs(m, 9, 20)
	var first string
	runs := 20
	if long() {
		runs = 100
	}
	for i := range runs {
		s.Reset()
		logits, err := s.Prefill(background, ids)
		if err != nil {
			t.Fatal(err)
		}
		if bits := fmt.Sprintf("%x", logits); i == 0 {
			first = bits
		} else if bits != first {
			t.Fatalf("run %d differs", i)
		}
	}
}
