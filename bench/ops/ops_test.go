package ops

import (
	"bytes"
	"context"
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/bench/profile"
	"sluice/dump/scripttest"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// record profiles the built-in model: resident, or through the smallest cache with experts dropped.
func record(t *testing.T, arm string, streamed bool, c Config) *Profile {
	t.Helper()
	m := enginetest.OpenFile(t, enginetest.WriteFile(t, demo.Name, demo.Model()))
	rec := model.NewRecorder(1<<12, 1<<10)
	cfg := engine.Config{Threads: 2, Arm: model.Arm(arm), Recorder: rec}
	if streamed {
		cfg.Drop = moe.Drop{Frac: 1, Renorm: true}
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered", Observer: rec}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Source = src
	}
	s, err := engine.NewSession(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c.NVocab, c.Seed = m.NVocab, 1
	p, err := Record(context.Background(), s, rec, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var cases = []struct {
	name, arm string
	streamed  bool
	cfg       Config
}{
	{"decode", "host", false, Config{Depth: 20}},
	{"streamed decode, dropping", "table", true, Config{Depth: 20}},
	{"streamed prefill", "host", true, Config{Prefill: 70, Depth: 3, Replays: 1}},
}

// TestSummary reads our file with our reader: two sections of one sequence, times that add up, layers by their tensors.
func TestSummary(t *testing.T) {
	for _, c := range cases {
		p := record(t, c.arm, c.streamed, c.cfg)
		if slices.EqualFunc(p.Eager, p.Trace, func(a, b Row) bool { return a.Kernel == b.Kernel }) {
			t.Errorf("%s: both sections have the same times: one is a copy of the other", c.name)
		}
		path := filepath.Join(t.TempDir(), "ops.csv")
		if err := p.Save(path); err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if err := p.Write(&buf); err != nil {
			t.Fatal(err)
		}
		prof, err := profile.Read(bytes.NewReader(buf.Bytes()), "ops.csv", profile.Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		mhz, log, err := profile.ChipFreqMHz(path)
		if err != nil || mhz != clockMHz || filepath.Dir(log) != filepath.Dir(path) {
			t.Errorf("%s: clock %g of %s, %v", c.name, mhz, log, err)
		}
		var doc bytes.Buffer
		r := prof.Report(profile.ReportOptions{FreqMHz: mhz})
		if err := r.WriteMarkdown(&doc); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(doc.String(), "trace op sequence == eager: True") {
			t.Errorf("%s: %s", c.name, doc.String())
		}
		records, err := csv.NewReader(&buf).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		check(t, c.name, p, records)
	}
}

// check looks at the cells.
func check(t *testing.T, name string, p *Profile, records [][]string) {
	t.Helper()
	if !slices.Equal(records[0], profile.Columns()) {
		t.Errorf("%s: columns %q", name, records[0])
	}
	at := map[string]int{}
	for i, c := range records[0] {
		at[c] = i
	}
	var signposts []string
	rows := append(slices.Clone(p.Eager), p.Trace...)
	n := 0
	for _, rec := range records[1:] {
		get := func(col string) string { return rec[at[col]] }
		if get(profile.ColOpType) == profile.TypeSignpost {
			signposts = append(signposts, get(profile.ColOpCode))
			continue
		}
		r := &rows[n]
		inTrace := n >= len(p.Eager)
		n++
		if (get(profile.ColTraceID) == "1") != inTrace || (get(profile.ColSessionID) != "") != inTrace || get(profile.ColArch) != "" {
			t.Errorf("%s: op %d: trace %q, session %q, arch %q", name, n, get(profile.ColTraceID), get(profile.ColSessionID), get(profile.ColArch))
		}
		if f := get(profile.ColFidelity); f != "HiFi4" && f != "HiFi2" && f != "LoFi" {
			t.Errorf("%s: op %d: fidelity %q", name, n, f)
		}
		switch r.Kind {
		case model.OpQKV:
			if d := get(profile.InputColumn(1, profile.OperandDatatype)); d != "Q8_0" || !strings.Contains(get(profile.ColAttributes), "'weights': 'Q4_K Q8_0 Q8_0'") {
				t.Errorf("%s: qkv of %s: %s", name, d, get(profile.ColAttributes))
			}
		case model.OpGateUp:
			if r.Layer == 0 && !inTrace && p.Decode && (r.Experts < 1 || r.Experts > 4 || get(profile.InputColumn(1, profile.OperandZ)) != profile.Dim(int(r.Experts), int(r.Experts))) {
				t.Errorf("%s: %d experts, Z %s", name, r.Experts, get(profile.InputColumn(1, profile.OperandZ)))
			}
			if m := get(profile.InputColumn(1, profile.OperandMemory)); m != "DEV_0_"+r.Memory.String()+"_INTERLEAVED" {
				t.Errorf("%s: memory %q, want %s", name, m, r.Memory)
			}
		}
	}
	if n != len(rows) {
		t.Errorf("%s: %d op rows, want %d", name, n, len(rows))
	}
	want := []string{"eager", "m:token_embd", "c:token_embd", "m:blk.0", "c:blk.0.attn_qkv", "c:blk.0.attn_qkv|post", "c:blk.0.attn_output",
		"c:blk.0.ffn_gate_inp", "c:blk.0.ffn_gate_inp|post", "c:blk.0.ffn_exps", "m:blk.1", "c:blk.1.attn_qkv"}
	if len(signposts) < len(want) || !slices.Equal(signposts[:len(want)], want) {
		t.Errorf("%s: signposts %q", name, signposts)
	}
}

// TestFuse: passes that alternate are put together, and no time is lost or counted twice.
func TestFuse(t *testing.T) {
	op := func(kind model.OpKind, layer int32, start, end int64, tokens int32) model.Op {
		return model.Op{Kind: kind, Layer: layer, Start: start, End: end, Tokens: tokens, Workers: 1, Bytes: 10}
	}
	rows := Fuse([]model.Op{
		op(model.OpEmbed, -1, 100, 110, 8),
		op(model.OpGateUp, 0, 115, 120, 5), op(model.OpDown, 0, 121, 131, 5),
		op(model.OpGateUp, 0, 141, 142, 3), op(model.OpDown, 0, 142, 150, 3),
		op(model.OpOutput, -1, 150, 160, 1),
	}, func(model.OpKind, int) model.OpInfo { return model.OpInfo{} })
	if len(rows) != 4 || rows[3].End != 160 || rows[3].Start != 150 {
		t.Fatalf("rows %+v", rows)
	}
	g, d := rows[1], rows[2]
	if g.Passes != 2 || g.Kernel != 6 || g.Gap != 15 || g.Tokens != 8 || g.Bytes != 20 || g.Start != 125 || g.End != 131 ||
		d.Kernel != 18 || d.Gap != 1 || d.Start != 132 || d.End != 150 {
		t.Errorf("gate_up %+v\ndown %+v", g, d)
	}
}

func TestFidelity(t *testing.T) {
	for _, c := range []struct {
		types []kernels.Type
		want  string
	}{
		{[]kernels.Type{kernels.F32}, "HiFi4"}, {[]kernels.Type{kernels.F16}, "HiFi2"}, {[]kernels.Type{kernels.Q8_0}, "HiFi2"},
		{[]kernels.Type{kernels.Q4_K}, "LoFi"}, {[]kernels.Type{kernels.Q4_K, kernels.Q8_0}, "HiFi2"}, {[]kernels.Type{kernels.MXFP4, kernels.F32}, "HiFi4"},
	} {
		if got := Fidelity(c.types); got != c.want {
			t.Errorf("%v: %s, want %s", c.types, got, c.want)
		}
	}
}

// A device log of another device is not overwritten, and a wrong request is refused.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, profile.DeviceLogName)
	if err := os.WriteFile(log, []byte("ARCH: blackhole, CHIP_FREQ[MHz]: 1350\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ops.csv")
	if err := (&Profile{}).Save(path); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("beside another device's log: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a CSV was left behind")
	}
	m := enginetest.OpenFile(t, enginetest.WriteFile(t, demo.Name, demo.Model()))
	rec := model.NewRecorder(8, 1)
	s, err := engine.NewSession(m, engine.Config{Ctx: 64, Batch: 16, Recorder: rec})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for want, c := range map[string]Config{
		"at most 16":            {Prefill: 17, NVocab: 5},
		"exceed the context":    {Depth: 64, NVocab: 5},
		"want 0 or more":        {Depth: -1, NVocab: 5},
		"less than one forward": {Depth: 1, NVocab: 5},
		"0 token ids":           {},
	} {
		if _, err := Record(t.Context(), s, rec, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if _, err := Record(t.Context(), s, nil, Config{NVocab: 1}); err == nil {
		t.Error("no recorder: no error")
	}
}

// TestScript runs the script that defined the summary on our files.
func TestScript(t *testing.T) {
	python, body := scripttest.Script(t, "002", "profile_summary.py")
	for _, c := range cases {
		dir := t.TempDir()
		script, path := filepath.Join(dir, "summary.py"), filepath.Join(dir, "ops.csv")
		scripttest.Write(t, dir, map[string]string{"summary.py": body})
		p := record(t, c.arm, c.streamed, c.cfg)
		if err := p.Save(path); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, script, path, filepath.Join(dir, "out.json")).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		for _, want := range []string{"freq 1000.0 MHz", "trace op sequence == eager: True", "trace ids ['1']", "blk.0.ffn_exps", "SparseMatmulDeviceOperation"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, out)
			}
		}
	}
}

// TestTTPerfReport runs tenstorrent's tt-perf-report on our files.
func TestTTPerfReport(t *testing.T) {
	checkout := os.Getenv("SLUICE_TT_PERF_REPORT")
	if checkout == "" {
		t.Skip("SLUICE_TT_PERF_REPORT, a checkout of tenstorrent/tt-perf-report, is not set")
	}
	python := ""
	for _, name := range []string{filepath.Join(checkout, ".venv/bin/python3"), "python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import matplotlib, pandas").Run() == nil {
			python = name
			break
		}
	}
	if python == "" {
		t.Skip("no python3 with pandas and matplotlib, neither in the checkout's .venv nor in the system")
	}
	var flags []string
	if exec.Command(python, "-c", "import pandas; assert tuple(map(int, pandas.__version__.split('.')[:2])) >= (2, 2)").Run() != nil {
		t.Log("pandas is older than the 2.2 that tt-perf-report asks for: without its summary, which needs that")
		flags = []string{"--no-summary"}
	}
	for _, c := range cases {
		dir := t.TempDir()
		path := filepath.Join(dir, "ops.csv")
		p := record(t, c.arm, c.streamed, c.cfg)
		if err := p.Save(path); err != nil {
			t.Fatal(err)
		}
		report := filepath.Join(dir, "report.csv")
		args := append([]string{filepath.Join(checkout, "src/tt_perf_report/perf_report.py"), path, "--start-signpost", "trace",
			"--end-signpost", "trace_end", "--no-color"}, flags...)
		if out, err := exec.Command(python, args...).CombinedOutput(); err != nil || !strings.Contains(string(out), "Performance Report") {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		cmd := exec.Command(python, append(args, "--csv", report)...)
		cmd.Env = append(os.Environ(), "PYTHONUTF8=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		f, err := os.Open(report)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		rows, err := csv.NewReader(f).ReadAll()
		f.Close()
		if err != nil || len(rows) < len(p.Trace)+1 {
			t.Errorf("%s: report of %d rows, %v; want the %d ops of the trace", c.name, len(rows), err, len(p.Trace))
		}
		if !strings.Contains(string(out), "until 'trace_end'") {
			t.Errorf("%s: no section found\n%s", c.name, out)
		}
	}
}
