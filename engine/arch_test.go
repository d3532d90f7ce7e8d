package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe/store"
)

// randomIDs is a text of n random tokens.
func randomIDs(m *model.Model, seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 9))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.NVocab))
	}
	return ids
}

func appendBits(dst []byte, logits []float32) []byte {
	for _, l := range logits {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(l))
	}
	return dst
}

// allLogits runs ids as prompt chunks, except for the last `decoded`, which go one by one, and returns
// the bits of every token's logits.
func allLogits(t *testing.T, s *engine.Session, ids []int32, decoded int) []byte {
	t.Helper()
	var out []byte
	split := len(ids) - decoded
	if err := s.PrefillAll(background, ids[:split], func(_ int, l []float32) error {
		out = appendBits(out, l)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[split:] {
		l, err := s.Decode(background, id)
		if err != nil {
			t.Fatal(err)
		}
		out = appendBits(out, l)
	}
	return out
}

// sources are the places experts may come from; bytes that differ between them are a fault.
var sources = []struct {
	name   string
	config func(m *model.Model) engine.SourceConfig
}{
	{"mmap", func(*model.Model) engine.SourceConfig { return engine.SourceConfig{} }},
	{"resident", func(*model.Model) engine.SourceConfig { return engine.SourceConfig{IO: "resident"} }},
	{"cached-direct", func(m *model.Model) engine.SourceConfig {
		return engine.SourceConfig{IO: "direct", Lanes: 3, BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed)}
	}},
	{"cached-buffered", func(m *model.Model) engine.SourceConfig {
		return engine.SourceConfig{IO: "buffered", Policy: "slru", BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed)}
	}},
}

// sourceLogits are the bits of 30 tokens' logits, experts coming from the given source.
func sourceLogits(t *testing.T, m *model.Model, config func(*model.Model) engine.SourceConfig) []byte {
	t.Helper()
	src, plan, err := engine.OpenSource(m, config(m), m.NExpertUsed)
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range plan.Notes {
		t.Log(note)
	}
	s := newSession(t, m, engine.Config{Batch: 11, Threads: 2, Source: src})
	out := allLogits(t, s, randomIDs(m, 5, 30), 8)
	if st := s.SourceStats(); plan.BudgetBytes > 0 && st.Evictions == 0 {
		t.Error("the smallest cache evicted nothing: the case tests nothing")
	}
	return out
}

// TestLayoutsAgree: a file with one tensor per expert, and a model split over several files, give the
// bits of the single merged file, whatever the source.
func TestLayoutsAgree(t *testing.T) {
	for _, c := range []synth.Config{
		{Arch: "llama", Type: "f16", Seed: 3, Geometry: narrow},
		{Arch: "llama", Type: "q4_k_m", Seed: 3},
		{Arch: "qwen2moe", Type: "q8_0", Seed: 4, Geometry: narrow},
	} {
		merged := buildSynth(t, c)
		want := sourceLogits(t, openFile(t, writeFile(t, "m.gguf", merged)), sources[0].config)
		check := func(name, path string) {
			for _, src := range sources {
				t.Run(fmt.Sprintf("arch=%s/type=%s/layout=%s/source=%s", c.Arch, c.Type, name, src.name), func(t *testing.T) {
					m := openFile(t, path)
					if got := sourceLogits(t, m, src.config); !slices.Equal(got, want) {
						t.Error("logits differ from the merged file's")
					}
				})
			}
		}
		check("merged", writeFile(t, "m.gguf", merged))
		shards := writeShards(t, merged, 3)
		check("split", shards[1]) // any shard opens the set
		if c.Arch == "llama" {
			c.PerExpert = true
			single := buildSynth(t, c)
			check("per-expert", writeFile(t, "m.gguf", single))
			check("per-expert-split", writeShards(t, single, 4)[0])
		}
	}
}

// TestSplitLayout: the three matrices of one expert may lie in three files, and every file is read.
func TestSplitLayout(t *testing.T) {
	m := openFile(t, writeShards(t, buildSynth(t, synth.Config{Arch: "llama", Type: "f16", Seed: 3, Geometry: narrow}), 3)[2])
	if n := len(m.Layout.Files); n != 3 {
		t.Fatalf("%d files, want 3", n)
	}
	seen := map[int]bool{}
	for _, layer := range m.Layout.Experts {
		for _, x := range layer {
			if x.Gate.File == x.Up.File {
				t.Errorf("gate and up both in file %d: the case tests nothing", x.Gate.File)
			}
			seen[x.Gate.File], seen[x.Up.File], seen[x.Down.File] = true, true, true
		}
	}
	if len(seen) != 3 {
		t.Errorf("experts in files %v, want all three", seen)
	}
}

// TestEveryK: with any number of experts a token, from one to all, chunks of tokens give the bits of
// one token a step, on both arms.
func TestEveryK(t *testing.T) {
	g := synth.Geometry{Layers: 2, Embd: 64, Heads: 2, KVHeads: 1, HeadDim: 32, Experts: 7, Used: 2, FF: 32}
	for _, arch := range synth.Archs() {
		geo := g
		if arch == "olmoe" {
			geo.KVHeads = 0
		}
		m := synthModel(t, synth.Config{Arch: arch, Type: "q8_0", Seed: 8, Geometry: geo})
		ids := randomIDs(m, 2, 23)
		var before []byte
		for k := 1; k <= m.NExpert; k++ {
			want := allLogits(t, newSession(t, m, engine.Config{NExpertUsed: k}), ids, len(ids))
			if slices.Equal(want, before) {
				t.Errorf("arch=%s k=%d: the logits of k=%d: one expert more changes nothing", arch, k, k-1)
			}
			before = want
			for _, arm := range []model.Arm{"host", "table"} {
				s := newSession(t, m, engine.Config{NExpertUsed: k, Batch: 9, Arm: arm, Threads: 2})
				if got := allLogits(t, s, ids, 0); !slices.Equal(got, want) {
					t.Errorf("arch=%s k=%d arm=%s: chunks of 9 differ from single steps", arch, k, arm)
				}
			}
		}
	}
}

// TestChunkSizes: chunks that divide nothing, up to the very end of the context.
func TestChunkSizes(t *testing.T) {
	m := synthModel(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 2,
		Geometry: synth.Geometry{Layers: 2, Embd: 64, Heads: 4, KVHeads: 2, HeadDim: 16, Experts: 8, Used: 3, FF: 32, Context: 1000}})
	ids := randomIDs(m, 3, 900)
	for _, c := range []struct {
		ctx    int
		chunks []int
	}{
		{100, []int{1, 2, 3, 16, 37, 63, 64, 65, 99, 100, 512}},
		{900, []int{255, 873}},
	} {
		var want []byte
		for _, kv := range []model.KV{"f16", "f32"} {
			for i, chunk := range c.chunks {
				s := newSession(t, m, engine.Config{Ctx: c.ctx, Batch: chunk, Threads: 2, KV: kv})
				logits, err := s.Prefill(background, ids[:c.ctx])
				if err != nil {
					t.Fatalf("ctx %d, chunk %d: %v", c.ctx, chunk, err)
				}
				got := appendBits(nil, logits)
				if i == 0 {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("ctx %d, chunk %d, kv %s: logits of the last token differ from chunk %d", c.ctx, chunk, kv, c.chunks[0])
				}
				if s.Pos() != c.ctx {
					t.Errorf("position %d, want %d", s.Pos(), c.ctx)
				}
				// Full: refused by name, and nothing is lost.
				if _, err := s.Decode(background, ids[0]); !errors.Is(err, engine.ErrContextFull) {
					t.Errorf("decode at the end: %v, want ErrContextFull", err)
				}
				if _, err := s.Prefill(background, ids[:1]); !errors.Is(err, engine.ErrContextFull) {
					t.Errorf("prefill at the end: %v, want ErrContextFull", err)
				}
				if s.Pos() != c.ctx {
					t.Errorf("position %d after refused tokens, want %d", s.Pos(), c.ctx)
				}
			}
		}
	}
}

// TestOddShapes: sizes that divide no block of rows and no tile of any kernel, chunks against single steps.
func TestOddShapes(t *testing.T) {
	for _, g := range []synth.Geometry{
		{Layers: 1, Embd: 32, Heads: 1, KVHeads: 1, HeadDim: 2, Experts: 2, Used: 1, FF: 32},
		{Layers: 1, Embd: 96, Heads: 5, KVHeads: 1, HeadDim: 6, Experts: 3, Used: 2, FF: 32, Vocab: 301},
		{Layers: 2, Embd: 160, Heads: 3, KVHeads: 3, HeadDim: 34, Experts: 33, Used: 5, FF: 96, Vocab: 333},
	} {
		for _, arch := range []string{"qwen3moe", "llama"} {
			m := synthModel(t, synth.Config{Arch: arch, Type: "f16", Seed: 6, Geometry: g})
			ids := randomIDs(m, 4, 70)
			want := allLogits(t, newSession(t, m, engine.Config{}), ids, len(ids))
			s := newSession(t, m, engine.Config{Batch: 69, Threads: 3, Arm: "table"})
			if got := allLogits(t, s, ids, 0); !slices.Equal(got, want) {
				t.Errorf("%s %+v: chunks differ from single steps", arch, g)
			}
			for i := 0; i < len(want); i += 4 {
				if v := math.Float32frombits(binary.LittleEndian.Uint32(want[i:])); math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					t.Fatalf("%s %+v: logit %v", arch, g, v)
				}
			}
		}
	}
}

// TestExpertWeightsScale: absent and 0 mean 1, and 2 is the same as experts of twice the size.
func TestExpertWeightsScale(t *testing.T) {
	for _, arch := range synth.Archs() {
		c := synth.Config{Arch: arch, Type: "f16", Seed: 5, Geometry: narrow}
		if arch == "olmoe" {
			c.Geometry.KVHeads = 0
		}
		data := buildSynth(t, c)
		logits := func(data []byte) []byte {
			m := parseModel(t, "m.gguf", data)
			return allLogits(t, newSession(t, m, engine.Config{}), randomIDs(m, 1, 12), 3)
		}
		scaled := func(v float32) []byte {
			return logits(keysEdit(arch, map[string]any{"expert_weights_scale": v})(t, data))
		}
		absent := logits(data)
		for _, v := range []float32{0, 1} {
			if !slices.Equal(scaled(v), absent) {
				t.Errorf("%s: a scale of %v differs from none", arch, v)
			}
		}
		double := rewrite{tensor: func(s *tensorSpec) bool {
			if strings.HasSuffix(s.name, "down_exps.weight") {
				v := floats(s)
				for i := range v {
					v[i] *= 2 // exact in float16
				}
				s.put(v)
			}
			return true
		}}
		two := scaled(2)
		if !slices.Equal(two, logits(double.apply(t, data))) {
			t.Errorf("%s: a scale of 2 differs from experts of twice the size", arch)
		}
		if slices.Equal(two, absent) {
			t.Errorf("%s: a scale of 2 changes nothing", arch)
		}
	}
}

// TestExpertWeightsNorm: the file's key wins over the architecture's rule.
func TestExpertWeightsNorm(t *testing.T) {
	for _, c := range []struct {
		arch string
		rule bool
	}{{"qwen3moe", true}, {"qwen2moe", false}} {
		data := buildSynth(t, synth.Config{Arch: c.arch, Type: "f16", Seed: 5, Geometry: narrow})
		weightSum := func(edit map[string]any) float64 {
			m := parseModel(t, "m.gguf", keysEdit(c.arch, edit)(t, data))
			s := newSession(t, m, engine.Config{})
			if _, err := s.Prefill(background, randomIDs(m, 1, 12)); err != nil {
				t.Fatal(err)
			}
			d := s.Drops()
			return d.Mass / float64(d.Routed) * float64(m.NExpertUsed) // of one token
		}
		for _, norm := range []bool{false, true} {
			sum := weightSum(map[string]any{"expert_weights_norm": norm})
			if isOne := math.Abs(sum-1) < 1e-6; isOne != norm {
				t.Errorf("%s, norm %v: weights of a token sum to %.6f", c.arch, norm, sum)
			}
		}
		if isOne := math.Abs(weightSum(nil)-1) < 1e-6; isOne != c.rule {
			t.Errorf("%s without the key: renormalised %v, want %v", c.arch, isOne, c.rule)
		}
	}
}

// TestPartialRotary: rope.dimension_count below the head leaves the rest of the head alone. llama.cpp
// does not compute it for these architectures, so the check is by a property: with half of each head
// unrotated and the rotated half of the keys set to zero, the order of earlier tokens does not matter.
func TestPartialRotary(t *testing.T) {
	for _, arch := range []string{"qwen2moe", "llama"} {
		g := narrow
		g.Layers = 1
		data := buildSynth(t, synth.Config{Arch: arch, Type: "f32", Seed: 5, Geometry: g})
		half := g.HeadDim / 2
		base := map[string]any{arch + ".rope.freq_base": float32(10)} // every pair turns fast
		r := rewrite{set: maps.Clone(base), tensor: func(s *tensorSpec) bool {
			if strings.HasPrefix(s.name, "blk.0.attn_k.") {
				v := floats(s)
				row := len(v) / (g.KVHeads * g.HeadDim)
				for i := range v {
					if i/row%g.HeadDim < half {
						v[i] = 0
					}
				}
				s.put(v)
			}
			return true
		}}
		last := func(data []byte, order ...int32) []float32 {
			m := parseModel(t, "m.gguf", data)
			l, err := newSession(t, m, engine.Config{KV: "f32"}).Prefill(background, order)
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(l)
		}
		distance := func(a, b []float32) float64 {
			d := 0.0
			for i := range a {
				d = max(d, math.Abs(float64(a[i]-b[i])))
			}
			return d
		}
		r.set[arch+".rope.dimension_count"] = uint32(half)
		part := r.apply(t, data)
		if d := distance(last(part, 1, 2, 3, 4, 5), last(part, 4, 2, 1, 3, 5)); d > 1e-4 {
			t.Errorf("%s: unrotated keys, but the order of tokens moves logits by %g", arch, d)
		}
		r.set = base
		whole := r.apply(t, data)
		if d := distance(last(whole, 1, 2, 3, 4, 5), last(whole, 4, 2, 1, 3, 5)); d < 1e-2 {
			t.Errorf("%s: rotated keys, but the order of tokens moves logits by %g only: the case tests nothing", arch, d)
		}
	}
}

// TestTokenIDs: an id outside the embedding is refused by name, and the session stays where it was.
func TestTokenIDs(t *testing.T) {
	m := synthModel(t, synth.Config{Type: "f16", Seed: 1, Geometry: narrow})
	s := newSession(t, m, engine.Config{Batch: 4})
	for _, bad := range []int32{-1, int32(m.NVocab), math.MaxInt32, math.MinInt32} {
		s.Reset()
		_, err := s.Prefill(background, []int32{1, 2, 3, 4, 5, bad})
		want := fmt.Sprintf("token id %d at position 5: want 0..%d", bad, m.NVocab-1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("id %d: %v, want %q", bad, err, want)
		}
		if s.Pos() != 4 {
			t.Errorf("id %d: position %d, want 4, the last whole chunk", bad, s.Pos())
		}
		if _, err := s.Decode(background, bad); err == nil || s.Pos() != 4 {
			t.Errorf("decode of id %d: %v, position %d", bad, err, s.Pos())
		}
	}
	if _, err := s.Prefill(background, nil); err == nil {
		t.Error("an empty prompt was taken")
	}
}

// TestSessionsAreIndependent: sessions of one model, at once, do not disturb each other.
func TestSessionsAreIndependent(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", buildSynth(t, synth.Config{Arch: "qwen2moe", Type: "q8_0", Seed: 1, Geometry: narrow})))
	ids := randomIDs(m, 1, 40)
	want := allLogits(t, newSession(t, m, engine.Config{}), ids, 10)
	done := make(chan error)
	for i := range 4 {
		src, _, err := engine.OpenSource(m, sources[i].config(m), m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(t, m, engine.Config{Batch: 7 + i, Threads: 2, Source: src})
		go func() {
			var got []byte
			err := s.PrefillAll(context.Background(), ids, func(_ int, l []float32) error {
				got = appendBits(got, l)
				return nil
			})
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("session %d: logits differ", i)
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestArchitectures: the list is what synth can write, so that every architecture is compared above.
func TestArchitectures(t *testing.T) {
	have, want := model.Architectures(), synth.Archs()
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("engine has %v, synth writes %v", have, want)
	}
}
