package bench

import (
	"cmp"
	"context"
	"slices"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe"
)

// TopK is what fewer experts a token would give for the bytes that a dropping setting reads: read off straight lines
// between the settings of the same run that differ in the number of experts only. Between two of them seconds, weight and
// number are taken to go along with the bytes.
type TopK struct {
	NExpertUsed float64 `json:"n_expert_used"`
	TPS         float64 `json:"tps"`
	WeightLost  float64 `json:"weight_lost"`
}

// FewerExperts is the list of experts per token that dropping is held against where none is asked for: k, and then three
// quarters, a half and a quarter of it, and one.
func FewerExperts(k int) []int {
	ks := []int{k}
	for _, n := range []int{(3*k + 3) / 4, (k + 1) / 2, (k + 3) / 4, 1} {
		if n < ks[len(ks)-1] {
			ks = append(ks, n)
		}
	}
	return ks
}

// CompareTopK sets TopK of every result that dropped, where the reads of the settings that do not drop reach as far down
// as its own.
func CompareTopK(results []Speed) {
	type key struct {
		test   string
		config Variant
	}
	of := func(r *Speed) key {
		k := key{r.Test, r.Config}
		k.config.Drop, k.config.NExpertUsed = 0, 0
		return k
	}
	points := map[key][]*Speed{}
	for i := range results {
		if r := &results[i]; r.Config.Drop == 0 {
			points[of(r)] = append(points[of(r)], r)
		}
	}
	for i := range results {
		r := &results[i]
		if r.Config.Drop == 0 || r.Dropped == 0 {
			continue
		}
		line := points[of(r)]
		slices.SortFunc(line, func(a, b *Speed) int { return cmp.Compare(a.ReadBytes, b.ReadBytes) })
		for j := 1; j < len(line); j++ {
			a, b := line[j-1], line[j]
			if r.ReadBytes < a.ReadBytes || r.ReadBytes > b.ReadBytes || a.ReadBytes == b.ReadBytes {
				continue
			}
			at := (r.ReadBytes - a.ReadBytes) / (b.ReadBytes - a.ReadBytes)
			mix := func(x, y float64) float64 { return x + at*(y-x) }
			r.TopK = &TopK{NExpertUsed: mix(float64(a.Config.NExpertUsed), float64(b.Config.NExpertUsed)),
				TPS: 1 / mix(1/a.TPS, 1/b.TPS), WeightLost: mix(a.WeightLost, b.WeightLost)}
			break
		}
	}
}

// Feed takes a session through the tokens of each test's first counted round, for a recording.
func Feed(ctx context.Context, s *engine.Session, m *model.Model, c SpeedConfig) error {
	tests, err := c.tests()
	if err != nil {
		return err
	}
	for i := range tests {
		if err := tests[i].time(ctx, s, m.NVocab, c, c.WarmUp); err != nil {
			return err
		}
	}
	return nil
}

// SlotWeights is a tap that adds up the routed weight by slot, prompts and decoded tokens apart.
type SlotWeights struct {
	mass [2][]float64 // by phase and slot
}

// Routed implements moe.Tap.
func (w *SlotWeights) Routed(o *moe.Observed) error {
	for t, r := range o.Rows {
		sums := &w.mass[r.Phase]
		for len(*sums) < o.K {
			*sums = append(*sums, 0)
		}
		for j, x := range o.Weight[t*o.K : (t+1)*o.K] {
			(*sums)[j] += float64(x)
		}
	}
	return nil
}

// Computed implements moe.Tap.
func (w *SlotWeights) Computed(*moe.Observed) error { return nil }

// behind is the share of a phase's weight that the router gives to the slots behind the first keep.
func (w *SlotWeights) behind(phase moe.Phase, keep int) float64 {
	var all, lost float64
	for j, x := range w.mass[phase] {
		if all += x; j >= keep {
			lost += x
		}
	}
	if all == 0 {
		return 0
	}
	return lost / all
}

// SetWeightLost fills in what fewer experts leave out: the share of the weight that a router with all its experts gives to
// those behind the first ones. w has watched a session with all of them (Feed).
func SetWeightLost(results []Speed, w *SlotWeights) {
	for i := range results {
		r := &results[i]
		if r.Config.Drop > 0 {
			continue
		}
		phase := moe.Decode
		if r.prefill() {
			phase = moe.Prefill
		}
		if lost := w.behind(phase, r.Config.NExpertUsed); lost > 0 {
			r.WeightLost = lost
		}
	}
}

// dropped adds what a timed round dropped.
func (r *Speed) dropped(before, after model.DropCount) {
	r.drops.Routed += after.Routed - before.Routed
	r.drops.Dropped += after.Dropped - before.Dropped
	r.drops.Mass += after.Mass - before.Mass
	r.drops.MassDropped += after.MassDropped - before.MassDropped
}

// shares sums up what was dropped.
func (r *Speed) shares() {
	if r.drops.Routed > 0 {
		r.Dropped = float64(r.drops.Dropped) / float64(r.drops.Routed)
	}
	if r.drops.Mass > 0 {
		r.WeightLost = r.drops.MassDropped / r.drops.Mass
	}
}
