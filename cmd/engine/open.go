package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/replay"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/machine"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// openModel opens the named file, or the built-in demo model when none is named.
func (f *modelFlags) openModel() (*model.Model, string, error) {
	if f.path != "" {
		m, err := model.Open(f.path, model.OpenOptions{Pre: f.pre})
		return m, filepath.Base(f.path), err
	}
	file, err := gguf.Parse(demo.Name, demo.Model())
	if err != nil {
		return nil, "", err
	}
	m, err := model.New(file, model.OpenOptions{Pre: f.pre})
	return m, demo.Name, err
}

// setup is a model with what its sessions share.
type setup struct {
	io      streams
	model   *model.Model
	name    string
	cpus    machine.CPUs
	flags   *modelFlags
	cache   engine.SourceConfig
	ahead   *cacheFlags     // what is read ahead
	drops   bool            // a session of the command drops experts, not each need do so
	several bool            // settings are compared: what one of them cannot have, another can
	rec     *model.Recorder // of the next session; nil: none
	stream  *stream         // of the next session; nil: none
	outputs []place         // that the command writes beside the session's
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
	s = &setup{io: io, model: m, name: name, cpus: machine.ReadCPUs("/"), flags: mf, cache: cache, ahead: cf, drops: drops}
	mem, known := machine.ReadMemory("/")
	if known { // 0 would be: not known
		s.cache.Available, s.cache.Reserved = max(1, mem.Available), m.DenseBytes()+engine.KVBytes(m, engine.Config{Ctx: mf.ctx, KV: mf.kv})
	}
	place, err := engine.PlaceWeights(m, mf.dense, &s.cache)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if mf.threads == 0 {
		mf.threads = s.cpus.Threads()
	}
	fmt.Fprintf(io.err, "model: %s (%s, %d layers, %d experts, %d used, %d MiB)\n", name, m.Arch, m.NLayer, m.NExpert, m.NExpertUsed,
		(m.DenseBytes()+m.ExpertBytes())>>20)
	for _, n := range m.Tok.Notes() {
		fmt.Fprintln(io.err, "tokenizer:", n)
	}
	if known {
		fmt.Fprintf(io.err, "memory: %s available\n", mem)
	}
	if mf.dev == nil {
		fmt.Fprintf(io.err, "weights: %s (%s)\n", place.Mode, place.Why)
	}
	for _, n := range place.Notes {
		fmt.Fprintln(io.err, "weights:", n)
	}
	if mf.dev == nil {
		fmt.Fprintf(io.err, "kernels: %s (processor has %s), %d threads of %s\n", kernels.ISA(), kernels.Features(), mf.threads, s.cpus)
	}
	return s, nil
}

// close ends what a command did with the model: err is how it went. Results of a file that changed meanwhile are an error,
// and what went wrong may have come of it; a fault in the mapping says so itself.
func (s *setup) close(err error) error {
	var fault *gguf.FaultError
	if changed := s.model.File.Changed(); changed != nil && !errors.As(err, &fault) {
		if errors.Is(err, context.Canceled) {
			err = errInterrupted // which is all that is said of a run that was, but here
		}
		err = errors.Join(err, changed)
	}
	return errors.Join(err, s.flags.give(), s.model.Close())
}

// taps are the recordings of one session.
type taps struct {
	selPath, tracePath string
	sel                *dump.SelWriter
	trace              *dump.TraceWriter
	stream             *stream // of the session, which is open until after close; nil: none
	ses                *engine.Session
	failed             bool // the run did: what the cache has come to is not saved
}

// session opens one session. drop and nUsed vary between the rows of a comparison; quiet leaves out
// the lines that would repeat.
func (s *setup) session(drop moe.Drop, dropInPrefill bool, nUsed int, t *taps, quiet bool) (*engine.Session, engine.SourcePlan, error) {
	m, mf := s.model, s.flags
	cfg := engine.Config{Ctx: mf.ctx, Batch: mf.batch, Threads: mf.threads, Arm: mf.arm, KV: mf.kv, NExpertUsed: nUsed,
		ExactActs: mf.acts == "f32", Drop: drop, DropInPrefill: dropInPrefill, Recorder: s.rec}
	if mf.dev != nil {
		cfg.Device, cfg.Threads = mf.dev, 0
	}
	k := nUsed
	if k == 0 {
		k = m.NExpertUsed
	}
	if k > m.NExpert {
		return nil, engine.SourcePlan{}, usagef("--n-expert-used %d: want 1..%d (the model's expert_count)", k, m.NExpert)
	}
	if err := s.apart(t); err != nil {
		return nil, engine.SourcePlan{}, err
	}
	cache := s.cache
	if s.rec != nil {
		cache.Observer = s.rec
	}
	src, plan, err := engine.OpenSource(m, cache, k)
	if err != nil {
		return nil, plan, err
	}
	// Workers that wait by spinning must not keep a reader lane from running: leave it room.
	runtime.GOMAXPROCS(cmp.Or(mf.threads, s.cpus.Threads()) + plan.Lanes + 2)
	cfg.Source = src
	if drop.Frac > 0 && plan.BudgetBytes == 0 {
		return nil, plan, errors.Join(usagef("--drop-cold-experts %v drops nothing without an expert cache: name one with --cache-mb", drop.Frac), src.Close())
	}
	var whyAhead string
	if cfg.Prefetch, whyAhead, err = s.ahead.readAhead(plan, s.drops, mf.dev != nil, s.several); err != nil {
		return nil, plan, errors.Join(err, src.Close())
	}
	if cfg.Prefetch != moe.PrefetchOff {
		cfg.PrefetchBytes = s.ahead.prefetchMB << 20
	}
	if t != nil {
		if err := t.open(s, k, &cfg, plan); err != nil {
			src.Close()
			return nil, plan, err
		}
		cfg.SelDump, cfg.Trace = t.sel, t.trace
	}
	if err := s.stream.telemetry(s, &cfg, plan); err != nil {
		return nil, plan, errors.Join(err, src.Close(), t.close(nil))
	}
	ses, err := engine.NewSession(m, cfg)
	if err != nil {
		err = errors.Join(memoryHint(err, mf.cacheMB != "auto", s.opened > 0), src.Close(), s.stream.close(nil, nil), t.close(nil))
		return nil, plan, err
	}
	s.opened++
	if !quiet {
		full := ses.Config()
		fmt.Fprintf(s.io.err, "session: %d tokens of context (%s, %.1f MiB), prompt chunk %d, %s arm, %d experts per token\n",
			full.Ctx, full.KV, float64(ses.KVBytes())/(1<<20), full.Batch, full.Arm, full.NExpertUsed)
		fmt.Fprintln(s.io.err, "experts:", plan)
		for _, n := range plan.Notes {
			fmt.Fprintln(s.io.err, "experts:", n)
		}
		for _, n := range ses.Notes() {
			fmt.Fprintln(s.io.err, "device:", n)
		}
	}
	if plan.BudgetBytes > 0 && mf.dev == nil && !(quiet && s.opened == 1) { // one that is quiet and the first is in no table
		s.once("experts: read ahead: " + string(cfg.Prefetch) + whyAhead)
	}
	if n := hostCacheNote(ses, plan.BudgetBytes); n != "" {
		s.once("device: " + n)
	}
	if err := s.stream.start(s, ses, plan.BudgetBytes); err != nil {
		return nil, plan, errors.Join(err, s.stream.close(nil, nil), t.close(nil), ses.Close())
	}
	if t != nil {
		t.stream, t.ses = s.stream, ses
	}
	return ses, plan, nil
}

// once prints a line that the rows of a comparison may differ in, not again for each of them.
func (s *setup) once(line string) {
	if !slices.Contains(s.noted, line) {
		s.noted = append(s.noted, line)
		fmt.Fprintln(s.io.err, line)
	}
}

func (t *taps) open(s *setup, k int, cfg *engine.Config, plan engine.SourcePlan) (err error) {
	m, drop := s.model, cfg.Drop
	conf := map[string]string{
		"arm":         string(s.flags.arm),
		"threads":     strconv.Itoa(s.flags.threads),
		"cache_bytes": strconv.FormatInt(plan.BudgetBytes, 10),
		"io":          plan.IO,
		"drop_frac":   strconv.FormatFloat(drop.Frac, 'g', -1, 64),
		"drop_renorm": strconv.FormatBool(drop.Renorm),
		"version":     version,
		"device":      s.flags.device,

		replay.DropInPrefillKey: strconv.FormatBool(cfg.DropInPrefill),
		replay.TensorTableKey:   fmt.Sprintf("%x", m.Identity()),
	}
	if s.flags.dev != nil {
		delete(conf, "threads") // of a team that there is not
	}
	if plan.Policy != "" {
		conf["cache_policy"] = plan.Policy
	}
	if cfg.Prefetch != moe.PrefetchOff {
		conf["prefetch"], conf["prefetch_bytes"] = string(cfg.Prefetch), strconv.FormatInt(cfg.PrefetchBytes, 10)
	}
	if plan.BudgetBytes > 0 {
		if err := s.stream.facts(conf); err != nil {
			return err
		}
	}
	if t.selPath != "" {
		t.sel, err = dump.OpenSel(t.selPath, dump.SelMeta{Model: s.name, Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: k, Config: conf})
		if err != nil {
			return err
		}
		for _, n := range t.sel.Notes() {
			fmt.Fprintln(s.io.err, "selection dump:", n)
		}
	}
	if t.tracePath != "" {
		meta := dump.TraceMeta{Model: s.name, Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: k}
		for il := range m.NLayer {
			meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.Layout.ExpertBytes(il), DenseBytes: m.LayerDenseBytes(il)})
		}
		var slots []string
		for _, n := range m.SlotBytes() {
			slots = append(slots, strconv.FormatInt(n, 10))
		}
		meta.Ahead = cfg.Prefetch != moe.PrefetchOff
		if s.flags.dev != nil {
			meta.Extra = append(meta.Extra, [2]string{replay.DeviceKey, conf["device"]})
		}
		meta.Extra = append(meta.Extra, [2]string{replay.SlotBytesKey, strings.Join(slots, ",")})
		for _, key := range []string{"cache_bytes", "cache_policy", "drop_frac", "drop_renorm", replay.DropInPrefillKey, "prefetch", "prefetch_bytes",
			"cache_load", replay.StateSumKey, replay.TensorTableKey} {
			if v, ok := conf[key]; ok {
				meta.Extra = append(meta.Extra, [2]string{key, v})
			}
		}
		if t.trace, err = dump.CreateTrace(t.tracePath, meta); err != nil {
			return errors.Join(err, t.sel.Close())
		}
	}
	return nil
}

// close ends the recordings and prints their receipts (w nil: says nothing). An armed recording
// that recorded nothing is said.
func (t *taps) close(io *streams) error {
	if t == nil {
		return nil
	}
	ses := t.ses
	if t.failed {
		ses = nil
	}
	err := errors.Join(t.sel.Close(), t.trace.Close(), t.stream.close(io, ses))
	if io == nil {
		return err
	}
	receipt := func(what, path string, n uint64, unit string) {
		if n == 0 {
			fmt.Fprintf(io.err, "%s: %s: NOTHING was recorded\n", what, path)
			return
		}
		fmt.Fprintf(io.err, "%s: %s: %d %s\n", what, path, n, unit)
	}
	if t.sel != nil {
		receipt("selection dump", t.selPath, t.sel.Records(), "records")
	}
	if t.trace != nil {
		receipt("route trace", t.tracePath, t.trace.Rows(), "rows")
	}
	return err
}
