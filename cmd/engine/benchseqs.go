package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"sluice/bench"
	"sluice/bench/probe"
	"sluice/engine"
	"sluice/engine/machine"
	"sluice/kernels"
	"sluice/moe"
)

// seqsJSON is the document of bench --seqs.
type seqsJSON struct {
	Version  string            `json:"version"`
	Commit   string            `json:"commit"`
	Machine  string            `json:"machine"`
	Model    string            `json:"model"`
	Arch     string            `json:"arch"`
	ISA      string            `json:"isa,omitempty"` // absent on a device
	Threads  int               `json:"threads,omitempty"`
	Arm      string            `json:"arm"`
	Warnings []string          `json:"warnings"`
	Probe    *probe.Result     `json:"probe,omitempty"`
	Results  []bench.SeqsSpeed `json:"results"`
	SessionJSON
}

// runSeqs times several sequences that decode in step.
func (f *benchFlags) runSeqs(c *cobra.Command, io streams) (err error) {
	for _, name := range []string{"pp", "n-expert-used", "go-bench", "csv", "ops-csv", "chrome-trace"} {
		if c.Flags().Changed(name) {
			return usagef("--%s has no effect with --seqs, which times decoding of one setting", name)
		}
	}
	f.pp = ""
	cfg, axes, err := f.parse(c)
	if err != nil {
		return err
	}
	seqs := bench.SeqsConfig{Repeat: f.repeat, WarmUp: f.warmUp, Seed: f.seed, Tokens: cfg.TG[0], Depth: cfg.Depth[0]}
	if seqs.Seqs, err = numbers("seqs", f.seqsList); err != nil {
		return err
	}
	variants, _ := axes.Variants()
	if len(variants) != 1 || len(cfg.TG) != 1 || len(cfg.Depth) != 1 {
		return usagef("--seqs times one setting, one --tg and one --depth: the lists make more")
	}
	if f.repeat < 1 || f.warmUp < 0 {
		return usagef("--repeat %d, --warmup %d: want 1 or more, 0 or more", f.repeat, f.warmUp)
	}
	if err := f.check(c, io, variants); err != nil {
		return err
	}
	f.use(variants[0])
	f.seqs = slices.Max(seqs.Seqs)
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags, f.frac > 0)
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	if n := seqs.Depth + seqs.Tokens; n > s.NCtxTrain {
		return usagef("%d tokens at depth %d do not fit the model's context of %d", seqs.Tokens, seqs.Depth, s.NCtxTrain)
	}
	f.streamFlags.attach(s)
	t := &taps{selPath: f.selDump, tracePath: f.trace}
	before := bench.ReadLoad("/")
	r, err := s.session(c.Context(), moe.Drop{Frac: f.frac, Renorm: !f.noRenorm}, f.inPrefill, 0, t, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close(&io), r.Close()) }()
	bar := progress(io.err)
	results, err := bench.MeasureSeqs(c.Context(), r.Engine, seqs, func(done, of int) { bar(done, of, "rounds") })
	if err != nil {
		return err
	}
	doc := seqsJSON{Version: version, Commit: commit(), Machine: bench.CPUModel("/"), Model: s.Name, Arch: s.Arch, ISA: kernels.ISA(), Threads: f.threads,
		Arm: string(r.Config().Arm), Warnings: bench.LoadWarnings(before, bench.ReadLoad("/"), s.CPUs, f.threads), Results: results}
	if f.dev != nil {
		doc.ISA, doc.Threads = "", 0
	}
	for _, w := range doc.Warnings {
		fmt.Fprintln(io.err, "warning:", w)
	}
	printSession(io.err, r)
	if f.probe {
		if doc.Probe, err = f.seqsLimits(c, io, r.Engine, results); err != nil {
			return err
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	if !f.json {
		return bench.WriteSeqsTable(io.out, results)
	}
	if doc.Warnings == nil {
		doc.Warnings = []string{}
	}
	doc.SessionJSON = sessionReport(r, t)
	return printJSON(io.out, doc)
}

// seqsLimits measures the machine, and sets the limits of the results.
func (f *benchFlags) seqsLimits(c *cobra.Command, io streams, e *engine.Engine, results []bench.SeqsSpeed) (*probe.Result, error) {
	fmt.Fprintln(io.err, "measuring this machine")
	avail, _ := machine.MemoryAvailable("/")
	p, err := probe.Run(c.Context(), probe.Config{Threads: []int{f.threads}, Available: avail})
	if err != nil {
		return nil, err
	}
	for _, n := range p.Notes {
		fmt.Fprintln(io.err, "probe:", n)
	}
	fastest := 0.0
	for _, m := range p.Memory {
		fastest = max(fastest, m.Best)
	}
	return p, bench.SetSeqsLimits(c.Context(), results, e, fastest)
}
