package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/dump/replay"
	"sluice/engine"
	"sluice/engine/machine"
	"sluice/moe/store"
)

// streamFlags keep the expert cache from run to run, and log each step.
type streamFlags struct {
	save, load string
	progress   bool
	csv        string
}

// add names the CSV flag, which is taken in some commands.
func (f *streamFlags) add(c *cobra.Command, csvName string) {
	fs := c.Flags()
	fs.StringVar(&f.save, "cache-save", "", "write what the expert cache has come to at the end to this file: its experts, and all that it decides by")
	fs.StringVar(&f.load, "cache-load", "", "start with the expert cache that this file describes, and go on as the run that saved it would have")
	fs.BoolVar(&f.progress, "progress", false, "print a line of JSON on standard error for each step: times, reads, hits, drops, memory")
	fs.StringVar(&f.csv, csvName, "", "write the same for each step to this CSV file")
}

// check refuses what cannot take effect. cached says whether there is an expert cache.
func (f *streamFlags) check(c *cobra.Command, cached bool) error {
	for _, x := range []struct{ name, file string }{{"cache-save", f.save}, {"cache-load", f.load}} {
		switch {
		case !c.Flags().Changed(x.name):
		case x.file == "":
			return usagef("--%s: want a file name", x.name)
		case !isFolder(filepath.Dir(x.file)):
			return usagef("--%s %s: there is no folder %s", x.name, x.file, filepath.Dir(x.file))
		case !cached:
			return usagef("--%s %s: there is no expert cache: name one with --cache-mb", x.name, x.file)
		}
	}
	return nil
}

// stream is what the flags come to for one session. The nil *stream does nothing.
type stream struct {
	f      *streamFlags
	ctx    context.Context
	log    *engine.StepLog
	tel    *engine.Telemetry
	loaded *store.Loaded
}

// attach makes the next session keep to the flags.
func (f *streamFlags) attach(c *cobra.Command, s *setup) {
	if *f != (streamFlags{}) {
		s.stream = &stream{f: f, ctx: c.Context()}
	}
}

// telemetry opens the logs of a session that is about to be opened; nil when none is asked for.
func (t *stream) telemetry(s *setup, cfg *engine.Config, plan engine.SourcePlan) error {
	if t == nil || !t.f.progress && t.f.csv == "" {
		return nil
	}
	t.log = engine.NewStepLog()
	if t.f.progress {
		t.log.JSON(s.io.err)
	}
	if t.f.csv != "" {
		facts := [][2]string{{"version", version}, {"model", s.name}, {"arch", s.model.Arch}, {"arm", string(cfg.Arm)}, {"threads", strconv.Itoa(cfg.Threads)},
			{"cache_bytes", strconv.FormatInt(plan.BudgetBytes, 10)}, {"cache_policy", plan.Policy}, {"io", plan.IO}, {"io_threads", strconv.Itoa(plan.Lanes)},
			{"drop_frac", strconv.FormatFloat(cfg.Drop.Frac, 'g', -1, 64)}, {"drop_renorm", strconv.FormatBool(cfg.Drop.Renorm)}, {"cache_load", t.f.load}}
		if err := t.log.CreateCSV(t.f.csv, facts); err != nil {
			return err
		}
	}
	t.tel = engine.NewTelemetry("/", t.log.Step)
	cfg.Telemetry = t.tel
	return nil
}

// start loads the cache of an open session.
func (t *stream) start(s *setup, ses *engine.Session, budget int64) error {
	if t == nil {
		return nil
	}
	if budget == 0 && t.f.save+t.f.load != "" {
		return usagef("--cache-save and --cache-load: all experts are in memory, there is no expert cache: name one with --cache-mb")
	}
	for _, x := range []struct{ name, file string }{{"cache-save", t.f.save}, {"cache-load", t.f.load}} {
		if x.file != "" && idleCache(ses, budget) {
			return usagef("--%s %s has no effect: the device has all experts and the host's cache is not used: leave it out, or give the device less with --device-cache-mb",
				x.name, x.file)
		}
	}
	if t.f.load == "" {
		return nil
	}
	l, err := ses.LoadCache(t.ctx, t.f.load)
	if err != nil {
		return err
	}
	t.loaded = &l
	left := ""
	if l.Left > 0 {
		left = fmt.Sprintf(", %d more do not fit", l.Left)
	}
	fmt.Fprintf(s.io.err, "cache: %s: %d experts loaded, %.1f MiB in %.3f s%s\n", t.f.load, l.Experts, float64(l.Bytes)/(1<<20), l.Seconds, left)
	return nil
}

// facts adds what the cache starts with to the facts of a recording.
func (t *stream) facts(conf map[string]string) error {
	if t == nil || t.f.load == "" {
		return nil
	}
	f, err := engine.ReadCacheState(t.f.load)
	if err != nil {
		return err
	}
	conf["cache_load"] = strings.Join(strings.Fields(filepath.Base(t.f.load)), "_")
	conf[replay.StateSumKey] = fmt.Sprintf("%08x", f.Sum)
	return nil
}

// close ends the logs and saves the cache of the session, nil if it was not opened.
func (t *stream) close(io *streams, ses *engine.Session) error {
	if t == nil {
		return nil
	}
	err := errors.Join(t.log.Close(), t.tel.Close())
	if ses == nil || t.f.save == "" {
		if io != nil && t.f.save != "" {
			fmt.Fprintf(io.err, "cache: not saved to %s: the run failed\n", t.f.save)
		}
		return err
	}
	n, e := ses.SaveCache(t.f.save)
	if e == nil && io != nil {
		fmt.Fprintf(io.err, "cache: %d experts saved to %s\n", n, t.f.save)
	}
	return errors.Join(err, e)
}

type loadJSON struct {
	Path      string  `json:"path"`
	Experts   int     `json:"experts"`
	Left      int     `json:"left"`
	BytesRead int64   `json:"bytes_read"`
	Seconds   float64 `json:"seconds"`
}

func (t *stream) report() *loadJSON {
	if t.loaded == nil {
		return nil
	}
	return &loadJSON{t.f.load, t.loaded.Experts, t.loaded.Left, t.loaded.Bytes, t.loaded.Seconds}
}

type memoryJSON struct {
	Anon int64 `json:"rss_anon_bytes"`
	File int64 `json:"rss_file_bytes"`
	Peak int64 `json:"peak_rss_bytes"`
}

// memoryReport is null where the system does not say.
func memoryReport() *memoryJSON {
	m, ok := machine.ReadRSS("/")
	if !ok {
		return nil
	}
	return &memoryJSON{m.Anon, m.File, m.Peak}
}

func printMemory(w io.Writer) {
	if m, ok := machine.ReadRSS("/"); ok {
		fmt.Fprintf(w, "memory: %d MiB resident (anonymous %d, files %d), at most %d\n", m.Total()>>20, m.Anon>>20, m.File>>20, m.Peak>>20)
	}
}

type stepsJSON struct {
	Prefill stepSumJSON `json:"prefill"`
	Decode  stepSumJSON `json:"decode"`
	After   int64       `json:"after_bytes_read"` // prefetches that arrived behind the last step
}

type stepSumJSON struct {
	Steps       int     `json:"steps"`
	Seconds     float64 `json:"seconds"`
	IOWait      float64 `json:"io_wait_seconds"`
	Compute     float64 `json:"compute_seconds"`
	Manage      float64 `json:"manage_seconds"`
	Other       float64 `json:"other_seconds"`
	BytesRead   int64   `json:"bytes_read"`
	MajorFaults int64   `json:"major_faults"`
}

func stepSum(p engine.Step) stepSumJSON {
	return stepSumJSON{p.Step, p.Wall.Seconds(), p.IOWait.Seconds(), p.Compute.Seconds(), p.Manage.Seconds(), p.Other.Seconds(), p.BytesRead, p.MajorFaults}
}

// stepsReport is of a session whose source has read read bytes.
func stepsReport(s *engine.Session, read int64) *stepsJSON {
	t := s.Config().Telemetry
	if t == nil {
		return nil
	}
	prefill, decode := t.Totals()
	return &stepsJSON{stepSum(prefill), stepSum(decode), read - prefill.BytesRead - decode.BytesRead}
}

// printSteps says where the time of the steps went, on average.
func printSteps(w io.Writer, s *engine.Session) {
	t := s.Config().Telemetry
	if t == nil {
		return
	}
	prefill, decode := t.Totals()
	for _, p := range []struct {
		phase, unit string
		sum         engine.Step
	}{{"prefill", "chunk", prefill}, {"decode", "token", decode}} {
		n := float64(p.sum.Step)
		if n == 0 {
			continue
		}
		ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / n }
		fmt.Fprintf(w, "%s: %.3f ms a %s: %.3f waiting for reads, %.3f computing, %.3f in the cache, %.3f other; %.2f MiB read, %.1f major faults\n",
			p.phase, ms(p.sum.Wall), p.unit, ms(p.sum.IOWait), ms(p.sum.Compute), ms(p.sum.Manage), ms(p.sum.Other),
			float64(p.sum.BytesRead)/(1<<20)/n, float64(p.sum.MajorFaults)/n)
	}
}

func isFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
