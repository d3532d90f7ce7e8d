//go:build cuda

package cuda_test

import (
	"math"
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/synth"
)

// TestCUDAEveryArch: synthetic models of every architecture and of every type with device kernels, against the processor
// with activations in float32, over a prompt of odd length and a decode. The figure is the root mean square of the
// differences by that of the logits. On float weights it is rounding of another order of summation, on quantised ones that
// of activations to 8 bits, through all layers; a router's near tie that falls the other way moves it more, so the seeds
// are ones without.
func TestCUDAEveryArch(t *testing.T) {
	wide := synth.Geometry{Layers: 2, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 6, Used: 2, FF: 256, Context: 512}
	for _, arch := range synth.Archs() {
		for _, typ := range []string{"f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k"} {
			if !long() && arch != "qwen3moe" && typ != "f16" && typ != "q8_0" {
				continue
			}
			t.Run("arch="+arch+"/type="+typ, func(t *testing.T) {
				g := narrow
				if typ == "q4_k_m" || typ == "q5_k_m" || typ == "q6_k" {
					g = wide
				}
				switch arch {
				case "qwen2moe":
					g.SharedFF, g.HeadDim = g.FF, g.Embd/g.Heads
				case "olmoe":
					g.KVHeads, g.HeadDim = 0, g.Embd/g.Heads
				case "llama":
					g.HeadDim = g.Embd / g.Heads
				}
				m := synthModel(t, synth.Config{Arch: arch, Type: typ, Seed: 12, Geometry: g})
				ids := randomIDs(m, 4, 23)
				bound := 2e-3
				if typ != "f32" && typ != "f16" && typ != "bf16" {
					bound = 0.08
				}
				d := openDevice(t, cuda.Options{})
				got := everyLogit(t, newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16}), ids)
				want := everyLogit(t, newSession(t, m, engine.Config{ExactActs: true, Ctx: 64, Batch: 16}), ids)
				var diff, sum float64
				for i, w := range want {
					diff += (float64(got[i]) - float64(w)) * (float64(got[i]) - float64(w))
					sum += float64(w) * float64(w)
				}
				rms := math.Sqrt(diff / sum)
				t.Logf("relative difference %.2g", rms)
				if !(rms <= bound) {
					t.Errorf("logits differ by %.3g of their size, want at most %g", rms, bound)
				}
			})
		}
	}
}

// everyLogit runs all but the last three ids as a prompt and those one by one, and returns all logits.
func everyLogit(t *testing.T, s *engine.Session, ids []int32) (all []float32) {
	t.Helper()
	n := len(ids) - 3
	err := s.PrefillAll(background, ids[:n], func(_ int, l []float32) error {
		all = append(all, l...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[n:] {
		l, err := s.Decode(background, id)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l...)
	}
	return all
}
