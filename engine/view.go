package engine

import (
	"fmt"
	"runtime/debug"

	"sluice/kernels"
	"sluice/moe"
)

// QKNorm says how queries and keys are normalised before the rotary embedding.
type QKNorm uint8

// The rules.
const (
	QKNormNone QKNorm = QKNorm(qkNormNone)
	QKNormHead QKNorm = QKNorm(qkNormHead) // over each head, weight of HeadDim
	QKNormRow  QKNorm = QKNorm(qkNormRow)  // over all heads of a row together
)

// WeightView is a model's weights as a device takes them: what there is, under which name, and where its bytes are. All of
// it is the model's, to be read only, and valid until the model is closed or its dense weights are moved. Bytes that lie
// in the file's mapping are read within Guard.
type WeightView struct {
	TokEmbd, Output Tensor // nVocab x nEmbd; Output is TokEmbd where the model has one matrix for both
	OutNorm         []float32
	Layers          []LayerView

	RopeNeox bool // pairs (i, i+n/2); false: neighbours
	QKNorm   QKNorm
}

// LayerView is one layer. A nil vector is absent.
type LayerView struct {
	AttnNorm       []float32
	Wq, Wk, Wv, Wo Tensor
	Bq, Bk, Bv, Bo []float32
	QNorm, KNorm   []float32
	FFNNorm        []float32
	Router         Tensor // nExpert x nEmbd

	Gate, Up, Down ExpertTensor // of the routed experts; the bytes come from a store.Source

	SharedGate                        []float32 // nEmbd; nil: no shared expert
	SharedGateW, SharedUp, SharedDown Tensor
}

// Tensor is a matrix and its name in the file.
type Tensor struct {
	Name string
	kernels.Mat
}

// ExpertTensor is the shape of one projection of every expert of a layer.
type ExpertTensor struct {
	Name       string
	Type       kernels.Type
	Rows, Cols int
}

// Weights returns the view.
func (m *Model) Weights() WeightView {
	w := m.w
	v := WeightView{TokEmbd: Tensor{"token_embd.weight", w.tokEmbd}, OutNorm: w.outNorm, RopeNeox: m.arch.ropeNeox, QKNorm: QKNorm(m.arch.qkNorm)}
	if v.Output = (Tensor{"output.weight", w.output}); sameMemory(w.output, w.tokEmbd) {
		v.Output = v.TokEmbd
	}
	for i := range w.layers {
		ly := &w.layers[i]
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
		expert := func(e *expertMat, part string) ExpertTensor { return ExpertTensor{name(part), e.typ, e.rows, e.cols} }
		y := LayerView{
			AttnNorm: ly.attnNorm, Bq: ly.bq, Bk: ly.bk, Bv: ly.bv, Bo: ly.bo, QNorm: ly.qNorm, KNorm: ly.kNorm, FFNNorm: ly.ffnNorm,
			Wq: Tensor{name("attn_q"), ly.wq}, Wk: Tensor{name("attn_k"), ly.wk}, Wv: Tensor{name("attn_v"), ly.wv},
			Wo: Tensor{name("attn_output"), ly.wo}, Router: Tensor{name("ffn_gate_inp"), ly.router},
			Gate: expert(&ly.gate, "ffn_gate_exps"), Up: expert(&ly.up, "ffn_up_exps"), Down: expert(&ly.down, "ffn_down_exps"),
		}
		if ly.sharedGate != nil {
			y.SharedGate = ly.sharedGate
			y.SharedGateW = Tensor{name("ffn_gate_shexp"), ly.sharedG}
			y.SharedUp = Tensor{name("ffn_up_shexp"), ly.sharedUp}
			y.SharedDown = Tensor{name("ffn_down_shexp"), ly.sharedDownM}
		}
		v.Layers = append(v.Layers, y)
	}
	return v
}

// Router is the routing rule of every layer with k experts a token.
func (m *Model) Router(k int) *moe.Router { return m.router(k) }

// Guard runs f on this goroutine and makes an error of a page of the file's mapping that cannot be read in it.
func (m *Model) Guard(f func() error) (err error) {
	defer recoverFault(m.File, debug.SetPanicOnFault(true), &err)
	return f()
}
