// Package scripttest hands tests the Python scripts that the recordings' formats and arithmetic come from, so that what is
// written here is read by the programs it was made for. The scripts are not part of the repository: the environment variable
// SLUICE_SEEDS names the folder with their texts, and tests skip without it.
package scripttest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Script returns a Python interpreter and the text of the script in the file number*.txt, whose first line names the script
// by its path, which must end in name. It skips the test where there is no such folder or no Python.
func Script(t testing.TB, number, name string) (python, text string) {
	t.Helper()
	folder := os.Getenv("SLUICE_SEEDS")
	if folder == "" {
		t.Skipf("SLUICE_SEEDS, the directory with the text of %s, is not set", name)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH")
	}
	files, _ := filepath.Glob(filepath.Join(folder, number+"*.txt"))
	if len(files) != 1 {
		t.Fatalf("%d files %s*.txt in %s, want 1", len(files), number, folder)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	title, text, _ := strings.Cut(string(b), "\n")
	if !strings.Contains(title, name) {
		t.Fatalf("%s: first line is %q, want one that names %s", files[0], title, name)
	}
	return python, strings.TrimLeft(text, "\n")
}

// Write writes files below dir, making their folders.
func Write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TraceIO is the module trace_io that the replay script imports, by the contract of the trace's format.
//
//go:embed trace_io.py
var TraceIO string
