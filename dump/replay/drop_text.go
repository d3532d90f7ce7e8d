package replay

import (
	"fmt"
	"io"
	"sluice/dump"
	"strconv"
	"strings"
)

// WriteText prints the report for people: first what the format's own script prints, figure for figure, then what goes
// beyond it.
func (r *DropReport) WriteText(w io.Writer) error {
	p := &printer{w: w}
	line := strings.Repeat("=", 78)
	p.f("%s\n%s   arch=%s  n_expert=%d  k=%d\n%s\n", line, r.File, r.Arch, r.NExpert, r.K, line)
	r.phaseText(p, "DECODE", &r.Decode)
	r.phaseText(p, "PREFILL", &r.Prefill)
	p.f("\n")
	p.f("rows: %d, of them %d with an unknown weight (nan, inf) left out\n", r.Rows, r.Unknown)
	if r.ShortCells > 0 {
		p.f("short cells: %d with fewer than %d rows: is the trace complete and in the order it was written?\n", r.ShortCells, r.K)
	}
	p.f("misses within 1e-6 of the threshold, which six printed digits decide:")
	for i, d := range r.Decode.Fracs {
		p.f("  %s: %d decode, %d prefill", frac(d.Frac), d.Near, r.Prefill.Fracs[i].Near)
	}
	p.f("\n")
	r.recordedText(p, "DECODE", &r.Decode)
	r.recordedText(p, "PREFILL", &r.Prefill)
	for i := range r.Dynamic {
		r.Dynamic[i].text(p)
	}
	for _, n := range r.Notes {
		p.f("\nnote: %s\n", n)
	}
	return p.err
}

func (r *DropReport) phaseText(p *printer, label string, d *DropPhase) {
	if d.Cells == 0 {
		p.f("\n[%s] no rows\n", label)
		return
	}
	p.f("\n[%s] %d routing cells, %d routed experts, %.1f%% misses\n", label, d.Cells, d.Routed, percent(d.Misses, d.Routed))
	if d.Dropped > 0 {
		p.f("  recorded: dropping was ON for this run -- %d routings dropped (%.1f%%), %.2f%% of the weight mass\n",
			d.Dropped, percent(d.Dropped, d.Routed), percentOf(d.DroppedMass, d.Mass))
	}
	p.f("\n  cache-aware threshold, as a fraction of the uniform share 1/k = %.2f%%\n", 100*r.Uniform)
	p.f("  %6s  %8s  %9s  %10s   surviving experts per cell\n", "frac", "thr", "io_saved", "mass_lost")
	for _, f := range d.Fracs {
		p.f("  %6s  %7.2f%%  %8.1f%%  %9.2f%%  ", frac(f.Frac), 100*f.Threshold, percent(f.Bytes, d.MissBytes), percentOf(f.Mass, d.Mass))
		for n, cells := range f.Survivors {
			if cells > 0 {
				p.f(" %d:%.0f%%", n, percent(cells, d.Cells))
			}
		}
		p.f("\n")
	}
	p.f("\n  static-k baseline (--n-expert-used), same rows, for comparison at equal io_saved\n")
	p.f("  %6s  %9s  %10s\n", "keep_k", "io_saved", "mass_lost")
	for _, s := range d.StaticK {
		p.f("  %6d  %8.1f%%  %9.2f%%\n", s.Keep, percent(s.Bytes, d.MissBytes), percentOf(s.Mass, d.Mass))
	}
}

// recordedText puts what the run dropped beside what the static replay drops on the same rows. The bytes of what was not
// read come from the preamble, so that io_saved here is of what the run would have read.
func (r *DropReport) recordedText(p *printer, label string, d *DropPhase) {
	if d.Dropped == 0 {
		return
	}
	all := d.MissBytes + d.DroppedBytes
	p.f("\n[%s] recorded drops beside the static replay of the same rows", label)
	if r.Recorded != nil && r.Recorded.Frac > 0 {
		p.f(" (the run's threshold: %s)", frac(r.Recorded.Frac))
	}
	p.f("\n  %8s  %8s  %9s  %10s  %8s  %13s  %11s\n", "frac", "dropped", "io_saved", "mass_lost", "both", "only recorded", "only static")
	p.f("  %8s  %8d  %8.1f%%  %9.2f%%\n", "recorded", d.Dropped, percent(d.DroppedBytes, all), percentOf(d.DroppedMass, d.Mass))
	for _, f := range d.Fracs {
		p.f("  %8s  %8d  %8.1f%%  %9.2f%%  %8d  %13d  %11d\n", frac(f.Frac), f.Dropped, percent(f.Bytes+f.BytesNotRead, all),
			percentOf(f.Mass, d.Mass), f.Both, d.Dropped-f.Both, f.Dropped-f.Both)
	}
	if d.DroppedBytes == 0 {
		p.f("  (io_saved without the bytes that were not read: the preamble has no sizes)\n")
	}
}

func (s *Dynamic) text(p *printer) {
	slots := "slots as the preamble states them"
	if !s.SlotsKnown {
		slots = "slots of expert_bytes: the preamble states no padding (" + dump.FactSlotBytes + ")"
	}
	p.f("\n[dynamic] the engine's cache runs while dropping: %s, %s, %s", s.Policy, mib(s.BudgetBytes), slots)
	if s.Prefetch != "" {
		p.f(", reading ahead (%s)", s.Prefetch)
	}
	if s.NoPrefetch != "" {
		p.f(", nothing read ahead (the run: %s)", s.NoPrefetch)
	}
	if s.Start != "" {
		p.f(", beginning with %s", s.Start)
	}
	p.f("\n")
	for ph, label := range []string{"prefill", "decode"} {
		if ph == 0 && !s.InPrefill {
			base := s.Rows[0].Prefill
			if base.Lookups > 0 {
				p.f("  prefill drops nothing: %.1f MiB read, %.1f%% hits\n", float64(base.read())/(1<<20), percent(base.Hits, base.Lookups))
			}
			continue
		}
		if s.Rows[0].phase(ph).Lookups == 0 {
			continue
		}
		p.f("  %7s  %9s  %9s  %10s  %8s  %8s  %10s   io_saved: predicted; static: residency as if nothing had been dropped\n",
			label, "static", "io_saved", "mass_lost", "dropped", "misses", "read MiB")
		above := false
		for i := range s.Rows {
			d := s.Rows[i].phase(ph)
			above = above || d.IOSaved > d.IOSavedStatic
			p.f("  %7s  %8.1f%%  %8.1f%%  %9.2f%%  %8d  %8d  %10.1f\n", frac(s.Rows[i].Frac), 100*d.IOSavedStatic, 100*d.IOSaved, 100*d.MassLost,
				d.Dropped, d.Misses, float64(d.read())/(1<<20))
		}
		if above {
			p.f("  (above the static figure: what is dropped evicts nothing, and what stays cold is dropped again)\n")
		}
	}
	if s.NoCheck != "" {
		p.f("  no recorded run to hold this against: %s\n", s.NoCheck)
		return
	}
	c := s.Check
	how := "its own routing replayed"
	if !c.SameRouting {
		how = "another run's routing replayed"
	}
	p.f("  against %s (%s) at threshold %s:\n", c.File, how, frac(c.Predicted.Frac))
	for ph, label := range []string{"prefill", "decode"} {
		rec, e := &c.Prefill, c.PrefillErr
		if ph == 1 {
			rec, e = &c.Decode, c.DecodeErr
		}
		if rec.Lookups == 0 {
			continue
		}
		d := c.Predicted.phase(ph)
		if c.Device != "" {
			p.f("    %-7s  predicted %d misses, %d dropped; recorded %d, %d\n", label, d.Misses, d.Dropped, rec.Misses, rec.Dropped)
			continue
		}
		p.f("    %-7s  predicted %d misses, %d dropped, %.1f MiB; recorded %d, %d, %.1f; error in bytes %+.2f%%\n", label,
			d.Misses, d.Dropped, float64(d.read())/(1<<20), rec.Misses, rec.Dropped, float64(rec.read())/(1<<20), 100*e)
		if saved := []float64{c.PrefillIOSaved, c.DecodeIOSaved}[ph]; c.Predicted.Frac > 0 && (ph == 1 || s.InPrefill) {
			p.f("    %-7s  io_saved %.1f%% by the static replay, %.1f%% predicted, %.1f%% recorded\n", "", 100*d.IOSavedStatic, 100*d.IOSaved, 100*saved)
		}
	}
	if c.Device != "" && s.Reproduction == nil {
		p.f("    bytes not compared: %s\n", heldByDevice(c.Device))
	}
	switch {
	case s.Reproduction != nil:
		p.f("    %s\n", s.Reproduction)
	case s.NotReproduced != "":
		p.f("    not held against the run row by row: %s\n", s.NotReproduced)
	}
}

// printer keeps the first write error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// frac prints a threshold with two decimals, or with all it has.
func frac(f float64) string {
	s := strconv.FormatFloat(f, 'f', 2, 64)
	if back, _ := strconv.ParseFloat(s, 64); back != f {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return s
}

// mib prints bytes as MiB, with decimals where they are not whole.
func mib(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', -1, 64) + " MiB" }

// percent is written 100*a/b, in this order: the last digit is rounded as the format's script rounds it.
func percent(a, b int64) float64 { return percentOf(float64(a), float64(b)) }

func percentOf(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}
