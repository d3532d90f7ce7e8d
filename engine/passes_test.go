package engine_test

import (
	"math"
	"slices"
	"testing"

	"sluice/engine"
	"sluice/engine/synth"
)

// TestWideModelInPasses: where the scratch memory of attention, of the routed and of the shared expert is bounded, a
// chunk is computed in passes, down to cutting one expert's tokens, and every bit stays as in chunks that fit.
func TestWideModelInPasses(t *testing.T) {
	for _, c := range []struct {
		arch string
		g    synth.Geometry
	}{
		{"qwen3moe", synth.Geometry{Layers: 2, Embd: 64, Heads: 64, KVHeads: 1, HeadDim: 64, Experts: 2, Used: 1, FF: 16384}},
		{"qwen2moe", synth.Geometry{Layers: 2, Embd: 64, Heads: 2, KVHeads: 2, HeadDim: 32, Experts: 4, Used: 2, FF: 256, SharedFF: 8192}},
	} {
		c.g.Vocab, c.g.Context = 300, 512
		m := synthModel(t, synth.Config{Arch: c.arch, Type: "q8_0", Geometry: c.g})
		ids := make([]int32, 300)
		for i := range ids {
			ids[i] = int32(i * i % 300)
		}
		run := func(batch, threads int) []float32 {
			s := newSession(t, m, engine.Config{Batch: batch, Threads: threads})
			var out []float32
			if err := s.PrefillAll(background, ids, func(_ int, l []float32) error { out = append(out, l...); return nil }); err != nil {
				t.Fatal(err)
			}
			return out
		}
		want := run(50, 1)
		if slices.ContainsFunc(want, func(l float32) bool { return math.IsNaN(float64(l)) }) {
			t.Fatalf("%s: NaN logits: the case tests nothing", c.arch)
		}
		if got := run(300, 2); !slices.Equal(got, want) {
			t.Errorf("%s: logits of one chunk of 300 tokens differ from chunks of 50", c.arch)
		}
	}
}
