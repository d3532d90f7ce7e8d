package quality

import (
	"cmp"
	"math"
	"slices"

	"sluice/engine"
)

// Kinds of points.
const (
	Undropped = "undropped" // the model's top-k, nothing dropped: the beginning of both curves
	Threshold = "threshold" // the drop policy at the model's top-k
	TopK      = "top_k"     // fewer experts per token
)

// Report is a sweep's result.
type Report struct {
	Arch       string  `json:"arch"`
	Chunk      int     `json:"chunk"`  // tokens
	Mode       string  `json:"mode"`   // decode
	Tokens     int     `json:"tokens"` // predictions scored at each point
	StoreBytes int64   `json:"logits_bytes"`
	Baseline   Point   `json:"baseline"`
	Points     []Point `json:"points"` // thresholds ascending, then top-k descending

	// Of the thresholds that lie within the top-k curve's reads, how many have the lower divergence there.
	Compared int `json:"compared_at_equal_reads"`
	DropWins int `json:"threshold_has_lower_kl"`
}

// Point is one configuration.
type Point struct {
	Kind        string  `json:"kind"`
	DropFrac    float64 `json:"drop_frac"`
	NExpertUsed int     `json:"n_expert_used"`
	NLL         float64 `json:"nll"` // mean, nats per token
	Perplexity  float64 `json:"perplexity"`
	KL          float64 `json:"kl"`       // mean KL(undropped || this), nats per token
	SameTop     float64 `json:"same_top"` // share of predictions with the undropped run's likeliest token

	BytesRead     int64   `json:"bytes_read"` // as read from storage, padding included
	Hits          int64   `json:"hits"`
	Misses        int64   `json:"misses"`
	Routed        int64   `json:"routed"` // slots
	Dropped       int64   `json:"dropped"`
	Weight        float64 `json:"weight"` // sum over the slots, as routed
	WeightDropped float64 `json:"weight_dropped"`

	EqualReads *EqualReads `json:"equal_reads,omitempty"` // of a threshold

	predictions   int
	sumNLL, sumKL float64
	same          int
}

// EqualReads is the top-k curve where it reads as many bytes as a threshold: between its two neighbouring points, by a
// straight line in NLL and in KL over bytes.
type EqualReads struct {
	Perplexity float64 `json:"perplexity"`
	KL         float64 `json:"kl"`
}

// means fills the averages from the sums.
func (p Point) means() Point {
	if n := float64(p.predictions); n > 0 {
		p.NLL, p.KL, p.SameTop = p.sumNLL/n, p.sumKL/n, float64(p.same)/n
		p.Perplexity = math.Exp(p.NLL)
	}
	return p
}

func (p *Point) count(s *engine.Session) {
	st, d := s.SourceStats(), s.Drops()
	p.BytesRead, p.Hits, p.Misses = st.BytesRead, st.Hits, st.Misses
	p.Routed, p.Dropped, p.Weight, p.WeightDropped = d.Routed, d.Dropped, d.Mass, d.MassDropped
}

// curve lists the points of a kind behind the undropped run, by bytes read.
func (r *Report) curve(kind string) []Point {
	out := []Point{r.Baseline}
	for _, p := range r.Points {
		if p.Kind == kind {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b Point) int { return cmp.Compare(a.BytesRead, b.BytesRead) })
	return out
}

func (r *Report) compare() {
	curve := r.curve(TopK)
	for i := range r.Points {
		p := &r.Points[i]
		if p.Kind != Threshold {
			continue
		}
		if p.EqualReads = between(curve, p.BytesRead); p.EqualReads != nil {
			r.Compared++
			if p.KL < p.EqualReads.KL {
				r.DropWins++
			}
		}
	}
}

// between reads a curve, ascending in bytes, at a number of bytes; nil outside of it.
func between(curve []Point, bytes int64) *EqualReads {
	for i := 1; i < len(curve); i++ {
		a, b := &curve[i-1], &curve[i]
		if bytes < a.BytesRead || bytes > b.BytesRead {
			continue
		}
		t := 0.0
		if b.BytesRead > a.BytesRead {
			t = float64(bytes-a.BytesRead) / float64(b.BytesRead-a.BytesRead)
		}
		return &EqualReads{Perplexity: math.Exp(a.NLL + t*(b.NLL-a.NLL)), KL: a.KL + t*(b.KL-a.KL)}
	}
	return nil
}
