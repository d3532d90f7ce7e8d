package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestApart(t *testing.T) {
	dir := t.TempDir()
	model, link, fresh := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "link"), filepath.Join(dir, "new")
	if err := os.WriteFile(model, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(model, link); err != nil {
		t.Fatal(err)
	}
	in := []namedFile{{"the model", model}}
	for _, c := range []struct {
		name    string
		outputs []namedFile
		want    string // in the error; "": none
	}{
		{"elsewhere", []namedFile{{"--csv", fresh}, {"--route-trace", ""}, {"--sel-dump", ""}}, ""},
		{"the model", []namedFile{{"--csv", model}}, "would overwrite the model"},
		{"the model by a link", []namedFile{{"--cache-save", link}}, "would overwrite the model"},
		{"each other, not there yet", []namedFile{{"--csv", fresh}, {"--route-trace", dir + "/./new"}}, "both name"},
		{"a device twice", []namedFile{{"--csv", os.DevNull}, {"--route-trace", os.DevNull}}, ""},
	} {
		err := apart(in, c.outputs)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
