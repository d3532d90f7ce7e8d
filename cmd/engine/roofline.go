package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice/bench/figure"
	"sluice/bench/probe"
	"sluice/bench/roofline"
	"sluice/engine/machine"
)

type rooflineFlags struct {
	machine                     string
	peak, bandwidth, stream     float64
	missRate, sparsity          float64
	path                        string
	model                       roofline.Model
	ffn, experts, used          int
	expertFFN, context, threads int
	kvBytes                     float64
	batch, selDump, selBatch    string
	measured, plots             []string
	list, json                  bool
}

// geometryFlags describe a model without a file.
var geometryFlags = []string{"hidden", "heads", "kv-heads", "head-dim", "ffn", "layers", "bytes", "experts", "experts-used", "expert-ffn"}

func rooflineCommand(io streams) *cobra.Command {
	f := &rooflineFlags{}
	c := &cobra.Command{
		Use:   "roofline",
		Short: "What limits decode of a model on a machine",
		Long: fmt.Sprintf(`Prints arithmetic intensity, critical batch B*, balance context L*, the knee between them, the least
time per token over batch sizes and what it is spent on. A mixture of experts is computed by the number
of distinct experts a batch touches: by uniform routing, or as a selection dump shows. docs/roofline.md
has the formulas.

The model is a GGUF file (-m), a geometry (--hidden, --heads, ...), or the built-in model. The machine is
one of %s,
a JSON file with peak_flops and bw_hbm, or "this": memory bandwidth and kernel speed measured now.`, machineNames()),
		Example: `  engine roofline -m model.gguf --machine h200-sxm --context 8192
  engine roofline -m model.gguf --machine this --measured bench.json --plot roofline.png
  engine roofline --peak-flops 989e12 --bandwidth 4.8e12 --hidden 8192 --heads 64 --kv-heads 8 --head-dim 128 --ffn 28672 --layers 80`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	fs := c.Flags()
	fs.StringVar(&f.machine, "machine", "", "chip of the table, machine file, or this")
	fs.BoolVar(&f.list, "machines", false, "print the table of chips and end")
	fs.Float64Var(&f.peak, "peak-flops", 0, "peak operations per second (replaces the machine's)")
	fs.Float64Var(&f.bandwidth, "bandwidth", 0, "memory bandwidth in bytes per second (replaces the machine's)")
	fs.Float64Var(&f.stream, "stream-bw", 0, "bandwidth of the level that missing experts come from, bytes per second")
	fs.Float64Var(&f.missRate, "miss-rate", 0, "share of the touched experts that is missing, 0 to 1")
	fs.StringVarP(&f.path, "model", "m", "", "GGUF file, any shard of a split set (default: the built-in demo model)")
	fs.IntVar(&f.model.Hidden, "hidden", 0, "width of the residual stream")
	fs.IntVar(&f.model.QHeads, "heads", 0, "query heads")
	fs.IntVar(&f.model.KVHeads, "kv-heads", 0, "key/value heads")
	fs.IntVar(&f.model.HeadDim, "head-dim", 0, "width of a head")
	fs.IntVar(&f.ffn, "ffn", 0, "width of the dense or shared feed-forward block")
	fs.IntVar(&f.model.Layers, "layers", 0, "number of layers")
	fs.Float64Var(&f.model.BytesPerElem, "bytes", 2, "bytes per weight")
	fs.Float64Var(&f.kvBytes, "kv-bytes", 2, "bytes per key or value element (with a geometry: --bytes, unless given)")
	fs.IntVar(&f.experts, "experts", 0, "experts per layer")
	fs.IntVar(&f.used, "experts-used", 0, "experts per token")
	fs.IntVar(&f.expertFFN, "expert-ffn", 0, "width of an expert")
	fs.Float64Var(&f.sparsity, "sparsity", 0, "total over active parameters (default: the model's)")
	fs.IntVar(&f.context, "context", 4096, "context in tokens")
	fs.StringVar(&f.batch, "batch", "1,2,4,8,16,32,64,128,256,512,1024", "batch sizes")
	fs.StringVar(&f.selDump, "sel-dump", "", "measure the distinct experts of a batch from this selection dump")
	fs.StringVar(&f.selBatch, "sel-batch", roofline.Spread, "tokens that form a batch of the dump: "+roofline.Spread+" over it, or "+roofline.Consecutive)
	fs.StringSliceVar(&f.measured, "measured", nil, "documents of bench --json whose results are set beside the bounds")
	fs.StringSliceVar(&f.plots, "plot", nil, "files to draw to, .png or .svg")
	fs.IntVarP(&f.threads, "threads", "t", 0, "most threads of --machine this (default: processors by affinity and cgroup quota)")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

func machineNames() string {
	var names []string
	for _, m := range roofline.Machines() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

func (f *rooflineFlags) run(c *cobra.Command, io streams) error {
	if f.list {
		return f.printMachines(io)
	}
	batches, err := numbers("batch", f.batch)
	if err != nil {
		return err
	}
	for _, p := range f.plots {
		if err := figure.Check(p); err != nil {
			return usageError{fmt.Errorf("--plot: %w", err)}
		}
	}
	if f.selBatch != roofline.Spread && f.selBatch != roofline.Consecutive {
		return usagef("--sel-batch %q: want %s or %s", f.selBatch, roofline.Spread, roofline.Consecutive)
	}
	if c.Flags().Changed("sel-batch") && f.selDump == "" {
		return usagef("--sel-batch has no effect without --sel-dump")
	}
	in := roofline.Input{Context: f.context, Batches: batches, MissRate: f.missRate}
	if in.Model, in.Weights, err = f.readModel(c); err != nil {
		return err
	}
	if in.Sparsity = f.sparsity; !c.Flags().Changed("sparsity") {
		in.Sparsity = 1
		if w := in.Weights; w != nil && w.ActiveParams() > 0 {
			in.Sparsity = w.TotalParams() / w.ActiveParams()
		}
	}
	var notes []string
	if in.Machine, notes, err = f.readMachine(c, io); err != nil {
		return err
	}
	if f.selDump != "" {
		r, err := f.readRouting(in.Weights)
		if err != nil {
			return err
		}
		in.Routing = r
		notes = append(notes, r.Notes...)
	}
	for _, path := range f.measured {
		ms, err := readMeasured(path)
		if err != nil {
			return err
		}
		in.Measured = append(in.Measured, ms...)
	}
	r, err := roofline.New(in)
	if err != nil {
		return usageError{err} // what files hold was checked when it was read
	}
	r.Notes = append(notes, r.Notes...)
	for _, p := range f.plots {
		if err := r.SavePlot(p); err != nil {
			return err
		}
		fmt.Fprintln(io.err, "wrote", p)
	}
	if f.json {
		return printJSON(io.out, r)
	}
	return printRoofline(io, r)
}

func (f *rooflineFlags) printMachines(io streams) error {
	ms := roofline.Machines()
	if f.json {
		return printJSON(io.out, ms)
	}
	w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "machine\tTFLOP/s\tGB/s\tFLOP per byte\tsource")
	for _, m := range ms {
		fmt.Fprintf(w, "%s\t%g\t%g\t%.1f\t%s\n", m.Name, m.PeakFlops/1e12, m.Bandwidth/1e9, m.ArithmeticIntensity(), m.Source)
	}
	return w.Flush()
}

// readModel takes the geometry when a flag of it was typed, else the file.
func (f *rooflineFlags) readModel(c *cobra.Command) (roofline.Model, *roofline.Weights, error) {
	fs := c.Flags()
	var typed []string
	for _, name := range geometryFlags {
		if fs.Changed(name) {
			typed = append(typed, "--"+name)
		}
	}
	if !(f.kvBytes > 0) {
		return f.model, nil, usagef("--kv-bytes %v: want above 0", f.kvBytes)
	}
	if len(typed) == 0 {
		var args []string
		if f.path != "" {
			args = []string{f.path}
		}
		file, err := openFile(args)
		if err != nil {
			return f.model, nil, err
		}
		defer file.Close()
		m, w, err := roofline.FromGGUF(file, f.kvBytes)
		if m.Name == "" {
			m.Name = filepath.Base(f.path)
		}
		return m, w, err
	}
	if f.path != "" {
		return f.model, nil, usagef("--model and %s: want a file or a geometry", strings.Join(typed, ", "))
	}
	m := f.model
	m.Name = "geometry"
	if fs.Changed("kv-bytes") {
		m.KVBytesPerElem = f.kvBytes
	}
	for _, s := range []struct {
		flag string
		v    int
	}{{"ffn", f.ffn}, {"experts", f.experts}, {"experts-used", f.used}, {"expert-ffn", f.expertFFN}} {
		if s.v < 0 || (s.v == 0 && fs.Changed(s.flag) && s.flag != "ffn") {
			return m, nil, usagef("--%s %d: want 1 or more", s.flag, s.v)
		}
	}
	var w *roofline.Weights
	m.FFNDim = f.ffn
	if f.experts > 0 || f.used > 0 || f.expertFFN > 0 {
		if f.used > f.experts || f.used == 0 || f.expertFFN == 0 {
			return m, nil, usagef("--experts %d, --experts-used %d, --expert-ffn %d: want all three, and no more used than there are", f.experts, f.used, f.expertFFN)
		}
		m, w = roofline.NewMoE(m, f.ffn, f.experts, f.used, f.expertFFN)
	}
	if err := m.Check(); err != nil {
		return m, nil, usageError{err}
	}
	return m, w, nil
}

// readMachine finds or measures the machine, then applies the flags that replace its numbers.
func (f *rooflineFlags) readMachine(c *cobra.Command, io streams) (m roofline.Machine, notes []string, err error) {
	fs := c.Flags()
	switch f.machine {
	case "":
		if !fs.Changed("peak-flops") || !fs.Changed("bandwidth") {
			return m, nil, usagef("no machine: name one with --machine (%s, a file, or this), or give --peak-flops and --bandwidth", machineNames())
		}
		m.Name = "given numbers"
	case "this":
		if m, notes, err = f.measureMachine(c, io); err != nil {
			return m, nil, err
		}
	default:
		if m, err = roofline.FindMachine(f.machine); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return m, nil, usageError{err}
			}
			return m, nil, err
		}
	}
	for _, r := range []struct {
		flag    string
		v       float64
		to      *float64
		mayZero bool
	}{{"peak-flops", f.peak, &m.PeakFlops, false}, {"bandwidth", f.bandwidth, &m.Bandwidth, false}, {"stream-bw", f.stream, &m.Stream, false}} {
		if !fs.Changed(r.flag) {
			continue
		}
		if !(r.v > 0) {
			return m, nil, usagef("--%s %v: want above 0", r.flag, r.v)
		}
		*r.to = r.v
	}
	if err := m.Check(); err != nil {
		return m, nil, usageError{err}
	}
	return m, notes, nil
}

// measureMachine is --machine this.
func (f *rooflineFlags) measureMachine(c *cobra.Command, io streams) (roofline.Machine, []string, error) {
	threads := f.threads
	if c.Flags().Changed("threads") && threads < 1 {
		return roofline.Machine{}, nil, usagef("--threads %d: want 1 or more", threads)
	}
	if threads == 0 {
		threads = machine.ReadCPUs("/").Threads()
	}
	cfg := probe.Config{Threads: []int{threads}, Compute: true}
	if threads > 1 {
		cfg.Threads = []int{1, threads}
	}
	if avail, ok := machine.MemoryAvailable("/"); ok {
		cfg.Available = avail
	}
	fmt.Fprintln(io.err, "measuring this machine")
	r, err := probe.Run(c.Context(), cfg)
	if err != nil {
		return roofline.Machine{}, nil, err
	}
	m := roofline.Machine{Name: "this machine", PeakFlops: r.PeakFlops(), Bandwidth: r.Bandwidth(),
		Source: fmt.Sprintf("measured with %d threads: fastest memory read, fastest product kernel", threads)}
	var notes []string
	for _, b := range r.Memory {
		notes = append(notes, fmt.Sprintf("memory, %s pages, %d threads: %.2f GB/s (median %.2f)", b.Pages, b.Threads, b.Best/1e9, b.Median/1e9))
	}
	for _, k := range r.Compute {
		notes = append(notes, fmt.Sprintf("product kernel, %s weights (%s), %d threads: %.2f GFLOP/s", k.Type, k.ISA, k.Threads, k.FlopsPerSecond/1e9))
	}
	return m, append(notes, r.Notes...), nil
}

func (f *rooflineFlags) readRouting(w *roofline.Weights) (*roofline.MeasuredRouting, error) {
	if w == nil {
		return nil, usagef("--sel-dump: the model has no experts (--experts, --experts-used, --expert-ffn)")
	}
	file, err := os.Open(f.selDump)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return roofline.ReadRouting(file, filepath.Base(f.selDump), f.selBatch, w)
}

func readMeasured(path string) ([]roofline.Measured, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	ms, err := roofline.ReadMeasured(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ms, nil
}

func printRoofline(io streams, r *roofline.Report) error {
	for _, n := range r.Notes {
		fmt.Fprintln(io.err, n)
	}
	w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	m := r.Machine
	fmt.Fprintf(w, "machine\t%s: %.4g TFLOP/s, %.4g GB/s\n", m.Name, m.PeakFlops/1e12, m.Bandwidth/1e9)
	fmt.Fprintf(w, "model\t%s: %.4g active parameters of %.3f bytes, sparsity %.3f, %.4g bytes of keys and values a token\n",
		r.Model.Name, r.ActiveParams, r.Model.BytesPerElem, r.Sparsity, r.KVBytesPerToken)
	fmt.Fprintf(w, "arithmetic intensity\t%.2f FLOP per byte\n", r.ArithmeticIntensity)
	fmt.Fprintf(w, "critical batch B*\t%.1f\n", r.CriticalBatch)
	fmt.Fprintf(w, "balance context L*\t%.1f tokens\n", r.BalanceContext)
	fmt.Fprintf(w, "knee at context %d\t%s\n", r.Context, orNone(r.KneeBatch, "none: past L*"))
	fmt.Fprintf(w, "good batch\t%.1f: %s\n", r.GoodBatch.Effective, r.GoodBatch.Reason)
	fmt.Fprintf(w, "good context\t%.1f: %s\n", r.GoodContext.MaxEfficient, r.GoodContext.Reason)
	w.Flush()
	if moe := r.MoE; moe == nil {
		fmt.Fprintf(w, "\nbatch\tweights ms\tcompute ms\tKV ms\tsum ms\ttokens/s\tlimit\n")
		for _, p := range r.Curve {
			fmt.Fprintf(w, "%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.2f\t%s\n", p.Batch, p.Weight*1e3, p.Compute*1e3, p.KV*1e3, p.Total*1e3, 1/p.Total, p.Regime)
		}
	} else {
		fmt.Fprintf(w, "\nexperts\t%d of %d a token in %d layers, %.4g bytes each; routing: %s\n", moe.Used, moe.Experts, moe.Layers, moe.ExpertBytes, moe.Routing)
		if moe.MissRate > 0 {
			fmt.Fprintf(w, "streamed\t%.1f %% of the touched experts at %.4g GB/s\n", 100*moe.MissRate, moe.StreamBW/1e9)
		}
		fmt.Fprintf(w, "critical batch by routing\t%s\n", orNone(moe.CriticalBatch, "none"))
		fmt.Fprintf(w, "knee by routing\t%s\n", orNone(moe.KneeBatch, "none"))
		w.Flush()
		fmt.Fprintf(w, "\nbatch\texperts\tuniform\tMB a step\tweights ms\tstream ms\tcompute ms\tKV ms\tsum ms\ttokens/s\tlimit\n")
		for _, p := range moe.Curve {
			fmt.Fprintf(w, "%d\t%.2f\t%.2f\t%.2f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.2f\t%s\n", p.Batch, p.Distinct, p.Uniform, p.WeightBytes/1e6,
				p.Weight*1e3, p.Stream*1e3, p.Compute*1e3, p.KV*1e3, p.Total*1e3, 1/p.Total, p.Regime)
		}
	}
	w.Flush()
	if len(r.Measured) > 0 {
		fmt.Fprintf(w, "\nmeasured\tms a token\tmin\tmax\ttokens/s\n")
		for _, p := range r.Measured {
			fmt.Fprintf(w, "%s\t%.4f\t%.4f\t%.4f\t%.2f\n", p.Label, p.Seconds*1e3, p.Min*1e3, p.Max*1e3, 1/p.Seconds)
		}
	}
	return w.Flush()
}

func orNone(v *float64, none string) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%.1f", *v)
}
