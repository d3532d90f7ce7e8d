//go:build cuda

package driver

// #include "launch.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Results of the driver that callers tell apart.
const (
	codeOutOfMemory  = 2
	codeInvalidImage = 200
	codeNoBinary     = 209
	codeInvalidPTX   = 218
	codePTXVersion   = 222
	codeNotFound     = 500
	codeNotReady     = 600
)

// Error is what the driver answered to one call.
type Error struct {
	Call       string // what was asked for
	Code       int    // CUresult
	Name, Text string // the driver's own words for it
}

func (e *Error) Error() string {
	kernel := ""
	if slices.Contains(spoiled, e.Code) {
		kernel = "; a kernel started before went wrong, the driver does not say which"
	}
	return fmt.Sprintf("cuda: %s: %s (%s)%s", e.Call, e.Text, e.Name, kernel)
}

// failed makes an error of a result of launch.c; nil for success.
func failed(code C.int, call string) error {
	if code == 0 {
		return nil
	}
	return &Error{call, int(code), C.GoString(C.sluice_error_name(code)), C.GoString(C.sluice_error_text(code))}
}

// wrap does the same for an error of gorgonia.org/cu, whose type is its own and an integer: the CUresult.
func wrap(err error, call string) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Int {
		return failed(C.int(v.Int()), call)
	}
	return fmt.Errorf("cuda: %s: %w", call, err)
}

func isCode(err error, codes ...int) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

// spoiled are the results after which a context answers every call with the same: a kernel went wrong.
var spoiled = []int{214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721}

// note remembers an error that spoils the context.
func (d *Device) note(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if d.spoilt == 0 && errors.As(err, &e) && slices.Contains(spoiled, e.Code) {
		d.spoilt = e.Code
	}
	return err
}

// again drops an error that repeats what spoilt the context: releasing what it held says it for every piece.
func (d *Device) again(err error) error {
	if d.spoilt != 0 && isCode(err, d.spoilt) {
		return nil
	}
	return d.note(err)
}

// NoMemoryError says that the device, or the host where Pinned is set, has no room for an allocation.
type NoMemoryError struct {
	What   string // what the memory was for
	Asked  int64  // bytes; 0 where the driver decides
	Free   int64  // bytes free on the device when it was refused; unknown and 0 for pinned memory
	Pinned bool
}

func (e *NoMemoryError) Error() string {
	if e.Pinned {
		return fmt.Sprintf("cuda: %s: no %.1f MiB of pinned host memory to be had (the machine's memory or the lock limit is exhausted)", e.What, mib(e.Asked))
	}
	if e.Asked == 0 {
		return fmt.Sprintf("cuda: %s: out of device memory (nvidia-smi shows who has it)", e.What)
	}
	return fmt.Sprintf("cuda: %s: out of device memory: asked for %.1f MiB, %.1f MiB free", e.What, mib(e.Asked), mib(e.Free))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// LeakError lists what was still held when the device was closed. It has all been released.
type LeakError struct {
	Count int
	Bytes int64
	By    []Leak // by what, in alphabetical order
}

// Leak is what one purpose still held.
type Leak struct {
	What  string
	Count int
	Bytes int64
}

func (e *LeakError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cuda: %d objects with %d bytes were not released:", e.Count, e.Bytes)
	for i, l := range e.By {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d %s (%d bytes)", l.Count, l.What, l.Bytes)
	}
	return b.String()
}

// ArchError says that the kernels of this binary do not run on the device.
type ArchError struct {
	Device       string
	Major, Minor int
	Built        string // what the image was built for, as the build wrote it
	Err          error
}

func (e *ArchError) Error() string {
	return fmt.Sprintf("cuda: %s is sm_%d%d, the kernels of this binary are %s: build with CUDA_ARCH=%d%d (%v)",
		e.Device, e.Major, e.Minor, e.Built, e.Major, e.Minor, e.Err)
}

func (e *ArchError) Unwrap() error { return e.Err }

// DriverError says that the installed driver is older than this binary needs.
type DriverError struct{ Have, Need int } // 11080 is CUDA 11.8

func (e *DriverError) Error() string {
	return fmt.Sprintf("cuda: the driver is too old: it has CUDA %s, this binary needs %s: install a newer NVIDIA driver", Version(e.Have), Version(e.Need))
}

// Version is a CUDA version as the driver counts it.
type Version int

func (v Version) String() string { return fmt.Sprintf("%d.%d", int(v)/1000, int(v)%1000/10) }
