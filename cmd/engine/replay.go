package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/replay"
	"sluice/engine"
	"sluice/moe"
	"sluice/moe/store"
)

type replayFlags struct {
	fracs             string
	cache, live       bool
	budgets, policies string
	seed              uint64
	inPrefill         bool
	against           string
	state             string
	prefetch          string
	json              bool
}

func replayCommand(io streams) *cobra.Command {
	f := &replayFlags{}
	c := &cobra.Command{
		Use:   "replay TRACE...",
		Short: "Say from route traces what dropping would save and cost, or how big a cache should be",
		Long: `Replays route traces (engine run --route-trace) without a model.

Without --cache: what a drop threshold would have saved and cost, beside a smaller top-k. Where a
cache is known (the preamble's cache_bytes, or --budgets) it also runs that cache while dropping,
and holds the result against the recorded run.
With --cache: hit rates by budget and policy, and the LRU hit rate at every budget.

Without --cache and with --cache --live it is this engine's cache that runs, and it reads ahead as
the run did (as the run of --against did), or not at all with --prefetch off. A run that began with a saved cache (--cache-load) is replayed with --cache-state and
the same file. The replay of a run's own trace with the run's cache is compared with the run drop by
drop and byte by byte ("reproduced: ..."); if they differ in anything the command fails.`,
		Example: `  engine replay route.csv
  engine replay route.csv --frac 0.5,0.9 --budgets 2000
  engine replay plain.csv --against dropped.csv
  engine replay --cache route.csv --budgets 500,1000,2000 --policies belady,lru,lfu
  engine replay --cache --live route.csv --budgets 2000
  engine replay warm.csv --cache-state state`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s: no trace given", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args, io) },
	}
	fs := c.Flags()
	fs.StringVar(&f.fracs, "frac", "0.25,0.5,0.75,1", "drop thresholds as fractions of 1/k, separated by commas")
	fs.BoolVar(&f.cache, "cache", false, "replay caches instead of dropping")
	fs.BoolVar(&f.live, "live", false, "with --cache: this engine's cache as it runs, instead of one batch a call")
	fs.StringVar(&f.budgets, "budgets", "", "cache budgets in MiB, separated by commas (default: a sweep with --cache, else the recorded run's)")
	fs.StringVar(&f.policies, "policies", "", "with --cache: "+strings.Join(replay.CachePolicies(), ",")+"; else and with --live: "+strings.Join(store.Policies(), ",")+" (default: all with --cache, else the recorded run's)")
	fs.Uint64Var(&f.seed, "seed", 1, "with --cache: seed of the policy random")
	fs.BoolVar(&f.inPrefill, "drop-in-prefill", false, "let the dynamic replay drop in prompts too")
	fs.StringVar(&f.against, "against", "", "trace of the same prompt recorded with dropping on, to hold the dynamic replay against")
	fs.StringVar(&f.state, "cache-state", "", "the saved cache that the run began with (its --cache-load), for the replays of this engine's cache")
	fs.StringVar(&f.prefetch, "prefetch", "run", "what the replays of this engine's cache read ahead: run (what the recorded run did) or off (nothing)")
	fs.BoolVar(&f.json, "json", false, "print one JSON document instead of the text")
	return c
}

// replayJSON is the document of replay --json.
type replayJSON struct {
	Drop  []*replay.DropReport  `json:"drop,omitempty"`
	Cache []*replay.CacheReport `json:"cache,omitempty"`
}

// check refuses flags that would do nothing.
func (f *replayFlags) check(c *cobra.Command) error {
	names, why := []string{"live", "seed"}, "without --cache"
	if f.cache {
		names, why = []string{"frac", "drop-in-prefill", "against"}, "with --cache"
	}
	for _, name := range names {
		if c.Flags().Changed(name) {
			return usagef("--%s has no effect %s", name, why)
		}
	}
	if c.Flags().Changed("cache-state") {
		switch {
		case f.state == "":
			return usagef("--cache-state: want a file name")
		case f.cache && !f.live:
			return usagef("--cache-state has no effect with --cache but with --live")
		}
	}
	switch changed := c.Flags().Changed("prefetch"); {
	case f.prefetch != "run" && f.prefetch != string(moe.PrefetchOff):
		return usagef("--prefetch %q: want run or %s", f.prefetch, moe.PrefetchOff)
	case changed && f.cache && !f.live:
		return usagef("--prefetch has no effect with --cache but with --live")
	}
	if f.live && c.Flags().Changed("seed") {
		return usagef("--seed has no effect with --live: the engine has no policy that draws")
	}
	return nil
}

func (f *replayFlags) run(c *cobra.Command, paths []string, io streams) error {
	if err := f.check(c); err != nil {
		return err
	}
	budgets, err := budgetList(f.budgets)
	if err != nil {
		return err
	}
	known := store.Policies()
	if f.cache && !f.live {
		known = replay.CachePolicies()
	}
	policies, err := policyList(f.policies, known)
	if err != nil {
		return err
	}
	start, err := f.start()
	if err != nil {
		return err
	}
	var one func(path string) (textReport, *dump.TornError, error)
	var doc replayJSON
	if f.cache {
		cfg := replay.CacheConfig{Budgets: budgets, Policies: policies, Seed: f.seed, Start: start, OnDemand: f.prefetch == string(moe.PrefetchOff)}
		if f.live {
			cfg.Order = replay.OrderLive
		}
		one = func(path string) (textReport, *dump.TornError, error) {
			r, err := replay.Cache(filepath.Base(path), opener(path), cfg)
			if err != nil {
				return nil, nil, err
			}
			doc.Cache = append(doc.Cache, r)
			return r, r.Torn, nil
		}
	} else {
		cfg, err := f.dropConfig(budgets, policies)
		if err != nil {
			return err
		}
		cfg.Start, cfg.OnDemand = start, f.prefetch == string(moe.PrefetchOff)
		one = func(path string) (textReport, *dump.TornError, error) {
			file, err := os.Open(path)
			if err != nil {
				return nil, nil, err
			}
			defer file.Close()
			r, err := replay.Drop(filepath.Base(path), file, cfg)
			if err != nil {
				return nil, nil, err
			}
			doc.Drop = append(doc.Drop, r)
			return r, r.Torn, nil
		}
	}
	// One bad trace does not take the others' answers away.
	var failed error
	for _, path := range paths {
		r, torn, err := one(path)
		if err == nil && torn != nil {
			err = fmt.Errorf("%s: %w", path, torn)
		}
		if err == nil {
			err = r.Reproduced()
		}
		failed = errors.Join(failed, err)
		if r != nil && !f.json {
			if err := r.WriteText(io.out); err != nil {
				return err
			}
		}
	}
	if f.json && (doc.Cache != nil || doc.Drop != nil) {
		failed = errors.Join(failed, printJSON(io.out, doc))
	}
	return failed
}

func (f *replayFlags) dropConfig(budgets []int64, policies []string) (cfg replay.DropConfig, err error) {
	cfg = replay.DropConfig{Budgets: budgets, Policies: policies, InPrefill: f.inPrefill}
	if cfg.Fracs, err = fractions("frac", f.fracs); err != nil {
		return cfg, err
	}
	if f.against == "" {
		return cfg, nil
	}
	file, err := os.Open(f.against)
	if err != nil {
		return cfg, err
	}
	defer file.Close()
	cfg.Against, err = replay.ReadRecorded(filepath.Base(f.against), file)
	return cfg, err
}

// start reads the state that the run began with, nil where none is named.
func (f *replayFlags) start() (*replay.Start, error) {
	if f.state == "" {
		return nil, nil
	}
	s, err := engine.ReadCacheState(f.state)
	if err != nil {
		return nil, err
	}
	return &replay.Start{Name: filepath.Base(f.state), Model: fmt.Sprintf("%x", s.Model), Sum: fmt.Sprintf("%08x", s.Sum), State: s.CacheState}, nil
}

// textReport is either replay's answer. Reproduced is an error if the replay differs from the run that it should be.
type textReport interface {
	WriteText(w io.Writer) error
	Reproduced() error
}

func opener(path string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return os.Open(path) }
}

// budgetList parses MiB, decimals allowed; "" is none.
func budgetList(list string) ([]int64, error) {
	if list == "" {
		return nil, nil
	}
	var out []int64
	for s := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(v > 0 && v <= math.MaxInt64>>21) {
			return nil, usagef("--budgets %q: want MiB above 0, separated by commas", list)
		}
		out = append(out, int64(v*(1<<20)))
	}
	return out, nil
}

// policyList refuses names that are not known, so that no column stands for another policy than its head says.
func policyList(list string, known []string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	var out []string
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		if !slices.Contains(known, s) {
			return nil, usagef("--policies: unknown cache policy %q: want one of %s", s, strings.Join(known, ", "))
		}
		if slices.Contains(out, s) {
			return nil, usagef("--policies: %s twice", s)
		}
		out = append(out, s)
	}
	return out, nil
}
