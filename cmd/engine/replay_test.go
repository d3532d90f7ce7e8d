package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replayRun calls the verb as run would.
func replayRun(args ...string) (out string, err error) {
	var buf bytes.Buffer
	c := replayCommand(streams{in: strings.NewReader(""), out: &buf, err: &buf})
	c.SetFlagErrorFunc(nil)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	err = c.Execute()
	return buf.String(), err
}

const replayTrace = "# route_trace v1\n# model=m arch=a n_layer=1 n_expert=4 n_expert_used=2\n# layer=0 expert_bytes=1000 dense_bytes=1\n" +
	"turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n" +
	"0,1,0,0,0,0,0.8,0,1000,0\n0,1,0,0,1,1,0.2,0,1000,0\n0,1,1,0,0,0,0.9,1,0,0\n0,1,1,0,1,2,0.1,0,1000,0\n"

func TestReplayCommand(t *testing.T) {
	dir := t.TempDir()
	path, torn := filepath.Join(dir, "route.csv"), filepath.Join(dir, "torn.csv")
	for name, text := range map[string]string{path: replayTrace, torn: replayTrace + "0,1,2"} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args, want string
	}{
		{"FILE", "[DECODE] 2 routing cells, 4 routed experts, 75.0% misses"},
		{"FILE --frac 0.5", "0.50    25.00%      66.7%"},
		{"FILE --budgets 0.004", "[dynamic] the engine's cache runs while dropping: lru, 0.0039"},
		{"--cache FILE --policies lru,belady --budgets 0.002,0.004", "budget         lru    belady"},
		{"--cache --live FILE", "order      live"},
	} {
		out, err := replayRun(strings.Fields(strings.ReplaceAll(c.args, "FILE", path))...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s", c.args, err, out)
		}
	}
	for _, args := range [][]string{{path, "--json"}, {"--cache", path, "--json"}} {
		out, err := replayRun(args...)
		var doc map[string][]map[string]any
		if err != nil || json.Unmarshal([]byte(out), &doc) != nil || len(doc) != 1 {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	// A torn trace is answered as far as it goes, and fails all the same; so does one bad trace among others.
	out, err := replayRun(torn)
	if err == nil || !strings.Contains(err.Error(), "torn.csv") || !strings.Contains(out, "4 whole rows") {
		t.Errorf("torn: %v\n%s", err, out)
	}
	out, err = replayRun(filepath.Join(dir, "none.csv"), path)
	if err == nil || !strings.Contains(out, "[DECODE] 2 routing cells") {
		t.Errorf("missing: %v\n%s", err, out)
	}
}

func TestReplayUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                 "no trace given",
		"x --live":                         "--live has no effect without --cache",
		"x --seed 3":                       "--seed has no effect without --cache",
		"--cache x --frac 0.5":             "--frac has no effect with --cache",
		"--cache x --against y":            "--against has no effect with --cache",
		"--cache --live x --seed 1":        "--seed has no effect with --live",
		"--cache x --policies lur":         `unknown cache policy "lur": want one of belady, lru, lfu, slru, random, layer, layerlfu`,
		"--cache --live x --policies lfu":  `unknown cache policy "lfu": want one of lru, slru`,
		"--cache x --policies lru,lru":     "lru twice",
		"--cache x --budgets 0":            "want MiB above 0",
		"--cache x --budgets NaN":          "want MiB above 0",
		"--cache x --budgets 100,1e400":    "want MiB above 0",
		"x --frac 1.5":                     "want numbers from 0 to 1",
		"x --frac NaN":                     "want numbers from 0 to 1",
		"x --budgets 100 --policies layer": "want one of lru, slru",
	} {
		_, err := replayRun(strings.Fields(args)...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a usage error with %q", args, err, want)
		}
	}
}
