package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func shortText(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "engine", "testdata", "tinymoe-validation.txt"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "short.txt")
	if err := os.WriteFile(path, data[:600], 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEvalSweep(t *testing.T) {
	longTest(t)
	text, plots := shortText(t), filepath.Join(t.TempDir(), "curves")
	r := call(t, "eval", text, "--drop-sweep", "--cache-mb", "4", "--chunk", "64", "--drop-cold-experts", "0,0.5", "--n-expert-used", "2", "--plot", plots, "--json")
	doc := decode[evalSweepJSON](t, r)
	if doc.Mode != "decode" || doc.CacheBytes != 4<<20 || doc.Policy != "lrfu" || len(doc.Points) != 2 || doc.Verdict == "" || doc.Tokens == 0 || doc.Tokens%63 != 0 {
		t.Errorf("sweep %+v", doc)
	}
	if p := doc.Points[0]; p.DropFrac != 0.5 || p.NExpertUsed != 4 || p.KL <= 0 || p.BytesRead >= doc.Baseline.BytesRead || p.Dropped == 0 {
		t.Errorf("threshold %+v", p)
	}
	if p := doc.Points[1]; p.Kind != "top_k" || p.NExpertUsed != 2 || p.KL <= 0 || p.Dropped != 0 {
		t.Errorf("top-k %+v", p)
	}
	for ext, magic := range map[string]string{".png": "\x89PNG", ".svg": "<?xml"} {
		if b, err := os.ReadFile(plots + ext); err != nil || !bytes.HasPrefix(b, []byte(magic)) {
			t.Errorf("%s: %v %.20q", ext, err, b)
		}
	}
	r = call(t, "eval", text, "--drop-sweep", "--cache-mb", "4", "--chunk", "64")
	r.want(t, 0)
	for _, want := range []string{"undropped, k 4", "drop 0.25", "drop 1 ", "k 3", "k 1", "at equal reads"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("table lacks %q:\n%s", want, r.out)
		}
	}
}

func TestEvalSweepUsage(t *testing.T) {
	text := shortText(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--plot has no effect without --drop-sweep", []string{"--plot", "a.png"}},
		{"extension \".pdf\", want one of .png, .svg", []string{"--drop-sweep", "--cache-mb", "4", "--plot", "a.pdf"}},
		{"compares reads, and without an expert cache there are none", []string{"--drop-sweep", "--cache-mb", "0"}},
		{"compares reads, and without an expert cache there are none", []string{"--drop-sweep", "--chunk", "64"}}, // auto: all experts fit
		{"decode mode throughout", []string{"--drop-sweep", "--cache-mb", "4", "--mode", "prefill"}},
		{"everything is decoded", []string{"--drop-sweep", "--cache-mb", "4", "--drop-in-prefill"}},
		{"--sel-dump: a recording takes one configuration", []string{"--drop-sweep", "--cache-mb", "4", "--sel-dump", "x.bin"}},
		{"--route-trace: a recording takes one configuration", []string{"--drop-sweep", "--cache-mb", "4", "--route-trace", "x.csv"}},
		{"want numbers from 0 to 1", []string{"--drop-sweep", "--cache-mb", "4", "--drop-cold-experts", "0,2"}},
		{"want numbers from 0 to 1", []string{"--drop-sweep", "--cache-mb", "4", "--drop-cold-experts", "NaN"}},
		{"--drop-no-renorm has no effect", []string{"--drop-sweep", "--cache-mb", "4", "--drop-cold-experts", "0", "--drop-no-renorm"}},
		{"--n-expert-used 5: a sweep wants 1..4", []string{"--drop-sweep", "--cache-mb", "4", "--n-expert-used", "5,2"}},
		{"want whole numbers", []string{"--drop-sweep", "--cache-mb", "4", "--n-expert-used", "x"}},
		{"--chunk 1: want 2 or more", []string{"--drop-sweep", "--cache-mb", "4", "--chunk", "1"}},
		{"the context holds 32 tokens", []string{"--drop-sweep", "--cache-mb", "4", "-c", "32", "--chunk", "64"}},
		{"one token's experts need 3 MiB", []string{"--drop-sweep", "--cache-mb", "1", "--chunk", "64"}},
	} {
		r := call(t, append([]string{"eval", text}, c.args...)...)
		if r.code != 2 || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("eval %v: exit %d, want 2 and %q\n%s%s", c.args, r.code, c.want, r.err, r.out)
		}
	}
	t.Setenv(selDumpEnv, filepath.Join(t.TempDir(), "x.bin"))
	call(t, "eval", text, "--drop-sweep", "--cache-mb", "4").want(t, 2, selDumpEnv+": a recording takes one configuration")
	t.Setenv(selDumpEnv, "")
	call(t, "eval", text, "--drop-sweep", "--cache-mb", "4", "--chunk", "500").want(t, 1, "less than one chunk")
}
