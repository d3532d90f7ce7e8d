package roofline

import (
	"fmt"
	"math"
)

// flopsPerParam: one multiplication and one addition per parameter and token.
const flopsPerParam = 2

// The names of the term that takes longest.
const (
	MemoryBound  = "memory-bound" // reading weights
	KVBound      = "kv-bound"     // reading keys and values
	ComputeBound = "compute-bound"
	StreamBound  = "stream-bound" // reading missing experts from the slower level
)

// CriticalBatch is B* = C*b/(2W)*sparsity. Sparsity is the total number of parameters over the active one, 1 for a dense
// model.
func CriticalBatch(m Machine, d Model, sparsity float64) float64 {
	return m.ArithmeticIntensity() * d.BytesPerElem / flopsPerParam * sparsity
}

// BalanceContext is L* = 2N/(AI*k), in tokens.
func BalanceContext(m Machine, d Model) float64 {
	return flopsPerParam * d.ActiveParams() / (m.ArithmeticIntensity() * d.KVBytesPerToken())
}

// KneeBatch is B_knee = B*/(1-S/L*). ok is false where there is none: from the balance context on no batch makes the reads
// as short as the arithmetic.
func KneeBatch(m Machine, d Model, sKV int) (batch float64, ok bool) {
	r := float64(sKV) / BalanceContext(m, d)
	if r >= 1 {
		return 0, false
	}
	return CriticalBatch(m, d, 1) / (1 - r), true
}

// WeightSeconds is the time of one token's share of the weights' read at a batch; a batch below 1 counts as 1.
func WeightSeconds(m Machine, d Model, batch int) float64 {
	return d.ActiveParams() * d.BytesPerElem / m.Bandwidth / float64(max(1, batch))
}

// KVSeconds is the time to read one sequence's keys and values, at any batch.
func KVSeconds(m Machine, d Model, sKV int) float64 {
	return float64(sKV) * d.KVBytesPerToken() / m.Bandwidth
}

// ComputeSeconds is the time of one token's arithmetic at the peak rate.
func ComputeSeconds(m Machine, d Model) float64 {
	return flopsPerParam * d.ActiveParams() / m.PeakFlops
}

// Point is one batch size of the latency curve; times are seconds per token.
type Point struct {
	Batch   int     `json:"batch"`
	Weight  float64 `json:"weight_s"`
	Compute float64 `json:"compute_s"`
	KV      float64 `json:"kv_s"`
	Total   float64 `json:"total_s"`
	Regime  string  `json:"regime"`
}

// Curve is the latency per token at each batch size, with a context of sKV tokens.
func Curve(m Machine, d Model, batches []int, sKV int) []Point {
	var out []Point
	for _, b := range batches {
		p := Point{Batch: b, Weight: WeightSeconds(m, d, b), Compute: ComputeSeconds(m, d), KV: KVSeconds(m, d, sKV)}
		p.Total = p.Weight + p.Compute + p.KV
		p.Regime = regime(p.Weight, p.KV, p.Compute, 0)
		out = append(out, p)
	}
	return out
}

// regime names the longest term; of equal ones the first in this order.
func regime(weight, kv, compute, stream float64) string {
	name, most := MemoryBound, weight
	for _, t := range []struct {
		name string
		v    float64
	}{{KVBound, kv}, {ComputeBound, compute}, {StreamBound, stream}} {
		if t.v > most {
			name, most = t.name, t.v
		}
	}
	return name
}

// BatchAdvice is the batch size worth running.
type BatchAdvice struct {
	Target    float64 `json:"target"` // 2 B*
	BStar     float64 `json:"b_star"`
	Effective float64 `json:"effective"`
	Reason    string  `json:"reason"`
}

// GoodBatch recommends twice the critical batch: there the weights' read adds half of the arithmetic's time. More gains
// little and lets every sequence wait longer.
func GoodBatch(m Machine, d Model, sparsity float64) BatchAdvice {
	b := CriticalBatch(m, d, sparsity)
	return BatchAdvice{Target: 2 * b, BStar: b, Effective: 2 * b,
		Reason: fmt.Sprintf("2 B* = %.0f: below B* = %.0f doubling the batch nearly halves the cost of a token, beyond 3 B* it hardly changes", 2*b, b)}
}

// ContextAdvice is the longest context that computes more than it reads.
type ContextAdvice struct {
	LStar         float64 `json:"l_star"`
	MaxEfficient  float64 `json:"max_efficient"` // L*
	UtilizationAt float64 `json:"utilization_at"`
	Reason        string  `json:"reason"`
}

// GoodContext recommends the balance context and says what share of the peak remains at sKV.
func GoodContext(m Machine, d Model, sKV int) ContextAdvice {
	l := BalanceContext(m, d)
	u := Utilization(sKV, l)
	return ContextAdvice{LStar: l, MaxEfficient: l, UtilizationAt: u,
		Reason: fmt.Sprintf("L* = %.0f tokens: at %d tokens at most %.1f %% of the peak is usable (1/(1+S/L*))", l, sKV, 100*u)}
}

// Utilization is the largest share of the peak at a context of sKV tokens: 1/(1+S/L*).
func Utilization(sKV int, lStar float64) float64 { return 1 / (1 + float64(sKV)/lStar) }

const maxContext = math.MaxInt32

// Input is what a report is made of.
type Input struct {
	Machine  Machine
	Model    Model
	Sparsity float64 // total over active parameters, 1 or more
	Context  int     // tokens
	Batches  []int

	Weights  *Weights // nil: no mixture-of-experts part
	Routing  Routing  // nil with Weights: Uniform
	MissRate float64  // share of the experts a step touches that has to be streamed; needs Machine.Stream
	Measured []Measured
}

// Report is everything about a machine, a model and a context. Its JSON form has no number where there is none: null.
type Report struct {
	Machine             Machine       `json:"machine"`
	Model               Model         `json:"model"`
	Sparsity            float64       `json:"sparsity"`
	Context             int           `json:"s_kv"`
	ArithmeticIntensity float64       `json:"arithmetic_intensity"`
	ActiveParams        float64       `json:"total_active_params"`
	KVBytesPerToken     float64       `json:"kv_bytes_per_token"`
	CriticalBatch       float64       `json:"critical_batch"`
	BalanceContext      float64       `json:"balance_context"`
	KneeBatch           *float64      `json:"knee_batch"`
	KVSeconds           float64       `json:"t_mem_long"`
	ComputeSeconds      float64       `json:"t_com"`
	Utilization         float64       `json:"utilization"`
	GoodBatch           BatchAdvice   `json:"good_batch"`
	GoodContext         ContextAdvice `json:"good_context"`
	Curve               []Point       `json:"curve"`
	MoE                 *MoE          `json:"moe,omitempty"`
	Measured            []Measured    `json:"measured,omitempty"`
	Notes               []string      `json:"notes,omitempty"`
}

// New checks the input and computes the report.
func New(in Input) (*Report, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	m, d := in.Machine, in.Model
	r := &Report{Machine: m, Model: d, Sparsity: in.Sparsity, Context: in.Context,
		ArithmeticIntensity: m.ArithmeticIntensity(), ActiveParams: d.ActiveParams(), KVBytesPerToken: d.KVBytesPerToken(),
		CriticalBatch: CriticalBatch(m, d, in.Sparsity), BalanceContext: BalanceContext(m, d),
		KVSeconds: KVSeconds(m, d, in.Context), ComputeSeconds: ComputeSeconds(m, d),
		GoodBatch: GoodBatch(m, d, in.Sparsity), GoodContext: GoodContext(m, d, in.Context),
		Curve: Curve(m, d, in.Batches, in.Context), Measured: in.Measured}
	r.Utilization = r.GoodContext.UtilizationAt
	if b, ok := KneeBatch(m, d, in.Context); ok {
		r.KneeBatch = &b
	}
	if in.Weights != nil {
		var err error
		if r.MoE, err = newMoE(in); err != nil {
			return nil, err
		}
		r.Notes = append(r.Notes, r.MoE.notes...)
	}
	return r, nil
}

func (in *Input) check() error {
	if err := in.Machine.Check(); err != nil {
		return err
	}
	if err := in.Model.Check(); err != nil {
		return err
	}
	if !(in.Sparsity >= 1 && in.Sparsity <= maxSize) {
		return fmt.Errorf("roofline: sparsity %v, want 1 or more (total over active parameters)", in.Sparsity)
	}
	if in.Context < 0 || in.Context > maxContext {
		return fmt.Errorf("roofline: context of %d tokens, want 0..%d", in.Context, maxContext)
	}
	if len(in.Batches) == 0 {
		return fmt.Errorf("roofline: no batch size")
	}
	for _, b := range in.Batches {
		if b < 0 || b > maxContext {
			return fmt.Errorf("roofline: batch of %d, want 0..%d", b, maxContext)
		}
	}
	if !(in.MissRate >= 0 && in.MissRate <= 1) {
		return fmt.Errorf("roofline: miss rate %v, want 0..1", in.MissRate)
	}
	if in.MissRate > 0 && (in.Weights == nil || in.Machine.Stream == 0) {
		return fmt.Errorf("roofline: miss rate %v: needs a model with experts and the bandwidth of the level they are streamed from", in.MissRate)
	}
	return nil
}
