package coact

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"sluice/dump/dumptest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", texts)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
}

func analyse(t testing.TB, data []byte, o Options) *Report {
	t.Helper()
	r, err := Analyse(context.Background(), bytes.NewReader(data), o)
	must(t, err)
	return r
}

var options288 = Options{Experts: 288, Cards: 2, Replicate: []int{0, 16, 32, 64}}

// The figures of the reference, to the last bit.
func TestStatisticsAgreeWithReference(t *testing.T) {
	for _, name := range []string{"clustered-288", "uniform-288"} {
		var want struct {
			Experts int
			Records uint64
			Layers  map[string]struct {
				Tokens      uint64
				FreqMin     float64 `json:"freq_min"`
				FreqMedian  float64 `json:"freq_median"`
				FreqMax     float64 `json:"freq_max"`
				Gini        float64
				Top16Share  float64 `json:"top16_share"`
				NeverPicked int     `json:"never_picked"`
				OffDiagSum  uint64  `json:"coact_offdiag_sum"`
				Max         uint64  `json:"coact_max"`
				Even        struct {
					PSingle   float64 `json:"p_single"`
					MeanCards float64 `json:"mean_cards"`
				} `json:"even_split_all_tokens"`
			}
		}
		must(t, json.Unmarshal(dumptest.Read(t, name+".stats.json"), &want))
		r := analyse(t, dumptest.Read(t, name+".sel.bin"), options288)
		if r.Records != want.Records || len(r.Layers) != len(want.Layers) || r.Experts != want.Experts {
			t.Fatalf("%s: %d records in %d layers", name, r.Records, len(r.Layers))
		}
		for _, l := range r.Layers {
			w := want.Layers[whole(l.Layer)]
			got := w
			got.Tokens, got.FreqMin, got.FreqMedian, got.FreqMax, got.Gini = l.Tokens, l.FreqMin, l.FreqMedian, l.FreqMax, l.Gini
			got.Top16Share, got.NeverPicked, got.OffDiagSum, got.Max = l.Top16Share, l.NeverPicked, l.OffDiagSum, l.Max
			got.Even.PSingle, got.Even.MeanCards = l.EvenAll.PSingle, l.EvenAll.MeanCards
			if got != w {
				t.Errorf("%s layer %d:\ngot  %+v\nwant %+v", name, l.Layer, got, w)
			}
		}
	}
}

func splitAt(t testing.TB, r *Report, replicate int) *Split {
	t.Helper()
	for i := range r.Pooled.Splits {
		if r.Pooled.Splits[i].Replicate == replicate {
			return &r.Pooled.Splits[i]
		}
	}
	t.Fatalf("no split with %d replicated", replicate)
	return nil
}

func TestClusteredStaysOnOneCard(t *testing.T) {
	r := analyse(t, dumptest.Read(t, "clustered-288.sel.bin"), options288)
	s := splitAt(t, r, 16)
	if s.HeldOut.PSingle <= 0.97 {
		t.Errorf("P(single) on held-out tokens %.4f, want above 0.97", s.HeldOut.PSingle)
	}
	if s.HeldOut.PSingle < 5*s.Random.PSingle || s.HeldOut.PSingle < 5*s.Even.PSingle {
		t.Errorf("random %.4f, even %.4f", s.Random.PSingle, s.Even.PSingle)
	}
	if r.Chosen != 16 || !strings.HasSuffix(r.Verdict, "of tokens stay on one card with 16 of 288 experts on every card: a split by co-activation pays here") {
		t.Errorf("chosen %d: %s", r.Chosen, r.Verdict)
	}
	if s.ExpertsACard != 16+136 {
		t.Errorf("%d experts a card", s.ExpertsACard)
	}
}

func TestUniformDoesNot(t *testing.T) {
	o := options288
	o.Replicate = []int{0}
	r := analyse(t, dumptest.Read(t, "uniform-288.sel.bin"), o)
	const chance = 2.0 / 256
	s := splitAt(t, r, 0)
	for name, p := range map[string]float64{"held out": s.HeldOut.PSingle, "random": s.Random.PSingle, "even": s.Even.PSingle} {
		if p > 3*chance {
			t.Errorf("%s: P(single) %.4f, want near %.4f", name, p, chance)
		}
	}
	if !strings.HasSuffix(r.Verdict, "% of tokens stay on one card: a split by co-activation does not pay here") {
		t.Error(r.Verdict)
	}
	t.Log(r.Verdict, s.Fit.PSingle, s.Random.PSingle)
}
