//go:build cuda

package compat

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// toolkit returns the build's own CGO_CFLAGS without our cuda.h.
func toolkit(t *testing.T) []string {
	t.Helper()
	if os.Getenv("CGO_CFLAGS") == "" {
		t.Skip(`CGO_CFLAGS is not set: eval "$(cuda/env.sh)"`)
	}
	return slices.DeleteFunc(strings.Fields(os.Getenv("CGO_CFLAGS")), func(f string) bool { return f == "-I"+abs(t, "include") })
}

// cc runs gcc with our CUDA 13 in front of the toolkit's headers. Flags of args come first.
func cc(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append(append(args, "-I"+abs(t, "testdata/cuda13")), toolkit(t)...)
	out, err := exec.Command("gcc", args...).CombinedOutput()
	return string(out), err
}

func abs(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The old calls reach the new functions with the arguments that mean the same.
func TestCUDACompatCalls(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "calls")
	if out, err := cc(t, "-Werror", "-c", "-o", filepath.Join(dir, "new.o"), "testdata/cuda13.c"); err != nil {
		t.Fatalf("the functions of CUDA 13: %v\n%s", err, out)
	}
	if out, err := cc(t, "-Werror", "-o", bin, "testdata/calls.c", filepath.Join(dir, "new.o")); err == nil {
		t.Fatalf("the old calls compile without our cuda.h, so this proves nothing\n%s", out)
	}
	if out, err := cc(t, "-Werror", "-Iinclude", "-o", bin, "testdata/calls.c", filepath.Join(dir, "new.o")); err != nil {
		t.Fatalf("with our cuda.h: %v\n%s", err, out)
	}
	if out, err := exec.Command(bin).CombinedOutput(); err != nil {
		t.Errorf("call number %v came out wrong %s", err, out)
	}
}

// gorgonia.org/cu and our launcher compile with headers of that shape. (That the former does not without our cuda.h is
// what TestCUDACompatCalls shows of its calls, in less time.)
func TestCUDACompatBuild(t *testing.T) {
	if os.Getenv("CGO_CFLAGS") == "" {
		t.Skip(`CGO_CFLAGS is not set: eval "$(cuda/env.sh)"`)
	}
	if testing.Short() {
		t.Skip("compiles two packages: not in short mode")
	}
	flags, dir := toolkit(t), t.TempDir()
	if out, err := cc(t, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda13.so"), "testdata/cuda13.c"); err != nil {
		t.Fatalf("the functions of CUDA 13: %v\n%s", err, out)
	}
	cmd := exec.Command("go", "build", "-tags", "cuda", "gorgonia.org/cu", "sluice/cuda/driver")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1",
		"CGO_CFLAGS=-I"+abs(t, "include")+" -I"+abs(t, "testdata/cuda13")+" "+strings.Join(flags, " ")+" -O0",
		"CGO_LDFLAGS="+os.Getenv("CGO_LDFLAGS")+" -L"+dir+" -lcuda13")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
