package bench

import (
	"cmp"
	"context"
	"slices"

	"sluice/dump/replay"
	"sluice/engine"
	"sluice/engine/model"
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

// SetWeightLost fills in what fewer experts leave out: the share of the weight that a router with all its experts gives to
// those behind the first ones. rep is the replay of a trace with all experts (Feed), of which k are used.
func SetWeightLost(results []Speed, rep *replay.DropReport) {
	for i := range results {
		r := &results[i]
		if r.Config.Drop > 0 || r.Config.NExpertUsed >= rep.K {
			continue
		}
		p := &rep.Decode
		if r.prefill() {
			p = &rep.Prefill
		}
		for _, s := range p.StaticK {
			if s.Keep == r.Config.NExpertUsed && p.Mass > 0 {
				r.WeightLost = s.Mass / p.Mass
			}
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
