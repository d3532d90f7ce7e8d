package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/launch"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// selDumpEnv arms the selection dump when --sel-dump is not typed.
const selDumpEnv = "SLUICE_MOE_SEL_DUMP"

// modelFlags name the model and how it is computed.
type modelFlags struct {
	deviceFlags
	path, pre, isa, acts, dense, weights string
	arm                                  model.Arm
	kv                                   model.KV
	threads, ctx, batch, nUsed           int
	seqs                                 int // sequences at a time; 0: one
}

func (f *modelFlags) add(c *cobra.Command, manyUsed bool) {
	fs := c.Flags()
	fs.StringVarP(&f.path, "model", "m", "", "GGUF file, any shard of a split set (default: the built-in demo model)")
	fs.StringVar(&f.pre, "pre", "", "pre-tokeniser to use instead of the file's tokenizer.ggml.pre")
	f.deviceFlags.add(c)
	fs.StringVar(&f.isa, "isa", "", "instruction set of the kernels (default: the best that the processor has)")
	fs.StringVar((*string)(&f.arm), "arm", "", "routing arm: host or table (default: host, with --device cuda table)")
	fs.StringVar((*string)(&f.kv), "kv", string(model.KVF16), "type of the key/value cache: f16, f32 or q8_0")
	fs.StringVar(&f.acts, "acts", "q8", "activations at quantised weights: q8 or f32 (slower, exact)")
	fs.StringVar(&f.dense, "dense", engine.DenseAuto, "where dense weights are held: mmap (the file's mapping: starts at once), warm (the mapping, read once and locked), anon (read once into large pages: decodes fastest) or auto (anon when it fits); experts go along where there is no cache for them, unless --io mmap")
	fs.StringVar(&f.weights, "weights", "auto", "the same in other words: mmap is --dense mmap, huge (large pages) is --dense anon")
	fs.IntVarP(&f.threads, "threads", "t", 0, "worker threads (default: processors by affinity and cgroup quota)")
	fs.IntVarP(&f.ctx, "ctx-size", "c", 0, "context in tokens (default: the model's, at most 4096)")
	fs.IntVarP(&f.batch, "batch-size", "b", engine.DefaultBatch, "prompt chunk in tokens")
	if !manyUsed {
		fs.IntVar(&f.nUsed, "n-expert-used", 0, "experts per token (default: the model's)")
	}
}

// armDefault is the routing arm that is taken when none is typed. The device must be settled.
func (f *modelFlags) armDefault() model.Arm {
	if f.dev != nil {
		return model.ArmTable
	}
	return model.ArmHost
}

// check refuses what this binary cannot do, before a model is opened.
func (f *modelFlags) check(c *cobra.Command) error {
	if f.acts != "q8" && f.acts != "f32" {
		return usagef("--acts %q: want q8 or f32", f.acts)
	}
	if c.Flags().Changed("weights") {
		if c.Flags().Changed("dense") {
			return usagef("--weights and --dense: want one of them")
		}
		dense, ok := map[string]string{"auto": engine.DenseAuto, "mmap": engine.DenseMmap, "huge": engine.DenseAnon}[f.weights]
		if !ok {
			return usagef("--weights %q: want auto, mmap or huge", f.weights)
		}
		f.dense = dense
	}
	if !slices.Contains(engine.DenseModes(), f.dense) {
		return usagef("--dense %q: want one of %s", f.dense, strings.Join(engine.DenseModes(), ", "))
	}
	if f.isa != "" {
		if _, err := kernels.SetISA(f.isa); err != nil {
			return usageError{fmt.Errorf("--isa: %w", err)}
		}
	}
	for _, n := range []struct {
		name string
		v    int
	}{{"threads", f.threads}, {"ctx-size", f.ctx}, {"batch-size", f.batch}} {
		if n.v < 1 && c.Flags().Changed(n.name) {
			return usagef("--%s %d: want 1 or more", n.name, n.v)
		}
	}
	if fl := c.Flags().Lookup("n-expert-used"); fl.Changed && fl.Value.Type() == "int" && f.nUsed < 1 { // a list where a command compares
		return usagef("--n-expert-used %d: want 1 or more", f.nUsed)
	}
	return nil
}

// maxMiB is what fits as bytes into 64 bits.
const maxMiB = math.MaxInt64 >> 20

// cacheFlags say where experts are held.
type cacheFlags struct {
	mb, policy, io string
	ceilMB         int64
	lanes          int
	force          bool
	prefetch       moe.Prefetch // launch.PrefetchAuto, or one of moe.Prefetches
	prefetchMB     int64
}

func (f *cacheFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.mb, "cache-mb", "auto", "expert cache in MiB; 0: none; auto: none when all experts fit in memory")
	fs.Int64Var(&f.ceilMB, "cache-ceil-mb", 0, "--cache-mb auto takes at most this many MiB (default: all but what it leaves free)")
	fs.StringVar(&f.policy, "cache-policy", "", "what the expert cache evicts by: "+strings.Join(store.Policies(), ", ")+" (default "+engine.DefaultPolicy+")")
	fs.StringVar(&f.io, "io", "", "expert reads: direct (default) or buffered with a cache; mmap: no cache, experts in the file's mapping")
	fs.IntVar(&f.lanes, "io-threads", 0, fmt.Sprintf("reader lanes of the expert cache (default %d)", engine.DefaultLanes))
	fs.StringVar((*string)(&f.prefetch), "prefetch", string(launch.PrefetchAuto), "experts of the next layer to read ahead: off, next-layer (what its router says of this layer's input) or last-token (what it chose for the token before); auto: next-layer where the experts do not all fit in the cache and the command drops none")
	fs.Int64Var(&f.prefetchMB, "prefetch-mb", 0, "read ahead at most this many MiB in one layer of one call (default: as many experts as the call has tokens, at most a quarter of the cache)")
	fs.BoolVar(&f.force, "cache-force", false, "accept a cache smaller than one token's experts, or larger than the memory available")
}

// config turns the flags into a source configuration; memory is filled in by the caller.
func (f *cacheFlags) config(c *cobra.Command) (engine.SourceConfig, error) {
	s := engine.SourceConfig{Policy: f.policy, Lanes: f.lanes, IO: f.io, Force: f.force}
	switch f.io {
	case "", "direct", "buffered", "mmap":
	default:
		return s, usagef("--io %q: want direct, buffered or mmap", f.io)
	}
	if c.Flags().Changed("io-threads") && f.lanes < 1 {
		return s, usagef("--io-threads %d: want 1 or more", f.lanes)
	}
	switch {
	case f.prefetch != launch.PrefetchAuto && !slices.Contains(moe.PrefetchModes(), f.prefetch):
		return s, usagef("--prefetch %q: want one of %s, %s", f.prefetch, launch.PrefetchAuto, strings.Join(moe.PrefetchNames(), ", "))
	case c.Flags().Changed("prefetch-mb") && (f.prefetchMB < 1 || f.prefetchMB > maxMiB):
		return s, usagef("--prefetch-mb %d: want 1 to %d", f.prefetchMB, maxMiB)
	case f.prefetchMB > 0 && f.prefetch == moe.PrefetchOff:
		return s, usagef("--prefetch-mb %d has no effect with --prefetch off", f.prefetchMB)
	case f.prefetchMB > 0 && f.mb == "0":
		return s, usagef("--prefetch-mb %d: there are no reads with --cache-mb 0", f.prefetchMB)
	case f.prefetch != launch.PrefetchAuto && f.prefetch != moe.PrefetchOff && f.mb == "0": // of a comparison: the first setting's
		return s, usagef("--prefetch %s: there are no reads with --cache-mb 0", f.prefetch)
	}
	if c.Flags().Changed("cache-ceil-mb") {
		switch {
		case f.ceilMB < 1 || f.ceilMB > maxMiB:
			return s, usagef("--cache-ceil-mb %d: want 1 to %d", f.ceilMB, maxMiB)
		case f.mb != "auto":
			return s, usagef("--cache-ceil-mb %d has no effect with --cache-mb %s, only with auto", f.ceilMB, f.mb)
		case f.io == "mmap":
			return s, usagef("--cache-ceil-mb %d: there is no expert cache with --io mmap", f.ceilMB)
		}
		s.CeilBytes = f.ceilMB << 20
	}
	if f.mb == "auto" {
		s.BudgetBytes = -1
		return s, nil
	}
	mb, err := strconv.ParseInt(f.mb, 10, 64)
	if err != nil || mb < 0 || mb > maxMiB {
		return s, usagef("--cache-mb %q: want auto or a number of MiB, 0 to %d", f.mb, maxMiB)
	}
	s.BudgetBytes = mb << 20
	if mb == 0 {
		if f.io == "direct" || f.io == "buffered" {
			return s, usagef("--io %s: there are no reads with --cache-mb 0", f.io)
		}
		for _, name := range []string{"cache-policy", "io-threads", "cache-force"} {
			if c.Flags().Changed(name) {
				return s, usagef("--%s has no effect with --cache-mb 0", name)
			}
		}
	}
	return s, nil
}

// dropFlags are the cache-aware drop policy.
type dropFlags struct {
	frac      float64
	inPrefill bool
	noRenorm  bool
}

func (f *dropFlags) add(c *cobra.Command, manyFracs bool) {
	fs := c.Flags()
	if !manyFracs {
		fs.Float64Var(&f.frac, "drop-cold-experts", 0, "skip a missing expert whose weight is below this fraction of 1/k; 0: never")
	}
	fs.BoolVar(&f.inPrefill, "drop-in-prefill", false, "let the prompt drop experts too")
	fs.BoolVar(&f.noRenorm, "drop-no-renorm", false, "leave the surviving weights as routed")
}

// check refuses a policy that cannot drop anything. cached says whether there is an expert cache.
func (f *dropFlags) check(c *cobra.Command, frac float64, cached bool) error {
	if !(frac >= 0 && frac <= 1) { // written so that NaN fails
		return usagef("--drop-cold-experts %v: want 0 to 1", frac)
	}
	if frac > 0 && !cached {
		return usagef("--drop-cold-experts %v drops nothing without an expert cache: name one with --cache-mb", frac)
	}
	if frac == 0 {
		for _, name := range []string{"drop-in-prefill", "drop-no-renorm"} {
			if c.Flags().Changed(name) {
				return usagef("--%s has no effect without --drop-cold-experts", name)
			}
		}
	}
	return nil
}

// tapFlags name the recordings.
type tapFlags struct {
	selDump, trace string
	fromEnv        bool
}

func (f *tapFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.selDump, "sel-dump", "", "append the routers' selections to this file (or "+selDumpEnv+")")
	c.Flags().StringVar(&f.trace, "route-trace", "", "write the route trace to this CSV file")
}

// resolve applies the environment where the flag was not typed. An empty value disarms, and says so.
func (f *tapFlags) resolve(c *cobra.Command, io streams) error {
	if !c.Flags().Changed("sel-dump") {
		if v, ok := os.LookupEnv(selDumpEnv); ok {
			f.selDump, f.fromEnv = v, true
			if v == "" {
				fmt.Fprintf(io.err, "selection dump: %s is set but empty: disarmed\n", selDumpEnv)
			}
		}
	} else if f.selDump == "" {
		fmt.Fprintln(io.err, "selection dump: --sel-dump is empty: disarmed")
	}
	if c.Flags().Changed("route-trace") && f.trace == "" {
		return usagef("--route-trace: want a file name")
	}
	return nil
}

// numbers parses a comma-separated list of whole numbers, each 1 or more.
func numbers(flag, list string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, usagef("--%s %q: want whole numbers of 1 or more, separated by commas", flag, list)
		}
		out = append(out, n)
	}
	return out, nil
}

// fractions parses a comma-separated list of numbers.
func fractions(flag, list string) ([]float64, error) {
	var out []float64
	for s := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return nil, usagef("--%s %q: want numbers from 0 to 1, separated by commas", flag, list)
		}
		out = append(out, v)
	}
	return out, nil
}
