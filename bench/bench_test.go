package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/bench/probe"
	"sluice/bench/roofline"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/machine"
	"sluice/engine/model"
	"sluice/moe/store"
)

// openDemo opens the built-in model from a file, so that its experts can be streamed.
func openDemo(t testing.TB) *model.Model {
	t.Helper()
	return enginetest.OpenFile(t, enginetest.WriteFile(t, demo.Name, demo.Model()))
}

func subject(t testing.TB, m *model.Model, v Variant, budget int64) Subject {
	t.Helper()
	cfg := engine.Config{Threads: v.Threads, Arm: model.Arm(v.Arm)}
	if budget > 0 {
		var err error
		if cfg.Source, _, err = engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget, IO: "buffered"}, m.NExpertUsed); err != nil {
			t.Fatal(err)
		}
	}
	s, err := engine.NewSession(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return Subject{Variant: v, Session: s}
}

func TestMeasureSpeed(t *testing.T) {
	m := openDemo(t)
	a := subject(t, m, Variant{"0", 0, "host", 0, 2, 0, ""}, 0)
	b := subject(t, m, Variant{"4", 0, "table", 4, 1, 0, ""}, store.WorkingSet(m.Layout, m.NExpertUsed))
	var turns []string
	a.Enter, b.Enter = func() { turns = append(turns, "a") }, func() { turns = append(turns, "b") }
	var told []int
	got, err := MeasureSpeed(t.Context(), m, []Subject{a, b},
		SpeedConfig{PP: []int{20}, TG: []int{3, 2}, Depth: []int{0, 30}, Repeat: 3, WarmUp: 1, Seed: 1}, func(done, of int) { told = append(told, done, of) })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(turns, []string{"a", "b", "a", "b", "a", "b", "a", "b"}) || !slices.Equal(told, []int{1, 4, 2, 4, 3, 4, 4, 4}) {
		t.Errorf("turns %v, progress %v", turns, told)
	}
	var names []string
	for _, r := range got {
		names = append(names, r.Config.Arm+" "+r.Test)
		if len(r.Seconds) != 3 || !(r.MinTPS > 0) || r.MinTPS > r.TPS || r.MaxTPS < r.TPS || r.Spread < 0 || (r.TTFT > 0) != r.prefill() {
			t.Errorf("%+v", r)
		}
		if r.prefill() && r.TTFT < float64(slices.Min(r.Seconds)) {
			t.Errorf("%s: first token after %g s, the prompt took %v", r.Test, r.TTFT, r.Seconds)
		}
		if got, want := r.Bandwidth, r.WeightBytes*r.TPS; got != want {
			t.Errorf("%s: %g bytes a second, want %g", r.Test, got, want)
		}
		if (r.ReadBytes > 0) != (r.Config.CacheMB == "4") {
			t.Errorf("%s: %g bytes from storage", r.Test, r.ReadBytes)
		}
	}
	want := []string{"host pp20", "host tg3", "host tg2", "host pp20@d30", "host tg3@d30", "host tg2@d30",
		"table pp20", "table tg3", "table tg2", "table pp20@d30", "table tg3@d30", "table tg2@d30"}
	if !slices.Equal(names, want) {
		t.Errorf("results %v, want %v", names, want)
	}
	// What a token of decode reads: all dense weights but the embedding, of which a row, and its experts.
	_, w, err := roofline.FromGGUF(m.File, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got {
		if !r.prefill() && math.Abs(r.WeightBytes/w.ActiveBytes()-1) > 1e-9 {
			t.Errorf("%s: %.0f bytes of weights a token, counted over tensors %.0f", r.Test, r.WeightBytes, w.ActiveBytes())
		}
		if r.prefill() && !(r.WeightBytes < w.ActiveBytes()) {
			t.Errorf("%s: a prompt's token reads %.0f bytes, a decoded one %.0f", r.Test, r.WeightBytes, w.ActiveBytes())
		}
	}
	// The documents.
	for _, r := range got {
		if r.Limit != nil {
			t.Errorf("a limit without a measurement: %+v", r.Limit)
		}
	}
	p := &probe.Result{}
	for _, n := range []int{1, 2} {
		p.Memory = append(p.Memory, probe.Memory{Threads: n, Best: 1e10}, probe.Memory{Threads: n, Best: 2e10 * float64(n)})
		p.Compute = append(p.Compute, probe.Compute{Threads: n, FlopsPerSecond: 1e11 * float64(n)})
	}
	if err := SetLimits(got, m, m.NExpertUsed, p); err != nil {
		t.Fatal(err)
	}
	d := got[1] // tg3 of host: memory bound
	if l := d.Limit; l == nil || l.Bandwidth != 4e10 || l.Flops != 2e11 || l.Bound != "memory" ||
		math.Abs(l.TPS/(4e10/(d.WeightBytes+2*float64(engine.KVBytes(m, engine.Config{Ctx: 1}))))-1) > 1e-12 || l.Fraction != d.TPS/l.TPS {
		t.Errorf("limit %+v of %+v", l, d)
	}
	if l := got[3].Limit; l.Bound != "compute" || !(l.TPS < 2e11/(2*w.ActiveParams())) {
		t.Errorf("limit of a prompt: %+v", l)
	}
	formats(t, got)
	data, err := json.Marshal(map[string]any{"results": got})
	if err != nil {
		t.Fatal(err)
	}
	points, err := roofline.ReadMeasured(bytes.NewReader(data))
	if err != nil || len(points) != len(got) || points[4].Context != 30 {
		t.Errorf("as points of a roofline: %v, %v", points, err)
	}
}

func formats(t *testing.T, results []Speed) {
	t.Helper()
	f := Facts{Version: "v1", Commit: "abc", Machine: "a  CPU", Model: "my model-4.gguf", Arch: "qwen3moe", ISA: "generic", Flags: "--tg 3", Warnings: []string{"busy"}}
	var b bytes.Buffer
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, want := range []string{"cache-mb", "io-threads", "tokens/s", "MB/token", "storage MB/token", "machine GB/s", "of limit %"} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("no column %q in %s", want, lines[0])
		}
	}
	if len(lines) != len(results)+1 || strings.Contains(lines[0], "drop") {
		t.Errorf("table:\n%s", b.String())
	}
	b.Reset()
	if err := WriteCSV(&b, f, results); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"# format=engine_bench v1\n", "# commit=abc\n", "# machine=a CPU\n", "# model=my model-4.gguf\n", "# warning=busy\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	r := csv.NewReader(strings.NewReader(text))
	r.Comment = '#'
	records, err := r.ReadAll()
	if err != nil || len(records) != len(results)+1 || records[0][0] != "test" || records[1][0] != results[0].Test {
		t.Errorf("CSV: %v\n%s", err, text)
	}
	b.Reset()
	if err := WriteGoBench(&b, f, results); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^Benchmark(Prefill|Decode)(/[a-z-]+=[^/=\s]+)+\t\d+(\t[0-9.]+ [A-Za-z/-]+)+$`)
	n := 0
	for l := range strings.Lines(b.String()) {
		l = strings.TrimSuffix(l, "\n")
		if strings.HasPrefix(l, "Benchmark") {
			n++
			if !line.MatchString(l) || regexp.MustCompile(`-\d+\t`).MatchString(l) {
				t.Errorf("benchmark line %q", l)
			}
		}
	}
	if n != 3*len(results) || !strings.Contains(b.String(), "/isa=generic/") || !strings.Contains(b.String(), "/threads=") || !strings.Contains(b.String(), "Unit tok/s better=higher\n") || !strings.Contains(b.String(), "/model=my_model-4/") {
		t.Errorf("%d lines\n%s", n, b.String())
	}
}

// On a device its name stands where the processor's instruction set does, and threads are left out.
func TestDeviceFormats(t *testing.T) {
	f := Facts{Machine: "a CPU", Model: "m.gguf", ISA: "avx512", Device: "cuda:1 NVIDIA H200 (sm_90, 143771 MiB, driver 12.8)"}
	results := []Speed{{Test: "tg3", Tokens: 3, Seconds: []float64{1}, Config: Variant{CacheMB: "auto", Arm: "table", NExpertUsed: 4}}}
	var b bytes.Buffer
	if err := WriteCSV(&b, f, results); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if !strings.Contains(text, "# device="+f.Device+"\n") || strings.Contains(text, "isa") || !strings.Contains(text, ",table,0,,4,") {
		t.Errorf("CSV:\n%s", text)
	}
	b.Reset()
	if err := WriteGoBench(&b, f, results); err != nil {
		t.Fatal(err)
	}
	text = b.String()
	if !strings.Contains(text, "\ndevice: "+f.Device+"\n") ||
		!strings.Contains(text, "BenchmarkDecode/model=m/device=cuda:1_NVIDIA_H200/tokens=3/depth=0/cache-mb=auto/drop-cold-experts=0/arm=table/io-threads=0/n-expert-used=4\t") {
		t.Errorf("benchmark lines:\n%s", text)
	}
	if s := results[0].Config.String(); strings.Contains(s, "threads ,") || strings.HasSuffix(s, "threads ") || !strings.Contains(s, "io-threads 0, n-expert-used 4") {
		t.Errorf("setting in words: %s", s)
	}
}

func TestMeasureSpeedRefuses(t *testing.T) {
	m := openDemo(t)
	s := subject(t, m, Variant{Arm: "host", Threads: 1}, 0)
	for _, c := range []struct {
		cfg  SpeedConfig
		want string
	}{
		{SpeedConfig{PP: []int{1}}, "0 rounds"},
		{SpeedConfig{PP: []int{1}, Repeat: 1, WarmUp: -1}, "-1 to warm up"},
		{SpeedConfig{Repeat: 1}, "nothing to time"},
		{SpeedConfig{PP: []int{0}, Repeat: 1}, "test pp0"},
		{SpeedConfig{TG: []int{1}, Depth: []int{-1}, Repeat: 1}, "at depth -1"},
		{SpeedConfig{TG: []int{500}, Depth: []int{13}, Repeat: 1}, "513 tokens, the context has 512"},
	} {
		if _, err := MeasureSpeed(t.Context(), m, []Subject{s}, c.cfg, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestVariants(t *testing.T) {
	vs, notes := Axes{[]string{"0", "64"}, []float64{0, 0.5}, []string{"host", "table"}, []int{2, 4}, []int{1}, nil}.Variants()
	var got []string
	for _, v := range vs {
		got = append(got, v.String())
	}
	// With a cache 2 x 2 x 2, without one neither lanes nor dropping.
	if len(vs) != 10 || len(notes) != 1 || got[0] != "cache-mb 64, drop-cold-experts 0, arm host, io-threads 2, threads 1, n-expert-used 0" ||
		got[9] != "cache-mb 0, drop-cold-experts 0, arm table, io-threads 0, threads 1, n-expert-used 0" {
		t.Errorf("%d variants, notes %q:\n%s", len(vs), notes, strings.Join(got, "\n"))
	}
	// A single wrong setting stays, for whoever checks settings to refuse.
	if vs, notes := (Axes{[]string{"0"}, []float64{0.5}, []string{"host"}, []int{4}, []int{1}, nil}).Variants(); len(vs) != 1 || notes != nil || vs[0].IOThreads != 4 {
		t.Errorf("%v %q", vs, notes)
	}
}

func TestLoad(t *testing.T) {
	root := func(loadavg, stat string) string {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "proc"), 0o755)
		os.WriteFile(filepath.Join(dir, "proc/loadavg"), []byte(loadavg), 0o644)
		os.WriteFile(filepath.Join(dir, "proc/stat"), []byte(stat), 0o644)
		os.WriteFile(filepath.Join(dir, "proc/cpuinfo"), []byte("processor\t: 0\nmodel name\t: A  CPU\n"), 0o644)
		return dir
	}
	quiet := ReadLoad(root("0.10 2.00 3.00 1/100 7\n", "cpu  100 0 100 800 0 0 0 10 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"))
	later := ReadLoad(root("2.10 2.00 3.00 1/100 7\n", "cpu  200 0 200 1500 0 0 0 30 5 0\n"))
	if quiet.Average != 0.1 || quiet.Steal != 10 || quiet.Total != 1010 {
		t.Errorf("%+v", quiet)
	}
	four := machine.CPUs{Affinity: 4, Quota: math.Inf(1)}
	for _, c := range []struct {
		before, after Load
		cpus          machine.CPUs
		threads       int
		want          []string
	}{
		{quiet, quiet, four, 4, nil},
		{later, later, four, 4, []string{"load average 2.10"}},
		{quiet, later, four, 4, []string{"took 2.2 %"}},
		{quiet, quiet, machine.CPUs{Affinity: 4, Quota: 1.5}, 2, []string{"quota of 1.50"}},
		{quiet, quiet, four, 5, []string{"5 threads on 4"}},
		{Load{}, Load{}, four, 1, nil},
	} {
		got := LoadWarnings(c.before, c.after, c.cpus, c.threads)
		ok := len(got) == len(c.want)
		for i := range c.want {
			ok = ok && strings.Contains(got[i], c.want[i])
		}
		if !ok {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
	if l := ReadLoad(t.TempDir()); l != (Load{}) {
		t.Errorf("nothing there: %+v", l)
	}
	if l := ReadLoad(root("x", "cpu 1 2\n")); l != (Load{}) {
		t.Errorf("nonsense: %+v", l)
	}
	if m := CPUModel(root("", "")); m != "A  CPU" {
		t.Errorf("model %q", m)
	}
}

// TestRecordRun writes both files of one recorded run, with a decode and with a prompt alone, in less context than asked.
func TestRecordRun(t *testing.T) {
	m := openDemo(t)
	for _, c := range []RecordConfig{{Prompt: 20, Decode: 5}, {Prompt: 20, Depth: 4}, {Decode: 2}} {
		dir := t.TempDir()
		c.OpsCSV, c.ChromeTrace = filepath.Join(dir, "ops.csv"), filepath.Join(dir, "trace.json")
		rec := c.NewRecorder(m, 16)
		s, err := engine.NewSession(m, engine.Config{Ctx: 64, Batch: 16, Threads: 2, Recorder: rec})
		if err != nil {
			t.Fatal(err)
		}
		notes, err := RecordRun(t.Context(), s, rec, m, c)
		if err != nil || len(notes) != 2 || !strings.Contains(notes[1], "(0, 0 and 0 earlier") {
			t.Errorf("%+v: %v, %q", c, err, notes)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, f := range []string{c.OpsCSV, c.ChromeTrace, filepath.Join(dir, "profile_log_device.csv")} {
			if st, err := os.Stat(f); err != nil || st.Size() == 0 {
				t.Errorf("%s: %v", f, err)
			}
		}
	}
}
