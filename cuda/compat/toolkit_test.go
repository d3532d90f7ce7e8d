package compat

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fake makes a toolkit's folder of files; one under bin is a program.
func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	for name, text := range files {
		p, mode := filepath.Join(home, name), os.FileMode(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

const (
	nvcc   = "#!/bin/sh\nprintf 'compute_75\\ncompute_80\\ncompute_90\\n'\n"
	header = "#define CUDA_VERSION 11080\n"
)

func sh(t *testing.T, script string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// toolkit.sh takes the layouts that toolkits come in, and names each thing that one lacks.
func TestToolkit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string // NAME=PATH relative to the toolkit, or a part of what is missing
	}{
		{"lib64", map[string]string{"bin/nvcc": nvcc, "include/cuda.h": header, "lib64/stubs/libcuda.so": ""},
			[]string{"nvcc=H/bin/nvcc;", "include=H/include;", "stubs=H/lib64/stubs;", "version=11080;"}},
		{"targets", map[string]string{"bin/nvcc": nvcc, "targets/x86_64-linux/include/cuda.h": "#define CUDA_VERSION 13000\n", "targets/x86_64-linux/lib/stubs/libcuda.so": ""},
			[]string{"include=H/targets/x86_64-linux/include;", "stubs=H/targets/x86_64-linux/lib/stubs;", "version=13000;"}},
		{"nothing", nil, []string{"nvcc=;", "nvcc (looked for bin/nvcc in H)"}},
		{"no header", map[string]string{"bin/nvcc": nvcc, "lib64/stubs/libcuda.so": ""}, []string{"cuda.h for H/bin/nvcc (looked in H/include"}},
		{"no stub", map[string]string{"bin/nvcc": nvcc, "include/cuda.h": header}, []string{"libcuda.so to link against for H/bin/nvcc (looked in H/lib64/stubs"}},
	} {
		home := fake(t, c.files)
		out, err := sh(t, `set -eu; . cuda/toolkit.sh; echo "nvcc=$cuda_nvcc; include=$cuda_include; stubs=$cuda_stubs; version=$cuda_version; missing=$cuda_missing"`, "CUDA_HOME="+home)
		out = strings.ReplaceAll(out, home, "H")
		for _, w := range c.want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("%s: %v, want %q in:\n%s", c.name, err, w, out)
			}
		}
	}
}

// build.sh with CUDA=1 says what it lacks before it builds anything.
func TestBuildRefusals(t *testing.T) {
	good := map[string]string{"bin/nvcc": nvcc, "include/cuda.h": header, "lib64/stubs/libcuda.so": ""}
	old := map[string]string{"bin/nvcc": nvcc, "include/cuda.h": "#define CUDA_VERSION 11040\n", "lib64/stubs/libcuda.so": ""}
	for _, c := range []struct {
		files map[string]string
		arch  string
		want  []string
	}{
		{nil, "", []string{"missing: nvcc (looked for bin/nvcc in", "cuda/install-toolkit.sh"}},
		{map[string]string{"bin/nvcc": nvcc}, "", []string{"missing: cuda.h for", "missing: libcuda.so to link against"}},
		{old, "80", []string{"is CUDA 11.4, want 11.8 or newer"}},
		{good, "42", []string{"42 is not one that", "compiles for: 75 80 90"}},
		{good, "fast", []string{"CUDA_ARCH=fast: fast is not one"}},
	} {
		if _, err := exec.LookPath("g++-11"); err != nil && c.files["include/cuda.h"] != "" {
			continue // it lacks a host compiler first
		}
		out, err := sh(t, "./build.sh", "CUDA=1", "CUDA_HOME="+fake(t, c.files), "CUDA_ARCH="+c.arch)
		for _, w := range c.want {
			if err == nil || !strings.Contains(out, w) || strings.Contains(out, "built") {
				t.Errorf("CUDA_ARCH=%q: %v, want %q in:\n%s", c.arch, err, w, out)
			}
		}
	}
	if out, err := sh(t, "./build.sh", "CUDA=yes"); err == nil || !strings.Contains(out, "CUDA=yes: want 0 or 1") {
		t.Errorf("CUDA=yes: %v\n%s", err, out)
	}
}
