//go:build cuda

package driver

// #include "launch.h"
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	dev "sluice/cuda/kernels"
)

// Mem is a piece of device memory. It belongs to who allocated it, until Free.
type Mem struct {
	Ptr   dev.Ptr // aligned to 256 bytes
	Bytes int64
	what  string
	d     *Device
}

// Alloc takes device memory; its content is undefined. what names its purpose in errors and in a report of leaks. The
// error is a *NoMemoryError when the device has no room.
func (d *Device) Alloc(bytes int64, what string) (*Mem, error) {
	d.inside("Alloc")
	if bytes < 1 {
		panic(fmt.Sprintf("cuda: Alloc of %d bytes for %s", bytes, what))
	}
	p, err := cu.MemAlloc(bytes)
	if err != nil {
		err = wrap(err, "allocating "+what)
		if isCode(err, codeOutOfMemory) {
			free, _, _ := cu.MemInfo()
			return nil, &NoMemoryError{What: what, Asked: bytes, Free: free}
		}
		return nil, err
	}
	m := &Mem{dev.Ptr(p), bytes, what, d}
	d.owned[m] = struct{}{}
	return m, nil
}

// Free gives the memory back. Work that uses it must be done: the driver waits for none of ours. A second Free does
// nothing.
func (m *Mem) Free() error {
	m.d.inside("Free")
	return m.d.drop(m)
}

func (m *Mem) held() (string, int64) { return m.what, m.Bytes }
func (m *Mem) release() error        { return wrap(cu.MemFree(cu.DevicePtr(m.Ptr)), "freeing "+m.what) }

// Pinned is host memory that stays where it is: the device copies from and to it while the host goes on, and reads and
// writes it in place through Ptr. It lives outside the Go heap. Bytes must not be used after Free.
type Pinned struct {
	Bytes []byte
	Ptr   dev.Ptr // the same bytes, as kernels address them
	what  string
	d     *Device
}

// Pin takes pinned host memory, zeroed. It is scarce: the whole machine pays for it.
func (d *Device) Pin(bytes int64, what string) (*Pinned, error) {
	d.inside("Pin")
	if bytes < 1 {
		panic(fmt.Sprintf("cuda: Pin of %d bytes for %s", bytes, what))
	}
	var host unsafe.Pointer
	var ptr C.uint64_t
	if err := failed(C.sluice_pin(C.size_t(bytes), &host, &ptr), "pinning host memory for "+what); err != nil {
		if isCode(err, codeOutOfMemory) {
			return nil, &NoMemoryError{What: what, Asked: bytes, Pinned: true}
		}
		return nil, err
	}
	p := &Pinned{unsafe.Slice((*byte)(host), bytes), dev.Ptr(ptr), what, d}
	clear(p.Bytes)
	d.owned[p] = struct{}{}
	d.pins = append(d.pins, p)
	return p, nil
}

// Free gives the memory back; copies and kernels that use it must be done. A second Free does nothing.
func (p *Pinned) Free() error {
	p.d.inside("Free")
	return p.d.drop(p)
}

func (p *Pinned) held() (string, int64) { return "pinned " + p.what, int64(len(p.Bytes)) }

func (p *Pinned) release() error {
	for i, q := range p.d.pins {
		if q == p {
			p.d.pins = append(p.d.pins[:i], p.d.pins[i+1:]...)
			break
		}
	}
	host := unsafe.Pointer(unsafe.SliceData(p.Bytes))
	p.Bytes = nil
	return failed(C.sluice_unpin(host), "freeing pinned "+p.what)
}

// pinned panics unless b lies in one piece of pinned memory: the garbage collector knows nothing of a copy under way.
func (d *Device) pinned(method string, b []byte) unsafe.Pointer {
	p := unsafe.Pointer(unsafe.SliceData(b))
	for _, q := range d.pins {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(q.Bytes)))
		if uintptr(p) >= start && uintptr(p)+uintptr(len(b)) <= start+uintptr(len(q.Bytes)) {
			return p
		}
	}
	panic("cuda: " + method + " of memory that is not pinned")
}

// Upload copies src, any memory, to the device and returns when it is there. It does not wait for the streams: work
// that still reads or writes dst is the caller's to await.
func (d *Device) Upload(dst dev.Ptr, src []byte) error {
	d.inside("Upload")
	if len(src) == 0 {
		return nil
	}
	err := cu.MemcpyHtoD(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)))
	if err == nil {
		// From pageable memory the call returns once the bytes are staged, and our streams do not wait for the stream
		// that carries them further.
		err = cu.NoStream.Synchronize()
	}
	d.n.CopiesIn++
	d.n.BytesIn += int64(len(src))
	d.n.Syncs++
	return d.note(wrap(err, "copying to the device"))
}

// Download copies from the device to dst, any memory, and returns when it is there. It does not wait for the streams:
// work that writes src is the caller's to await.
func (d *Device) Download(dst []byte, src dev.Ptr) error {
	d.inside("Download")
	if len(dst) == 0 {
		return nil
	}
	err := cu.MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src), int64(len(dst)))
	d.n.CopiesOut++
	d.n.BytesOut += int64(len(dst))
	d.n.Syncs++
	return d.note(wrap(err, "copying from the device"))
}
