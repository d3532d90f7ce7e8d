package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
)

// peerPositions is at how many positions a model is compared with llama.cpp, featurePositions the same
// where sizes and types are settled and one feature is looked at.
const (
	peerPositions    = 10
	featurePositions = 5
)

// clearMargin is the router probability by which the last selected expert must lead the best one
// left out, in every layer, for a position to be compared: at a closer call rounding decides.
const clearMargin = 1e-2

// f16Limit bounds the difference of log-probabilities on float16 weights. llama.cpp rounds activations
// to float16 before it multiplies, which is worth a few thousandths here.
const f16Limit = 2e-2

// peerTop is one of the best tokens after a prompt, by llama.cpp.
type peerTop struct {
	ID      int32
	LogProb float64
}

// llamaTop5 asks llama.cpp for the five best tokens after ids.
func llamaTop5(t *testing.T, path string, ids []int32) []peerTop {
	t.Helper()
	peer, libs := os.Getenv("SLUICE_PEER"), os.Getenv("SLUICE_PEER_LIBS")
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = strconv.Itoa(int(id))
	}
	cmd := exec.Command(peer, "--libs", libs, "--model", path, "--threads", "1", "--repack", "0", "--logits", strings.Join(list, ","), "--top", "5")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("llama.cpp: %v\n%s", err, out)
	}
	var got struct{ Top []peerTop }
	if err := json.Unmarshal(out, &got); err != nil || len(got.Top) != 5 {
		t.Fatalf("llama.cpp: %v, %d tokens in %s", err, len(got.Top), out)
	}
	return got.Top
}

// routeMargins computes, per position, the smallest margin over the layers.
func routeMargins(s *engine.Session, k, n int) []float64 {
	margins := make([]float64, n)
	for i := range margins {
		margins[i] = math.Inf(1)
	}
	s.TapRouting(func(c *moe.Call) {
		for row := range c.T {
			l := c.Logits[row*c.Router.NExpert:][:c.Router.NExpert]
			margins[c.Pos0+row] = min(margins[c.Pos0+row], routeMargin(l, k))
		}
	})
	return margins
}

// routeMargin is the softmax probability of the k-th best expert less that of the one after it;
// +Inf when nothing is left out.
func routeMargin(logits []float32, k int) float64 {
	if k == len(logits) {
		return math.Inf(1)
	}
	p := make([]float64, len(logits))
	var sum float64
	for i, l := range logits {
		p[i] = math.Exp(float64(l) - float64(slices.Max(logits)))
		sum += p[i]
	}
	slices.Sort(p)
	slices.Reverse(p)
	return (p[k-1] - p[k]) / sum
}

// spread picks n of the list, the first and the last among them.
func spread(list []int, n int) []int {
	if len(list) <= n {
		return list
	}
	out := make([]int, n)
	for i := range out {
		out[i] = list[i*(len(list)-1)/(n-1)]
	}
	return out
}

// peerCase is one model to compare with llama.cpp.
type peerCase struct {
	name   string
	synth  synth.Config
	edit   func(t *testing.T, data []byte) []byte // nil: the synthetic file as it is
	tokens int                                    // length of the random text; 0: 96
	limit  float64                                // on log-probabilities; 0: f16Limit
	moves  bool                                   // without the edit some log-probability must be off by more than limit
}

// TestPeer compares top-5 log-probabilities and the best token with llama.cpp at ten positions of a
// random text, on random models of every architecture, type and feature that both compute.
func TestPeer(t *testing.T) {
	if os.Getenv("SLUICE_PEER") == "" || os.Getenv("SLUICE_PEER_LIBS") == "" {
		t.Skip("SLUICE_PEER and SLUICE_PEER_LIBS do not name a llama.cpp driver and its libraries")
	}
	for _, c := range peerCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

func (c peerCase) run(t *testing.T) {
	data := buildSynth(t, c.synth)
	plain := data
	if c.edit != nil {
		data = c.edit(t, data)
	}
	path := writeFile(t, "m.gguf", data)
	m := openFile(t, path)
	n := c.tokens
	if n == 0 {
		n = 96
	}
	rng := rand.New(rand.NewPCG(c.synth.Seed, 77))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.NVocab))
	}
	// A chunk that divides neither the text nor any tile, and a context that the text fills.
	s := newSession(t, m, engine.Config{Ctx: n, Batch: 37})
	margins := routeMargins(s, m.NExpertUsed, n)
	var clear []int
	logits := make([][]float32, n)
	if err := s.PrefillAll(background, ids, func(i int, l []float32) error {
		logits[i] = slices.Clone(l)
		if margins[i] > clearMargin {
			clear = append(clear, i)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	count := peerPositions
	if c.edit != nil || c.limit != 0 {
		count = featurePositions
	}
	if len(clear) < count {
		t.Fatalf("%d of %d positions have a clear margin, want %d: take another seed or a longer text", len(clear), n, count)
	}
	limit := c.limit
	if limit == 0 {
		limit = f16Limit
	}
	positions := spread(clear, count)
	worst, at := 0.0, 0
	var atBest []float64 // the best token's log-probability at each position
	for _, pos := range positions {
		top := llamaTop5(t, path, ids[:pos+1])
		for _, p := range top {
			d := math.Abs(logProb(logits[pos], p.ID) - p.LogProb)
			if d > worst {
				worst, at = d, pos
			}
			if !(d <= limit) {
				t.Errorf("position %d: log-probability of token %d is %.5f, llama.cpp's %.5f, off by %.5f, want at most %g", pos, p.ID, logProb(logits[pos], p.ID), p.LogProb, d, limit)
			}
		}
		best := int32(kernels.ArgMax(logits[pos]))
		gap := logProb(logits[pos], best) - logProb(logits[pos], top[0].ID)
		// On float16 weights the best token is the same; two equally good ones may change places only
		// where activations are rounded to 8 bits.
		if best != top[0].ID && (limit <= f16Limit || gap > limit) {
			t.Errorf("position %d: best token %d, llama.cpp's %d, %.5f apart", pos, best, top[0].ID, gap)
		}
		atBest = append(atBest, logProb(logits[pos], best))
	}
	t.Logf("arch=%s type=%s: %d of %d positions clear; largest difference %.5f at position %d", m.Arch, c.synth.Type, len(clear), n, worst, at)
	if c.moves {
		checkMoves(t, plain, ids, positions, atBest, limit)
	}
}

// checkMoves wants the edit to matter: a feature that changes nothing would agree with anything.
func checkMoves(t *testing.T, plain []byte, ids []int32, positions []int, edited []float64, least float64) {
	t.Helper()
	m := parseModel(t, "plain.gguf", plain)
	s := newSession(t, m, engine.Config{Ctx: len(ids)})
	moved := 0.0
	if err := s.PrefillAll(background, ids, func(i int, l []float32) error {
		if j := slices.Index(positions, i); j >= 0 {
			best := int32(kernels.ArgMax(l))
			moved = max(moved, math.Abs(logProb(l, best)-edited[j]))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the edit moves log-probabilities by up to %.4f", moved)
	if moved <= least {
		t.Errorf("the edit moves log-probabilities by %.5f only, want more than %g: the case tests nothing", moved, least)
	}
}

// narrow is a small geometry whose long texts are cheap: 4 query heads share 2 key/value heads.
var narrow = synth.Geometry{Layers: 2, Embd: 128, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 8, Used: 2, FF: 32, Context: 4096}

// peerGeometries are the sizes every architecture is compared in, on float16 weights.
var peerGeometries = []struct {
	name string
	g    synth.Geometry
}{
	{"tiny", synth.Geometry{}},
	{"narrow", narrow},
	{"deep", synth.Geometry{Layers: 5, Embd: 128, Heads: 8, KVHeads: 2, HeadDim: 16, Experts: 4, Used: 2, FF: 96, Vocab: 301}},
	{"wide-heads", synth.Geometry{Layers: 2, Embd: 256, Heads: 2, KVHeads: 1, HeadDim: 128, Experts: 6, Used: 3, FF: 160}},
	{"many-experts", synth.Geometry{Layers: 2, Embd: 128, Heads: 4, KVHeads: 4, HeadDim: 32, Experts: 60, Used: 4, FF: 32}},
	{"k=1", synth.Geometry{Layers: 3, Embd: 128, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 5, Used: 1, FF: 64}},
	{"k=all", synth.Geometry{Layers: 3, Embd: 128, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 5, Used: 5, FF: 64}},
}

func peerCases() []peerCase {
	var cases []peerCase
	for _, arch := range synth.Archs() {
		for i, g := range peerGeometries {
			geo := g.g
			if arch == "olmoe" {
				geo.KVHeads = 0 // has no choice
			}
			tokens := 96
			if g.name == "many-experts" {
				tokens = 480 // margins are narrow among so many
			}
			cases = append(cases, peerCase{name: fmt.Sprintf("arch=%s/type=f16/size=%s", arch, g.name), tokens: tokens,
				synth: synth.Config{Arch: arch, Type: "f16", Seed: uint64(100 + i), Geometry: geo}})
		}
		// Both sides round activations to 8 bits for these, each in its own order of operations.
		for _, typ := range []string{"q8_0", "q4_k_m"} {
			cases = append(cases, peerCase{name: fmt.Sprintf("arch=%s/type=%s", arch, typ), limit: 0.1,
				synth: synth.Config{Arch: arch, Type: typ, Seed: 7}})
		}
	}
	return append(cases, featureCases()...)
}

// keysEdit sets keys behind the architecture's prefix.
func keysEdit(arch string, set map[string]any) func(*testing.T, []byte) []byte {
	return func(t *testing.T, data []byte) []byte {
		full := map[string]any{}
		for k, v := range set {
			full[arch+"."+k] = v
		}
		r := rewrite{set: full}
		return r.apply(t, data)
	}
}

// featureCases are what a file may say beyond its sizes.
func featureCases() []peerCase {
	var cases []peerCase
	add := func(arch, name string, g synth.Geometry, tokens int, edit func(*testing.T, []byte) []byte) {
		if arch == "olmoe" {
			g.KVHeads = 0
		}
		cases = append(cases, peerCase{name: fmt.Sprintf("arch=%s/%s", arch, name), tokens: tokens, edit: edit, moves: true,
			synth: synth.Config{Arch: arch, Type: "f16", Seed: 21, Geometry: g}})
	}
	yarn := func(factor, base float32, orig uint32, more map[string]any) map[string]any {
		set := map[string]any{"rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": orig, "rope.freq_base": base}
		maps.Copy(set, more)
		return set
	}
	ropes := []struct {
		name  string
		archs []string
		set   map[string]any
	}{
		{"rope=linear", synth.Archs(), map[string]any{"rope.scaling.type": "linear", "rope.scaling.factor": float32(4)}},
		{"rope=old-linear", []string{"llama"}, map[string]any{"rope.scale_linear": float32(8)}},
		{"rope=none", []string{"qwen3moe"}, map[string]any{"rope.scaling.type": "none", "rope.scaling.factor": float32(4), "rope.freq_base": float32(5e4)}},
		{"rope=yarn", synth.Archs(), yarn(4, 1e6, 64, nil)},
		{"rope=yarn-64", []string{"qwen3moe", "llama"}, yarn(64, 1e4, 64, nil)},
		{"rope=yarn-attn", []string{"llama"}, yarn(8, 1e4, 128, map[string]any{"rope.scaling.attn_factor": float32(1.25)})},
		{"rope=yarn-shrink", []string{"qwen3moe"}, yarn(0.5, 1e4, 128, nil)},
	}
	for _, r := range ropes {
		for _, arch := range r.archs {
			add(arch, r.name, narrow, 330, keysEdit(arch, r.set)) // depths 0 to five times the original context
		}
	}
	add("qwen2moe", "bias=large", narrow, 64, scaleTensors(8, "attn_q.bias", "attn_k.bias", "attn_v.bias"))
	add("qwen3moe", "bias=qkv", narrow, 64, addBiases)
	add("llama", "bias=qkv", narrow, 64, addBiases)
	add("llama", "rope=freqs", narrow, 330, addRopeFreqs)
	add("llama", "rope=freqs-linear", narrow, 330, func(t *testing.T, data []byte) []byte {
		return keysEdit("llama", map[string]any{"rope.scaling.factor": float32(2)})(t, addRopeFreqs(t, data))
	})
	for _, arch := range []string{"qwen3moe", "llama"} {
		add(arch, "output=tied", narrow, 64, tieOutput)
	}
	for _, arch := range synth.Archs() {
		add(arch, "norms=drawn", narrow, 64, drawNorms)
		add(arch, "experts=1", narrow, 64, oneExpert)
	}
	return cases
}

// scaleTensors multiplies float32 tensors whose names end in one of the suffixes.
func scaleTensors(by float32, suffixes ...string) func(*testing.T, []byte) []byte {
	return (&rewrite{tensor: func(s *tensorSpec) bool {
		for _, suffix := range suffixes {
			if strings.HasSuffix(s.name, suffix) {
				v := floats(s)
				for i := range v {
					v[i] *= by
				}
				s.put(v)
			}
		}
		return true
	}}).apply
}

// tieOutput leaves out the output matrix, so that the embeddings serve both ends. Their spread is 1; the
// last norm makes up for it, else logits are many times as large as any model's.
func tieOutput(t *testing.T, data []byte) []byte {
	r := rewrite{tensor: func(s *tensorSpec) bool { return s.name != "output.weight" }}
	scale := float32(1 / math.Sqrt(float64(narrow.Embd)))
	return scaleTensors(scale, "output_norm.weight")(t, r.apply(t, data))
}

// drawNorms replaces the norm weights, ones in a synthetic model, with numbers around one.
func drawNorms(t *testing.T, data []byte) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	return (&rewrite{tensor: func(s *tensorSpec) bool {
		if strings.HasSuffix(s.name, "norm.weight") {
			v := floats(s)
			for i := range v {
				v[i] = 0.5 + rng.Float32()
			}
			s.put(v)
		}
		return true
	}}).apply(t, data)
}

// addBiases gives query, key and value projections a bias.
func addBiases(t *testing.T, data []byte) []byte {
	var r rewrite
	rng := rand.New(rand.NewPCG(5, 6))
	r.tensor = func(s *tensorSpec) bool {
		for _, p := range []string{"attn_q", "attn_k", "attn_v"} {
			if name, ok := strings.CutSuffix(s.name, p+".weight"); ok {
				v := make([]float32, s.dims[1])
				for i := range v {
					v[i] = rng.Float32() - 0.5
				}
				b := tensorSpec{name: name + p + ".bias", typ: kernels.F32, dims: s.dims[1:]}
				b.put(v)
				r.add = append(r.add, b)
			}
		}
		return true
	}
	return r.apply(t, data)
}

// addRopeFreqs adds the tensor that divides rotary frequencies, as models with an extended context have.
func addRopeFreqs(t *testing.T, data []byte) []byte {
	b := tensorSpec{name: "rope_freqs.weight", typ: kernels.F32, dims: []uint64{uint64(narrow.HeadDim / 2)}}
	v := make([]float32, narrow.HeadDim/2)
	for i := range v {
		v[i] = 1 + float32(i*i)/16
	}
	b.put(v)
	return (&rewrite{add: []tensorSpec{b}}).apply(t, data)
}

// oneExpert leaves the first of a model's experts.
func oneExpert(t *testing.T, data []byte) []byte {
	r := rewrite{tensor: func(s *tensorSpec) bool {
		n := uint64(narrow.Experts)
		switch {
		case strings.Contains(s.name, "_exps."):
			s.data, s.dims = s.data[:uint64(len(s.data))/n], []uint64{s.dims[0], s.dims[1], 1}
		case strings.HasSuffix(s.name, "ffn_gate_inp.weight"):
			s.data, s.dims = s.data[:uint64(len(s.data))/n], []uint64{s.dims[0], 1}
		}
		return true
	}}
	arch := archOf(t, data)
	r.set = map[string]any{arch + ".expert_count": uint32(1), arch + ".expert_used_count": uint32(1)}
	return r.apply(t, data)
}
