package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/launch"
	"sluice/engine/machine"
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

// attach makes the next session keep to the flags.
func (f *streamFlags) attach(s *setup) {
	if *f != (streamFlags{}) {
		s.stream = f
	}
}

// options adds what the flags ask for; nil: nothing.
func (f *streamFlags) options(s *setup, o *launch.Options) {
	if f == nil {
		return
	}
	o.CacheSave, o.CacheLoad = f.save, f.load
	o.Steps, o.StepCSV = f.progress || f.csv != "", f.csv
	if f.progress {
		o.StepJSON = s.io.err
	}
}

type loadJSON struct {
	Path      string  `json:"path"`
	Experts   int     `json:"experts"`
	Left      int     `json:"left"`
	BytesRead int64   `json:"bytes_read"`
	Seconds   float64 `json:"seconds"`
}

func loadReport(r *launch.Run) *loadJSON {
	if l := r.Loaded; l != nil {
		return &loadJSON{r.Options().CacheLoad, l.Experts, l.Left, l.Bytes, l.Seconds}
	}
	return nil
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

// stepsReport is of a run whose source has read read bytes.
func stepsReport(r *launch.Run, read int64) *stepsJSON {
	prefill, decode, ok := r.Totals()
	if !ok {
		return nil
	}
	return &stepsJSON{stepSum(prefill), stepSum(decode), read - prefill.BytesRead - decode.BytesRead}
}

// printSteps says where the time of the steps went, on average.
func printSteps(w io.Writer, r *launch.Run) {
	prefill, decode, ok := r.Totals()
	if !ok {
		return
	}
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
