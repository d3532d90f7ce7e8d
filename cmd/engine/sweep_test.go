package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/bench/sweep"
)

func TestSweepWritesBothModes(t *testing.T) {
	dir, again := t.TempDir(), t.TempDir()
	code, out, stderr := runMachineVerb(t, sweepCommand, "--s-kv", "128", "--t-q", "8", "--head-dim", "16", "--group", "2", "--cubes", "2", "--pes", "4", "--out", dir, "--json")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var docs map[string]*sweep.Document
	if err := json.Unmarshal([]byte(out), &docs); err != nil || len(docs) != 2 || len(docs["decode"].Rows) != 4 {
		t.Fatalf("%v: %s", err, out)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 2+16 {
		t.Errorf("wrote %v", files)
	}
	code, _, stderr = runMachineVerb(t, sweepCommand, "--from", filepath.Join(dir, "sweep_decode.json"), "--out", again)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	name := "gqa_decode_long_ctx_4cases_latency.svg"
	a, errA := os.ReadFile(filepath.Join(dir, name))
	b, errB := os.ReadFile(filepath.Join(again, name))
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("redrawn figure differs: %v %v", errA, errB)
	}
	code, out, _ = runMachineVerb(t, sweepCommand, "--print-topology")
	if top, err := sweep.ReadTopology(strings.NewReader(out)); code != 0 || err != nil || top != sweep.DefaultTopology() {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

func TestSweepRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"pe_flops": 0}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"S_kv does not divide", []string{"--s-kv", "8200"}, 2, "S_kv = 8200 does not divide over C*P = 64"},
		{"T_q does not divide", []string{"--t-q", "500"}, 2, "T_q = 500 does not divide over C*P = 64"},
		{"negative", []string{"--s-kv", "-1"}, 2, "S_kv is -1"},
		{"zero cubes", []string{"--cubes", "0"}, 2, "C is 0"},
		{"zero pes", []string{"--pes", "0"}, 2, "P is 0"},
		{"zero heads", []string{"--kv-heads", "0"}, 2, "h_kv is 0"},
		{"wide head", []string{"--head-dim", "4096"}, 2, "d_head is 4096"},
		{"zero group", []string{"--group", "0"}, 2, "query heads"},
		{"mode", []string{"--mode", "prefil"}, 2, `mode "prefil"`},
		{"no directory", []string{"--out", filepath.Join(dir, "none")}, 2, "not a directory"},
		{"bad topology", []string{"--topology", bad}, 1, `"pe_mem_bw" is missing`},
		{"no topology", []string{"--topology", filepath.Join(dir, "none.json")}, 1, "none.json"},
		{"bad document", []string{"--from", bad}, 1, `"rows" is missing`},
		{"sizes for a document", []string{"--from", bad, "--s-kv", "64"}, 2, "no effect with --from"},
	} {
		code, _, stderr := runMachineVerb(t, sweepCommand, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, want %d; error %q, want %q in it", c.name, code, c.code, stderr, c.want)
		}
	}
}
