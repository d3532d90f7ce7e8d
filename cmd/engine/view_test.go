package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// callView runs the verb by itself.
func callView(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	c := viewCommand(streams{strings.NewReader(""), &out, &errs})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.SetArgs(args)
	err := c.ExecuteContext(context.Background())
	if out.Len() > 0 {
		t.Errorf("standard output: %s", out.String())
	}
	return errs.String(), err
}

func TestView(t *testing.T) {
	dir := t.TempDir()
	sel, trace, page := filepath.Join(dir, "run.sel.bin"), filepath.Join(dir, "route.csv"), filepath.Join(dir, "page.html")
	call(t, "run", "In the beginning", "-n", "8", "--cache-mb", "4", "--sel-dump", sel, "--route-trace", trace).want(t, 0)
	messages, err := callView(t, trace, sel, "-o", page)
	if err != nil || !strings.Contains(messages, "wrote "+page) {
		t.Fatalf("%v\n%s", err, messages)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<!doctype html>", `"name":"route.csv"`, `"name":"run.sel.bin"`, `"nExpert":16`, "tinymoe"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	torn := filepath.Join(dir, "torn.sel.bin")
	data, err := os.ReadFile(sel)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(torn, data[:len(data)-3], 0o644); err != nil {
		t.Fatal(err)
	}
	if messages, err = callView(t, torn, "-o", page); err != nil || !strings.Contains(messages, "torn tail") {
		t.Errorf("torn dump: %v\n%s", err, messages)
	}
}

func TestViewUsage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sel := write("a.sel.bin", "\x00\x01\x05\x00\x00\x00\x80\x3f")
	beyond := write("b.sel.bin", "\x00\x01\x05\x00\x00\x00\x80\x3f")
	write("b.sel.bin.meta.json", `{"format":"memra-moe-sel-v1","model":"m","arch":"a","n_layer":1,"n_expert":4,"n_expert_used":1}`)
	page := filepath.Join(dir, "page.html")
	for _, c := range []struct {
		usage bool
		want  string
		args  []string
	}{
		{true, "got 0 arguments, want 1 to 16 recordings", []string{"-o", page}},
		{true, "-o: want the name", []string{sel}},
		{true, "unknown flag", []string{sel, "--wings"}},
		{true, "would replace a recording", []string{sel, "-o", sel}},
		{false, "none.csv", []string{filepath.Join(dir, "none.csv"), "-o", page}},
		{false, "empty file", []string{write("empty", ""), "-o", page}},
		{false, "text, so no selection dump", []string{write("text", "hello\nworld\n"), "-o", page}},
		{false, "expert 5, the sidecar says 4 experts", []string{beyond, "-o", page}},
		{false, filepath.Join(dir, "no"), []string{sel, "-o", filepath.Join(dir, "no", "page.html")}},
	} {
		_, err := callView(t, c.args...)
		if _, usage := err.(usageError); err == nil || usage != c.usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("view %v: %v, want %q (usage: %v)", c.args, err, c.want, c.usage)
		}
	}
	if left, _ := filepath.Glob(page); len(left) != 0 {
		t.Error("a failed call left a page")
	}
}
