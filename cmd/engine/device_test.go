package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func put(t *testing.T, content string, mode os.FileMode, path ...string) string {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return p
}

// The driver's library is found where the dynamic loader finds it, in its order.
func TestFindDriver(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	if p, err := findDriver(root, ""); err == nil || !strings.Contains(err.Error(), "no NVIDIA driver") || !strings.Contains(err.Error(), "install the NVIDIA driver") {
		t.Errorf("an empty machine: %q, %v", p, err)
	}
	put(t, "", 0o644, root, "proc/driver/nvidia/version")
	if _, err := findDriver(root, other); err == nil || !strings.Contains(err.Error(), "kernel module is loaded") || !strings.Contains(err.Error(), "LD_LIBRARY_PATH") {
		t.Errorf("a kernel module alone: %v", err)
	}
	steps := []struct {
		name string
		put  func() string
	}{
		{"default directory", func() string { return put(t, "", 0o644, root, "usr/lib64", driverLibrary) }},
		{"loader's cache", func() string {
			put(t, "glibc-ld.so.cache1.1\x00\x01libcuda.so.1\x00/gone/libcuda.so.1\x00libcuda.so.1\x00/opt/nv/libcuda.so.1\x00", 0o644, root, "etc/ld.so.cache")
			return put(t, "", 0o644, root, "opt/nv", driverLibrary)
		}},
		{"LD_LIBRARY_PATH", func() string { return put(t, "", 0o644, other, driverLibrary) }},
	}
	for _, s := range steps {
		want := s.put()
		if p, err := findDriver(root, ":/nonexistent:"+other); err != nil || p != want {
			t.Errorf("%s: %q, %v, want %q", s.name, p, err, want)
		}
	}
}

// Without a device arm --device cuda says what is missing, and auto computes on the processor and says so.
func TestDeviceMissing(t *testing.T) {
	if _, err := findDriver("/", os.Getenv("LD_LIBRARY_PATH")); err == nil {
		t.Skip("this machine has a driver")
	}
	call(t, "run", "a", "--device", "cuda").want(t, 1, "--device cuda: no NVIDIA driver", "use --device cpu")
	r := call(t, "run", "In the", "--device", "auto", "-n", "2", "--temp", "0")
	if r.want(t, 0, "device: computing on the processor: no NVIDIA driver"); r.out == "" {
		t.Error("auto generated nothing")
	}
	r = call(t, "device")
	if r.want(t, 0); !strings.Contains(r.out, "cpu: ") || !strings.Contains(r.out, "cuda: no: no NVIDIA driver") {
		t.Errorf("device: %s", r.out)
	}
	call(t, "device", "cuda").want(t, 1, "no NVIDIA driver")
	call(t, "device", "tpu").want(t, 2, "want cpu, cuda or cuda:N")
	call(t, "run", "a", "--device", "cuda:1").want(t, 1, "--device cuda:1: no NVIDIA driver", "use --device cpu")
	call(t, "bench", "--device", "auto", "--device-cache-mb", "4", "--pp", "", "--tg", "1", "--repeat", "1").want(t, 0, "computing on the processor")
}

// What cannot take effect is refused: on the processor the device's settings, on the device the processor's.
func TestDeviceRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--device-cache-mb", "5"}, "no effect with --device cpu"},
		{[]string{"--device", "auto", "--device-cache-mb", "0"}, "want auto or a number of MiB, 1 to 8796093022207"},
		{[]string{"--device", "auto", "--device-cache-mb", "lots"}, "want auto or a number of MiB, 1 to 8796093022207"},
		{[]string{"--device", "cuda:"}, "want cpu, cuda, cuda:N or auto"},
		{[]string{"--device", "cuda:-1"}, "want cpu, cuda, cuda:N or auto"},
		{[]string{"--device", "cuda:one"}, "want cpu, cuda, cuda:N or auto"},
		{[]string{"--device", "tpu:0"}, "want cpu, cuda, cuda:N or auto"},
		{[]string{"--device", "cuda:1", "--threads", "2"}, "no worker team"},
		{[]string{"--device", "cuda", "--threads", "2"}, "no worker team"},
		{[]string{"--device", "cuda", "--isa", "generic"}, "kernels of this processor"},
		{[]string{"--device", "cuda", "--kv", "q8_0"}, "cache is f16"},
		{[]string{"--device", "cuda", "--acts", "f32"}, "quantises the activations"},
		{[]string{"--device", "cuda", "--dense", "anon"}, "device's memory"},
		{[]string{"--device", "cuda", "--weights", "huge"}, "device's memory"},
		{[]string{"--device", "cuda", "--prefetch", "next-layer", "--cache-mb", "8"}, "when they are demanded"},
	} {
		call(t, append([]string{"run", "a"}, c.args...)...).want(t, 2, c.want)
	}
	call(t, "bench", "--device", "cuda", "--probe").want(t, 2, "this processor's memory")
	call(t, "run", "a", "--device", "auto", "--kv", "q8_0", "-n", "1").want(t, 0, "computing on the processor: --kv q8_0 has no effect with --device cuda")
}

// The program hands over to engine-cuda, with its arguments, where there is a driver; auto lets that one prove that it
// gets a device.
func TestDeviceHandOver(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program: not in short mode")
	}
	dir := t.TempDir()
	engine := filepath.Join(dir, "engine")
	if out, err := exec.Command("go", "build", "-o", engine, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	put(t, "", 0o644, dir, "lib", driverLibrary)
	run := func(args ...string) (string, string, error) {
		var out, errs bytes.Buffer
		cmd := exec.Command(engine, args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(dir, "lib"), "PATH=/usr/bin:/bin")
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), err
	}
	if _, errs, err := run("run", "a", "--device", "cuda"); err == nil || !strings.Contains(errs, "no engine-cuda beside "+engine) {
		t.Errorf("no engine-cuda: %v\n%s", err, errs)
	}
	put(t, "#!/bin/sh\n[ \"$1\" = device ] && { echo \"noise\"; echo 'engine: cuda: the driver is too old; or use --device cpu' >&2; exit 1; }\necho \"handed over: $* by $SLUICE_STARTED_BY\"\n", 0o755, dir, cudaBinary)
	if out, errs, err := run("run", "a b", "--device", "cuda"); err != nil || out != "handed over: run a b --device cuda by dev\n" {
		t.Errorf("--device cuda: %v, %q\n%s", err, out, errs)
	}
	if out, errs, err := run("run", "a", "--device", "auto", "-n", "1"); err != nil || strings.Contains(out, "handed over") || !strings.Contains(errs, "cuda: the driver is too old (exit") {
		t.Errorf("--device auto where the device fails: %v, %q\n%s", err, out, errs)
	}
	if _, errs, err := run("device", "cuda"); err == nil || !strings.Contains(errs, "the driver is too old") {
		t.Errorf("device cuda where the device fails: %v\n%s", err, errs)
	}
	put(t, "#!/bin/sh\n[ \"$1\" = device ] && { echo 'cuda:0 Pretender'; exit 0; }\necho \"handed over: $*\"\n", 0o755, dir, cudaBinary)
	if out, errs, err := run("run", "a", "--device", "auto"); err != nil || out != "handed over: run a --device auto\n" {
		t.Errorf("--device auto where the device works: %v, %q\n%s", err, out, errs)
	}
	if out, errs, err := run("device", "cuda"); err != nil || out != "cuda:0 Pretender\n" {
		t.Errorf("device cuda: %v, %q\n%s", err, out, errs)
	}
}
