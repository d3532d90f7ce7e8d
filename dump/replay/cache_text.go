package replay

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"sluice/dump"
)

// WriteText prints the report for people: first what BigMoeOnEdge's cache replay prints, figure for figure, then what
// goes beyond it.
func (r *CacheReport) WriteText(w io.Writer) error {
	p := &printer{w: w}
	p.f("model   %s\n", filepath.Base(r.Model))
	p.f("shape   %d layers (%d MoE), %d experts, top-%d, %.2f MiB/expert\n", r.NLayer, r.MoELayers, r.NExpert, r.K, float64(r.expertBytes)/(1<<20))
	p.f("batches %d (%d prefill + %d decode)\n", r.Batches, r.PrefillBatches, r.DecodeBatches)
	p.f("T       %s MiB touched per token cycle (all layers x top-k, worst case)\n", short(r.TokenBytes))
	p.f("\n%-8s", "budget")
	for _, n := range r.Policies {
		p.f(" %9s", n)
	}
	p.f("\n%-8s", "(MiB)")
	for range r.Policies {
		p.f(" %9s", "hit%")
	}
	p.f("\n")
	for i, b := range r.Budgets {
		p.f("%-8s", strconv.FormatFloat(float64(b)/(1<<20), 'f', -1, 64))
		for _, c := range r.Cells[i*len(r.Policies) : (i+1)*len(r.Policies)] {
			p.f(" %9.1f", 100*c.Decode.HitRate())
		}
		p.f("\n")
	}
	p.f("\n(decode-only hit%%; C=T boundary is where a budget stops holding one token cycle)\n")
	if r.Order == OrderLive {
		p.f("\norder      live: this engine's cache driven by the recorded calls; it predicts a run")
		if r.Prefetch != "" {
			p.f(", reads ahead as the run did (%s)", r.Prefetch)
		} else if r.NoPrefetch != "" {
			p.f(", nothing read ahead (the run: %s)", r.NoPrefetch)
		}
		if r.Start != "" {
			p.f(", begins with %s", r.Start)
		}
		p.f("\n")
	} else {
		calls := "a prompt is one pass"
		if r.Passes > 0 {
			calls = fmt.Sprintf("the recorded layer calls, of %d passes", r.Passes)
		}
		p.f("\norder      batch: %s, eviction comes after a layer call and spares its experts; --live replays this engine's cache\n", calls)
	}
	d := r.Recorded.Decode
	p.f("recorded   %.1f %% decode hits in the run itself", percent(d.Hits, d.Lookups))
	if r.Recorded.BudgetBytes > 0 {
		p.f(" (%s, %s)", mib(r.Recorded.BudgetBytes), r.Recorded.Policy)
	}
	switch {
	case r.Reproduction != nil:
		p.f("\nrun        %s", r.Reproduction)
	case r.NotReproduced != "":
		p.f("\nrun        not held against it: %s", r.NotReproduced)
	}
	p.f("\nall        %s MiB are all experts together: a larger budget changes nothing\n", short(r.TotalBytes))
	r.workingSet(p)
	if r.Curve != nil {
		r.Curve.text(p)
	}
	for _, n := range r.Notes {
		p.f("note: %s\n", n)
	}
	return p.err
}

func (r *CacheReport) workingSet(p *printer) {
	p.f("token      %s MiB hold one token's experts", short(r.TokenBytes))
	if r.SlotsKnown {
		p.f(", %s MiB with the padding of this engine's cache", short(r.SlotTokenBytes))
	}
	if r.Curve != nil && r.Curve.KeepBytes > 0 {
		p.f("; %s MiB are the smallest lru budget that keeps what a token used for the next one", short(r.Curve.KeepBytes))
	}
	p.f("\n")
}

func (c *Curve) text(p *printer) {
	n := c.Decode
	if n.Lookups == 0 {
		return
	}
	most := percent(n.Lookups-n.Cold, n.Lookups)
	p.f("lru curve  smallest budget for a decode hit rate, from one pass over reuse distances:\n")
	for _, rate := range []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99} {
		if b, ok := c.BudgetFor(dump.Decode, rate/100); ok {
			p.f("           %5.1f %%  %10s MiB\n", rate, short(b))
		}
	}
	b, _ := c.BudgetFor(dump.Decode, float64(n.Lookups-n.Cold)/float64(n.Lookups))
	p.f("           %5.1f %%  %10s MiB, the most there is: every first use misses\n", most, short(b))
}

// short prints bytes as MiB with three digits or more.
func short(n int64) string {
	v := float64(n) / (1 << 20)
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
