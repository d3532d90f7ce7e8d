package enginetest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
)

// Change is one thing that a layer can ask for. Made to a layer of a model it changes what the model computes.
type Change struct {
	Name string
	Make func(m *model.Model, y *model.Layer)
}

// Changes are all of them: every kind of mixer and feed-forward, and every field of each.
func Changes() []Change {
	attention := func(f func(m *model.Model, a *model.Attention)) func(*model.Model, *model.Layer) {
		return func(m *model.Model, y *model.Layer) { f(m, y.Mixer.(*model.Attention)) }
	}
	experts := func(f func(m *model.Model, e *model.MoE)) func(*model.Model, *model.Layer) {
		return func(m *model.Model, y *model.Layer) { f(m, y.FFN.(*model.MoE)) }
	}
	return []Change{
		{"layer.MixerIn", func(_ *model.Model, y *model.Layer) { y.MixerIn = model.Vector{} }},
		{"layer.MixerOut", func(m *model.Model, y *model.Layer) { m.AddVector(&y.MixerOut, ramp(m.NEmbd)) }},
		{"layer.FFNIn", func(_ *model.Model, y *model.Layer) { y.FFNIn = model.Vector{} }},
		{"layer.FFNOut", func(m *model.Model, y *model.Layer) { m.AddVector(&y.FFNOut, ramp(m.NEmbd)) }},
		{"mixer.nil", func(_ *model.Model, y *model.Layer) { y.Mixer = nil }},
		{"mixer.Latent", func(_ *model.Model, y *model.Layer) { y.Mixer = &model.Latent{} }},
		{"mixer.DeltaNet", func(_ *model.Model, y *model.Layer) { y.Mixer = &model.DeltaNet{Conv: 4} }},
		{"ffn.nil", func(_ *model.Model, y *model.Layer) { y.FFN = nil }},
		{"ffn.Dense", func(m *model.Model, y *model.Layer) { y.FFN = &y.FFN.(*model.MoE).Shared.Dense }},
		{"ffn.Beside", func(_ *model.Model, y *model.Layer) {
			e := y.FFN.(*model.MoE)
			y.FFN = &model.Beside{Dense: &e.Shared.Dense, MoE: e}
		}},

		{"attention.ValueLen", attention(func(_ *model.Model, a *model.Attention) { a.ValueLen /= 2 })},
		{"attention.Window", attention(func(_ *model.Model, a *model.Attention) { a.Window = 5 })},
		{"attention.Scale", attention(func(_ *model.Model, a *model.Attention) { a.Scale /= 2 })},
		{"attention.Rope none", attention(func(_ *model.Model, a *model.Attention) { a.Rope = -1 })},
		{"attention.Rope other", attention(func(m *model.Model, a *model.Attention) {
			other := m.Ropes[0]
			other.Base *= 4
			m.Ropes, a.Rope = append(m.Ropes, other), len(m.Ropes)
		})},
		{"attention.Neox", attention(func(_ *model.Model, a *model.Attention) { a.Neox = !a.Neox })},
		{"attention.QKNorm head", attention(func(m *model.Model, a *model.Attention) {
			a.QKNorm = model.QKNormHead
			m.AddVector(&a.QNorm, ramp(a.KeyLen))
			m.AddVector(&a.KNorm, ramp(a.KeyLen))
		})},
		{"attention.QKNorm row", attention(func(m *model.Model, a *model.Attention) {
			a.QKNorm = model.QKNormRow
			m.AddVector(&a.QNorm, ramp(a.Q.Rows))
			m.AddVector(&a.KNorm, ramp(a.K.Rows))
		})},
		{"attention.Gate", attention(func(_ *model.Model, a *model.Attention) { a.Gate, a.OutGate = model.GateSigmoid, a.Q })},
		{"attention.BQ", attention(func(m *model.Model, a *model.Attention) { m.AddVector(&a.BQ, ramp(a.Q.Rows)) })},
		{"attention.BK", attention(func(m *model.Model, a *model.Attention) { m.AddVector(&a.BK, ramp(a.K.Rows)) })},
		{"attention.BV", attention(func(m *model.Model, a *model.Attention) { m.AddVector(&a.BV, ramp(a.V.Rows)) })},
		{"attention.BO", attention(func(m *model.Model, a *model.Attention) { m.AddVector(&a.BO, ramp(a.O.Rows)) })},
		{"attention.Sinks", attention(func(m *model.Model, a *model.Attention) { m.AddVector(&a.Sinks, ramp(a.Heads)) })},
		{"attention.Heads", attention(func(m *model.Model, a *model.Attention) {
			a.Heads /= 2
			a.Q.Rows, a.O.Cols = a.Q.Rows/2, a.O.Cols/2
			a.Q.Data, a.O.Data = a.Q.Data[:len(a.Q.Data)/2], a.O.Data[:len(a.O.Data)/2]
		})},

		{"experts.Act gelu", experts(func(_ *model.Model, e *model.MoE) { e.Act = model.GELUTanh })},
		{"experts.Act clamped", experts(func(_ *model.Model, e *model.MoE) { e.Act = model.ClampedSwiGLU })},
		{"experts.BGate", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.BGate, ramp(m.NExpert*e.Width)) })},
		{"experts.BUp", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.BUp, ramp(m.NExpert*e.Width)) })},
		{"experts.BDown", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.BDown, ramp(m.NExpert*m.NEmbd)) })},
		{"experts.Scale", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.Scale, ramp(m.NExpert)) })},
		{"shared.Act", experts(func(_ *model.Model, e *model.MoE) { e.Shared.Act = model.GELUTanh })},
		{"shared.GateV", experts(func(_ *model.Model, e *model.MoE) { e.Shared.GateV = model.Vector{} })},
		{"shared nil", experts(func(_ *model.Model, e *model.MoE) { e.Shared = nil })},

		{"router.BLogit", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.Router.BLogit, ramp(m.NExpert)) })},
		{"router.BSelect", experts(func(m *model.Model, e *model.MoE) {
			m.AddVector(&e.Router.BSelect, ramp(m.NExpert))
			slices.Reverse(e.Router.BSelect.X)
			e.Router.Rule.Bias = e.Router.BSelect.X
		})},
		{"router.InScale", experts(func(m *model.Model, e *model.MoE) { m.AddVector(&e.Router.InScale, ramp(m.NEmbd)) })},
		{"router.Norm", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.Norm = !e.Router.Rule.Norm })},
		{"router.Scale", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.Scale = 2 })},
		{"router.Gating topk", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.Gating = moe.GatingSoftmaxTopK })},
		{"router.Gating sigmoid", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.Gating = moe.GatingSigmoid })},
		{"router.Gating sqrt-softplus", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.Gating = moe.GatingSqrtSoftplus })},
		{"router.Groups", experts(func(_ *model.Model, e *model.MoE) { e.Router.Rule.NGroup, e.Router.Rule.NGroupUsed = 4, 1 })},
	}
}

// ramp is a vector that is like no other.
func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 0.5 + float32(i%7)/8
	}
	return x
}

// WalkKinds makes every change to a model and opens it on a backend: what it computes must then differ from the unchanged
// model, and what it does not compute it must refuse by the layer. refused names the changes that are to be refused, so
// that neither list grows unseen.
func WalkKinds(t *testing.T, open func(m *model.Model) (*engine.Session, error), refused []string) {
	t.Helper()
	config := synth.Config{Arch: "qwen2moe", Type: "q8_0", Seed: 4, Geometry: synth.Geometry{Layers: 2, Embd: 128, Heads: 4, KVHeads: 2, HeadDim: 32,
		Experts: 8, Used: 2, FF: 64, SharedFF: 128, Vocab: 300, Context: 64}}
	ids := make([]int32, 20)
	for i := range ids {
		ids[i] = int32(i*i) % 300
	}
	logits := func(t *testing.T, s *engine.Session) []float32 {
		defer s.Close()
		out, err := s.Prefill(context.Background(), ids)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(out)
	}
	s, err := open(SynthModel(t, config))
	if err != nil {
		t.Fatal(err)
	}
	base := logits(t, s)
	for _, c := range Changes() {
		t.Run(c.Name, func(t *testing.T) {
			m := SynthModel(t, config)
			c.Make(m, &m.Layers[1])
			s, err := open(m)
			switch want := slices.Contains(refused, c.Name); {
			case err == nil && want:
				s.Close()
				t.Error("taken, to be refused")
			case err == nil:
				got := logits(t, s)
				if slices.Equal(got, base) {
					t.Error("taken, and ignored: the output is the unchanged model's")
				}
				if kernels.ArgMax(got) < 0 {
					t.Error("no numbers come of it")
				}
			case !want:
				t.Errorf("refused: %v", err)
			case !strings.Contains(err.Error(), "layer 1"):
				t.Errorf("refused without naming the layer: %v", err)
			}
		})
	}
}
