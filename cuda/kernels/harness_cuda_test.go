//go:build cuda

package kernels_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"unsafe"

	dev "sluice/cuda/kernels"

	"sluice/cuda/driver"
)

// The device of the package's tests, opened once, and the stream that run uses.
var (
	device *driver.Device
	stream *driver.Stream
)

// long reports whether the long form of a test was asked for.
func long() bool { return os.Getenv("SLUICE_LONG") == "1" }

// TestMain opens the device and fails the run when something is left on it. What the emulated device finds by itself
// (accesses out of bounds or after free) ends the process.
func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	if device, err = driver.Open(nil, 0); err != nil {
		return 1, err
	}
	err = device.Do(func() (err error) {
		stream, err = device.NewStream()
		return err
	})
	if err == nil {
		code = m.Run()
		err = device.Do(func() error { return stream.Close() })
	}
	if e := device.Close(); err == nil {
		err = e // leaks are an error of Close
	}
	return code, err
}

// on runs f on the device's thread and ends the test on an error.
func on(t testing.TB, f func() error) {
	t.Helper()
	if err := device.Do(f); err != nil {
		t.Fatal(err)
	}
}

// alloc returns device memory that lasts until the test ends. It is filled with 0xff bytes: as floats NaN, as int32 -1, so
// that what a kernel should have written and did not shows.
func alloc(t testing.TB, bytes int64) dev.Ptr {
	t.Helper()
	var m *driver.Mem
	on(t, func() (err error) {
		if m, err = device.Alloc(max(bytes, 1), t.Name()); err != nil {
			return err
		}
		ff := make([]byte, bytes)
		for i := range ff {
			ff[i] = 0xff
		}
		return device.Upload(m.Ptr, ff)
	})
	t.Cleanup(func() { on(t, m.Free) })
	return m.Ptr
}

// bytesOf returns the memory of s; T has no pointers.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// upload returns device memory that holds s until the test ends.
func upload[T any](t testing.TB, s []T) dev.Ptr {
	t.Helper()
	p := alloc(t, int64(len(bytesOf(s))))
	store(t, p, s)
	return p
}

// store overwrites device memory with s.
func store[T any](t testing.TB, p dev.Ptr, s []T) {
	t.Helper()
	on(t, func() error { return device.Upload(p, bytesOf(s)) })
}

// download returns the n values at p.
func download[T any](t testing.TB, p dev.Ptr, n int) []T {
	t.Helper()
	s := make([]T, n)
	on(t, func() error { return device.Download(bytesOf(s), p) })
	return s
}

// run starts the launches in order and waits for them.
func run(t testing.TB, ls ...dev.Launch) {
	t.Helper()
	on(t, func() error {
		p, err := device.NewProgram(ls)
		if err != nil {
			return err
		}
		defer p.Close()
		if err := p.Run(stream, 0, p.Len()); err != nil {
			return err
		}
		return stream.Sync()
	})
}

// floats reads little-endian float32 out of bytes that came from the device.
func floats(b []byte) []float32 {
	s := make([]float32, len(b)/4)
	if _, err := binary.Decode(b, binary.LittleEndian, s); err != nil {
		panic(err)
	}
	return s
}
