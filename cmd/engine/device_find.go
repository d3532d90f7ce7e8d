package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// driverLibrary is what the NVIDIA driver installs and a CUDA program is linked to.
const driverLibrary = "libcuda.so.1"

// loaderDirs returns what the dynamic loader searches after its cache.
func loaderDirs() []string {
	triplet := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu"
	return []string{"/lib64", "/usr/lib64", "/lib/" + triplet, "/usr/lib/" + triplet, "/lib", "/usr/lib"}
}

// findDriver returns the path of the driver's library, looking where the dynamic loader would: libraryPath
// (LD_LIBRARY_PATH), the loader's cache, its default directories. root is / but in tests. It loads nothing: a program
// linked to a library that is missing dies in the loader, with less to say about it.
func findDriver(root, libraryPath string) (string, error) {
	for _, dir := range filepath.SplitList(libraryPath) {
		if p := filepath.Join(dir, driverLibrary); dir != "" && isFile(p) {
			return p, nil
		}
	}
	// The cache is a table of strings, each ended by a zero byte; a path to the library is among them or is not.
	if cache, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache")); err == nil {
		suffix := []byte("/" + driverLibrary + "\x00")
		for rest := cache; ; {
			i := bytes.Index(rest, suffix)
			if i < 0 {
				break
			}
			p := string(rest[bytes.LastIndexByte(rest[:i], 0)+1 : i+len(suffix)-1])
			if isFile(filepath.Join(root, p)) {
				return filepath.Join(root, p), nil
			}
			rest = rest[i+len(suffix):]
		}
	}
	for _, dir := range loaderDirs() {
		if p := filepath.Join(root, dir, driverLibrary); isFile(p) {
			return p, nil
		}
	}
	where := "the loader's cache, " + strings.Join(loaderDirs(), ", ")
	if libraryPath != "" {
		where = "LD_LIBRARY_PATH, " + where
	}
	hint := "install the NVIDIA driver"
	if isFile(filepath.Join(root, "proc/driver/nvidia/version")) {
		hint = "its kernel module is loaded, so install the user-space part of the same version, or let the container have it"
	}
	return "", fmt.Errorf("no NVIDIA driver: %s is not in %s: %s", driverLibrary, where, hint)
}

// findCUDABinary returns the program with the device arm: beside this one, else from PATH.
func findCUDABinary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	beside := filepath.Join(filepath.Dir(self), cudaBinary)
	if isFile(beside) {
		return beside, nil
	}
	if p, err := exec.LookPath(cudaBinary); err == nil {
		return p, nil
	}
	return "", fmt.Errorf("no %s beside %s nor in PATH: make CUDA=1 builds it", cudaBinary, self)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}
