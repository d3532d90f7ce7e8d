package bench

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Facts say what a set of results is of.
type Facts struct {
	Version, Commit string
	Machine         string // processor
	Model, Arch     string
	ISA             string // of the processor's kernels
	Device          string // what computes in the processor's place; "": the processor
	Flags           string // as typed
	Warnings        []string
}

// computes names what computed: the device, or the processor by the instruction set of its kernels.
func (f *Facts) computes() (key, value string) {
	if f.Device != "" {
		return "device", f.Device
	}
	return "isa", f.ISA
}

// WriteTable writes results for a person, a column for each option that differs between them.
func WriteTable(to io.Writer, results []Speed) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	varies := differing(results)
	head := append([]string{"test"}, varies...)
	head = append(head, "tokens/s", "min", "max", "spread %", "first token ms", "MB/token", "GB/s")
	limits := slices.ContainsFunc(results, func(r Speed) bool { return r.Limit != nil })
	streams := slices.ContainsFunc(results, func(r Speed) bool { return r.ReadBytes > 0 })
	if streams {
		head = append(head, "storage MB/token")
	}
	drops := slices.ContainsFunc(results, func(r Speed) bool { return r.Dropped > 0 || r.WeightLost > 0 })
	if drops {
		head = append(head, "dropped %", "weight lost %")
	}
	topK := slices.ContainsFunc(results, func(r Speed) bool { return r.TopK != nil })
	if topK {
		head = append(head, "top-k at equal bytes", "its tokens/s", "its weight lost %")
	}
	if limits {
		head = append(head, "machine GB/s", "limit tokens/s", "of limit %", "bound")
	}
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for i := range results {
		r := &results[i]
		row := []string{r.Test}
		for _, k := range r.Config.keys() {
			if slices.Contains(varies, k[0]) {
				row = append(row, k[1])
			}
		}
		row = append(row, fixed(r.TPS, 2), fixed(r.MinTPS, 2), fixed(r.MaxTPS, 2), fixed(r.Spread, 1))
		if r.prefill() {
			row = append(row, fixed(1e3*r.TTFT, 2))
		} else {
			row = append(row, "")
		}
		row = append(row, fixed(r.WeightBytes/1e6, 3), fixed(r.Bandwidth/1e9, 2))
		if streams {
			row = append(row, fixed(r.ReadBytes/1e6, 3))
		}
		if drops {
			row = append(row, fixed(100*r.Dropped, 2), fixed(100*r.WeightLost, 2))
		}
		if k := r.TopK; k != nil {
			row = append(row, fixed(k.NExpertUsed, 2), fixed(k.TPS, 2), fixed(100*k.WeightLost, 2))
		} else if topK {
			row = append(row, "", "", "")
		}
		if l := r.Limit; l != nil {
			row = append(row, fixed(l.Bandwidth/1e9, 2), fixed(l.TPS, 2), fixed(100*l.Fraction, 1), l.Bound)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func fixed(v float64, places int) string { return strconv.FormatFloat(v, 'f', places, 64) }

// differing names the options that are not the same in all results.
func differing(results []Speed) (names []string) {
	for i, k := range (Variant{}).keys() {
		for j := range results {
			if results[j].Config.keys()[i] != results[0].Config.keys()[i] {
				names = append(names, k[0])
				break
			}
		}
	}
	return names
}

// WriteCSV writes a preamble of "# key=value" lines, a header with units in its names, and a row per result. Cells that do
// not apply or were not measured are empty.
func WriteCSV(to io.Writer, f Facts, results []Speed) error {
	b := bufio.NewWriter(to)
	line := func(key, value string) { fmt.Fprintf(b, "# %s=%s\n", key, strings.Join(strings.Fields(value), " ")) }
	line("format", "engine_bench v1")
	line("version", f.Version)
	line("commit", f.Commit)
	line("machine", f.Machine)
	line("os", runtime.GOOS+"/"+runtime.GOARCH)
	line("model", f.Model)
	line("arch", f.Arch)
	line(f.computes())
	line("flags", f.Flags)
	for _, w := range f.Warnings {
		line("warning", w)
	}
	w := csv.NewWriter(b)
	w.Write([]string{"test", "tokens", "depth", "cache_mb", "drop_cold_experts", "arm", "io_threads", "threads", "n_expert_used", "prefetch", "tokens_per_second",
		"min_tokens_per_second", "max_tokens_per_second", "spread_percent", "ttft_seconds", "rounds", "weight_bytes_per_token",
		"read_bytes_per_token", "bytes_per_second", "machine_bytes_per_second", "machine_flops_per_second", "limit_tokens_per_second",
		"limit_fraction", "bound", "dropped_share", "weight_lost", "equal_bytes_n_expert_used", "equal_bytes_tokens_per_second",
		"equal_bytes_weight_lost"})
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for i := range results {
		r := &results[i]
		row := []string{r.Test, strconv.Itoa(r.Tokens), strconv.Itoa(r.Depth)}
		for _, k := range r.Config.keys() {
			row = append(row, k[1])
		}
		ttft := ""
		if r.prefill() {
			ttft = num(r.TTFT)
		}
		row = append(row, num(r.TPS), num(r.MinTPS), num(r.MaxTPS), num(r.Spread), ttft, strconv.Itoa(len(r.Seconds)), num(r.WeightBytes),
			num(r.ReadBytes), num(r.Bandwidth))
		if l := r.Limit; l != nil {
			row = append(row, num(l.Bandwidth), num(l.Flops), num(l.TPS), num(l.Fraction), l.Bound)
		} else {
			row = append(row, "", "", "", "", "")
		}
		row = append(row, num(r.Dropped), num(r.WeightLost))
		if k := r.TopK; k != nil {
			row = append(row, num(k.NExpertUsed), num(k.TPS), num(k.WeightLost))
		} else {
			row = append(row, "", "", "")
		}
		w.Write(row)
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	return b.Flush()
}

// WriteGoBench writes the results in the Go benchmark format, a line for each timed round: a token is an operation. Names
// are key=value parts, so that benchstat can filter and compare by them.
func WriteGoBench(to io.Writer, f Facts, results []Speed) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: sluice/bench\ncpu: %s\nversion: %s\ncommit: %s\n", runtime.GOOS, runtime.GOARCH, f.Machine, f.Version, f.Commit)
	if f.Device != "" {
		fmt.Fprintf(w, "device: %s\n", f.Device)
	}
	what, on := f.computes()
	if i := strings.Index(on, " ("); i > 0 { // the name alone, without what the device: line says of it
		on = on[:i]
	}
	fmt.Fprintf(w, "Unit tok/s better=higher\nUnit GB/s better=higher\nUnit ms-first-token better=lower\n")
	for i := range results {
		r := &results[i]
		name := "BenchmarkDecode"
		if r.prefill() {
			name = "BenchmarkPrefill"
		}
		name += fmt.Sprintf("/model=%s/%s=%s/tokens=%d/depth=%d", label(f.Model), what, label(on), r.Tokens, r.Depth)
		for _, k := range r.Config.keys() {
			if k[1] != "" {
				name += "/" + k[0] + "=" + k[1]
			}
		}
		for j, sec := range r.Seconds {
			n := float64(r.Tokens)
			fmt.Fprintf(w, "%s\t%d\t%.1f ns/op\t%.2f tok/s\t%.3f GB/s\t%.0f weight-B/op", name, r.Tokens, 1e9*sec/n, n/sec, r.WeightBytes*n/sec/1e9, r.WeightBytes)
			if r.prefill() {
				fmt.Fprintf(w, "\t%.3f ms-first-token", 1e3*r.ttft[j])
			}
			fmt.Fprintln(w)
		}
	}
	return w.Flush()
}

// label makes a benchmark name's part of a text: no separators of names, and no dash before digits at its end, which would
// read as a number of processors.
func label(s string) string {
	s = strings.TrimSuffix(s, ".gguf")
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '=' || r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
