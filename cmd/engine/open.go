package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/gguf"
	"sluice/engine/launch"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// openModel opens the named file, or the built-in demo model when none is named.
func (f *modelFlags) openModel() (*model.Model, string, error) {
	return launch.OpenModel(f.path, f.pre)
}

// setup is a model with what its sessions share.
type setup struct {
	*launch.Model
	io      streams
	flags   *modelFlags
	ahead   *cacheFlags     // what is read ahead
	drops   bool            // a session of the command drops experts, not each need do so
	several bool            // settings are compared: what one of them cannot have, another can
	rec     *model.Recorder // of the next session; nil: none
	tap     moe.Tap         // of the next session, beside its recordings; nil: none
	stream  *streamFlags    // of the next session; nil: none
	outputs []namedFile     // that the command writes beside the session's
	opened  int             // sessions so far
	noted   []string        // lines that once printed
}

// open checks the flags, opens the model and prints what runs on what. drops tells whether a session of the command is to
// drop experts.
func open(c *cobra.Command, io streams, mf *modelFlags, cf *cacheFlags, drops bool) (s *setup, err error) {
	if err := mf.check(c); err != nil {
		return nil, err
	}
	cache, err := cf.config(c)
	if err != nil {
		return nil, err
	}
	if err := mf.take(c, io); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, mf.give())
		}
	}()
	m, name, err := mf.openModel()
	if err != nil {
		return nil, err
	}
	if err := mf.try(io, m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if mf.arm == "" {
		mf.arm = mf.armDefault()
	}
	if mf.dev != nil {
		mf.dense = engine.DenseMmap // the device has copies of its own
	}
	l, err := launch.Place(m, name, launch.ModelOptions{Dense: mf.dense, Cache: cache, Ctx: mf.ctx, Seqs: mf.seqs, KV: mf.kv})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	s = &setup{Model: l, io: io, flags: mf, ahead: cf, drops: drops}
	if mf.threads == 0 {
		mf.threads = s.CPUs.Threads()
	}
	fmt.Fprintf(io.err, "model: %s (%s, %d layers, %d experts, %d used, %d MiB)\n", name, m.Arch, m.NLayer, m.NExpert, m.NExpertUsed,
		(m.DenseBytes()+m.ExpertBytes())>>20)
	for _, n := range m.Notes() {
		fmt.Fprintln(io.err, "model:", n)
	}
	for _, n := range m.Tok.Notes() {
		fmt.Fprintln(io.err, "tokenizer:", n)
	}
	if l.Known {
		fmt.Fprintf(io.err, "memory: %s available\n", l.Memory)
	}
	if mf.dev == nil {
		fmt.Fprintf(io.err, "weights: %s (%s)\n", l.Placement.Mode, l.Placement.Why)
	}
	for _, n := range l.Placement.Notes {
		fmt.Fprintln(io.err, "weights:", n)
	}
	if mf.dev == nil {
		fmt.Fprintf(io.err, "kernels: %s (processor has %s), %d threads of %s\n", kernels.ISA(), kernels.Features(), mf.threads, s.CPUs)
	}
	return s, nil
}

// close ends what a command did with the model: err is how it went. Results of a file that changed meanwhile are an error,
// and what went wrong may have come of it; a fault in the mapping says so itself.
func (s *setup) close(err error) error {
	var fault *gguf.FaultError
	if changed := s.File.Changed(); changed != nil && !errors.As(err, &fault) {
		if errors.Is(err, context.Canceled) {
			err = errInterrupted // which is all that is said of a run that was, but here
		}
		err = errors.Join(err, changed)
	}
	return errors.Join(err, s.flags.give(), s.Model.Close())
}

// taps are the recordings of one session.
type taps struct {
	selPath, tracePath string
	run                *launch.Run // nil until it is open
	failed             bool        // the run did: what the cache has come to is not saved
}

// session opens one session, or with several sequences an engine. drop and nUsed vary between the rows of a comparison;
// quiet leaves out the lines that would repeat.
func (s *setup) session(c context.Context, drop moe.Drop, dropInPrefill bool, nUsed int, t *taps, quiet bool) (*launch.Run, error) {
	mf := s.flags
	o := launch.Options{Cache: s.Cache, Device: mf.device, Version: version,
		Config: engine.Config{Ctx: mf.ctx, Seqs: mf.seqs, Batch: mf.batch, Threads: mf.threads, Arm: mf.arm, KV: mf.kv, NExpertUsed: nUsed,
			ExactActs: mf.acts == "f32", Drop: drop, DropInPrefill: dropInPrefill, Recorder: s.rec},
		Ahead: launch.Ahead{Mode: s.ahead.prefetch, Bytes: s.ahead.prefetchMB << 20, Drops: s.drops, Several: s.several}}
	if mf.dev != nil {
		o.Config.Device, o.Config.Threads = mf.dev, 0
	}
	if nUsed > s.NExpert {
		return nil, usagef("--n-expert-used %d: want 1..%d (the model's expert_count)", nUsed, s.NExpert)
	}
	if err := s.apart(t); err != nil {
		return nil, err
	}
	if s.rec != nil {
		o.Cache.Observer = s.rec
	}
	if t != nil {
		o.SelDump, o.Trace = t.selPath, t.tracePath
	}
	if s.tap != nil {
		o.Config.Taps = []moe.Tap{s.tap}
	}
	s.stream.options(s, &o)
	r, err := s.Start(c, o)
	if err != nil {
		return nil, s.explain(err, o)
	}
	s.opened++
	if r.Sel != nil {
		for _, n := range r.Sel.Notes() {
			fmt.Fprintln(s.io.err, "selection dump:", n)
		}
	}
	if !quiet {
		s.describe(r)
	}
	if r.Plan.BudgetBytes > 0 && mf.dev == nil && !(quiet && s.opened == 1) { // one that is quiet and the first is in no table
		s.once("experts: read ahead: " + string(r.Config().Prefetch) + r.WhyAhead)
	}
	if n := hostCacheNote(r); n != "" {
		s.once("device: " + n)
	}
	if l := r.Loaded; l != nil {
		left := ""
		if l.Left > 0 {
			left = fmt.Sprintf(", %d more do not fit", l.Left)
		}
		fmt.Fprintf(s.io.err, "cache: %s: %d experts loaded, %.1f MiB in %.3f s%s\n", o.CacheLoad, l.Experts, float64(l.Bytes)/(1<<20), l.Seconds, left)
	}
	if t != nil {
		t.run = r
	}
	return r, nil
}

// explain turns what assembling a run refuses into the flags that asked for it.
func (s *setup) explain(err error, o launch.Options) error {
	var none *launch.NoEffectError
	switch {
	case errors.Is(err, launch.ErrNothingToDrop):
		return usagef("--drop-cold-experts %v drops nothing without an expert cache: name one with --cache-mb", o.Config.Drop.Frac)
	case errors.As(err, &none):
		return usagef("--prefetch-mb %d has no effect: --prefetch %s is %s here%s", s.ahead.prefetchMB, launch.PrefetchAuto, none.Mode, none.Why)
	case errors.Is(err, launch.ErrNoCacheState):
		return usagef("--cache-save and --cache-load: all experts are in memory, there is no expert cache: name one with --cache-mb")
	case errors.Is(err, launch.ErrIdleCache):
		name, file := "cache-save", o.CacheSave
		if file == "" {
			name, file = "cache-load", o.CacheLoad
		}
		return usagef("--%s %s has no effect: the device has all experts and the host's cache is not used: leave it out, or give the device less with --device-cache-mb",
			name, file)
	}
	return memoryHint(err, s.flags.cacheMB != "auto", s.opened > 0)
}

// describe prints what a session is.
func (s *setup) describe(r *launch.Run) {
	full := r.Config()
	several := ""
	if full.Seqs > 1 {
		several = fmt.Sprintf("%d sequences of ", full.Seqs)
	}
	fmt.Fprintf(s.io.err, "session: %s%d tokens of context (%s, %.1f MiB), prompt chunk %d, %s arm, %d experts per token\n",
		several, full.Ctx, full.KV, float64(engine.KVBytes(s.Model.Model, full))/(1<<20), full.Batch, full.Arm, full.NExpertUsed)
	fmt.Fprintln(s.io.err, "experts:", r.Plan)
	for _, n := range r.Plan.Notes {
		fmt.Fprintln(s.io.err, "experts:", n)
	}
	for _, n := range r.Notes() {
		fmt.Fprintln(s.io.err, "device:", n)
	}
}

// once prints a line that the rows of a comparison may differ in, not again for each of them.
func (s *setup) once(line string) {
	if !slices.Contains(s.noted, line) {
		s.noted = append(s.noted, line)
		fmt.Fprintln(s.io.err, line)
	}
}

// flush brings the recordings' counts to what is on disk.
func (t *taps) flush() error {
	if t.run == nil {
		return nil
	}
	return t.run.Flush()
}

// close ends the recordings and prints their receipts (w nil: says nothing). An armed recording
// that recorded nothing is said. The engine stays open.
func (t *taps) close(io *streams) error {
	if t == nil || t.run == nil {
		return nil
	}
	r := t.run
	saved, err := r.Finish(t.failed)
	if io == nil {
		return err
	}
	if save := r.Options().CacheSave; save != "" {
		switch {
		case t.failed:
			fmt.Fprintf(io.err, "cache: not saved to %s: the run failed\n", save)
		case saved >= 0:
			fmt.Fprintf(io.err, "cache: %d experts saved to %s\n", saved, save)
		}
	}
	receipt := func(what, path string, n uint64, unit string) {
		if n == 0 {
			fmt.Fprintf(io.err, "%s: %s: NOTHING was recorded\n", what, path)
			return
		}
		fmt.Fprintf(io.err, "%s: %s: %d %s\n", what, path, n, unit)
	}
	if r.Sel != nil {
		receipt("selection dump", t.selPath, r.Sel.Records(), "records")
	}
	if r.Trace != nil {
		receipt("route trace", t.tracePath, r.Trace.Rows(), "rows")
	}
	return err
}
