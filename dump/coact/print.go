package coact

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table is one of the report's, for either form.
type table struct {
	title string
	head  []string
	rows  [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func percent(p float64) string         { return fmt.Sprintf("%.2f %%", 100*p) }
func decimal(x float64) string         { return fmt.Sprintf("%.4f", x) }
func whole[T int | uint64](n T) string { return fmt.Sprint(n) }

func (r *Report) intro() []string {
	name := r.Dump
	if r.Model != "" {
		name += ", " + r.Model
	}
	s := []string{fmt.Sprintf("%s: %d records, %d bytes; %d layers of %d experts", name, r.Records, r.Bytes, len(r.Layers), r.Experts),
		fmt.Sprintf("fitted to the first %.0f %% of each layer's tokens, scored on the rest (\"held out\")", 100*r.FitShare)}
	for _, n := range r.Notes {
		s = append(s, "note: "+n)
	}
	return s
}

func (r *Report) tables() []table {
	freq := table{title: "How often experts are picked (share of a layer's tokens), and which two together most",
		head: []string{"layer", "tokens", "top-k", "min", "median", "max", "Gini", "top-16 share", "never picked", "most frequent pair", "tokens", "lift"}}
	line := func(name, k string, f *Frequency) []string {
		return []string{name, whole(f.Tokens), k, percent(f.FreqMin), percent(f.FreqMedian), percent(f.FreqMax), decimal(f.Gini),
			percent(f.Top16Share), whole(f.NeverPicked)}
	}
	for i := range r.Layers {
		l := &r.Layers[i]
		pair := []string{"-", "0", "-"}
		if len(l.Top) > 0 {
			p := l.Top[0]
			pair = []string{fmt.Sprintf("%d+%d", p.A, p.B), whole(p.Tokens), fmt.Sprintf("%.2f", p.Lift)}
		}
		freq.row(append(line(whole(l.Layer), whole(l.NUsed), &l.Frequency), pair...)...)
	}
	freq.row(append(line("pooled", "", &r.Pooled.Frequency), "", whole(r.Pooled.Max), "")...)

	splits := table{title: fmt.Sprintf("Split over %d cards, all layers pooled", r.Cards), head: splitHead("replicated")}
	for i := range r.Pooled.Splits {
		s := &r.Pooled.Splits[i]
		splits.rows = append(splits.rows, splitRow(whole(s.Replicate), s))
	}
	layers := table{title: fmt.Sprintf("The same by layer, %d replicated", r.Chosen), head: splitHead("layer")}
	for i := range r.Layers {
		for j := range r.Layers[i].Splits {
			if s := &r.Layers[i].Splits[j]; s.Replicate == r.Chosen {
				layers.rows = append(layers.rows, splitRow(whole(r.Layers[i].Layer), s))
			}
		}
	}
	return []table{freq, splits, layers}
}

func splitHead(first string) []string {
	return []string{first, "by", "experts/card", "P(single) fit", "held out", "random", "even", "cards/token fit", "held out", "random", "even", "load %"}
}

func splitRow(first string, s *Split) []string {
	var load []string
	for _, x := range s.Load {
		load = append(load, strconv.FormatFloat(100*x, 'f', 1, 64))
	}
	return []string{first, s.By, whole(s.ExpertsACard), percent(s.Fit.PSingle), percent(s.HeldOut.PSingle), percent(s.Random.PSingle), percent(s.Even.PSingle),
		decimal(s.Fit.MeanCards), decimal(s.HeldOut.MeanCards), decimal(s.Random.MeanCards), decimal(s.Even.MeanCards), strings.Join(load, " ")}
}

// legend takes randomSeeds.
const legend = `P(single): tokens whose experts all stand on one card. by: how the replicated experts were chosen.
random: mean of %d random even parts; even: contiguous even parts; both held out, with the same experts replicated.
load: share of the picks that each card computes, held out.`

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, s := range r.intro() {
		fmt.Fprintln(b, s)
	}
	for _, t := range r.tables() {
		fmt.Fprintf(b, "\n%s\n", t.title)
		tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, strings.Join(t.head, "\t"))
		for _, row := range t.rows {
			fmt.Fprintln(tw, strings.Join(row, "\t"))
		}
		tw.Flush()
	}
	fmt.Fprintf(b, "\n"+legend+"\n\n%s\n", randomSeeds, r.Verdict)
	return b.Flush()
}

// WriteMarkdown writes the same as Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Co-activation: can the experts be split over %d cards?\n\n**%s**\n\n", r.Cards, r.Verdict)
	for _, s := range r.intro() {
		fmt.Fprintf(b, "- %s\n", escape(s))
	}
	for _, t := range r.tables() {
		fmt.Fprintf(b, "\n## %s\n\n| %s |\n|%s\n", t.title, strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
		for _, row := range t.rows {
			fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	fmt.Fprintf(b, "\n"+legend+"\n", randomSeeds)
	return b.Flush()
}

// escape keeps a file's name from being read as Markdown.
func escape(s string) string {
	return strings.NewReplacer("*", `\*`, "_", `\_`, "`", "\\`", "<", `\<`, "|", `\|`, "[", `\[`).Replace(s)
}

// WriteMatrix writes the co-activation matrix as CSV: a line per layer and pair a <= b with at least one token; a = b
// counts the tokens that picked the expert.
func (r *Report) WriteMatrix(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	b.WriteString("layer,expert_a,expert_b,tokens\n")
	var line []byte
	for _, l := range r.layers {
		for x := range l.n {
			for y := x; y < l.n; y++ {
				if c := l.pairs[x*l.n+y]; c > 0 {
					line = strconv.AppendInt(line[:0], int64(l.index), 10)
					for _, v := range [...]int64{int64(x), int64(y), int64(c)} {
						line = strconv.AppendInt(append(line, ','), v, 10)
					}
					b.Write(append(line, '\n'))
				}
			}
		}
	}
	return b.Flush()
}
