package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/coact"
)

// verb runs one command by itself, with the exit code that run gives its error.
func verb(t testing.TB, make func(streams) *cobra.Command, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	c := make(streams{strings.NewReader(""), &out, &errs})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&errs)
	err := c.ExecuteContext(context.Background())
	code := 0
	if err != nil {
		code = 1
		var usage usageError
		if errors.As(err, &usage) {
			code = 2
		}
		errs.WriteString(err.Error())
	}
	return result{code, out.String(), errs.String()}
}

// recordSel writes a dump of 200 tokens in layers 1 and 2 with 16 experts, top-4, in two groups.
func recordSel(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.sel.bin")
	w, err := dump.OpenSel(path, dump.SelMeta{Model: "m.gguf", Arch: "qwen3moe", NLayer: 3, NExpert: 16, NUsed: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(200) {
		for layer := 1; layer < 3; layer++ {
			g := i * 7 % 3 % 2
			ids := []int32{g + i%8*2, g + (i+1)%8*2, g + (i+3)%8*2, g + (i+5)%8*2}
			if err := w.Record(layer, 1, 4, ids, []float32{.4, .3, .2, .1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCoactCommand(t *testing.T) {
	path := recordSel(t)
	dir := t.TempDir()
	md, pl, matrix := filepath.Join(dir, "r.md"), filepath.Join(dir, "p.json"), filepath.Join(dir, "m.csv")
	r := verb(t, coactCommand, path, "--replicate", "0,2", "--json", "--md", md, "--placement", pl, "--matrix", matrix)
	r.want(t, 0, "placement with 0 experts on every card")
	var doc coact.Report
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Records != 400 || len(doc.Layers) != 2 || doc.Pooled.Splits[0].HeldOut.PSingle != 1 || doc.Model != "m.gguf" ||
		doc.Verdict != "100.0 % of tokens stay on one card: a split by co-activation pays here" {
		t.Errorf("%+v", doc)
	}
	f, err := os.Open(pl)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := coact.ReadPlacement(f)
	if err != nil || p.Dump != "run.sel.bin" || p.Model != "m.gguf" || p.PSingle != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	for name, want := range map[string]string{md: "**" + doc.Verdict + "**", matrix: "layer,expert_a,expert_b,tokens\n1,0,"} {
		if b, err := os.ReadFile(name); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
	r = verb(t, coactCommand, path)
	r.want(t, 0, "note: --replicate: of 0,16,32,64 only [0], a layer has 16 experts")
	if !strings.HasSuffix(r.out, doc.Verdict+"\n") {
		t.Error(r.out)
	}
}

func TestCoactCommandRefuses(t *testing.T) {
	path := recordSel(t)
	dir := t.TempDir()
	write := func(name, data string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
		return p
	}
	bare := write("bare.sel.bin", "\x00\x01\x05\x00\x00\x00\x80\x3f")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, "got 0 arguments", nil},
		{1, "no such file", []string{filepath.Join(dir, "none")}},
		{1, "empty file", []string{write("empty", "")}},
		{1, "text, so no selection dump", []string{write("text", "hello\nworld\n"), "--experts", "8"}},
		{1, "a route trace, want a selection dump", []string{write("t.csv", "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n")}},
		{2, "--experts: the dump has no bare.sel.bin.meta.json", []string{bare}},
		{2, "--experts 0: want 1 or more", []string{bare, "--experts", "0"}},
		{2, "--experts 8: the dump's sidecar says 16", []string{path, "--experts", "8"}},
		{1, "record 0 at byte 0: layer 0: slot 0: expert 5, want 0..3", []string{bare, "--experts", "4", "--replicate", "0"}},
		{2, "17 cards, want 2..16", []string{path, "--cards", "17"}},
		{2, "replicate 17 of 16", []string{path, "--replicate", "17"}},
		{2, `--replicate "a"`, []string{path, "--replicate", "a"}},
		{1, "layer 7 has no records (have layers [1 2])", []string{path, "--layers", "7"}},
		{2, "would replace the recording", []string{path, "--md", path}},
		{2, "unknown flag", []string{path, "--nope"}},
	} {
		verb(t, coactCommand, c.args...).want(t, c.code, c.want)
	}
}

func TestDumpCommand(t *testing.T) {
	path := recordSel(t)
	r := verb(t, dumpCommand, "cat", path, "--layer", "2", "--limit", "1")
	r.want(t, 0)
	if want := "          26  record 1  layer 2  n_sel 4  0:0.4 2:0.3 6:0.2 10:0.1\n"; r.out != want {
		t.Errorf("got %q", r.out)
	}
	r = verb(t, dumpCommand, "stat", path, "--json")
	r.want(t, 0)
	if !strings.Contains(r.out, `"tokens": 200`) {
		t.Error(r.out)
	}
	out := filepath.Join(t.TempDir(), "x.parquet")
	r = verb(t, dumpCommand, "export", path, out, "--json")
	r.want(t, 0)
	var doc exportJSON
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Rows != 1600 || doc.Input != 400*26 || doc.Bytes == 0 {
		t.Errorf("%s %v", r.out, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("\x01\x04")
	f.Close()
	const torn = "torn tail: 400 whole records, torn at byte 10400"
	verb(t, dumpCommand, "export", path, out).want(t, 0, torn)
	verb(t, dumpCommand, "cat", path).want(t, 0, torn)
	if r := verb(t, dumpCommand, "stat", path); !strings.Contains(r.out, torn) {
		t.Error(r.out)
	}
	verb(t, coactCommand, path).want(t, 0, "torn tail: 400 whole records used, torn at byte 10400")
	verb(t, dumpCommand).want(t, 2, "no command given (have cat")
	verb(t, dumpCommand, "cat", path, "--layer", "9").want(t, 1, "layer 9 has no records")
	verb(t, dumpCommand, "export", path, path).want(t, 2, "would replace")
	verb(t, dumpCommand, "export", path).want(t, 2, "want two")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, sub := range [][]string{{"cat", empty}, {"stat", empty}, {"export", empty, out + "2"}} {
		verb(t, dumpCommand, sub...).want(t, 1, "empty file")
	}
	if _, err := os.Stat(out + "2"); err == nil {
		t.Error("half an export was left")
	}
}
