package quality

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteText prints the table of points and what it says.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d predictions in decode mode, chunks of %d tokens\n\n", r.Tokens, r.Chunk)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tread MiB\tof undropped\tperplexity\tKL nats\tsame top\tdropped\tweight lost\tat equal reads, top-k: perplexity\tKL nats\t")
	for _, p := range append([]Point{r.Baseline}, r.Points...) {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f %%\t%.4f\t%.6f\t%.2f %%\t%.2f %%\t%.2f %%\t%s\t\n", p.name(), float64(p.BytesRead)/(1<<20),
			percent(float64(p.BytesRead), float64(r.Baseline.BytesRead)), p.Perplexity, p.KL, 100*p.SameTop,
			percent(float64(p.Dropped), float64(p.Routed)), percent(p.WeightDropped, p.Weight), equal(p))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.Verdict())
	return err
}

// Verdict is the comparison in a sentence.
func (r *Report) Verdict() string {
	if r.Compared == 0 {
		return "no threshold reads as much as some point between two of the top-k curve: nothing to compare at equal reads"
	}
	return fmt.Sprintf("at equal reads dropping has the lower divergence at %d of %d thresholds (top-k read off a straight line between its points)", r.DropWins, r.Compared)
}

func (p Point) name() string {
	switch p.Kind {
	case Threshold:
		return fmt.Sprintf("drop %g", p.DropFrac)
	case TopK:
		return fmt.Sprintf("k %d", p.NExpertUsed)
	}
	return fmt.Sprintf("undropped, k %d", p.NExpertUsed)
}

func equal(p Point) string {
	switch {
	case p.EqualReads != nil:
		return fmt.Sprintf("%.4f\t%.6f", p.EqualReads.Perplexity, p.EqualReads.KL)
	case p.Kind == Threshold:
		return "outside\toutside"
	}
	return "-\t-"
}

func percent(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}
