package sweep

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/dump/scripttest"
)

func document(t *testing.T, mode string) *Document {
	t.Helper()
	c := Config{Mode: mode, SKV: 256, TQ: 16, KVHeads: 1, HeadDim: 32, Group: 2, C: 4, P: 4, Seed: 3}
	if mode == Decode {
		c.TQ = 1
	}
	var told []string
	d, err := All(t.Context(), c, DefaultTopology(), func(k Case) { told = append(told, k.Name) })
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Rows) != 4 || len(told) != 4 {
		t.Fatalf("%d rows, progress %v", len(d.Rows), told)
	}
	return d
}

// What is written is read again, to the same rows and the same figures.
func TestDocumentRoundTrip(t *testing.T) {
	for _, mode := range []string{Prefill, Decode} {
		d := document(t, mode)
		b, err := json.MarshalIndent(d, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadDocument(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got.Config.Mode != mode || len(got.Rows) != 4 {
			t.Fatalf("mode %q, %d rows", got.Config.Mode, len(got.Rows))
		}
		for i, r := range d.Rows {
			r.MeasuredNS, r.CopyBytes, r.MaxError = 0, 0, 0 // the figures do not need them
			if got.Rows[i] != r {
				t.Errorf("%+v, want %+v", got.Rows[i], r)
			}
		}
		dir := t.TempDir()
		paths, err := got.SaveFigures(dir, ".png", ".svg")
		if err != nil || len(paths) != 8 {
			t.Fatalf("%v %v", paths, err)
		}
		svg, err := os.ReadFile(filepath.Join(dir, "gqa_"+mode+"_long_ctx_4cases_traffic.svg"))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"Case 1", "IPCQ copy", "DMA read", "DMA write", "S_kv 256"} {
			if !bytes.Contains(svg, []byte(s)) {
				t.Errorf("%s: no %q in the picture", mode, s)
			}
		}
	}
}

const goodRow = `{"panel":"single_kv_group_prefill_long_ctx_gqa_cube_sp_pe_sp","latency_ns":5,"S_kv":64,"T_q":16,"h_kv":1,"d_head":8,"C":2,"P":2,` +
	`"op_log_summary":{"ipcq_copy_count":1,"dma_read_count":2,"dma_write_count":3}}`

func TestReadDocumentRefuses(t *testing.T) {
	edit := func(from, to string) string { return `{"rows":[` + strings.Replace(goodRow, from, to, 1) + `]}` }
	if d, err := ReadDocument(strings.NewReader(edit("", ""))); err != nil || d.Rows[0].Summary != (Counts{1, 2, 3}) || d.Rows[0].Work.SLocal != 16 {
		t.Fatalf("%+v %v", d, err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1 column 1"},
		{"no rows", "{}", `"rows" is missing`},
		{"empty rows", `{"rows":[]}`, "no row"},
		{"no panel", edit("panel", "panels"), `row 0: key "panel" is missing`},
		{"no latency", edit("latency_ns", "x"), `"latency_ns" is missing`},
		{"no S_kv", edit("S_kv", "x"), `"S_kv" is missing`},
		{"no T_q", edit("T_q", "x"), `"T_q" is missing`},
		{"no h_kv", edit("h_kv", "x"), `"h_kv" is missing`},
		{"no d_head", edit("d_head", "x"), `"d_head" is missing`},
		{"no C", edit(`"C"`, `"x"`), `"C" is missing`},
		{"no P", edit(`"P"`, `"x"`), `"P" is missing`},
		{"no summary", edit("op_log_summary", "x"), `"op_log_summary" is missing`},
		{"no copies", edit("ipcq_copy_count", "x"), `"op_log_summary.ipcq_copy_count" is missing`},
		{"no reads", edit("dma_read_count", "x"), `"op_log_summary.dma_read_count" is missing`},
		{"no writes", edit("dma_write_count", "x"), `"op_log_summary.dma_write_count" is missing`},
		{"unknown case", edit("cube_sp_pe_sp", "cube_sp"), `case "cube_sp", want one of`},
		{"other panel", edit("single_kv_group", "kv_group"), "panel"},
		{"zero latency", edit(`"latency_ns":5`, `"latency_ns":0`), "latency_ns is 0"},
		{"negative count", edit(`count":1`, `count":-1`), "count of -1"},
		{"negative size", edit(`"S_kv":64`, `"S_kv":-64`), "S_kv is -64"},
		{"not divisible", edit(`"S_kv":64`, `"S_kv":65`), "S_kv = 65 does not divide over C*P = 4"},
		{"number as text", "{\"rows\":[\n" + strings.Replace(goodRow, `"latency_ns":5`, `"latency_ns":"5"`, 1) + "]}", "line 2 column"},
		{"fraction", edit(`"S_kv":64`, `"S_kv":64.5`), "line 1 column"},
		{"twice", `{"rows":[` + goodRow + "," + goodRow + `]}`, "row 1: panel"},
		{"two modes", `{"rows":[` + goodRow + "," + strings.Replace(goodRow, "prefill", "decode", 1) + `]}`, "row 1: sweep: panel"},
	} {
		if _, err := ReadDocument(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}

func FuzzReadDocument(f *testing.F) {
	f.Add([]byte(`{"rows":[` + goodRow + `]}`))
	f.Add([]byte(`{"rows":[` + strings.Replace(strings.Replace(goodRow, "prefill", "decode", 1), `"T_q":16`, `"T_q":1`, 1) + `]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ReadDocument(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, r := range d.Rows { // what the figures draw must be drawable
			if !(r.LatencyNS > 0) || r.Total <= 0 || r.KVBytes <= 0 || r.SLocal < 1 {
				t.Fatalf("%+v", r)
			}
		}
		for _, c := range charts(d.Config.Mode, d.Rows) {
			for _, s := range c.series {
				if len(s.values) != len(d.Rows) || len(s.colors) != len(d.Rows) {
					t.Fatalf("%+v", s)
				}
			}
		}
	})
}

func FuzzReadTopology(f *testing.F) {
	b, err := json.Marshal(DefaultTopology())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	s, err := New(Config{Mode: Prefill, SKV: 64, TQ: 16, KVHeads: 1, HeadDim: 8, Group: 2, C: 2, P: 2}, Cases()[3])
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		top, err := ReadTopology(bytes.NewReader(b))
		if err != nil {
			return
		}
		if ns, err := top.Simulate(s); err != nil || !(ns > 0) || math.IsInf(ns, 0) {
			t.Fatalf("%+v: %v %v", top, ns, err)
		}
	})
}

// The plotting script that the document's keys come from draws our rows, unchanged, and its numbers are our figures'. It
// runs with a stand-in for matplotlib that records what is drawn.
func TestScriptDrawsOurDocument(t *testing.T) {
	python, script := scripttest.Script(t, "003", "paper_plot_gqa_prefill_long_ctx_4cases.py")
	root := t.TempDir()
	const drawn = "src/kernbench/benches/1H_milestone_output/gqa/long_ctx"
	dir := filepath.Join(root, drawn)
	doc := document(t, Prefill)
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	scripttest.Write(t, root, map[string]string{"scripts/paper/plot.py": script, drawn + "/sweep_prefill.json": string(b)})
	stand, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, filepath.Join(root, "scripts/paper/plot.py"))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+stand, "PYTHONDONTWRITEBYTECODE=1")
	_, err = cmd.Output()
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		t.Fatalf("%v: %s", err, ee.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range charts(Prefill, doc.Rows) {
		b, err := os.ReadFile(filepath.Join(dir, c.file+".png"))
		if err != nil {
			t.Fatal(err)
		}
		var drawn struct {
			Bars []struct {
				Height []float64
				Label  string
			}
		}
		if err := json.Unmarshal(b, &drawn); err != nil {
			t.Fatalf("%s: %v: %.100s", c.file, err, b)
		}
		if len(drawn.Bars) != len(c.series) {
			t.Fatalf("%s: the script draws %d series, we %d", c.file, len(drawn.Bars), len(c.series))
		}
		for i, s := range c.series {
			got := drawn.Bars[i]
			if s.name != "" && got.Label != s.name || len(got.Height) != 4 {
				t.Errorf("%s: series %d is %q of %d, want %q of 4", c.file, i, got.Label, len(got.Height), s.name)
				continue
			}
			for j, v := range s.values {
				if math.Abs(got.Height[j]-v) > 1e-9*math.Abs(v) {
					t.Errorf("%s: case %d: the script draws %v, we %v", c.file, j+1, got.Height[j], v)
				}
			}
		}
	}
}
