//go:build cuda

package driver

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	dev "sluice/cuda/kernels"
)

const pretended = "SLUICE_TEST_OPEN"

// TestCUDAOpenOnly is the other process of TestCUDAPretended.
func TestCUDAOpenOnly(t *testing.T) {
	if os.Getenv(pretended) == "" {
		t.Skip("run by TestCUDAPretended")
	}
	d, err := Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(pretended) == "fault" {
		t.Error(d.Do(func() error {
			a, s := must(d.Alloc(8, "a")), must(d.NewStream())
			p := must(d.NewProgram([]dev.Launch{dev.Probe(a.Ptr.At(1<<20), 1)}))
			check(p.Run(s, 0, 1))
			return errors.Join(s.Sync(), a.Free(), p.Close(), s.Close())
		}))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A kernel that writes where nothing is spoils the context. That is said once, not by everything that is released after.
func TestCUDAFault(t *testing.T) {
	if i := opened(t).Info(); !strings.Contains(i.Name, "emulated") {
		t.Skip("a fault on a real device may take the next test's context with it")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestCUDAOpenOnly$")
	cmd.Env = append(os.Environ(), pretended+"=fault", "SLUICE_EMU_STATE=")
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Count(string(out), "CUDA_ERROR_ILLEGAL_ADDRESS") != 1 || !strings.Contains(string(out), "waiting for a stream: ") || !strings.Contains(string(out), "a kernel started before went wrong") {
		t.Errorf("%v, want one error, of the stream\n%s", err, out)
	}
}

// Machines that cannot run this binary, as the emulated device pretends to be one, are told why.
func TestCUDAPretended(t *testing.T) {
	if i := opened(t).Info(); !strings.Contains(i.Name, "emulated") {
		t.Skipf("%s pretends nothing", i.Name)
	}
	for _, c := range []struct {
		env  string
		want []string // nil: it works
	}{
		{"SLUICE_EMU_DEVICES=1", nil},
		{"SLUICE_EMU_DRIVER=13000", nil},
		{"SLUICE_EMU_DEVICES=0", []string{"engine: cuda: the driver finds no device", "CUDA_ERROR_NO_DEVICE"}},
		{"SLUICE_EMU_DRIVER=11040", []string{"the driver is too old: it has CUDA 11.4, this binary needs 11.7"}},
		{"SLUICE_EMU_ARCH=sm_75", []string{"is sm_75, the kernels of this binary are for", "build with CUDA_ARCH=75"}},
		{"SLUICE_EMU_FAIL=cuCtxCreate=2", []string{"context on", "out of device memory"}},
		{"SLUICE_EMU_FAIL=cuLaunchKernel=209", []string{"build with CUDA_ARCH="}}, // what loads may still not run
		{"SLUICE_EMU_FAIL=cuInit=803", []string{"are of different drivers"}},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCUDAOpenOnly$")
		cmd.Env = append(os.Environ(), pretended+"=1", c.env)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v\n%s", c.env, err, out)
		}
		for _, w := range c.want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: want %q in:\n%s", c.env, w, out)
			}
		}
	}
}
