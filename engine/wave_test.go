package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice/engine"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// shuffledSource hands experts out in random order, some later than others, a few at a time.
type shuffledSource struct {
	store.Source
	rng  *rand.Rand
	left []int
}

func (s *shuffledSource) Demand(layer int, experts []int32) (int, error) {
	n, err := s.Source.Demand(layer, experts)
	s.left = s.rng.Perm(n)
	return n, err
}

func (s *shuffledSource) Ready() bool { return len(s.left) > 0 && s.rng.IntN(3) > 0 }

func (s *shuffledSource) Next(context.Context) (int, store.Expert, error) {
	i := s.left[0]
	s.left = s.left[1:]
	x, err := s.Expert(i)
	return i, x, err
}

// TestArrivalOrder: in whatever order experts arrive, logits have the same bits and the trace the same lines; with a
// hidden buffer that holds all rows of a call, a few experts, or not even one.
func TestArrivalOrder(t *testing.T) {
	for name, g := range map[string]synth.Geometry{
		"all rows fit":     {Layers: 2, Embd: 64, Heads: 2, KVHeads: 2, HeadDim: 32, Experts: 16, Used: 4, FF: 64},
		"some experts fit": {Layers: 1, Embd: 64, Heads: 2, KVHeads: 2, HeadDim: 32, Experts: 16, Used: 4, FF: 8192},
		"no expert fits":   {Layers: 1, Embd: 64, Heads: 2, KVHeads: 2, HeadDim: 32, Experts: 4, Used: 2, FF: 16384},
	} {
		for _, shared := range []int{0, 96} {
			arch := "qwen3moe"
			if shared > 0 {
				arch = "qwen2moe"
			}
			g.SharedFF, g.Vocab, g.Context = shared, 300, 512
			m := synthModel(t, synth.Config{Arch: arch, Type: "q8_0", Geometry: g})
			ids := make([]int32, 200)
			for i := range ids {
				ids[i] = int32(i * i % 300)
			}
			run := func(src store.Source, threads int) []float32 {
				s := newSession(t, m, engine.Config{Threads: threads, Source: src})
				var out []float32
				if err := s.PrefillAll(background, ids, func(_ int, l []float32) error { out = append(out, l...); return nil }); err != nil {
					t.Fatal(err)
				}
				for _, id := range ids[:5] {
					l, err := s.Decode(background, id)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, l...)
				}
				return out
			}
			want := run(nil, 1)
			for seed := range uint64(3) {
				budget := store.WorkingSet(m.Layout, g.Experts)
				if seed == 2 { // several waves a call
					budget = store.WorkingSet(m.Layout, 2)
				}
				src := openSource(t, m, engine.SourceConfig{BudgetBytes: budget, Force: true, IO: "buffered"})
				got := run(&shuffledSource{Source: src, rng: rand.New(rand.NewPCG(seed, 1))}, 1+int(seed))
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s, seed %d: logits differ", name, arch, seed)
				}
			}
		}
	}
}

// countingSource counts how often experts had to be read in one layer call after another.
type countingSource struct {
	store.Source
	layer int
	ids   []int32
	read  map[[2]int]int
	waves int
}

func (s *countingSource) Demand(layer int, experts []int32) (int, error) {
	n, err := s.Source.Demand(layer, experts)
	s.layer, s.ids = layer, experts[:n]
	s.waves++
	for i := range n {
		if s.ReadBytes(i) > 0 {
			s.read[[2]int{layer, int(experts[i])}]++
		}
	}
	return n, err
}

// TestPromptReadsExpertsOnce: a chunk of 512 tokens, with caches down to a third of one layer, reads no expert twice, by
// demand or ahead.
func TestPromptReadsExpertsOnce(t *testing.T) {
	path := writeFile(t, "m.gguf", buildSynth(t, synth.Config{Arch: "qwen3moe", Type: "q8_0", Geometry: synth.Geometry{Layers: 6, Embd: 64,
		Heads: 2, KVHeads: 2, HeadDim: 32, Experts: 32, Used: 4, FF: 64, Vocab: 300, Context: 1024}}))
	m := openFile(t, path)
	layer := store.WorkingSet(m.Layout, 32) / 6
	ids := make([]int32, 512)
	for i := range ids {
		ids[i] = int32(i * i % 300)
	}
	for _, c := range []struct {
		budget   int64
		prefetch moe.Prefetch
	}{{layer / 3, "off"}, {layer * 3 / 2, "off"}, {layer * 3, "off"}, {layer * 3, "next-layer"}, {layer * 3 / 2, "next-layer"}} {
		for _, policy := range store.Policies() {
			name := fmt.Sprintf("%+v %s", c, policy)
			src := &countingSource{Source: openSource(t, m, engine.SourceConfig{BudgetBytes: c.budget, Force: true, Policy: policy}), read: map[[2]int]int{}}
			s := newSession(t, m, engine.Config{Threads: 2, Batch: 512, Source: src, Prefetch: c.prefetch})
			for chunk := range 2 {
				clear(src.read)
				before := s.SourceStats()
				src.waves = 0
				if _, err := s.Prefill(background, ids); err != nil {
					t.Fatal(err)
				}
				st := s.SourceStats()
				for at, n := range src.read {
					if n > 1 {
						t.Errorf("%s, chunk %d: expert %d of layer %d was read %d times", name, chunk, at[1], at[0], n)
					}
				}
				reads := st.Misses + st.Prefetched - before.Misses - before.Prefetched
				if all := int64(6 * 32); reads > all || reads > int64(len(src.read)) && c.prefetch == "off" {
					t.Errorf("%s, chunk %d: %d experts read, %d of them distinct misses, the model has %d", name, chunk, reads, len(src.read), all)
				}
				if (c.budget < layer) != (src.waves > 6) {
					t.Errorf("%s, chunk %d: %d waves for 6 layers", name, chunk, src.waves)
				}
				if c.prefetch != "off" && st.PrefetchUsed == 0 {
					t.Errorf("%s: no prefetch was of use", name)
				}
			}
		}
	}
}
