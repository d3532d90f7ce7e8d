package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sluice/bench/roofline"
)

// runMachineVerb runs one verb by itself and returns the exit code that the program would end with.
func runMachineVerb(t *testing.T, verb func(streams) *cobra.Command, args ...string) (code int, out, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	c := verb(streams{strings.NewReader(""), &o, &e})
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	var usage usageError
	switch {
	case errors.As(err, &usage):
		code = 2
	case err != nil:
		code = 1
	}
	if err != nil {
		e.WriteString(err.Error())
	}
	return code, o.String(), e.String()
}

// geometry is the first golden case as flags.
var geometry = []string{"--peak-flops", "989e12", "--bandwidth", "4.8e12", "--hidden", "8192", "--heads", "64", "--kv-heads", "8",
	"--head-dim", "128", "--ffn", "28672", "--layers", "80"}

func TestRooflineFlags(t *testing.T) {
	code, out, stderr := runMachineVerb(t, rooflineCommand, append(geometry, "--context", "8192", "--json")...)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var r struct {
		AI   float64  `json:"arithmetic_intensity"`
		L    float64  `json:"balance_context"`
		Knee *float64 `json:"knee_batch"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.AI != 206.04166666666666 || r.L != 2027.7063700707788 || r.Knee != nil || !strings.Contains(out, `"knee_batch": null`) {
		t.Errorf("%+v in %s", r, out)
	}
	if code, out, _ = runMachineVerb(t, rooflineCommand, append(geometry, "--context", "1000")...); code != 0 || !strings.Contains(out, "critical batch B*     206.0") {
		t.Errorf("exit %d: %s", code, out)
	}
	code, out, stderr = runMachineVerb(t, rooflineCommand, append(geometry, "--ffn", "0", "--experts", "64", "--experts-used", "4", "--expert-ffn", "1024",
		"--stream-bw", "5e9", "--miss-rate", "0.25", "--batch", "1,16")...)
	if code != 0 || !strings.Contains(out, "routing: uniform") || !strings.Contains(out, "25.0 % of the touched experts at 5 GB/s") || !strings.Contains(out, "stream-bound") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
}

// The built-in model, with plots, a measured point and a routing of its own.
func TestRooflineModel(t *testing.T) {
	dir := t.TempDir()
	measured := filepath.Join(dir, "bench.json")
	if err := os.WriteFile(measured, []byte(`{"results":[{"test":"tg64","tps":20}]}`), 0o666); err != nil {
		t.Fatal(err)
	}
	png, svg := filepath.Join(dir, "a.png"), filepath.Join(dir, "a.svg")
	code, out, stderr := runMachineVerb(t, rooflineCommand, "--machine", "l4", "--measured", measured, "--plot", png, "--plot", svg)
	if code != 0 || !strings.Contains(out, "measured") || !strings.Contains(out, "tg64") || !strings.Contains(out, "critical batch by routing") {
		t.Fatalf("exit %d: %s%s", code, out, stderr)
	}
	for _, p := range []string{png, svg} {
		if s, err := os.Stat(p); err != nil || s.Size() < 1000 {
			t.Errorf("%s: %v", p, err)
		}
	}
	code, out, _ = runMachineVerb(t, rooflineCommand, "--machines", "--json")
	var ms []roofline.Machine
	if err := json.Unmarshal([]byte(out), &ms); code != 0 || err != nil || len(ms) < 3 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

func TestRooflineRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte("{\n\"peak_flops\": 1,\n\"bw_hbm\": \"fast\"}"), 0o666); err != nil {
		t.Fatal(err)
	}
	replace := func(flag, v string) []string {
		a := append([]string(nil), geometry...)
		for i := range a {
			if a[i] == flag {
				a[i+1] = v
			}
		}
		return a
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no machine", nil, 2, "h200-sxm"},
		{"unknown machine", []string{"--machine", "h2000"}, 2, "neither in the table"},
		{"zero bandwidth", replace("--bandwidth", "0"), 2, "--bandwidth 0"},
		{"negative bandwidth", replace("--bandwidth", "-1"), 2, "--bandwidth -1"},
		{"zero bandwidth over a machine", []string{"--machine", "l4", "--bandwidth", "0"}, 2, "--bandwidth 0"},
		{"NaN peak", replace("--peak-flops", "NaN"), 2, "--peak-flops NaN"},
		{"negative hidden", replace("--hidden", "-5"), 2, "hidden is -5"},
		{"zero heads", replace("--heads", "0"), 2, "h_q is 0"},
		{"negative kv heads", replace("--kv-heads", "-1"), 2, "h_kv is -1"},
		{"negative ffn", replace("--ffn", "-1"), 2, "--ffn -1"},
		{"no ffn", replace("--ffn", "0"), 2, "ffn_dim is 0"},
		{"negative layers", replace("--layers", "-80"), 2, "layers is -80"},
		{"negative bytes", append(geometry, "--bytes", "-2"), 2, "bytes_per_elem is -2"},
		{"zero kv bytes", append(geometry, "--kv-bytes", "0"), 2, "--kv-bytes 0"},
		{"negative context", append(geometry, "--context", "-1"), 2, "context of -1"},
		{"zero batch", append(geometry, "--batch", "0"), 2, "--batch"},
		{"low sparsity", append(geometry, "--sparsity", "0.5"), 2, "sparsity 0.5"},
		{"negative experts", append(geometry, "--experts", "-1"), 2, "--experts -1"},
		{"experts half given", append(geometry, "--experts", "4"), 2, "want all three"},
		{"more used", append(geometry, "--experts", "4", "--experts-used", "5", "--expert-ffn", "8"), 2, "no more used"},
		{"miss rate", append(geometry, "--miss-rate", "2"), 2, "miss rate 2"},
		{"misses from nowhere", append(geometry, "--miss-rate", "0.5"), 2, "needs a model with experts"},
		{"zero stream", append(geometry, "--stream-bw", "0"), 2, "--stream-bw 0"},
		{"file and geometry", append(geometry, "-m", "x.gguf"), 2, "a file or a geometry"},
		{"dump without experts", append(geometry, "--sel-dump", "x"), 2, "no experts"},
		{"order without dump", append(geometry, "--sel-batch", "consecutive"), 2, "no effect"},
		{"unknown order", append(geometry, "--sel-batch", "x"), 2, "--sel-batch"},
		{"plot of another format", append(geometry, "--plot", "a.pdf"), 2, ".png, .svg"},
		{"argument", []string{"x"}, 2, "unexpected argument"},
		{"bad machine file", []string{"--machine", bad}, 1, "line 3 column"},
		{"no such model", []string{"--machine", "l4", "-m", filepath.Join(dir, "none.gguf")}, 1, "none.gguf"},
		{"no such measurement", append(geometry, "--measured", filepath.Join(dir, "none.json")), 1, "none.json"},
		{"bad measurement", append(geometry, "--measured", bad), 1, `"results" is missing`},
		{"threads", []string{"--machine", "this", "--threads", "0"}, 2, "--threads 0"},
	} {
		code, out, stderr := runMachineVerb(t, rooflineCommand, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) || out != "" {
			t.Errorf("%s: exit %d, want %d; printed %q, error %q, want %q in it", c.name, code, c.code, out, stderr, c.want)
		}
	}
}
