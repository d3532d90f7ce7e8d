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

// programs builds both programs beside each other, as build.sh does.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []struct{ name, tags string }{{"engine", ""}, {cudaBinary, "cuda"}} {
		if out, err := exec.Command("go", "build", "-tags", p.tags, "-o", filepath.Join(dir, p.name), ".").CombinedOutput(); err != nil {
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
		t.Skip("builds two programs")
	}
	engine := programs(t)
	t.Run("generate", func(t *testing.T) { deviceGenerates(t, engine) })
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
