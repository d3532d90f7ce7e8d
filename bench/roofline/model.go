package roofline

import "fmt"

// Model is a transformer's geometry. Of a mixture of experts it is the active one: FFNDim is the width of all experts that
// one token uses together.
type Model struct {
	Name         string  `json:"name,omitempty"`
	Hidden       int     `json:"hidden"`         // width of the residual stream
	QHeads       int     `json:"h_q"`            // query heads
	KVHeads      int     `json:"h_kv"`           // key/value heads
	HeadDim      int     `json:"d_head"`         // width of a head
	FFNDim       int     `json:"ffn_dim"`        // width of the feed-forward block
	Layers       int     `json:"layers"`         //
	BytesPerElem float64 `json:"bytes_per_elem"` // of a weight; the mean where types are mixed
	// KVBytesPerElem is the size of a key or value element, 0: as BytesPerElem.
	KVBytesPerElem float64 `json:"kv_bytes_per_elem,omitempty"`

	// Counted replaces what the geometry only estimates, where the tensors are known.
	Counted *Counted `json:"counted,omitempty"`
}

// Counted is read off a model file.
type Counted struct {
	ActiveParams float64 `json:"active_params"` // elements of all matrices that one token multiplies with
	TotalParams  float64 `json:"total_params"`  // the same with every expert
	KVPerToken   float64 `json:"kv_per_token"`  // elements of keys and values that one position adds over all layers
}

const (
	maxSize = 1 << 31 // of one dimension
	maxElem = 64      // bytes of an element
)

// Check tells what is wrong with the numbers, and nil when nothing is.
func (m Model) Check() error {
	for _, s := range []struct {
		key   string
		v, lo int
	}{{"hidden", m.Hidden, 1}, {"h_q", m.QHeads, 1}, {"h_kv", m.KVHeads, 1}, {"d_head", m.HeadDim, 1}, {"ffn_dim", m.FFNDim, 1}, {"layers", m.Layers, 1}} {
		if s.v < s.lo || s.v > maxSize {
			return fmt.Errorf("roofline: model %q: %s is %d, want %d..%d", m.Name, s.key, s.v, s.lo, maxSize)
		}
	}
	if !(m.BytesPerElem > 0 && m.BytesPerElem <= maxElem) {
		return fmt.Errorf("roofline: model %q: bytes_per_elem is %v, want above 0 and at most %d", m.Name, m.BytesPerElem, maxElem)
	}
	if !(m.KVBytesPerElem >= 0 && m.KVBytesPerElem <= maxElem) {
		return fmt.Errorf("roofline: model %q: kv_bytes_per_elem is %v, want 0..%d", m.Name, m.KVBytesPerElem, maxElem)
	}
	if c := m.Counted; c != nil && !(c.ActiveParams > 0 && c.TotalParams >= c.ActiveParams && c.KVPerToken > 0) {
		return fmt.Errorf("roofline: model %q: %v active and %v total parameters, %v key/value elements per token: want all above 0, the total not below the active",
			m.Name, c.ActiveParams, c.TotalParams, c.KVPerToken)
	}
	return nil
}

// ActiveParams is the number of parameters one token multiplies with: counted, or by geometry the four attention
// projections and gate, up and down of every layer. Embeddings and the output head are not in the geometry's figure.
func (m Model) ActiveParams() float64 {
	if m.Counted != nil {
		return m.Counted.ActiveParams
	}
	hidden, q, kv := float64(m.Hidden), float64(m.QHeads)*float64(m.HeadDim), float64(m.KVHeads)*float64(m.HeadDim)
	attention := hidden*q + hidden*kv*2 + q*hidden
	ffn := 3 * hidden * float64(m.FFNDim)
	return (attention + ffn) * float64(m.Layers)
}

// KVBytesPerToken is how many bytes of keys and values one position adds to one sequence over all layers.
func (m Model) KVBytesPerToken() float64 {
	size := m.KVBytesPerElem
	if size == 0 {
		size = m.BytesPerElem
	}
	if m.Counted != nil {
		return m.Counted.KVPerToken * size
	}
	return 2 * float64(m.KVHeads) * float64(m.HeadDim) * size * float64(m.Layers)
}

// NewMoE describes a mixture of experts by geometry: every layer has experts of width expertFFN, used of which serve a
// token, beside a dense or shared block of width ffn (0: none). m's FFNDim is set to the active width. m needs its other
// fields; Model.Check and New tell what is wrong with the result.
func NewMoE(m Model, ffn, experts, used, expertFFN int) (Model, *Weights) {
	m.FFNDim = ffn + used*expertFFN
	expert := 3 * float64(m.Hidden) * float64(expertFFN)
	w := &Weights{Experts: experts, Used: used}
	w.DenseParams = m.ActiveParams() - float64(m.Layers)*float64(used)*expert
	w.DenseBytes = w.DenseParams * m.BytesPerElem
	const most = 1 << 16 // Model.Check refuses what is absurd; this keeps the list from being made for it
	for il := range min(m.Layers, most) {
		w.Layers = append(w.Layers, ExpertLayer{Layer: il, Bytes: expert * m.BytesPerElem, Params: expert})
	}
	return m, w
}
