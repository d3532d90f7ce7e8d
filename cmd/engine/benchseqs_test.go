package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBenchSeqs: figures of several sequences in step add up, and settings without effect are refused.
func TestBenchSeqs(t *testing.T) {
	file := skewedFile(t)
	r := call(t, "bench", "-m", file, "--seqs", "1,3,8", "--tg", "6", "--repeat", "1", "--json", "--probe", "--cache-mb", "4", "--cache-force", "--io", "buffered")
	r.want(t, 0)
	var doc seqsJSON
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Results) != 3 {
		t.Fatalf("%d results, want 3", len(doc.Results))
	}
	for i, s := range doc.Results {
		if s.Seqs != []int{1, 3, 8}[i] || !(s.TPS > 0) || s.PerSeq*float64(s.Seqs) < 0.999*s.TPS || s.Limit == nil || !(s.Limit.ComputeTPS > 0 && s.Limit.MemoryTPS > 0) {
			t.Errorf("%+v", s)
		}
		if i > 0 && !(s.WeightBytes < doc.Results[i-1].WeightBytes && s.Experts > doc.Results[i-1].Experts) {
			t.Errorf("%d sequences read %.0f bytes a token over %.2f experts, %d read %.0f over %.2f: they share neither", s.Seqs, s.WeightBytes, s.Experts,
				doc.Results[i-1].Seqs, doc.Results[i-1].WeightBytes, doc.Results[i-1].Experts)
		}
	}
	if got := doc.Results[0].Experts; got != 4 {
		t.Errorf("one sequence needs %v experts a layer, want the model's 4", got)
	}
	call(t, "bench", "-m", file, "--seqs", "2", "--tg", "3", "--repeat", "1", "--probe").want(t, 0, "2 sequences of")
	steps := filepath.Join(t.TempDir(), "steps.csv")
	call(t, "bench", "-m", file, "--seqs", "3", "--tg", "4", "--repeat", "2", "--warmup", "0", "--steps-csv", steps).want(t, 0)
	text, err := os.ReadFile(steps)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if n := len(lines); !strings.HasSuffix(lines[n-9], ",seqs,drawn") || !strings.HasSuffix(lines[n-1], ",3,3") {
		t.Errorf("the log of eight steps of three sequences ends with\n%s", strings.Join(lines[max(0, n-9):], "\n"))
	}
	for _, args := range [][]string{
		{"--pp", "4"}, {"--csv"}, {"--go-bench"}, {"--n-expert-used", "2"}, {"--ops-csv", filepath.Join(t.TempDir(), "x")},
		{"--tg", "3,4"}, {"--depth", "0,5"}, {"--arm", "host,table"}, {"--cache-mb", "4,8"}, {"--repeat", "0"},
	} {
		call(t, append([]string{"bench", "-m", file, "--seqs", "2"}, args...)...).want(t, 2)
	}
	for _, list := range []string{"", "0", "2,x", "5000"} {
		r := call(t, "bench", "-m", file, "--seqs", list, "--tg", "2")
		r.want(t, 2)
		if !strings.Contains(r.err, "seq") {
			t.Errorf("--seqs %q: %s", list, r.err)
		}
	}
}
