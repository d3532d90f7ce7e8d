package main

import (
	"strings"
	"testing"

	"sluice/bench"
)

// TestBenchDropping: several thresholds give speed, bytes, and the share of experts and of weight that was dropped, beside
// fewer experts per token at equal bytes, on the trained model and on a skewed one.
func TestBenchDropping(t *testing.T) {
	longTest(t)
	for _, c := range []struct {
		name, file string
	}{{"trained", demoFile(t)}, {"skewed", skewedFile(t)}} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"bench", "-m", c.file, "--pp", "", "--tg", "48", "--repeat", "1", "--cache-mb", "4", "--drop-cold-experts", "0,0.5,0.75,1.0", "-t", "1"}
			r := call(t, append(args, "--json")...)
			r.want(t, 0)
			doc := decode[struct {
				Results  []bench.Speed
				Variants []struct {
					Config bench.Variant
					Drop   dropJSON
				}
			}](t, r)
			if len(doc.Results) != 7 || len(doc.Variants) != 7 {
				t.Fatalf("%d results of %d settings, want 4 thresholds and 3 smaller numbers of experts", len(doc.Results), len(doc.Variants))
			}
			compared := 0
			for i, x := range doc.Results {
				k := x.Config.NExpertUsed
				if want := []int{4, 4, 4, 4, 3, 2, 1}[i]; k != want || !(x.TPS > 0 && x.ReadBytes > 0) {
					t.Errorf("result %d: %+v", i, x)
				}
				switch d := x.Config.Drop; {
				case d > 0:
					if !(x.Dropped > 0 && x.WeightLost > 0 && x.WeightLost < x.Dropped && x.ReadBytes < doc.Results[i-1].ReadBytes && x.Dropped > doc.Results[i-1].Dropped) {
						t.Errorf("threshold %g: %+v", d, x)
					}
					if x.TopK != nil {
						compared++
						if !(x.TopK.NExpertUsed <= 4 && x.TopK.NExpertUsed >= 1 && x.TopK.TPS > 0 && x.TopK.WeightLost > x.WeightLost) {
							t.Errorf("threshold %g loses %.4f of the weight, fewer experts at equal bytes %+v: dropping is chosen by the weight", d, x.WeightLost, x.TopK)
						}
					}
				case k < 4:
					if x.Dropped != 0 || x.TopK != nil || !(x.WeightLost > doc.Results[max(i-1, 4)].WeightLost || i == 4 && x.WeightLost > 0) {
						t.Errorf("%d experts: %+v", k, x)
					}
				case x.Dropped != 0 || x.WeightLost != 0:
					t.Errorf("undropped: %+v", x)
				}
			}
			if compared < 2 {
				t.Errorf("%d of 3 thresholds were held against fewer experts", compared)
			}
			r = call(t, args...)
			for _, want := range []string{"dropped %", "weight lost %", "storage MB/token", "top-k at equal bytes", "its tokens/s"} {
				if !strings.Contains(r.out, want) {
					t.Errorf("no %q in\n%s", want, r.out)
				}
			}
		})
	}
	file := demoFile(t)
	// A number by name: the first goes with the thresholds.
	doc := decode[struct{ Results []bench.Speed }](t, call(t, "bench", "-m", file, "--pp", "", "--tg", "8", "--repeat", "1", "--cache-mb", "4", "--drop-cold-experts", "0,0.75", "--n-expert-used", "3,2", "--json"))
	if len(doc.Results) != 3 || doc.Results[1].Config.NExpertUsed != 3 || doc.Results[2].Config != (bench.Variant{CacheMB: "4", Arm: "host", IOThreads: 4, Threads: doc.Results[0].Config.Threads, NExpertUsed: 2, Prefetch: "off"}) {
		t.Errorf("%+v", doc.Results)
	}
	call(t, "bench", "-m", file, "--n-expert-used", "x").want(t, 2, "want whole numbers")
	call(t, "bench", "-m", file, "--n-expert-used", "17", "--pp", "", "--tg", "1").want(t, 2, "want 1..16")
}
