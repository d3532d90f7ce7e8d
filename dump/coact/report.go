package coact

// Report is the answer. Its JSON is what `engine coact --json` prints.
type Report struct {
	Format    string        `json:"format"` // ReportFormat
	Dump      string        `json:"dump"`   // name, set by the caller
	Model     string        `json:"model"`  // of the sidecar, set by the caller; "" unknown
	Arch      string        `json:"arch"`
	Records   uint64        `json:"records"` // whole ones in the dump
	Bytes     int64         `json:"bytes"`   // that they take
	Experts   int           `json:"experts"`
	Cards     int           `json:"cards"`
	FitShare  float64       `json:"fit_share"`
	Notes     []string      `json:"notes"`
	Layers    []LayerReport `json:"layers"`
	Pooled    PooledReport  `json:"pooled"`
	Chosen    int           `json:"chosen_replicate"` // the budget that the verdict speaks of
	Verdict   string        `json:"verdict"`
	Placement *Placement    `json:"-"` // of the chosen budget

	layers []*layer
}

// ReportFormat names the JSON document.
const ReportFormat = "sluice-coact-v1"

// LayerReport is what is known of one layer.
type LayerReport struct {
	Layer     int    `json:"layer"`
	NUsed     int    `json:"n_expert_used"`
	FitTokens uint64 `json:"fit_tokens"`
	Frequency
	Pairs
	EvenAll Tally   `json:"even_split_all_tokens"` // contiguous even split, nothing replicated, all tokens
	Splits  []Split `json:"splits"`                // by budget, in the order asked
}

// PooledReport is the layers together. The frequencies are those of all (layer, expert) pairs as one population, since
// an id means another expert in every layer; top16_share is the share of the picks that fell on the 16 most picked
// experts of their own layer. Tokens counts (token, layer) pairs.
type PooledReport struct {
	Frequency
	OffDiagSum uint64  `json:"coact_offdiag_sum"`
	Max        uint64  `json:"coact_max"`
	Splits     []Split `json:"splits"`
}

// Split is the best split found at one replication budget, between its baselines. The baselines replicate the same
// experts.
type Split struct {
	Replicate    int       `json:"replicate"`
	By           string    `json:"replicated_by"`    // pooled: "frequency 40, cut 8", layers each
	ExpertsACard int       `json:"experts_per_card"` // of one layer, on the fullest card, replicas included
	Fit          Tally     `json:"fit"`
	HeldOut      Tally     `json:"held_out"`
	RandomFit    Tally     `json:"random_fit"` // tokens of all seeds
	Random       Tally     `json:"random_held_out"`
	EvenFit      Tally     `json:"even_fit"`
	Even         Tally     `json:"even_held_out"`
	Load         []float64 `json:"load_held_out"` // share of the picks that each card computes
	LoadFit      []float64 `json:"load_fit"`

	units, unitsFit []uint64
	cand            *candidate
}

// splits chooses among the layer's candidates, by the fit tokens alone.
func (l *layer) splits(o *Options) []Split {
	var out []Split
	for _, r := range o.Replicate {
		var best Split
		found := false
		for i, c := range l.scorer.ours {
			cand := &l.cands[c]
			if cand.replicate != r {
				continue
			}
			fit := l.scorer.tally(c, 0, o.Cards)
			if found && (fit.PSingle < best.Fit.PSingle || fit.PSingle == best.Fit.PSingle && fit.MeanCards >= best.Fit.MeanCards) {
				continue
			}
			found = true
			best = Split{Replicate: r, By: cand.by, ExpertsACard: r + (l.n-r+o.Cards-1)/o.Cards, cand: cand,
				Fit: fit, HeldOut: l.scorer.tally(c, 1, o.Cards),
				units: l.loads(i, 1, o.Cards), unitsFit: l.loads(i, 0, o.Cards)}
		}
		var random, randomFit []Tally
		for c := 1; c < len(l.cands); c++ {
			cand := &l.cands[c]
			if cand.replicate != r || cand.by != best.By {
				continue
			}
			fit, held := l.scorer.tally(c, 0, o.Cards), l.scorer.tally(c, 1, o.Cards)
			switch cand.kind {
			case evenSplit:
				best.EvenFit, best.Even = fit, held
			case randomSplit:
				randomFit, random = append(randomFit, fit), append(random, held)
			}
		}
		best.RandomFit, best.Random = merge(randomFit...), merge(random...)
		best.Load, best.LoadFit = shares(best.units), shares(best.unitsFit)
		out = append(out, best)
	}
	return out
}

func shares(units []uint64) []float64 {
	total := sum(units)
	out := make([]float64, len(units))
	for i, u := range units {
		out[i] = share(u, total)
	}
	return out
}

func (l *layer) report(o *Options) LayerReport {
	return LayerReport{Layer: l.index, NUsed: l.k, FitTokens: l.fit,
		Frequency: frequency(l.picks(false), l.tokens), Pairs: l.pairStats(),
		EvenAll: merge(l.scorer.tally(0, 0, o.Cards), l.scorer.tally(0, 1, o.Cards)), Splits: l.splits(o)}
}
