//go:build cuda

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// otherVersion is the program of another version.
const otherVersion = "engine-other"

// programs builds both programs beside each other, as build.sh does, and otherVersion.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []struct{ name, tags, version string }{{"engine", "", "dev"}, {otherVersion, "", "other"}, {cudaBinary, "cuda", "dev"}} {
		cmd := exec.Command("go", "build", "-tags", p.tags, "-ldflags", "-X main.version="+p.version, "-o", filepath.Join(dir, p.name), ".")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", p.name, err, out)
		}
	}
	return filepath.Join(dir, "engine")
}

// exitCode is the status of a process that ended by itself; -1 of one that did not.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func TestCUDAProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two programs: not in short mode")
	}
	engine := programs(t)
	t.Run("generate", func(t *testing.T) { deviceGenerates(t, engine) })
	t.Run("says", func(t *testing.T) { deviceSays(t, engine) })
	for _, arm := range []string{"table", "host"} {
		t.Run("interrupt "+arm, func(t *testing.T) { deviceInterrupted(t, engine, arm) })
	}
}

// deviceGenerates is the whole way: the program without cgo finds the driver, starts the other, and that one generates
// what the processor does.
func deviceGenerates(t *testing.T, engine string) {
	start := func(env string, args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		cmd := exec.Command(engine, args...)
		cmd.Env = append(os.Environ(), env)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), exitCode(err)
	}
	generate := []string{"run", "In the beginning", "--temp", "0", "-n", "6", "--device"}
	want, errs, code := start("SLUICE_EMU_DEVICES=1", append(generate, "cpu")...)
	if code != 0 {
		t.Fatalf("on the processor: status %d\n%s", code, errs)
	}
	for _, device := range []string{"cuda", "auto"} {
		got, errs, code := start("SLUICE_EMU_DEVICES=1", append(generate, device)...)
		if code != 0 || got != want || !strings.Contains(errs, "device: cuda:0 ") {
			t.Errorf("--device %s: status %d, %q, want %q\n%s", device, code, got, want, errs)
		}
	}
	got, errs, code := start("SLUICE_EMU_DEVICES=1", append(generate, "cuda", "--json")...)
	var doc struct {
		Device struct {
			Name     string
			Resident bool
		}
	}
	if err := json.Unmarshal([]byte(got), &doc); code != 0 || err != nil || !strings.Contains(doc.Device.Name, "cuda:0") || !doc.Device.Resident {
		t.Errorf("--json: status %d, %v, %+v\n%s", code, err, doc, errs)
	}
	if out, errs, code := start("SLUICE_EMU_DEVICES=1", "device"); code != 0 || !strings.Contains(out, "cpu: ") || !strings.Contains(out, "cuda:0 ") {
		t.Errorf("device: status %d, %q\n%s", code, out, errs)
	}
	if !strings.Contains(errs, "emulated") {
		t.Skip("a real device pretends nothing")
	}
	got, errs, code = start("SLUICE_EMU_DEVICES=0", append(generate, "auto")...)
	if code != 0 || got != want || !strings.Contains(errs, "computing on the processor: engine-cuda: cuda: the driver finds no device") {
		t.Errorf("--device auto without a device: status %d, %q\n%s", code, got, errs)
	}
	got, errs, code = start("SLUICE_EMU_MB=2", append(generate, "auto")...)
	if code != 0 || got != want || !strings.Contains(errs, "computing on the processor: cuda: ") || !strings.Contains(errs, "out of device memory: asked for") {
		t.Errorf("--device auto with a small device: status %d, %q\n%s", code, got, errs)
	}
	for env, reason := range map[string]string{
		"SLUICE_EMU_DEVICES=0":    "the driver finds no device",
		"SLUICE_EMU_DRIVER=11000": "the driver is too old",
		"SLUICE_EMU_ARCH=sm_75":   "build with CUDA_ARCH=75",
		"SLUICE_EMU_MB=2":         "out of device memory: asked for",
	} {
		if _, errs, code := start(env, append(generate, "cuda")...); code != 1 || !strings.Contains(errs, reason) {
			t.Errorf("%s: status %d, want 1 and %q\n%s", env, code, reason, errs)
		}
	}
}

// deviceSays is what the program prints and refuses about a device that it has.
func deviceSays(t *testing.T, engine string) {
	out, err := exec.Command(engine, "device", "cuda").CombinedOutput()
	if err != nil {
		t.Fatalf("device cuda: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "emulated") {
		t.Skip("a real device pretends nothing")
	}
	state, model := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "f32.gguf")
	call(t, "gguf", "synth", model, "--layers", "2", "--embd", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--experts", "4", "--used", "2", "--ff", "64",
		"--type", "f32").want(t, 0)
	const unused = "device: all experts are in its memory, so the host's cache (--cache-mb) is not used"
	for _, c := range []struct {
		env, program string
		args         []string // behind run a -n 2 --temp 0
		code         int
		want, not    []string
	}{
		{"", "engine", []string{"--cache-mb", "3"}, 0, []string{unused}, nil},
		{"", "engine", []string{"--cache-mb", "3", "--cache-save", state}, 2, []string{"--cache-save " + state + " has no effect", "--device-cache-mb"}, nil},
		{"", "engine", []string{"--cache-mb", "3", "--cache-save", state, "--device-cache-mb", "3"}, 0, []string{"device: 26 experts in 3.0 MiB", "experts saved"}, []string{unused, " 0 experts saved"}},
		{"", "engine", []string{"--cache-mb", "3", "--cache-load", state}, 2, []string{"--cache-load " + state + " has no effect"}, nil},
		{"", "engine", []string{"--cache-mb", "3", "--cache-load", state, "--device-cache-mb", "3"}, 0, []string{"experts loaded"}, nil},
		{"", "engine", []string{"--cache-mb", "3", "--drop-cold-experts", "0.5", "--cache-save", state}, 0,
			[]string{"device: --drop-cold-experts goes by the host's cache alone", "experts saved"}, []string{unused, " 0 experts saved"}},
		{"", "engine", []string{"--cache-mb", "3", "--route-trace", state + ".csv"}, 0, []string{"is told of them for the route trace"}, []string{unused}},
		{"", "engine", []string{"--drop-cold-experts", "0.5"}, 2, []string{"drops nothing without an expert cache"}, []string{"nothing can be dropped"}},
		{"SLUICE_EMU_MB=16", "engine", nil, 0, []string{"device: 23 experts in 2.8 MiB"}, nil},
		{"SLUICE_EMU_DEVICES=0", "engine", nil, 1, []string{"the driver finds no device", "; or use --device cpu"}, nil},
		{"SLUICE_EMU_DEVICES=2", "engine", []string{"--device", "cuda:1"}, 0, []string{"device: cuda:1 "}, nil},
		{"SLUICE_EMU_DEVICES=2", "engine", []string{"--device", "cuda:2"}, 1, []string{"--device cuda:2: ", "the driver has 2", "; or use --device cpu"}, nil},
		{"SLUICE_EMU_MB=2", "engine", nil, 1, []string{"MiB free: a shorter context (-c) or a smaller prompt chunk (-b) needs less"}, []string{"--device-cache-mb"}},
		{"SLUICE_EMU_MB=16", "engine", []string{"--device-cache-mb", "8"}, 1, []string{"MiB free: a smaller --device-cache-mb, a shorter context (-c)"}, nil},
		{"SLUICE_EMU_MB=1", "engine", []string{"-m", model}, 1, []string{"blk.", "MiB free: all dense weights must fit"}, []string{"(-c)"}},
		{"", otherVersion, nil, 1, []string{"engine-cuda is version dev, the engine that started it other: make CUDA=1 builds both; or use --device cpu"}, nil},
		{"", otherVersion, []string{"--device", "auto"}, 0, []string{"computing on the processor: engine-cuda: engine-cuda is version dev"}, nil},
	} {
		cmd := exec.Command(filepath.Join(filepath.Dir(engine), c.program), append([]string{"run", "a", "-n", "2", "--temp", "0", "--device", "cuda"}, c.args...)...)
		cmd.Env = append(os.Environ(), c.env)
		out, err := cmd.CombinedOutput()
		text := string(out)
		if code := exitCode(err); code != c.code {
			t.Errorf("%s %s %q: status %d, want %d\n%s", c.env, c.program, c.args, code, c.code, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s %q: no %q in\n%s", c.env, c.program, c.args, want, text)
			}
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%s %s %q: %q in\n%s", c.env, c.program, c.args, not, text)
			}
		}
	}
	out, err = exec.Command(engine, "bench", "--device", "cuda", "--pp", "4", "--tg", "", "--repeat", "1", "--warmup", "0", "--csv").Output()
	if text := string(out); err != nil || !strings.Contains(text, "# device=cuda:0 ") || strings.Contains(text, "# isa=") || !strings.Contains(text, ",table,0,,4,") {
		t.Errorf("bench --csv: %v\n%s", err, text)
	}
}

// deviceInterrupted: a signal while the device works ends the program as it does on the processor: recordings are
// closed, the status is 1, nothing crashes in a handler.
func deviceInterrupted(t *testing.T, engine, arm string) {
	dump := filepath.Join(t.TempDir(), "sel.bin")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, engine, "run", "In the beginning", "--temp", "0", "-n", "-1", "--ignore-eos", "--device", "cuda", "--arm", arm, "--sel-dump", dump)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 8)); err != nil { // it generates
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	err = cmd.Wait()
	text := errs.String()
	if code := exitCode(err); code != 1 || !strings.Contains(text, "interrupted") || !strings.Contains(text, "selection dump: ") || strings.Contains(text, "NOTHING") {
		t.Errorf("status %d (%v), want 1 and a receipt\n%s", code, err, text)
	}
	for _, bad := range []string{"panic", "SIGSEGV", "fatal error", "not released"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q in\n%s", bad, text)
		}
	}
}
