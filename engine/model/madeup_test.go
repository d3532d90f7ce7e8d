package model_test

import (
	"bytes"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
)

// madeUp is an architecture of known parts but for one: its attention has one more vector. This file is all there is of it.
var madeUp = model.Arch{
	Name: "madeup", Eps: 1e-6, RopeBase: 1e4,
	Read: func(k *model.Keys, h *model.Hparams) {
		k.Transformer(h)
		k.Weighing(h, true)
		k.ExpertWidth(h, h.NFF)
		k.NextN(h)
		k.Rope(h)
	},
	Declare: func(d *model.Decl) {
		d.Ends(true)
		d.Each(func(y *model.Layer) {
			d.Attention(y, model.QKNormHead, true, model.Biases{})
			x := &gained{Attention: y.Mixer.(*model.Attention)}
			y.Mixer = x
			d.Vector(&x.Gain, model.OpRotary, "attn_gain.weight", d.H.NHead).As(model.RoleNorm)
			d.RoutedExperts(y, moe.GatingSigmoid)
		})
	},
	Keys: func(g *model.Geometry, put func(string, any)) {
		put("feed_forward_length", uint32(g.FF))
		put("nextn_predict_layers", uint32(0))
	},
}

// gained is its mixer.
type gained struct {
	*model.Attention
	Gain model.Vector
}

func (*gained) Kind() string { return "attention with a gain" }

func openMadeUp(t *testing.T, data []byte) (*model.Model, error) {
	t.Helper()
	f, err := gguf.Parse("madeup.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(f, model.OpenOptions{Extra: []model.Arch{madeUp}})
	if err == nil {
		t.Cleanup(func() { m.Close() })
	}
	return m, err
}

// TestMadeUp: synth writes the new architecture, the engine loads it with nothing left over, counts its bytes, and records
// its op; a backend that does not know the mixer refuses it by layer and kind.
func TestMadeUp(t *testing.T) {
	c := synth.Config{Arch: "madeup", Type: "q8_0", Seed: 5, Extra: []model.Arch{madeUp},
		Geometry: synth.Geometry{Layers: 3, Embd: 64, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 4, Used: 2, FF: 64, Vocab: 300, Context: 64}}
	data, err := synth.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := openMadeUp(t, data)
	if err != nil {
		t.Fatal(err)
	}
	var file int64
	for _, x := range m.File.Tensors() {
		file += x.Size
	}
	if m.DenseBytes()+m.ExpertBytes() != file {
		t.Errorf("%d dense and %d expert bytes, the file has %d", m.DenseBytes(), m.ExpertBytes(), file)
	}
	for il := range m.Layers {
		if x := m.Layers[il].Mixer.(*gained); len(x.Gain.X) != 4 || x.Gain.X[3] != 1 {
			t.Errorf("layer %d: gain %v", il, x.Gain.X)
		}
	}
	rec := model.NewRecorder(1, 1)
	rec.Describe(m, 1, model.DefaultActs)
	plain, err := synth.Build(synth.Config{Arch: "qwen3moe", Type: "q8_0", Seed: 5, Geometry: c.Geometry})
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse("plain.gguf", plain)
	if err != nil {
		t.Fatal(err)
	}
	known, err := model.New(f, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	same := model.NewRecorder(1, 1)
	same.Describe(known, 1, model.DefaultActs)
	if got, want := rec.Info(model.OpRotary, 1).Bytes, same.Info(model.OpRotary, 1).Bytes+4*4; got != want {
		t.Errorf("the op reads %d bytes, want %d", got, want)
	}
	if got, want := m.MixerBytes(1), known.MixerBytes(1)+4*4; got != want {
		t.Errorf("the mixer reads %d bytes, want %d", got, want)
	}
	if _, err := engine.NewSession(m, engine.Config{}); err == nil || !strings.Contains(err.Error(), "layer 0: attention with a gain is not computed on the processor") {
		t.Errorf("the processor: %v", err)
	}

	// Without one of its tensors, and with one that it has no place for.
	if _, err := openMadeUp(t, bytes.Replace(data, []byte("blk.2.attn_gain"), []byte("blk.2.attn_pain"), 1)); err == nil ||
		!strings.Contains(err.Error(), `tensor "blk.2.attn_gain.weight" is missing`) {
		t.Errorf("without a gain: %v", err)
	}
	f, err = gguf.Parse("madeup.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.New(f, model.OpenOptions{}); err == nil || !strings.Contains(err.Error(), `architecture "madeup" is not supported`) {
		t.Errorf("without its row: %v", err)
	}
}

// TestNextN: trailing layers that are not part of the forward path are set aside, and said.
func TestNextN(t *testing.T) {
	g := synth.Geometry{Layers: 3, Embd: 64, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 4, Used: 2, FF: 64, Vocab: 300, Context: 64}
	data, err := synth.Build(synth.Config{Arch: "madeup", Type: "q8_0", Seed: 5, Extra: []model.Arch{madeUp}, Geometry: g})
	if err != nil {
		t.Fatal(err)
	}
	// The key's value is the u32 behind its name and type.
	key := []byte("madeup.nextn_predict_layers")
	at := bytes.Index(data, key) + len(key) + 4
	for n, want := range map[byte]string{0: "", 1: "1 of 3 layers predict further tokens ahead (nextn): not part of the forward path, not loaded", 3: "want fewer than the 3 layers"} {
		data[at] = n
		m, err := openMadeUp(t, bytes.Clone(data))
		switch {
		case n == 3:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v", n, err)
			}
		case err != nil:
			t.Errorf("%d: %v", n, err)
		case m.NLayer != 3-int(n) || len(m.Layers) != m.NLayer || !strings.HasPrefix(strings.Join(m.Notes(), "\n"), want):
			t.Errorf("%d: %d layers, notes %q", n, m.NLayer, m.Notes())
		}
	}
}
