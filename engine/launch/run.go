package launch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"

	"sluice/dump"
	"sluice/engine"
	"sluice/moe/store"
)

// Options say how an engine computes, and what is recorded of it.
type Options struct {
	// Config is the engine's but for what is assembled here: Source, Prefetch, SelDump, Trace and Telemetry. Threads 0 is as
	// many as the machine gives.
	Config engine.Config
	Cache  engine.SourceConfig
	Ahead  Ahead

	SelDump, Trace string // files; "": disarmed
	Device         string // what recordings call the device
	Version        string // of the program, for recordings

	Steps                bool      // each step is measured
	StepJSON             io.Writer // a line of JSON for each, with Steps
	StepCSV              string    // a row for each in this file, with Steps
	CacheSave, CacheLoad string    // states of the expert cache
}

// ErrNothingToDrop is a drop threshold without an expert cache.
var ErrNothingToDrop = errors.New("nothing is dropped without an expert cache")

// ErrNoCacheState is a cache state to load or save where there is no expert cache.
var ErrNoCacheState = errors.New("all experts are in memory, there is no expert cache")

// ErrIdleCache is a cache state to load or save of a cache that a device leaves without use. The message is the caller's: it
// knows what was asked for.
var ErrIdleCache = errors.New("the device has all experts and the host's cache is not used")

// Run is an open engine with its recordings and logs.
type Run struct {
	*engine.Engine
	Session  *engine.Session // on an engine for one sequence, else nil
	Plan     engine.SourcePlan
	WhyAhead string // behind the prefetch mode in a message, where it was chosen here
	Procs    int    // GOMAXPROCS that the engine was opened under: workers that spin must not keep a lane from running

	Sel    *dump.SelWriter   // nil: disarmed
	Trace  *dump.TraceWriter // nil: disarmed
	Loaded *store.Loaded     // nil: no cache state was loaded

	o   Options
	end bool // Finish was called
	log *engine.StepLog
	tel *engine.Telemetry
}

// Start opens an engine of the model. Whatever it opened is closed again when it fails.
func (l *Model) Start(ctx context.Context, o Options) (_ *Run, err error) {
	r := &Run{o: o}
	cfg := o.Config
	src, plan, err := engine.OpenSource(l.Model, o.Cache, cmp.Or(cfg.NExpertUsed, l.NExpertUsed))
	r.Plan = plan
	if err != nil {
		return r, err
	}
	cfg.Source = src
	opened := false
	defer func() {
		if err == nil {
			return
		}
		if opened {
			err = errors.Join(err, r.Engine.Close())
		} else {
			err = errors.Join(err, src.Close())
		}
		err = errors.Join(err, r.log.Close(), r.tel.Close(), r.Sel.Close(), r.Trace.Close())
	}()
	r.Procs = cmp.Or(cfg.Threads, l.CPUs.Threads()) + plan.Lanes + 2
	runtime.GOMAXPROCS(r.Procs)
	if cfg.Drop.Frac > 0 && plan.BudgetBytes == 0 {
		return r, ErrNothingToDrop
	}
	if cfg.Prefetch, r.WhyAhead, err = o.Ahead.settle(plan, cfg.Device != nil); err != nil {
		return r, err
	}
	if cfg.PrefetchBytes = 0; cfg.Prefetch != "off" {
		cfg.PrefetchBytes = o.Ahead.Bytes
	}
	if err := r.record(l, &cfg); err != nil {
		return r, err
	}
	if err := r.measure(l, &cfg); err != nil {
		return r, err
	}
	if cfg.Seqs > 1 {
		r.Engine, err = engine.Open(l.Model, cfg)
	} else if r.Session, err = engine.NewSession(l.Model, cfg); err == nil {
		r.Engine = r.Session.Engine
	}
	if err != nil {
		return r, err
	}
	opened = true
	return r, r.load(ctx)
}

// load starts with a saved cache.
func (r *Run) load(ctx context.Context) error {
	if r.o.CacheSave+r.o.CacheLoad == "" {
		return nil
	}
	if r.Plan.BudgetBytes == 0 {
		return ErrNoCacheState
	}
	if r.IdleCache() {
		return ErrIdleCache
	}
	if r.o.CacheLoad == "" {
		return nil
	}
	loaded, err := r.LoadCache(ctx, r.o.CacheLoad)
	if err == nil {
		r.Loaded = &loaded
	}
	return err
}

// IdleCache says whether the host's cache is neither read through nor asked: the device has all experts, and nothing is
// dropped or traced.
func (r *Run) IdleCache() bool {
	d, on := r.DeviceStats()
	c := r.Config()
	return on && d.Resident && r.Plan.BudgetBytes > 0 && c.Drop.Frac == 0 && c.Trace == nil
}

// Options are those that the run was started with.
func (r *Run) Options() Options { return r.o }

// Flush brings the recordings' counts to what is on disk.
func (r *Run) Flush() error { return errors.Join(r.Sel.Flush(), r.Trace.Flush()) }

// Finish ends recordings and logs, and saves the cache where that is asked for, unless the run failed: saved says of how many
// experts, -1 if there was nothing to save. The engine stays open. A second call does nothing.
func (r *Run) Finish(failed bool) (saved int, err error) {
	saved = -1
	err = errors.Join(r.Sel.Close(), r.Trace.Close(), r.log.Close(), r.tel.Close())
	if r.o.CacheSave == "" || failed || r.end {
		return saved, err
	}
	r.end = true
	n, e := r.SaveCache(r.o.CacheSave)
	if e == nil {
		saved = n
	}
	return saved, errors.Join(err, e)
}

// Totals are the steps' sums, where they are measured.
func (r *Run) Totals() (prefill, decode engine.Step, ok bool) {
	if r.tel == nil {
		return prefill, decode, false
	}
	prefill, decode = r.tel.Totals()
	return prefill, decode, true
}

// measure opens the log of the steps.
func (r *Run) measure(l *Model, cfg *engine.Config) error {
	if !r.o.Steps {
		return nil
	}
	r.log = engine.NewStepLog()
	if cfg.Seqs > 1 {
		r.log.Several()
	}
	if r.o.StepJSON != nil {
		r.log.JSON(r.o.StepJSON)
	}
	if r.o.StepCSV != "" {
		if err := r.log.CreateCSV(r.o.StepCSV, r.stepFacts(l, cfg)); err != nil {
			return err
		}
	}
	r.tel = engine.NewTelemetry(root, r.log.Step)
	cfg.Telemetry = r.tel
	return nil
}
