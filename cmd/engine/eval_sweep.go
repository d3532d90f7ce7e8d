package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"sluice/bench/quality"
	"sluice/engine"
	"sluice/engine/tokenizer"
	"sluice/moe"
)

// sweepFracs are the thresholds of --drop-sweep where none is typed.
const sweepFracs = "0,0.25,0.5,0.75,1.0"

// evalSweepJSON is the document of eval --drop-sweep.
type evalSweepJSON struct {
	Model      string `json:"model"`
	File       string `json:"file"`
	CacheBytes int64  `json:"cache_bytes"`
	Policy     string `json:"cache_policy"`
	IO         string `json:"io"`
	Renorm     bool   `json:"drop_renorm"`
	*quality.Report
	Verdict string `json:"verdict"`
}

func (f *evalFlags) runSweep(c *cobra.Command, file string, io streams) (err error) {
	conf, plots, err := f.sweepConfig(c, io)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if f.modelFlags.ctx == 0 {
		f.modelFlags.ctx = f.chunk
	}
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags, true)
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	k := s.NExpertUsed
	if conf.Used == nil {
		for n := range k {
			conf.Used = append(conf.Used, n+1)
		}
	}
	if most := slices.Max(conf.Used); most > k {
		return usagef("--n-expert-used %d: a sweep wants 1..%d (the model's top-k), the undropped run has that", most, k)
	}
	most := slices.Max(conf.Fracs)
	if err := (moe.Drop{Frac: most}).Validate(k); err != nil {
		return usageError{fmt.Errorf("--drop-cold-experts: %w", err)}
	}
	var source engine.SourcePlan
	first := true
	openSession := func(frac float64, used int) (*engine.Session, error) {
		ses, err := s.session(c.Context(), moe.Drop{Frac: frac, Renorm: !f.noRenorm}, false, used, nil, !first)
		if err != nil {
			return nil, err
		}
		if ses.Plan.BudgetBytes == 0 {
			return nil, errors.Join(usagef("--drop-sweep compares reads, and without an expert cache there are none: name one with --cache-mb"), ses.Close())
		}
		source, first = ses.Plan, false
		return ses.Session, nil
	}
	ids := s.Tok.Encode(string(text), tokenizer.EncodeOptions{})
	bar := progress(io.err)
	r, err := quality.Run(c.Context(), s.Model.Model, ids, openSession, conf, func(point, points, chunk, chunks int, p quality.Point) {
		bar(point*chunks+chunk, points*chunks, fmt.Sprintf("drop %g, %d experts: perplexity %.4f", p.DropFrac, p.NExpertUsed, p.Perplexity))
	})
	if err != nil {
		return err
	}
	for _, p := range plots {
		if err := r.SavePlot(p); err != nil {
			return err
		}
		fmt.Fprintln(io.err, "wrote", p)
	}
	if f.json {
		return printJSON(io.out, evalSweepJSON{Model: s.Name, File: file, CacheBytes: source.BudgetBytes, Policy: source.Policy, IO: source.IO,
			Renorm: !f.noRenorm, Report: r, Verdict: r.Verdict()})
	}
	return r.WriteText(io.out)
}

// sweepConfig refuses what a sweep has no use for and reads the lists.
func (f *evalFlags) sweepConfig(c *cobra.Command, io streams) (conf quality.Config, plots []string, err error) {
	fs := c.Flags()
	if f.chunk < 2 {
		return conf, nil, usagef("--chunk %d: want 2 or more", f.chunk)
	}
	if f.modelFlags.ctx > 0 && f.chunk > f.modelFlags.ctx {
		return conf, nil, usagef("--chunk %d: the context holds %d tokens", f.chunk, f.modelFlags.ctx)
	}
	if fs.Changed("mode") && f.mode != string(engine.EvalDecode) {
		return conf, nil, usagef("--mode %q: --drop-sweep runs in decode mode throughout", f.mode)
	}
	if fs.Changed("drop-in-prefill") {
		return conf, nil, usagef("--drop-in-prefill has no effect with --drop-sweep: everything is decoded")
	}
	if err := f.tapFlags.resolve(c, io); err != nil {
		return conf, nil, err
	}
	for _, tap := range []struct{ path, name string }{{f.selDump, "--sel-dump"}, {f.trace, "--route-trace"}} {
		if tap.path == "" {
			continue
		}
		if tap.name == "--sel-dump" && f.fromEnv {
			tap.name = selDumpEnv
		}
		return conf, nil, usagef("%s: a recording takes one configuration, and --drop-sweep runs several", tap.name)
	}
	list := sweepFracs
	if fs.Changed("drop-cold-experts") {
		list = f.fracs
	}
	conf.Chunk = f.chunk
	if conf.Fracs, err = fractions("drop-cold-experts", list); err != nil {
		return conf, nil, err
	}
	if err := f.dropFlags.check(c, slices.Max(conf.Fracs), true); err != nil {
		return conf, nil, err
	}
	if f.mb == "0" || f.cacheFlags.io == "mmap" {
		return conf, nil, usagef("--drop-sweep compares reads, and without an expert cache there are none: name one with --cache-mb")
	}
	if fs.Changed("n-expert-used") {
		if conf.Used, err = numbers("n-expert-used", f.used); err != nil {
			return conf, nil, err
		}
	}
	if fs.Changed("plot") {
		if plots, err = quality.PlotFiles(f.plot); err != nil {
			return conf, nil, usageError{fmt.Errorf("--plot: %w", err)}
		}
	}
	return conf, plots, nil
}
