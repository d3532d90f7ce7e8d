package profile

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// WriteMarkdown writes the tables. With Report.Whole they are about the whole file, else about the trace.
func (r *Report) WriteMarkdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	sections := r.sections()
	fmt.Fprintf(b, "csv: %s\nfreq %s MHz; trace op sequence == eager: %s; trace ids %s; replay sessions %s\n",
		r.CSV, r.FreqMHz, pyBool(r.Matches), reprList(r.TraceIDs), reprList(r.ReplaySessions))
	lines := []sectionOf{{SectionEager, &r.Eager}, {SectionTrace, &r.Trace}}
	if r.Whole != nil {
		lines = append(lines, sections[0])
	}
	for _, s := range lines {
		fmt.Fprintf(b, "%s: ops %d  kernel %s us  fw %s us  op2op %s us (median %s)  span %s us  cores median %s  <120 cores: %d  fidelity %s\n",
			s.Name, s.Ops, fixed1(s.KernelUS.Value), fixed1(s.FWUS.Value), fixed1(s.GapUS.Value), optional(s.GapMedianUS),
			optional(s.SpanUS), optional(s.CoresMedian), s.FewCores, s.Fidelity.repr())
	}
	s := sections[0]
	for _, t := range []struct {
		label string
		rows  []Group
		n     int
	}{{"category", s.ByCategory, 20}, {"block", s.ByBlock, 20}, {"op code", s.ByOp, 25}, {"layer", s.ByLayer, 25}} {
		fmt.Fprintf(b, "\n| %s (%s) | ops | kernel us | share | op-to-op us |\n|---|---:|---:|---:|---:|\n", t.label, s.Name)
		for _, g := range t.rows[:min(len(t.rows), t.n)] {
			fmt.Fprintf(b, "| %s | %d | %s | %s %% | %s |\n", g.Key, g.Ops, fixed1(g.KernelUS), fixed1(100*g.Share), fixed1(g.GapUS))
		}
	}
	b.WriteString("\n| # | op | block | layer | kernel us | cores | fidelity | input0 | in mem | out mem |\n|---:|---|---|---|---:|---:|---|---|---|---|\n")
	for i, o := range s.TopOps {
		fmt.Fprintf(b, "| %d | %s | %s | %s | %s | %d | %s | %s | %s | %s |\n", i+1, o.Op, o.Block, o.Layer, fixed1(o.KernelUS),
			o.Cores, o.Fidelity, o.Input0, o.In0Mem, o.Out0Mem)
	}
	if err := splitMarkdown(b, s); err != nil {
		return err
	}
	gaps, err := inlineJSON(s.TopGaps)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\nlargest op-to-op gaps (%s): %s\n", s.Name, gaps)
	if r.Against != nil {
		r.Against.writeMarkdown(b)
	}
	return b.Flush()
}

func splitMarkdown(b *bufio.Writer, s sectionOf) error {
	p := s.Split
	totals, err := inlineJSON(struct {
		Layers     int   `json:"layers"`
		ComputeUS  Float `json:"compute_us"`
		MovementUS Float `json:"movement_us"`
		SplitUS    Float `json:"split_us"`
		FinishUS   Float `json:"finish_us"`
		ComputeOps int   `json:"compute_ops"`
		Ops        int   `json:"ops"`
	}{p.Layers, p.ComputeUS, p.MovementUS, p.SplitUS, p.FinishUS, p.ComputeOps, p.Ops})
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\nlayer cost split (%s): %s\n\n| layer | ops | compute ops | compute us | movement us | split us | finish us |\n|---|---:|---:|---:|---:|---:|---:|\n", s.Name, totals)
	for _, c := range p.PerLayer[:min(len(p.PerLayer), 25)] {
		fmt.Fprintf(b, "| %s | %d | %d | %s | %s | %s | %s |\n", c.Layer, c.Ops, c.ComputeOps, c.ComputeUS, c.MovementUS, c.SplitUS, c.FinishUS)
	}
	return nil
}

func fixed1(f Float) string { return strconv.FormatFloat(float64(f), 'f', 1, 64) }

func optional(f *Float) string {
	if f == nil {
		return "None"
	}
	return f.String()
}

func pyBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// repr is the Python dict of the counts.
func (c Counts) repr() string {
	out := make([]string, len(c))
	for i, e := range c {
		out[i] = repr(e.Name) + ": " + strconv.Itoa(e.N)
	}
	return "{" + strings.Join(out, ", ") + "}"
}
