package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/bench"
	"sluice/kernels"
	"sluice/moe"
)

type benchFlags struct {
	modelFlags
	cacheFlags
	dropFlags
	tapFlags
	pp, tg string
	repeat int
	seed   uint64
	json   bool
}

func benchCommand(io streams) *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use:     "bench",
		Short:   "Prefill and decode speed",
		Long:    `Times prefill and decode on random tokens, each from an empty context. One round warms up.`,
		Example: `  engine bench -m model.gguf --pp 512 --tg 64 --repeat 5`,
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	f.modelFlags.add(c, false)
	f.cacheFlags.add(c)
	f.dropFlags.add(c, false)
	f.tapFlags.add(c)
	fs := c.Flags()
	fs.StringVar(&f.pp, "pp", "512", "prompt lengths in tokens; empty: none")
	fs.StringVar(&f.tg, "tg", "64", "numbers of decoded tokens; empty: none")
	fs.IntVar(&f.repeat, "repeat", 3, "timed rounds")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the tokens fed")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

type benchJSON struct {
	Version string        `json:"version"`
	Model   string        `json:"model"`
	Arch    string        `json:"arch"`
	ISA     string        `json:"isa"`
	Threads int           `json:"threads"`
	Arm     string        `json:"arm"`
	Results []bench.Speed `json:"results"`
	sessionJSON
}

func (f *benchFlags) run(c *cobra.Command, io streams) (err error) {
	cfg := bench.SpeedConfig{Repeat: f.repeat, Seed: f.seed}
	if f.repeat < 1 {
		return usagef("--repeat %d: want 1 or more", f.repeat)
	}
	if f.pp != "" {
		if cfg.PP, err = numbers("pp", f.pp); err != nil {
			return err
		}
	}
	if f.tg != "" {
		if cfg.TG, err = numbers("tg", f.tg); err != nil {
			return err
		}
	}
	if len(cfg.PP)+len(cfg.TG) == 0 {
		return usagef("nothing to time: both --pp and --tg are empty")
	}
	if err := f.dropFlags.check(c, f.frac, f.mb != "0"); err != nil {
		return err
	}
	if err := f.tapFlags.resolve(c, io); err != nil {
		return err
	}
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	t := &taps{selPath: f.selDump, tracePath: f.trace}
	ses, plan, err := s.session(moe.Drop{Frac: f.frac, Renorm: !f.noRenorm}, f.inPrefill, f.nUsed, t, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close(&io), ses.Close()) }()
	if err := f.dropFlags.check(c, f.frac, plan.BudgetBytes > 0); err != nil {
		return err
	}
	for _, n := range append(append([]int{}, cfg.PP...), cfg.TG...) {
		if n > ses.Ctx() {
			return usagef("a test of %d tokens does not fit the context of %d (-c)", n, ses.Ctx())
		}
	}
	bar := progress(io.err)
	speeds, err := bench.MeasureSpeed(c.Context(), ses, s.model.NVocab, cfg, func(done, of int) { bar(done, of, "rounds") })
	if err != nil {
		return err
	}
	printSession(io.err, ses, plan)
	if f.json {
		if err := errors.Join(t.sel.Flush(), t.trace.Flush()); err != nil {
			return err
		}
		return printJSON(io.out, benchJSON{Version: version, Model: s.name, Arch: s.model.Arch, ISA: kernels.ISA(), Threads: f.threads,
			Arm: f.arm, Results: speeds, sessionJSON: sessionReport(ses, plan, t)})
	}
	fmt.Fprintf(io.out, "%-8s %12s %12s %12s\n", "test", "tokens/s", "min", "max")
	for _, r := range speeds {
		fmt.Fprintf(io.out, "%-8s %12.2f %12.2f %12.2f\n", r.Test, r.TPS, r.MinTPS, r.MaxTPS)
	}
	return nil
}
