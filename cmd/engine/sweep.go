package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice/bench/figure"
	"sluice/bench/sweep"
	"sluice/engine/machine"
	"sluice/internal/whole"
)

type sweepFlags struct {
	cfg                      sweep.Config
	modes, topology, out     string
	from                     string
	printTopology, noFigures bool
	json                     bool
}

func sweepCommand(io streams) *cobra.Command {
	f := &sweepFlags{}
	c := &cobra.Command{
		Use:   "sweep",
		Short: "Four ways to share long-context attention among processors",
		Long: `Runs attention with grouped queries split over C cubes of P processing elements in four ways: positions
or queries over the PEs, positions split over or repeated in the cubes. Each rank is a goroutine with its
own shard; what moves is counted; the merged output is compared with unpartitioned attention. Writes
sweep_prefill.json and sweep_decode.json, and four figures of each as PNG and SVG.

latency_ns is modelled on the topology (--topology FILE, see --print-topology), measured_ns is the wall
time here. docs/sweep.md describes both.`,
		Example: `  engine sweep --out results
  engine sweep --mode decode --s-kv 131072 --cubes 16 --topology mine.json --out results
  engine sweep --from results/sweep_prefill.json --out figures`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	fs := c.Flags()
	fs.StringVar(&f.modes, "mode", sweep.Prefill+","+sweep.Decode, "what to run: prefill, decode or both")
	fs.IntVar(&f.cfg.SKV, "s-kv", 8192, "positions of keys and values")
	fs.IntVar(&f.cfg.TQ, "t-q", 512, "queries of prefill (decode has one)")
	fs.IntVar(&f.cfg.KVHeads, "kv-heads", 1, "key/value heads")
	fs.IntVar(&f.cfg.HeadDim, "head-dim", 128, "width of a head")
	fs.IntVar(&f.cfg.Group, "group", 8, "query heads per key/value head")
	fs.IntVar(&f.cfg.C, "cubes", 8, "cubes (C)")
	fs.IntVar(&f.cfg.P, "pes", 8, "processing elements per cube (P)")
	fs.Uint64Var(&f.cfg.Seed, "seed", 1, "seed of the values")
	fs.StringVar(&f.topology, "topology", "", "JSON file of the machine that latency is modelled on")
	fs.BoolVar(&f.printTopology, "print-topology", false, "print the default topology and end")
	fs.StringVar(&f.out, "out", ".", "directory for the documents and figures")
	fs.StringVar(&f.from, "from", "", "draw the figures of this document and run nothing")
	fs.BoolVar(&f.noFigures, "no-figures", false, "write the documents only")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

func (f *sweepFlags) run(c *cobra.Command, io streams) error {
	if f.printTopology {
		return printJSON(io.out, sweep.DefaultTopology())
	}
	if f.from != "" {
		return f.redraw(c, io)
	}
	configs, err := f.configs()
	if err != nil {
		return err
	}
	top := sweep.DefaultTopology()
	if f.topology != "" {
		if top, err = readTopology(f.topology); err != nil {
			return err
		}
	}
	if info, err := os.Stat(f.out); err != nil || !info.IsDir() {
		return usagef("--out %s: not a directory", f.out)
	}
	docs := map[string]*sweep.Document{}
	for _, cfg := range configs {
		doc, err := sweep.All(c.Context(), cfg, top, func(k sweep.Case) {
			fmt.Fprintf(io.err, "%s: running %s\n", cfg.Mode, k.Name)
		})
		if errors.Is(err, c.Context().Err()) && err != nil {
			return errInterrupted
		}
		if err != nil {
			return err
		}
		docs[cfg.Mode] = doc
		path := filepath.Join(f.out, "sweep_"+cfg.Mode+".json")
		if err := writeSweep(path, doc); err != nil {
			return err
		}
		fmt.Fprintln(io.err, "wrote", path)
		if !f.noFigures {
			if err := saveFigures(io, doc, f.out); err != nil {
				return err
			}
		}
		if !f.json {
			if err := printSweep(io, doc); err != nil {
				return err
			}
		}
	}
	if f.json {
		return printJSON(io.out, docs)
	}
	return nil
}

// configs are the modes' problems; all sizes are checked for every case before the first is run.
func (f *sweepFlags) configs() ([]sweep.Config, error) {
	var out []sweep.Config
	for mode := range strings.SplitSeq(f.modes, ",") {
		cfg := f.cfg
		if cfg.Mode = strings.TrimSpace(mode); cfg.Mode == sweep.Decode {
			cfg.TQ = 1
		}
		if avail, ok := machine.MemoryAvailable("/"); ok {
			cfg.Limit = avail
		}
		for _, k := range sweep.Cases() {
			if _, err := sweep.New(cfg, k); err != nil {
				return nil, usageError{err}
			}
		}
		out = append(out, cfg)
	}
	return out, nil
}

func (f *sweepFlags) redraw(c *cobra.Command, io streams) error {
	for _, name := range []string{"mode", "s-kv", "t-q", "kv-heads", "head-dim", "group", "cubes", "pes", "seed", "topology", "no-figures", "json"} {
		if c.Flags().Changed(name) {
			return usagef("--%s has no effect with --from", name)
		}
	}
	file, err := os.Open(f.from)
	if err != nil {
		return err
	}
	defer file.Close()
	doc, err := sweep.ReadDocument(file)
	if err != nil {
		return fmt.Errorf("%s: %w", f.from, err)
	}
	return saveFigures(io, doc, f.out)
}

func saveFigures(io streams, doc *sweep.Document, dir string) error {
	paths, err := doc.SaveFigures(dir, figure.Formats()...)
	for _, p := range paths {
		fmt.Fprintln(io.err, "wrote", p)
	}
	return err
}

func readTopology(path string) (sweep.Topology, error) {
	file, err := os.Open(path)
	if err != nil {
		return sweep.Topology{}, err
	}
	defer file.Close()
	t, err := sweep.ReadTopology(file)
	if err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func writeSweep(path string, doc *sweep.Document) error {
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return whole.WriteFile(path, func(w ioWriter) error { _, err := w.Write(append(b, '\n')); return err })
}

func printSweep(io streams, doc *sweep.Document) error {
	w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	c := doc.Config
	fmt.Fprintf(io.out, "%s: S_kv %d, T_q %d, %d x %d heads of %d, C=%d P=%d\n", c.Mode, c.SKV, c.TQ, c.KVHeads, c.Group, c.HeadDim, c.C, c.P)
	fmt.Fprintln(w, "case\tmodel us\tmeasured ms\tPEs\tKV KiB/PE\tT_q/PE\tS_kv/PE\twork\tcopies\tcopied MiB\treads\twrites\tmax error\t")
	for _, r := range doc.Rows {
		_, name, _ := strings.Cut(r.Panel, "_gqa_")
		fmt.Fprintf(w, "%s\t%.2f\t%.1f\t%d\t%.0f\t%d\t%d\t%d\t%d\t%.2f\t%d\t%d\t%.2g\t\n", name, r.LatencyNS/1e3, float64(r.MeasuredNS)/1e6, r.ActivePEs,
			float64(r.KVBytes)/1024, r.Work.TQ, r.SProcessed, r.Total, r.Summary.Copies, float64(r.CopyBytes)/(1<<20), r.Summary.Reads, r.Summary.Writes, r.MaxError)
	}
	return w.Flush()
}
