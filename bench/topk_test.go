package bench

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/moe"
)

func TestFewerExperts(t *testing.T) {
	for k, want := range map[int][]int{8: {8, 6, 4, 2, 1}, 4: {4, 3, 2, 1}, 6: {6, 5, 3, 2, 1}, 2: {2, 1}, 1: {1}} {
		if got := FewerExperts(k); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", k, got, want)
		}
	}
}

// Thresholds go with the first number of experts, the others drop nothing.
func TestVariantsFewerExperts(t *testing.T) {
	vs, notes := Axes{[]string{"64"}, []float64{0, 0.5}, []string{"host"}, []int{4}, []int{1}, []int{8, 4, 8}}.Variants()
	want := []Variant{{"64", 0, "host", 4, 1, 8, ""}, {"64", 0.5, "host", 4, 1, 8, ""}, {"64", 0, "host", 4, 1, 4, ""}}
	if !slices.Equal(vs, want) || notes != nil {
		t.Errorf("%v %q, want %v", vs, notes, want)
	}
}

func TestCompareTopK(t *testing.T) {
	v := func(drop float64, used int) Variant { return Variant{"64", drop, "host", 4, 1, used, ""} }
	results := []Speed{
		{Test: "tg8", Config: v(0, 8), ReadBytes: 100, TPS: 10, WeightLost: 0},
		{Test: "tg8", Config: v(0.5, 8), ReadBytes: 75, TPS: 14, Dropped: 0.1},
		{Test: "tg8", Config: v(0.75, 8), ReadBytes: 40, TPS: 30, Dropped: 0.3},
		{Test: "tg8", Config: v(1, 8), ReadBytes: 10, TPS: 60, Dropped: 0.5},  // below what fewer experts reach
		{Test: "tg8", Config: v(0.25, 8), ReadBytes: 99, TPS: 10, Dropped: 0}, // dropped nothing
		{Test: "tg8", Config: v(0, 4), ReadBytes: 50, TPS: 20, WeightLost: 0.2},
		{Test: "tg8", Config: v(0, 2), ReadBytes: 30, TPS: 40, WeightLost: 0.5},
		{Test: "tg9", Config: v(0, 1), ReadBytes: 75, TPS: 1, WeightLost: 1}, // another test
	}
	CompareTopK(results)
	for i, want := range map[int]*TopK{0: nil, 1: {6, 1 / ((0.1 + 0.05) / 2), 0.1}, 2: {3, 1 / ((0.05 + 0.025) / 2), 0.35}, 3: nil, 4: nil, 5: nil} {
		got := results[i].TopK
		if (got == nil) != (want == nil) || got != nil && (math.Abs(got.NExpertUsed-want.NExpertUsed) > 1e-9 ||
			math.Abs(got.TPS-want.TPS) > 1e-9 || math.Abs(got.WeightLost-want.WeightLost) > 1e-9) {
			t.Errorf("result %d: %+v, want %+v", i, got, want)
		}
	}
	var b bytes.Buffer
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"n-expert-used", "dropped %", "weight lost %", "top-k at equal bytes", "6.00 "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// A dropping setting and one with fewer experts on the trained model: what was dropped is counted, what was left out comes
// from a recording of all.
func TestMeasureDropping(t *testing.T) {
	m := openDemo(t)
	open := func(v Variant) Subject {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: 4 << 20, IO: "buffered"}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		s, err := engine.NewSession(m, engine.Config{Threads: 1, Source: src, NExpertUsed: v.NExpertUsed, Drop: moe.Drop{Frac: v.Drop, Renorm: true}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return Subject{Variant: v, Session: s}
	}
	got, err := MeasureSpeed(t.Context(), m, []Subject{open(Variant{"4", 0, "host", 4, 1, 4, ""}), open(Variant{"4", 0.75, "host", 4, 1, 4, ""}),
		open(Variant{"4", 0, "host", 4, 1, 2, ""})}, SpeedConfig{TG: []int{40}, Repeat: 2, WarmUp: 1, Seed: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	weights := &SlotWeights{}
	for _, phase := range []moe.Phase{moe.Prefill, moe.Decode} {
		rows := make([]moe.Row, 2)
		rows[0].Phase, rows[1].Phase = phase, phase
		if err := weights.Routed(&moe.Observed{T: 2, K: 4, Rows: rows, Weight: []float32{70, 30, 25, 0, 60, 10, 5, 0}}); err != nil {
			t.Fatal(err)
		}
	}
	if lost := weights.behind(moe.Decode, 3); lost != 0 {
		t.Errorf("%v behind the third slot, want 0", lost)
	}
	weights.mass[moe.Decode] = []float64{130, 20, 30, 20}
	SetWeightLost(got, weights)
	CompareTopK(got)
	all, drop, two := got[0], got[1], got[2]
	if all.Dropped != 0 || all.WeightLost != 0 || two.Dropped != 0 || two.WeightLost != 0.25 {
		t.Errorf("all %+v, two %+v", all, two)
	}
	if !(drop.Dropped > 0.05 && drop.WeightLost > 0 && drop.WeightLost < drop.Dropped && drop.ReadBytes < all.ReadBytes) {
		t.Errorf("dropping %+v, all %+v", drop, all)
	}
	if drop.ReadBytes > two.ReadBytes && (drop.TopK == nil || drop.TopK.NExpertUsed < 2 || drop.TopK.NExpertUsed > 4) {
		t.Errorf("%+v", drop.TopK)
	}
}
