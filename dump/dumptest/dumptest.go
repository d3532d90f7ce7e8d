// Package dumptest hands tests the recordings in dump/testdata, from whatever package they run in. Each stands there once;
// a part of one is cut from it here.
package dumptest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// cuts are the recordings that are parts of others.
var cuts = map[string]struct {
	of  string
	cut func(whole []byte) []byte
}{
	// 1000 whole records and the beginning of another, torn at byte 50000.
	"truncated-288.sel.bin": {"clustered-288.sel.bin", func(b []byte) []byte { return b[:50023] }},
	// Recorded before the column `dropped` existed: preamble and the first layers of the prefill.
	"qwen-head.route.csv": {"qwen.route.csv", func(b []byte) []byte { return lines(b, 1, 2000) }},
	// Preamble and prefill, then a part of decode in which much was dropped.
	"qwen-dropped-part.route.csv": {"qwen-dropped.route.csv", func(b []byte) []byte {
		return append(lines(b, 1, 1050), lines(b, 7954, 8953)...)
	}},
}

// lines returns lines first to last, counted from 1.
func lines(b []byte, first, last int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	return slices.Concat(all[first-1 : last]...)
}

// File returns the path of a recording or of what else lies in dump/testdata; a part of a recording is written to a
// folder of the test's own.
func File(t testing.TB, name string) string {
	t.Helper()
	if _, ok := cuts[name]; !ok {
		return filepath.Join(folder(t), name)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, Read(t, name), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// Read returns the content of File. The caller owns it.
func Read(t testing.TB, name string) []byte {
	t.Helper()
	if c, ok := cuts[name]; ok {
		return c.cut(Read(t, c.of))
	}
	b, err := os.ReadFile(filepath.Join(folder(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// folder is dump/testdata, found from the folder of the package that is tested upwards.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "dump", "testdata")
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = up
	}
}
