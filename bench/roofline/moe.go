package roofline

import (
	"fmt"
	"math"
)

// Weights says what a decode step of a mixture of experts reads and computes. Bytes are as stored, params are elements of
// matrices that a token multiplies with.
type Weights struct {
	DenseBytes  float64       // read once a step, whatever the batch: attention, norms, routers, shared experts, output head
	TokenBytes  float64       // read for each token: its row of the embedding
	DenseParams float64       // multiplied with for each token outside the routed experts
	Experts     int           // experts of a layer
	Used        int           // experts of a token in a layer
	Layers      []ExpertLayer // the layers that have experts, ascending
}

// ExpertLayer is the size of one expert of a layer.
type ExpertLayer struct {
	Layer  int
	Bytes  float64
	Params float64
}

func (w *Weights) check() error {
	if w.Experts < 1 || w.Used < 1 || w.Used > w.Experts || w.Experts > maxSize {
		return fmt.Errorf("roofline: %d of %d experts per token, want 1 or more of at least as many", w.Used, w.Experts)
	}
	if len(w.Layers) == 0 {
		return fmt.Errorf("roofline: no layer with experts")
	}
	for _, l := range w.Layers {
		if !(l.Bytes > 0 && l.Params > 0) {
			return fmt.Errorf("roofline: layer %d: an expert of %v bytes and %v parameters, want both above 0", l.Layer, l.Bytes, l.Params)
		}
	}
	if !(w.DenseBytes >= 0 && w.TokenBytes >= 0 && w.DenseParams >= 0) {
		return fmt.Errorf("roofline: dense weights of %v bytes (%v a token) and %v parameters, want 0 or more", w.DenseBytes, w.TokenBytes, w.DenseParams)
	}
	return nil
}

// ActiveParams is what one token multiplies with.
func (w *Weights) ActiveParams() float64 {
	n := w.DenseParams
	for _, l := range w.Layers {
		n += float64(w.Used) * l.Params
	}
	return n
}

// TotalParams is ActiveParams with every expert.
func (w *Weights) TotalParams() float64 {
	n := w.DenseParams
	for _, l := range w.Layers {
		n += float64(w.Experts) * l.Params
	}
	return n
}

// ActiveBytes is what one token alone reads.
func (w *Weights) ActiveBytes() float64 {
	n := w.DenseBytes + w.TokenBytes
	for _, l := range w.Layers {
		n += float64(w.Used) * l.Bytes
	}
	return n
}

// Routing tells how many distinct experts a batch touches.
type Routing interface {
	// Name is "uniform" or says where it was measured.
	Name() string
	// Distinct is the expected number of distinct experts that batch tokens (1 or more) touch in a layer. ok is false
	// where the routing says nothing about so large a batch.
	Distinct(layer int, batch float64) (n float64, ok bool)
	// MaxBatch is the largest batch with an answer, and 0 when there is no limit.
	MaxBatch() int
}

// Uniform is the routing in which all experts are equally likely and tokens independent.
type Uniform struct{ Experts, Used int }

// Name returns "uniform".
func (Uniform) Name() string { return "uniform" }

// MaxBatch returns 0: no limit.
func (Uniform) MaxBatch() int { return 0 }

// Distinct is E*(1-(1-u/E)^B): one token leaves an expert out with probability 1-u/E, since its u are distinct.
func (u Uniform) Distinct(_ int, batch float64) (float64, bool) {
	e := float64(u.Experts)
	switch {
	case u.Used == u.Experts:
		return e, true
	case batch == 1:
		return float64(u.Used), true // and not the rounding error beside it
	}
	return -e * math.Expm1(batch*math.Log1p(-float64(u.Used)/e)), true // exact also where the power is near 1
}

// MoE is the report's part on mixtures of experts.
type MoE struct {
	Experts       int        `json:"experts"`
	Used          int        `json:"used"`
	Layers        int        `json:"layers"` // with experts
	Routing       string     `json:"routing"`
	DenseBytes    float64    `json:"dense_bytes"`
	ExpertBytes   float64    `json:"expert_bytes"` // of one expert, the mean over the layers
	ActiveParams  float64    `json:"active_params"`
	TotalParams   float64    `json:"total_params"`
	MissRate      float64    `json:"miss_rate"`
	StreamBW      float64    `json:"bw_stream,omitempty"`
	CriticalBatch *float64   `json:"critical_batch"` // weights' read = arithmetic; null: not reached
	KneeBatch     *float64   `json:"knee_batch"`     // all reads = arithmetic; null: not reached or past L*
	Curve         []MoEPoint `json:"curve"`

	notes []string
}

// MoEPoint is one batch size; times are seconds per token.
type MoEPoint struct {
	Batch       int     `json:"batch"`
	Distinct    float64 `json:"distinct_experts"`         // touched in a layer, mean over the layers
	Uniform     float64 `json:"distinct_experts_uniform"` // the same by uniform routing
	WeightBytes float64 `json:"weight_bytes"`             // read from memory in one step
	StreamBytes float64 `json:"stream_bytes"`             // streamed in one step
	Weight      float64 `json:"weight_s"`
	Stream      float64 `json:"stream_s"`
	Compute     float64 `json:"compute_s"`
	KV          float64 `json:"kv_s"`
	Total       float64 `json:"total_s"`
	Regime      string  `json:"regime"`
}

// moeModel evaluates one step.
type moeModel struct {
	in      Input
	w       *Weights
	routing Routing
	compute float64 // seconds per token
	kv      float64
}

func newMoE(in Input) (*MoE, error) {
	w := in.Weights
	if err := w.check(); err != nil {
		return nil, err
	}
	m := &moeModel{in: in, w: w, routing: in.Routing, compute: flopsPerParam * w.ActiveParams() / in.Machine.PeakFlops,
		kv: KVSeconds(in.Machine, in.Model, in.Context)}
	if m.routing == nil {
		m.routing = Uniform{w.Experts, w.Used}
	}
	r := &MoE{Experts: w.Experts, Used: w.Used, Layers: len(w.Layers), Routing: m.routing.Name(), DenseBytes: w.DenseBytes,
		ActiveParams: w.ActiveParams(), TotalParams: w.TotalParams(), MissRate: in.MissRate, StreamBW: in.Machine.Stream, Curve: []MoEPoint{}}
	for _, l := range w.Layers {
		r.ExpertBytes += l.Bytes / float64(len(w.Layers))
	}
	for _, b := range in.Batches {
		p, ok := m.point(b)
		if !ok {
			r.notes = append(r.notes, fmt.Sprintf("batch %d has no mixture-of-experts point: the routing (%s) covers batches up to %d", b, r.Routing, m.routing.MaxBatch()))
			continue
		}
		r.Curve = append(r.Curve, p)
	}
	r.CriticalBatch = m.solve(m.compute)
	if rest := m.compute - m.kv; rest > 0 {
		r.KneeBatch = m.solve(rest)
	}
	return r, nil
}

// reads returns the bytes of one step at a batch, and the mean number of distinct experts of a layer.
func (m *moeModel) reads(batch float64) (weight, stream, distinct float64, ok bool) {
	weight = m.w.DenseBytes + batch*m.w.TokenBytes
	experts := 0.0
	for _, l := range m.w.Layers {
		n, ok := m.routing.Distinct(l.Layer, batch)
		if !ok {
			return 0, 0, 0, false
		}
		experts += n * l.Bytes
		distinct += n / float64(len(m.w.Layers))
	}
	return weight + experts, m.in.MissRate * experts, distinct, true
}

func (m *moeModel) point(batch int) (MoEPoint, bool) {
	b := float64(max(1, batch))
	weight, stream, distinct, ok := m.reads(b)
	if !ok {
		return MoEPoint{}, false
	}
	p := MoEPoint{Batch: batch, Distinct: distinct, WeightBytes: weight, StreamBytes: stream,
		Weight: weight / m.in.Machine.Bandwidth / b, Compute: m.compute, KV: m.kv}
	p.Uniform, _ = Uniform{m.w.Experts, m.w.Used}.Distinct(0, b)
	if stream > 0 {
		p.Stream = stream / m.in.Machine.Stream / b
	}
	p.Total = p.Weight + p.Stream + p.Compute + p.KV
	p.Regime = regime(p.Weight, p.KV, p.Compute, p.Stream)
	return p, true
}

// solveLimit bounds the search for a batch; no real one comes near.
const solveLimit = 1 << 40

// solve returns the batch at which the reads of weights take target seconds per token, nil when no batch the routing
// knows reaches it. Batches below 1 do not occur: 1 where a single token is there already.
func (m *moeModel) solve(target float64) *float64 {
	perToken := func(b float64) float64 {
		weight, stream, _, _ := m.reads(b)
		t := weight / m.in.Machine.Bandwidth
		if stream > 0 {
			t += stream / m.in.Machine.Stream
		}
		return t / b
	}
	whole := m.routing.MaxBatch() > 0 // a measurement has whole batches only
	lo, hi := 1.0, float64(solveLimit)
	if whole {
		hi = float64(m.routing.MaxBatch())
	}
	if perToken(lo) <= target {
		return &lo
	}
	if !(perToken(hi) <= target) {
		return nil
	}
	for range 200 { // lo misses the target, hi meets it
		mid := (lo + hi) / 2
		if whole {
			mid = math.Floor(mid)
		}
		if mid <= lo || mid >= hi {
			break
		}
		if perToken(mid) <= target {
			hi = mid
		} else {
			lo = mid
		}
	}
	return &hi
}
