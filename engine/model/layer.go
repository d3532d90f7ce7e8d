package model

import (
	"fmt"

	"sluice/kernels"
	"sluice/moe"
)

// Layer says what one block computes, as data. With x the residual stream of a row:
//
//	x += MixerOut( Mixer( MixerIn(x) ) )
//	x += FFNOut( FFN( FFNIn(x) ) )
//
// A norm that is absent is left out. A backend switches on the kinds of Mixer and FFN and on what they ask for, and
// refuses at load what it does not compute (Refuse): no rule may reach a backend that ignores it.
type Layer struct {
	Index int
	Mixer Mixer
	FFN   FFN

	MixerIn, MixerOut Vector // RMS norms, nEmbd; before the mixer, and of its output
	FFNIn, FFNOut     Vector
}

// Mixer lets positions of a sequence see each other: *Attention, *Latent or *DeltaNet. An architecture may bring another
// kind; a backend that does not know it refuses the model.
type Mixer interface {
	// Kind is the mixer's name in messages.
	Kind() string
}

// FFN works on each row alone: *Dense, *MoE or *Beside.
type FFN interface {
	Kind() string
}

// QKNorm says how queries and keys are normalised before the rotary embedding.
type QKNorm uint8

// The rules.
const (
	QKNormNone QKNorm = iota
	QKNormHead        // over each head, weight of the head's length
	QKNormRow         // over all heads of a row together
)

// Gate says how an attention's output is gated before the output projection.
type Gate uint8

// The rules.
const (
	GateNone    Gate = iota
	GateSigmoid      // sigmoid of a projection of the input, value by value
)

// Attention is grouped-query attention over keys and values of each position.
type Attention struct {
	Heads, KVHeads int
	KeyLen         int     // of a head's queries and keys
	ValueLen       int     // of a head's values
	Window         int     // positions that a row sees, itself included; 0: all
	Scale          float32 // of the scores

	Rope int  // which of Model.Ropes turns queries and keys, -1: none
	Neox bool // pairs (i, i+n/2); false: neighbours

	QKNorm QKNorm
	Gate   Gate

	Q, K, V, O     Matrix // Heads*KeyLen, KVHeads*KeyLen, KVHeads*ValueLen of nEmbd; nEmbd of Heads*ValueLen
	BQ, BK, BV, BO Vector // biases
	QNorm, KNorm   Vector // by QKNorm
	Sinks          Vector // Heads: a score that every row sees beside those of its positions
	OutGate        Matrix // Heads*ValueLen of nEmbd, with GateSigmoid
}

// Kind implements Mixer.
func (*Attention) Kind() string { return "attention" }

// Latent is multi-head latent attention in its absorbed form: positions keep one compressed row, from which every head
// reads keys and values.
type Latent struct {
	Heads            int
	KeyLen, ValueLen int // of a head: KeyLen without the rotated part
	RotLen           int // of the part of query and key that is rotated, shared by all heads
	Rank, QueryRank  int // of the compressed row; of the compressed query, 0: it is not compressed
	Scale            float32
	Rope             int
	Neox             bool

	QDown, QUp, Q Matrix // QueryRank of nEmbd and Heads*(KeyLen+RotLen) of QueryRank, or Q from nEmbd at once
	KVDown        Matrix // Rank+RotLen of nEmbd
	KUp, VUp      Matrix // per head, Rank of KeyLen and ValueLen of Rank
	O             Matrix
	QNorm, KVNorm Vector // QueryRank, Rank
}

// Kind implements Mixer.
func (*Latent) Kind() string { return "latent attention" }

// DeltaNet is a gated delta net: a short convolution, and a matrix of state for each head that a row decays, corrects and
// reads.
type DeltaNet struct {
	KeyHeads, ValueHeads int
	KeyLen, ValueLen     int
	Conv                 int // taps of the convolution

	QKVZ, BA Matrix
	ConvW    Vector // Conv taps a channel
	Decay    Vector // ValueHeads
	DtBias   Vector
	Norm     Vector // ValueLen
	O        Matrix
}

// Kind implements Mixer.
func (*DeltaNet) Kind() string { return "gated delta net" }

// StateValues is how many float32 values its state has: the rows that the convolution looks back on, and the matrices.
func (a *DeltaNet) StateValues() int64 {
	channels := 2*a.KeyHeads*a.KeyLen + a.ValueHeads*a.ValueLen
	return int64((a.Conv-1)*channels + a.ValueHeads*a.KeyLen*a.ValueLen)
}

// Activation is what stands between a feed-forward's first and second product.
type Activation uint8

// The activations, of gate g and up u.
const (
	SiLU          Activation = iota // g*sigmoid(g) * u
	GELUTanh                        // gelu by tanh, of g, times u
	ClampedSwiGLU                   // gpt-oss: both clamped, (u+1) * g*sigmoid(1.702 g)
)

// String is the activation's name in messages.
func (a Activation) String() string {
	switch a {
	case SiLU:
		return "SiLU"
	case GELUTanh:
		return "GELU (tanh)"
	case ClampedSwiGLU:
		return "clamped SwiGLU"
	}
	return "unknown"
}

// Dense is a feed-forward that every row takes.
type Dense struct {
	Width          int
	Act            Activation
	Gate, Up, Down Matrix // Width of nEmbd twice, nEmbd of Width
}

// Kind implements FFN.
func (*Dense) Kind() string { return "dense" }

// MoE is a feed-forward of experts of which a router picks some for each row, and perhaps one that every row takes.
type MoE struct {
	Router         Router
	Width          int // of an expert
	Act            Activation
	Gate, Up, Down Experts
	BGate, BUp     Vector // biases, NExpert x Width
	BDown          Vector // NExpert x nEmbd
	Scale          Vector // NExpert: factor on each expert's output
	Shared         *Shared
}

// Kind implements FFN.
func (*MoE) Kind() string { return "experts" }

// Router is a layer's own: its logits, and the rule that makes a selection of them.
type Router struct {
	Rule    moe.Router // NUsed is the model's; a session may have another
	W       Matrix     // NExpert of nEmbd; read as float32
	BLogit  Vector     // NExpert, added to the logits
	BSelect Vector     // NExpert, added to the selection score alone
	InScale Vector     // nEmbd, factor on the router's input
}

// Shared is the expert that every row takes beside the routed ones.
type Shared struct {
	Dense
	GateV Vector // nEmbd: the sigmoid of its product with the row weighs the output; absent: weight 1
}

// Beside is a dense feed-forward and experts side by side, both on the layer's input, each with norms of its own.
type Beside struct {
	Dense               *Dense
	MoE                 *MoE
	DenseOut            Vector
	ExpertIn, ExpertOut Vector
}

// Kind implements FFN.
func (*Beside) Kind() string { return "dense beside experts" }

// Experts are the layer's experts, nil where it has none.
func (y *Layer) Experts() *MoE {
	switch f := y.FFN.(type) {
	case *MoE:
		return f
	case *Beside:
		return f.MoE
	}
	return nil
}

// Matrix is a weight matrix. ID is its slot's place in Model.Slots; a Matrix without data is absent.
type Matrix struct {
	kernels.Mat
	ID int
}

// Absent says whether the model has no such matrix.
func (m *Matrix) Absent() bool { return m.Data == nil }

// Vector is a weight vector in float32; nil X: absent.
type Vector struct {
	X  []float32
	ID int
}

// Absent says whether the model has no such vector.
func (v *Vector) Absent() bool { return v.X == nil }

// Experts is the shape that all experts' matrices of one projection of a layer have; the bytes come from a store.Source.
type Experts struct {
	Type       kernels.Type
	Rows, Cols int
	ID         int
}

// Of is one expert's matrix, of bytes that the source handed out.
func (e *Experts) Of(data []byte) kernels.Mat {
	return kernels.Mat{Type: e.Type, Rows: e.Rows, Cols: e.Cols, Data: data}
}

// Bytes is the size of one expert's matrix.
func (e *Experts) Bytes() int64 { return int64(e.Rows) * int64(e.Type.RowBytes(e.Cols)) }

// BeyondNorms is what of the layer's norms goes beyond one before mixer and feed-forward each; "": nothing. For backends
// that compute no more.
func (y *Layer) BeyondNorms() string {
	switch {
	case y.MixerIn.Absent() || y.FFNIn.Absent():
		return "a layer without norms before mixer and feed-forward"
	case !y.MixerOut.Absent() || !y.FFNOut.Absent():
		return "a norm behind mixer or feed-forward"
	}
	return ""
}

// Beyond is what of the attention goes beyond scores, softmax and values of one length; "": nothing.
func (a *Attention) Beyond() string {
	switch {
	case a.KeyLen != a.ValueLen:
		return fmt.Sprintf("%s with keys of %d and values of %d", a.Kind(), a.KeyLen, a.ValueLen)
	case !a.Sinks.Absent():
		return a.Kind() + " with sinks"
	case a.Gate != GateNone:
		return a.Kind() + " with an output gate"
	}
	return ""
}

// Beyond is what of the activation goes beyond SiLU; "": nothing.
func (a Activation) Beyond() string {
	if a != SiLU {
		return "activation " + a.String()
	}
	return ""
}

// Beyond is what of the experts goes beyond SiLU between products with their matrices, and a router's; "": nothing.
func (f *MoE) Beyond() string {
	switch {
	case !f.BGate.Absent() || !f.BUp.Absent() || !f.BDown.Absent():
		return f.Kind() + " with biases"
	case !f.Scale.Absent():
		return f.Kind() + " with scales of their own"
	case !f.Router.InScale.Absent():
		return "a router with a scaled input"
	case f.Shared != nil && f.Shared.Act.Beyond() != "":
		return f.Shared.Act.Beyond()
	}
	return f.Act.Beyond()
}
