package roofline

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMachineTable(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Machines() {
		if seen[m.Name] || m.Name == "" || len(m.Source) < 20 {
			t.Errorf("%+v: want a name of its own and a source", m)
		}
		seen[m.Name] = true
		if ai := m.ArithmeticIntensity(); ai < 10 || ai > 1000 {
			t.Errorf("%s: %g FLOP per byte looks like a slip in a unit", m.Name, ai)
		}
		if found, err := FindMachine(m.Name); err != nil || found != m {
			t.Errorf("find %s: %+v %v", m.Name, found, err)
		}
	}
	if _, err := FindMachine("h2000"); err == nil || !strings.Contains(err.Error(), "h200-sxm, ") {
		t.Errorf("unknown machine: %v", err)
	}
	path := filepath.Join(t.TempDir(), "m.json")
	if err := os.WriteFile(path, []byte(`{"peak_flops": 5, "bw_hbm": 2, "bw_stream": 1, "cores": 3}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if m, err := FindMachine(path); err != nil || m != (Machine{PeakFlops: 5, Bandwidth: 2, Stream: 1}) {
		t.Errorf("%+v %v", m, err)
	}
}

func TestReadMachinesRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1 column 1"},
		{"empty list", "[]", "no entry"},
		{"a number", "7", "line 1"},
		{"missing peak", `{"bw_hbm": 1}`, `"peak_flops" is missing`},
		{"missing bandwidth", `[{"peak_flops":1,"bw_hbm":1},{"name":"b","peak_flops":1}]`, `entry 1 ("b"): key "bw_hbm" is missing`},
		{"zero bandwidth", `{"peak_flops":1,"bw_hbm":0}`, "bw_hbm is 0"},
		{"negative", `{"peak_flops":-1,"bw_hbm":1}`, "peak_flops is -1"},
		{"text for a number", "{\n \"peak_flops\": \"fast\"}", "line 2 column"},
		{"cut off", "\n{\n \"peak_flops\": 1,", "line 3 column 17"},
		{"too large a number", `{"peak_flops":1e999,"bw_hbm":1}`, "line 1 column"},
	} {
		if _, err := ReadMachines(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
	if _, err := ReadMachines(strings.NewReader(strings.Repeat(" ", maxMachineBytes+1))); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("too long: %v", err)
	}
}

func TestReadMeasured(t *testing.T) {
	ms, err := ReadMeasured(strings.NewReader(`{"version":"x","results":[
		{"test":"pp512","tokens":512,"tps":200,"min_tps":100,"max_tps":400},
		{"test":"tg64","tps":50,"depth":4096},{"test":"tg8 @ d100","tps":50},{"test":"tg8@d7","tps":50}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Measured{{"pp512", 512, 0, 0.005, 0.0025, 0.01}, {"tg64", 1, 4096, 0.02, 0.02, 0.02}, {"tg8 @ d100", 1, 100, 0.02, 0.02, 0.02}, {"tg8@d7", 1, 7, 0.02, 0.02, 0.02}}
	for i, w := range want {
		if ms[i] != w {
			t.Errorf("%+v, want %+v", ms[i], w)
		}
	}
	for _, c := range []struct{ name, text, want string }{
		{"no results", `{}`, `"results" is missing`},
		{"empty results", `{"results":[]}`, "no result"},
		{"no test", `{"results":[{"tps":1}]}`, `result 0: key "test" is missing`},
		{"no speed", `{"results":[{"test":"pp1","tps":1},{"test":"tg1"}]}`, `result 1: key "tps" is missing`},
		{"unknown test", `{"results":[{"test":"warmup","tps":1}]}`, `test "warmup"`},
		{"zero tokens", `{"results":[{"test":"pp0","tps":1}]}`, "want 1.."},
		{"huge", `{"results":[{"test":"pp99999999999999999999","tps":1}]}`, "want 1.."},
		{"zero speed", `{"results":[{"test":"pp1","tps":0}]}`, "tps is 0"},
		{"negative speed", `{"results":[{"test":"pp1","tps":1,"min_tps":-1}]}`, "min_tps is -1"},
		{"negative depth", `{"results":[{"test":"pp1","tps":1,"depth":-1}]}`, "depth out of"},
		{"number as text", "{\"results\":[\n{\"test\":\"pp1\",\"tps\":\"1\"}]}", "line 2 column"},
		{"not JSON", "test,tps\n", "line 1 column"},
	} {
		if _, err := ReadMeasured(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}

// Whatever the bytes, readers return numbers that formulas can take or an error.
func FuzzReadMachines(f *testing.F) {
	f.Add(machinesJSON)
	f.Add([]byte(`{"peak_flops": 5, "bw_hbm": 2}`))
	f.Add([]byte(`[{"peak_flops": 5e300, "bw_hbm": 1}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := ReadMachines(bytes.NewReader(b))
		if (err == nil) != (len(ms) > 0) {
			t.Fatalf("%d machines, error %v", len(ms), err)
		}
		for _, m := range ms {
			if _, err := New(Input{Machine: m, Model: testModel, Sparsity: 1, Context: 1, Batches: []int{1}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzReadMeasured(f *testing.F) {
	f.Add([]byte(`{"results":[{"test":"pp512","tps":200,"min_tps":100,"max_tps":400},{"test":"tg8@d7","tps":50,"depth":3}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := ReadMeasured(bytes.NewReader(b))
		if (err == nil) != (len(ms) > 0) {
			t.Fatalf("%d points, error %v", len(ms), err)
		}
		for _, m := range ms {
			if !(m.Seconds > 0 && m.Min > 0 && m.Max > 0) || m.Batch < 1 || m.Context < 0 {
				t.Fatalf("%+v", m)
			}
		}
	})
}

func FuzzReadRouting(f *testing.F) {
	f.Add([]byte{0, 1, 3, 0, 0, 0, 128, 63, 0, 1, 1, 0, 0, 0, 128, 63}, uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, batch uint8) {
		_, w := NewMoE(testModel, 0, 4, 1, 8)
		w.Layers = w.Layers[:1]
		for _, order := range []string{Spread, Consecutive} {
			r, err := ReadRouting(bytes.NewReader(b), "x", order, w)
			if err != nil {
				return
			}
			n, ok := r.Distinct(0, float64(batch))
			if ok != (batch >= 1 && int(batch) <= r.MaxBatch()) || (ok && !(n >= 1 && n <= 4)) {
				t.Fatalf("batch %d of %d: %v %v", batch, r.MaxBatch(), n, ok)
			}
		}
	})
}
