package bench

import (
	"context"
	"slices"

	"sluice/bench/probe"
	"sluice/bench/roofline"
	"sluice/engine/model"
)

// Limit is what the machine would allow at a result's number of threads: the roofline without overlap of its two sides.
type Limit struct {
	Bandwidth float64 `json:"bytes_per_second"` // fastest memory read measured
	Flops     float64 `json:"flops_per_second"` // fastest product kernel measured
	TPS       float64 `json:"tps"`              // the larger of the times that memory and arithmetic need for a token
	Bound     string  `json:"bound"`            // which of them: "memory" or "compute"
	Fraction  float64 `json:"fraction"`         // measured tokens per second by the limit's
}

// Probe measures memory and kernels with every number of threads that the results have, in at most available bytes (0:
// unknown).
func Probe(ctx context.Context, results []Speed, available int64) (*probe.Result, error) {
	var threads []int
	for _, r := range results {
		threads = append(threads, r.Config.Threads)
	}
	slices.Sort(threads)
	return probe.Run(ctx, probe.Config{Threads: slices.Compact(threads), Available: available, Compute: true})
}

// SetLimits fills in the limits. A token must read the weights that it did read and its keys and values, and multiply with
// its active parameters (two operations each, and four for each value of attention); used is experts per token where a
// result does not say. Reads from storage are not in it: a streamed run's fraction says how far it is from the same run in memory.
func SetLimits(results []Speed, m *model.Model, used int, p *probe.Result) error {
	_, w, err := roofline.FromGGUF(m.File, 2)
	if err != nil {
		return err
	}
	for i := range results {
		r := &results[i]
		if w.Used = used; r.Config.NExpertUsed > 0 {
			w.Used = r.Config.NExpertUsed
		}
		params := w.ActiveParams()
		l := &Limit{}
		for _, b := range p.Memory {
			if b.Threads == r.Config.Threads {
				l.Bandwidth = max(l.Bandwidth, b.Best)
			}
		}
		for _, k := range p.Compute {
			if k.Threads == r.Config.Threads {
				l.Flops = max(l.Flops, k.FlopsPerSecond)
			}
		}
		if !(l.Bandwidth > 0 && l.Flops > 0) {
			continue
		}
		at := float64(r.Depth) + float64(r.Tokens+1)/2
		ops := 2*params + 4*float64(m.NLayer*m.NHead*m.HeadDim)*at
		memory, compute := (r.WeightBytes+r.kv)/l.Bandwidth, ops/l.Flops
		l.TPS, l.Bound = 1/memory, "memory"
		if compute > memory {
			l.TPS, l.Bound = 1/compute, "compute"
		}
		l.Fraction = r.TPS / l.TPS
		r.Limit = l
	}
	return nil
}
