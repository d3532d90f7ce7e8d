//go:build cuda

package cuda_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
)

// benchSetting is a way to compute the same tokens.
type benchSetting struct {
	name   string
	arm    model.Arm
	graph  bool
	shared int64 // the device holds one expert in so many; 0: all
}

var benchSettings = []benchSetting{
	{"arm=host/graph=off/experts=all", "host", false, 0},
	{"arm=table/graph=off/experts=all", "table", false, 0},
	{"arm=table/graph=on/experts=all", "table", true, 0},
	{"arm=host/graph=off/experts=half", "host", false, 2},
	{"arm=table/graph=off/experts=half", "table", false, 2},
}

// BenchmarkCUDASession times prompts and greedy decoding in every setting and fails where their tokens differ. The model
// is the file that SLUICE_BENCH_MODEL names, or else a small one of random weights, whose figures mean nothing. A round's
// clock begins before the first token and ends behind the last; between rounds the session keeps its weights and caches.
func BenchmarkCUDASession(b *testing.B) {
	prompt, tokens := 512, 128
	var m *model.Model
	if path := os.Getenv("SLUICE_BENCH_MODEL"); path != "" {
		m = openFile(b, path)
	} else {
		m = synthModel(b, synth.Config{Arch: "qwen3moe", Type: "q8_0", Seed: 5, Geometry: narrow})
	}
	if os.Getenv("SLUICE_TINY") == "1" {
		prompt, tokens = 24, 6
	}
	r := rand.New(rand.NewPCG(3, 0))
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = r.Int32N(int32(m.NVocab))
	}
	var want []int32
	for _, set := range benchSettings {
		b.Run(set.name, func(b *testing.B) {
			o := cuda.Options{NoGraph: !set.graph}
			if set.shared > 0 {
				o.CacheBytes = expertBytes(m) * int64(m.NLayer*m.NExpert) / set.shared
			}
			d := openDevice(b, o)
			s := newSession(b, m, engine.Config{Device: d, Arm: set.arm, Ctx: prompt + tokens + 1})
			var pp, tg []float64
			var got []int32
			var spent driver.Counters
			round := func() {
				s.Reset()
				got = got[:0]
				start := time.Now()
				logits, err := s.Prefill(background, ids)
				if err != nil {
					b.Fatal(err)
				}
				pp = append(pp, time.Since(start).Seconds())
				id := int32(slices.Index(logits, slices.Max(logits)))
				before := d.(*cuda.Device).Counters()
				start = time.Now()
				for range tokens {
					got = append(got, id)
					if id, err = s.Greedy(background, id); err != nil {
						b.Fatal(err)
					}
				}
				tg = append(tg, time.Since(start).Seconds())
				spent = d.(*cuda.Device).Counters().Sub(before) // of the last round
			}
			round() // brings code, captures graphs, fills caches
			pp, tg = nil, nil
			for b.Loop() {
				round()
			}
			if want == nil {
				want = slices.Clone(got)
			}
			for i := range got {
				if got[i] != want[i] {
					b.Fatalf("token %d is %d, in the first setting %d", i, got[i], want[i])
				}
			}
			slices.Sort(pp)
			slices.Sort(tg)
			b.ReportMetric(0, "ns/op") // a round is a prompt and its tokens
			b.ReportMetric(float64(prompt)/pp[len(pp)/2], "pp-tok/s")
			b.ReportMetric(float64(tokens)/tg[len(tg)/2], "tg-tok/s")
			b.ReportMetric(float64(tokens)/tg[len(tg)-1], "tg-min-tok/s")
			b.ReportMetric(float64(spent.Syncs)/float64(tokens), "waits/token")
			b.ReportMetric(float64(spent.Launches+spent.GraphLaunches)/float64(tokens), "launches/token")
		})
	}
}
