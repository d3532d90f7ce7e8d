package roofline

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/engine/gguf"
	"sluice/engine/synth"
	"sluice/kernels"
)

func parse(t *testing.T, data []byte) *gguf.File {
	t.Helper()
	f, err := gguf.Parse("x.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The counts by tensor name agree with the maker of the file, for each layout.
func TestFromGGUFCountsWhatSynthWrote(t *testing.T) {
	for _, c := range []synth.Config{
		{Preset: "tiny", Type: "f32"},
		{Preset: "tiny", Type: "q8_0", Arch: "qwen2moe"},
		{Preset: "tiny", Type: "q4_k_m"},
		{Preset: "tiny", Type: "f16", Arch: "llama", PerExpert: true},
	} {
		info, err := synth.Describe(c)
		if err != nil {
			t.Fatal(err)
		}
		data, err := synth.Build(c)
		if err != nil {
			t.Fatal(err)
		}
		m, w, err := FromGGUF(parse(t, data), 2)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		g := info.Geometry
		if m.Hidden != g.Embd || m.QHeads != g.Heads || m.KVHeads != g.KVHeads || m.HeadDim != g.HeadDim || m.Layers != g.Layers ||
			m.FFNDim != g.Used*g.FF || w.Experts != g.Experts || w.Used != g.Used || len(w.Layers) != g.Layers {
			t.Errorf("%+v: %+v, want %+v", c, m, g)
		}
		experts := 0.0
		for _, l := range w.Layers {
			experts += float64(w.Used) * l.Bytes
		}
		same(t, c.Type+" bytes of a token", w.ActiveBytes(), float64(info.ActiveBytes))
		same(t, c.Type+" expert bytes of a token", experts, float64(info.ActiveExpertBytes))
		if want := float64(2 * 2 * g.KVHeads * g.HeadDim * g.Layers); m.KVBytesPerToken() != want {
			t.Errorf("%s: %g bytes of keys and values, want %g", c.Type, m.KVBytesPerToken(), want)
		}
		r, err := New(Input{Machine: testMachine, Model: m, Sparsity: w.TotalParams() / w.ActiveParams(), Context: 100, Batches: []int{1, 8}, Weights: w})
		if err != nil {
			t.Fatal(err)
		}
		if p := r.MoE.Curve[0]; p.WeightBytes-w.TokenBytes > r.ActiveParams*m.BytesPerElem*(1+1e-9) || p.Distinct != float64(w.Used) {
			t.Errorf("%s: one token reads %+v", c.Type, p)
		}
	}
}

func TestFromGGUFRefuses(t *testing.T) {
	const arch = "x."
	base := func(skip string, edit func(w *gguf.Writer)) []byte {
		w := gguf.NewWriter(3)
		w.Add("general.architecture", "x")
		for _, k := range []struct {
			key string
			v   uint32
		}{{"block_count", 1}, {"embedding_length", 4}, {"attention.head_count", 2}, {"expert_count", 2}, {"expert_used_count", 1}} {
			if k.key != skip {
				w.Add(arch+k.key, k.v)
			}
		}
		if edit != nil {
			edit(w)
		}
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	experts := func(dims ...uint64) func(*gguf.Writer) {
		return func(w *gguf.Writer) {
			w.AddTensorBytes("blk.0.ffn_down_exps.weight", kernels.F32, dims, make([]byte, 4*dims[0]*dims[1]*dims[2]))
		}
	}
	if _, _, err := FromGGUF(parse(t, base("", experts(3, 4, 2))), 2); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"no layers", "block_count", base("block_count", experts(3, 4, 2))},
		{"no heads", "attention.head_count", base("attention.head_count", experts(3, 4, 2))},
		{"no experts", "expert_count", base("expert_count", experts(3, 4, 2))},
		{"no expert tensor", "no tensor of routed experts", base("", nil)},
		{"other number of experts", "want 2 experts in the third place", base("", experts(3, 4, 3))},
		{"all layers predict ahead", "0 layers", base("", func(w *gguf.Writer) { experts(3, 4, 2)(w); w.Add(arch+"nextn_predict_layers", uint32(1)) })},
		{"wrong type", "x.attention.key_length", base("", func(w *gguf.Writer) { experts(3, 4, 2)(w); w.Add(arch+"attention.key_length", "8") })},
	} {
		if _, _, err := FromGGUF(parse(t, c.data), 2); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}

// The trained model: what its description says, and no more than the file holds.
func TestFromGGUFTrainedModel(t *testing.T) {
	dir := os.Getenv("SLUICE_MODELS")
	if dir == "" {
		t.Skip("SLUICE_MODELS, the directory with the trained models, is not set")
	}
	f, err := gguf.Open(filepath.Join(dir, "tinymoe-f16.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, w, err := FromGGUF(f, 2)
	if err != nil {
		t.Fatal(err)
	}
	if m.Hidden != 256 || m.Layers != 5 || w.Experts != 16 || w.Used != 4 || w.TotalParams() > 17.9e6 || w.TotalParams() < 15e6 {
		t.Errorf("%+v, %v parameters", m, w.TotalParams())
	}
	if m.BytesPerElem < 2 || m.BytesPerElem > 2.1 {
		t.Errorf("f16 weights of %v bytes", m.BytesPerElem)
	}
}
