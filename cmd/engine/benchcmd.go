package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/bench"
	"sluice/bench/probe"
	"sluice/engine"
	"sluice/engine/launch"
	"sluice/engine/machine"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

type benchFlags struct {
	modelFlags
	cacheFlags
	dropFlags
	tapFlags
	streamFlags
	pp, tg, depth             string
	drops, lanesList, teams   string // lists, in place of one value
	usedList                  string
	repeat, warmUp            int
	seed                      uint64
	probe, json, csv, gobench bool
	opsCSV, chromeTrace       string
	probeIO                   string
	seqsList                  string
}

func benchCommand(io streams) *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Prefill and decode speed, beside the machine's limit",
		Long: `Times prefill and decode on random tokens: medians over rounds that interleave everything compared.
--cache-mb, --drop-cold-experts, --arm, --io-threads and --threads take lists, which make a matrix.
Several drop thresholds are held against fewer experts per token at equal reads: with the share of
experts and of routed weight that was dropped stands what a smaller top-k would give for the same
bytes. --n-expert-used says which ones are run for that: the first goes with the thresholds, the
others drop nothing (default: the model's, and 3/4, 1/2, 1/4 of it and 1).
docs/benchmarks.md says how to get numbers that can be trusted.`,
		Example: `  engine bench -m model.gguf --pp 128,512 --tg 64 --depth 0,4096 --repeat 5 --probe
  engine bench -m model.gguf --pp "" --tg 64 --cache-mb 512,2048 --io-threads 2,8 --csv
  engine bench -m model.gguf --pp "" --tg 64 --cache-mb 512 --drop-cold-experts 0,0.5,0.75,1.0
  engine bench -m model.gguf --seqs 1,2,4,8 --tg 64 --probe
  engine bench -m model.gguf --ops-csv profile/ops.csv --chrome-trace profile/trace.json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	f.modelFlags.add(c, false)
	f.cacheFlags.add(c)
	f.dropFlags.add(c, true)
	f.tapFlags.add(c)
	f.streamFlags.add(c, "steps-csv")
	fs := c.Flags()
	fs.StringVar(&f.drops, "drop-cold-experts", "0", "skip a missing expert whose weight is below this fraction of 1/k; 0: never")
	for name, to := range map[string]*string{"threads": &f.teams, "io-threads": &f.lanesList, "n-expert-used": &f.usedList} {
		fs.Lookup(name).Value = (*listValue)(to) // lists here, numbers elsewhere
		fs.Lookup(name).DefValue = ""
	}
	fs.Lookup("n-expert-used").Usage = "experts per token; of a list the first goes with the drop thresholds, the others are what those are held against"
	fs.StringVar(&f.pp, "pp", "512", "prompt lengths in tokens; empty: none")
	fs.StringVar(&f.tg, "tg", "64", "numbers of decoded tokens; empty: none")
	fs.StringVar(&f.depth, "depth", "0", "tokens in the context before each test")
	fs.IntVar(&f.repeat, "repeat", 3, "timed rounds")
	fs.IntVar(&f.warmUp, "warmup", 1, "rounds before them that are not counted")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the tokens fed")
	fs.BoolVar(&f.probe, "probe", false, "measure this machine's memory and kernels too, and print how near the limit each figure is")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	fs.BoolVar(&f.csv, "csv", false, "print CSV with a preamble of # key=value lines")
	fs.BoolVar(&f.gobench, "go-bench", false, "print Go benchmark lines, for benchstat")
	fs.StringVar(&f.probeIO, "probe-io", "", "measure how fast direct reads of this file are, by block size and lanes, and nothing else")
	fs.StringVar(&f.seqsList, "seqs", "", "decode so many sequences in step, a list such as 1,2,4,8: tokens/s of all and of each, bytes a token")
	fs.StringVar(&f.opsCSV, "ops-csv", "", "then profile one pass op by op into this file, and "+"profile_log_device.csv beside it")
	fs.StringVar(&f.chromeTrace, "chrome-trace", "", "then record a run's ops, reads and cache decisions into this file, for Perfetto")
	return c
}

// listValue is a flag that holds a list as typed.
type listValue string

func (v *listValue) String() string     { return string(*v) }
func (v *listValue) Set(s string) error { *v = listValue(s); return nil }
func (v *listValue) Type() string       { return "list" }

type benchJSON struct {
	Version  string         `json:"version"`
	Commit   string         `json:"commit"`
	Machine  string         `json:"machine"`
	Model    string         `json:"model"`
	Arch     string         `json:"arch"`
	ISA      string         `json:"isa,omitempty"` // absent on a device
	Warnings []string       `json:"warnings"`
	Probe    *probe.Result  `json:"probe,omitempty"`
	Results  []bench.Speed  `json:"results"`
	Variants []benchVariant `json:"variants,omitempty"` // of a matrix; then what follows is left out

	Threads int    `json:"threads,omitempty"`
	Arm     string `json:"arm,omitempty"`
	*SessionJSON
}

// benchVariant is one setting of a matrix, with what sessionReport says of its session.
type benchVariant struct {
	Config bench.Variant `json:"config"`
	SessionJSON
}

func (f *benchFlags) run(c *cobra.Command, io streams) (err error) {
	if f.probeIO != "" {
		return probeIO(c.Context(), io, f.probeIO, f.json)
	}
	if err := f.take(c, io); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.give()) }()
	if c.Flags().Changed("seqs") {
		return f.runSeqs(c, io)
	}
	cfg, axes, err := f.parse(c)
	if err != nil {
		return err
	}
	variants, notes := axes.Variants()
	for _, n := range notes {
		fmt.Fprintln(io.err, n)
	}
	if err := f.check(c, io, variants); err != nil {
		return err
	}
	f.use(variants[0])
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags, slices.ContainsFunc(variants, func(v bench.Variant) bool { return v.Drop > 0 }))
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	f.streamFlags.attach(s)
	s.outputs = []namedFile{{"--ops-csv", f.opsCSV}, {"--chrome-trace", f.chromeTrace}}
	if variants, err = f.fewer(io, s, axes, variants); err != nil {
		return err
	}
	limit := s.NCtxTrain
	if c.Flags().Changed("ctx-size") {
		limit = f.ctx
	}
	for _, d := range cfg.Depth {
		for _, n := range slices.Concat(cfg.PP, cfg.TG) {
			if d+n > limit {
				return usagef("a test of %d tokens at depth %d does not fit the context of %d (-c)", n, d, limit)
			}
		}
	}
	t := &taps{selPath: f.selDump, tracePath: f.trace}
	weights, err := f.slotWeights(c, s, variants, cfg)
	if err != nil {
		return err
	}
	before := bench.ReadLoad("/")
	runs, err := f.open(c, s, variants, t)
	defer func() {
		err = errors.Join(err, t.close(&io))
		for _, r := range runs {
			err = errors.Join(err, r.Close())
		}
	}()
	if err != nil {
		return err
	}
	subjects := make([]bench.Subject, len(runs))
	for i, r := range runs {
		subjects[i] = bench.Subject{Variant: variants[i], Session: r.Session, Enter: func() { runtime.GOMAXPROCS(r.Procs) }}
	}
	bar := progress(io.err)
	speeds, err := bench.MeasureSpeed(c.Context(), s.Model.Model, subjects, cfg, func(done, of int) { bar(done, of, "rounds") })
	if err != nil {
		return err
	}
	if weights != nil {
		bench.SetWeightLost(speeds, weights)
	}
	bench.CompareTopK(speeds)
	doc := benchJSON{Version: version, Commit: commit(), Machine: bench.CPUModel("/"), Model: s.Name, Arch: s.Arch, ISA: kernels.ISA(),
		Warnings: []string{}, Results: speeds}
	if f.dev != nil {
		doc.ISA = ""
	}
	for i, v := range variants {
		for _, w := range bench.LoadWarnings(before, bench.ReadLoad("/"), s.CPUs, v.Threads) {
			if !slices.Contains(doc.Warnings, w) {
				doc.Warnings = append(doc.Warnings, w)
				fmt.Fprintln(io.err, "warning:", w)
			}
		}
		if len(variants) > 1 {
			fmt.Fprintf(io.err, "%s: %s\n", v, runs[i].Plan)
		}
		printSession(io.err, runs[i])
	}
	if f.probe {
		if doc.Probe, err = f.measureMachine(c, io, s, speeds); err != nil {
			return err
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := f.print(io, &doc, variants, runs, t); err != nil {
		return err
	}
	if f.opsCSV == "" && f.chromeTrace == "" {
		return nil
	}
	for _, r := range runs {
		err = errors.Join(err, r.Close())
	}
	if runs = nil; err != nil {
		return err
	}
	return f.record(c, io, s, variants[0], cfg)
}

// parse reads the lists.
func (f *benchFlags) parse(c *cobra.Command) (cfg bench.SpeedConfig, axes bench.Axes, err error) {
	cfg = bench.SpeedConfig{Repeat: f.repeat, WarmUp: f.warmUp, Seed: f.seed}
	fs := c.Flags()
	switch {
	case f.repeat < 1:
		return cfg, axes, usagef("--repeat %d: want 1 or more", f.repeat)
	case f.warmUp < 0:
		return cfg, axes, usagef("--warmup %d: want 0 or more", f.warmUp)
	case f.json && f.csv || f.json && f.gobench || f.csv && f.gobench:
		return cfg, axes, usagef("--json, --csv and --go-bench: want one of them")
	}
	for _, name := range []string{"ops-csv", "chrome-trace"} {
		if fs.Changed(name) && fs.Lookup(name).Value.String() == "" {
			return cfg, axes, usagef("--%s: want a file name", name)
		}
	}
	for _, l := range []struct {
		flag, list string
		to         *[]int
	}{{"pp", f.pp, &cfg.PP}, {"tg", f.tg, &cfg.TG}, {"threads", f.teams, &axes.Threads}, {"io-threads", f.lanesList, &axes.IOThreads},
		{"n-expert-used", f.usedList, &axes.NExpertUsed}} {
		if l.list == "" && !(fs.Changed(l.flag) && l.to != &cfg.PP && l.to != &cfg.TG) {
			continue
		}
		if *l.to, err = numbers(l.flag, l.list); err != nil {
			return cfg, axes, err
		}
	}
	if len(cfg.PP)+len(cfg.TG) == 0 {
		return cfg, axes, usagef("nothing to time: both --pp and --tg are empty")
	}
	for s := range strings.SplitSeq(f.depth, ",") {
		d, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || d < 0 {
			return cfg, axes, usagef("--depth %q: want whole numbers of 0 or more, separated by commas", f.depth)
		}
		cfg.Depth = append(cfg.Depth, d)
	}
	if axes.Drop, err = fractions("drop-cold-experts", f.drops); err != nil {
		return cfg, axes, err
	}
	if f.arm == "" {
		f.arm = f.armDefault()
	}
	axes.Arm, axes.CacheMB = strings.Split(string(f.arm), ","), strings.Split(f.mb, ",")
	if axes.Threads == nil {
		axes.Threads = []int{0}
	}
	if axes.IOThreads == nil {
		axes.IOThreads = []int{0}
	}
	if need := longest(cfg); need > engine.DefaultCtx && !fs.Changed("ctx-size") {
		f.ctx = need
	}
	return cfg, axes, nil
}

func longest(cfg bench.SpeedConfig) (need int) {
	for _, d := range cfg.Depth {
		for _, n := range slices.Concat(cfg.PP, cfg.TG) {
			need = max(need, d+n)
		}
	}
	return need
}

// check refuses settings before a model is opened.
func (f *benchFlags) check(c *cobra.Command, io streams, variants []bench.Variant) error {
	if len(variants) == 0 {
		return usagef("--drop-cold-experts %s drops nothing without an expert cache: name one with --cache-mb", f.drops)
	}
	dropping, cached := 0.0, true
	for _, v := range variants {
		dropping, cached = max(dropping, v.Drop), cached && (v.Drop == 0 || v.CacheMB != "0")
		if v.Arm != "host" && v.Arm != "table" {
			return usagef("--arm %q: want host or table", v.Arm)
		}
	}
	if err := f.dropFlags.check(c, dropping, cached); err != nil {
		return err
	}
	if err := f.streamFlags.check(c, cached && f.mb != "0"); err != nil {
		return err
	}
	if err := f.tapFlags.resolve(c, io); err != nil {
		return err
	}
	if len(variants) > 1 {
		for _, name := range []string{"sel-dump", "route-trace", "ops-csv", "chrome-trace", "cache-save", "cache-load", "progress", "steps-csv"} {
			if c.Flags().Changed(name) {
				return usagef("--%s records one setting: the lists make %d", name, len(variants))
			}
		}
		f.selDump = "" // armed by the environment
	}
	for _, path := range []string{f.opsCSV, f.chromeTrace} {
		if path != "" && !isFolder(filepath.Dir(path)) {
			return usagef("%s: there is no folder %s", path, filepath.Dir(path))
		}
	}
	return nil
}

// use puts a variant into the flags that the rest of the program reads.
func (f *benchFlags) use(v bench.Variant) {
	f.mb, f.frac, f.arm, f.lanes, f.threads, f.nUsed = v.CacheMB, v.Drop, model.Arm(v.Arm), v.IOThreads, v.Threads, v.NExpertUsed
}

// fewer adds the settings with fewer experts that dropping is held against, where thresholds are compared and none are
// named: as far as memory allows, and it says what it leaves out.
func (f *benchFlags) fewer(io streams, s *setup, axes bench.Axes, variants []bench.Variant) ([]bench.Variant, error) {
	if len(axes.Drop) < 2 || !s.drops || len(axes.NExpertUsed) > 0 {
		return variants, nil
	}
	axes.NExpertUsed = bench.FewerExperts(s.NExpertUsed)
	more, _ := axes.Variants()
	need := int64(len(more)) * bench.SessionBytes(s.Model.Model, s.Cache, engine.Config{Ctx: f.ctx, KV: f.kv})
	if avail := s.Cache.Available; len(axes.CacheMB) > 1 || avail > 0 && need > avail {
		fmt.Fprintf(io.err, "left out: fewer experts per token beside the thresholds: that makes %d settings at once; --n-expert-used %d,%d asks for one\n",
			len(more), s.NExpertUsed, (s.NExpertUsed+1)/2)
		return variants, nil
	}
	return more, nil
}

// slotWeights is what fewer experts leave out of the routed weight: one pass of the first setting, undropped and watched
// for this alone. nil: no setting has fewer.
func (f *benchFlags) slotWeights(c *cobra.Command, s *setup, variants []bench.Variant, cfg bench.SpeedConfig) (*bench.SlotWeights, error) {
	most, fewer := variants[0].NExpertUsed, false
	for _, v := range variants {
		fewer = fewer || v.NExpertUsed != most
		most = max(most, v.NExpertUsed)
	}
	if !fewer {
		return nil, nil
	}
	f.use(variants[0])
	w := &bench.SlotWeights{}
	s.tap = w
	ses, err := s.session(c.Context(), moe.Drop{}, false, most, nil, true)
	s.tap = nil
	if err != nil {
		return nil, err
	}
	return w, errors.Join(bench.Feed(c.Context(), ses.Session, s.Model.Model, cfg), ses.Close())
}

// open opens a session for each variant, all at once, and completes the variants' defaults.
func (f *benchFlags) open(c *cobra.Command, s *setup, variants []bench.Variant, t *taps) (runs []*launch.Run, err error) {
	caches := make([]engine.SourceConfig, len(variants))
	var need int64
	for i := range variants {
		v := &variants[i]
		if v.Threads == 0 && f.dev == nil {
			v.Threads = s.CPUs.Threads()
		}
		if v.NExpertUsed == 0 {
			v.NExpertUsed = s.NExpertUsed
		}
		if caches[i], err = f.cache(c, s, *v, i); err != nil {
			return nil, err
		}
		need += bench.SessionBytes(s.Model.Model, caches[i], engine.Config{Ctx: f.ctx, KV: f.kv})
	}
	if avail := s.Cache.Available; len(variants) > 1 && avail > 0 && need > avail {
		return nil, usagef("%d settings at once need %d MiB for expert caches, copies and contexts, %d MiB are available: shorten a list, or try --dense mmap",
			len(variants), need>>20, avail>>20)
	}
	s.several = len(variants) > 1
	ahead := false
	for i, v := range variants {
		f.use(v)
		s.Cache = caches[i]
		tap := t
		if len(variants) > 1 {
			tap = nil
		}
		ses, err := s.session(c.Context(), moe.Drop{Frac: v.Drop, Renorm: !f.noRenorm}, f.inPrefill, f.nUsed, tap, i > 0)
		if err != nil {
			return runs, err
		}
		runs = append(runs, ses)
		variants[i].IOThreads = ses.Plan.Lanes
		if ses.Plan.BudgetBytes > 0 && f.dev == nil {
			variants[i].Prefetch = string(ses.Config().Prefetch)
		}
		ahead = ahead || ses.Config().Prefetch != moe.PrefetchOff
	}
	if f.prefetchMB > 0 && !ahead {
		return runs, usagef("--prefetch-mb %d has no effect: no setting reads ahead", f.prefetchMB)
	}
	return runs, nil
}

// cache is the i-th variant's expert cache. The first one's was settled with the placement of the weights.
func (f *benchFlags) cache(c *cobra.Command, s *setup, v bench.Variant, i int) (engine.SourceConfig, error) {
	if i == 0 {
		return s.Cache, nil
	}
	f.use(v)
	cache := engine.SourceConfig{}
	if v.CacheMB != "0" {
		var err error
		if cache, err = f.cacheFlags.config(c); err != nil {
			return cache, err
		}
		if v.IOThreads == 0 {
			cache.Lanes = 0
		}
	} else if f.dense == engine.DenseAnon || s.Cache.IO == "resident" {
		cache.IO = "resident"
	}
	cache.Available, cache.Reserved = s.Cache.Available, s.Cache.Reserved
	return cache, nil
}

// measureMachine probes, and sets the limits of the results.
func (f *benchFlags) measureMachine(c *cobra.Command, io streams, s *setup, speeds []bench.Speed) (*probe.Result, error) {
	fmt.Fprintln(io.err, "measuring this machine")
	avail, _ := machine.MemoryAvailable("/")
	p, err := bench.Probe(c.Context(), speeds, avail)
	if err != nil {
		return nil, err
	}
	for _, n := range p.Notes {
		fmt.Fprintln(io.err, "probe:", n)
	}
	used := f.nUsed
	if used == 0 {
		used = s.NExpertUsed
	}
	return p, bench.SetLimits(speeds, s.Model.Model, used, p)
}

func (f *benchFlags) print(io streams, doc *benchJSON, variants []bench.Variant, runs []*launch.Run, t *taps) error {
	facts := bench.Facts{Version: doc.Version, Commit: doc.Commit, Machine: doc.Machine, Model: doc.Model, Arch: doc.Arch, ISA: doc.ISA,
		Flags: strings.Join(os.Args[1:], " "), Warnings: doc.Warnings}
	if f.dev != nil {
		facts.Device = f.dev.Name()
	}
	switch {
	case f.csv:
		return bench.WriteCSV(io.out, facts, doc.Results)
	case f.gobench:
		return bench.WriteGoBench(io.out, facts, doc.Results)
	case !f.json:
		return bench.WriteTable(io.out, doc.Results)
	}
	if len(runs) == 1 {
		r := sessionReport(runs[0], t)
		doc.Threads, doc.Arm = variants[0].Threads, variants[0].Arm
		doc.SessionJSON = &r
	} else {
		for i, r := range runs {
			doc.Variants = append(doc.Variants, benchVariant{variants[i], sessionReport(r, nil)})
		}
	}
	return printJSON(io.out, doc)
}

// record makes the recorded run, in a session of its own.
func (f *benchFlags) record(c *cobra.Command, io streams, s *setup, v bench.Variant, cfg bench.SpeedConfig) (err error) {
	s.stream = nil // its logs belong to the timed run
	rc := bench.RecordConfig{Depth: cfg.Depth[0], Seed: cfg.Seed, OpsCSV: f.opsCSV, ChromeTrace: f.chromeTrace,
		Facts: map[string]string{"version": version, "commit": commit(), "model": s.Name, "machine": bench.CPUModel("/"), "isa": kernels.ISA(), "flags": strings.Join(os.Args[1:], " ")}}
	if f.dev != nil {
		delete(rc.Facts, "isa")
		rc.Facts["device"] = f.dev.Name()
	}
	if len(cfg.PP) > 0 {
		rc.Prompt = cfg.PP[0]
	}
	if len(cfg.TG) > 0 {
		rc.Decode = cfg.TG[0]
	}
	if f.ctx == 0 || f.ctx < rc.Depth+rc.Prompt+rc.Decode+1 {
		f.ctx = min(s.NCtxTrain, rc.Depth+rc.Prompt+rc.Decode+1)
	}
	if over := rc.Depth + rc.Prompt + rc.Decode - f.ctx; over > 0 { // each test fits, not one after the other
		rc.Prompt = max(0, rc.Prompt-over)
		rc.Decode = min(rc.Decode, f.ctx-rc.Depth-rc.Prompt)
	}
	f.use(v)
	s.rec = rc.NewRecorder(s.Model.Model, f.batch)
	ses, err := s.session(c.Context(), moe.Drop{Frac: v.Drop, Renorm: !f.noRenorm}, f.inPrefill, f.nUsed, nil, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.Close()) }()
	notes, err := bench.RecordRun(c.Context(), ses.Session, s.rec, s.Model.Model, rc)
	for _, n := range notes {
		fmt.Fprintln(io.err, n)
	}
	return err
}

// commit is what the build recorded of the source it was built from, by itself or in version.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if revision == "unknown" {
		return version
	}
	return revision + dirty
}
