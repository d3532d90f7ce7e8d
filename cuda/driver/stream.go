//go:build cuda

package driver

// #include "launch.h"
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"

	dev "sluice/cuda/kernels"
)

// handle returns the driver's handle inside a value of gorgonia.org/cu: each of its types is a struct around one, and
// most offer no way to it.
func handle[T cu.Stream | cu.Event | cu.Module](v T) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&v))
}

var (
	_ [0]struct{} = [unsafe.Sizeof(cu.Stream{}) - unsafe.Sizeof(uintptr(0))]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(cu.Module{}) - unsafe.Sizeof(uintptr(0))]struct{}{}
)

// Stream is a queue of work that the device does in order. Two streams wait for each other only where an event or a
// value says so, and no stream waits for Upload and Download.
type Stream struct {
	s cu.Stream
	h unsafe.Pointer
	d *Device
}

// NewStream makes a stream. It belongs to the caller, until Close.
func (d *Device) NewStream() (*Stream, error) {
	d.inside("NewStream")
	s, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return nil, wrap(err, "making a stream")
	}
	st := &Stream{s, handle(s), d}
	d.owned[st] = struct{}{}
	return st, nil
}

// Close gives the stream back; work in it still gets done. A second Close does nothing.
func (s *Stream) Close() error {
	s.d.inside("Close")
	return s.d.drop(s)
}

func (s *Stream) held() (string, int64) { return "stream", 0 }
func (s *Stream) release() error        { return wrap(s.s.Destroy(), "closing a stream") }

// Sync waits until the stream is empty. A kernel that failed says so here, under the name of whatever was waited for:
// the driver does not tell which one it was, and every later call answers the same.
func (s *Stream) Sync() error {
	s.d.inside("Sync")
	s.d.n.Syncs++
	return s.d.note(wrap(s.s.Synchronize(), "waiting for a stream"))
}

// Query says whether the stream is empty, without waiting.
func (s *Stream) Query() (bool, error) {
	s.d.inside("Query")
	err := s.d.note(wrap(s.s.Query(), "asking a stream"))
	if isCode(err, codeNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Wait holds later work of the stream back until e, as last recorded, has happened.
func (s *Stream) Wait(e *Event) error {
	s.d.inside("Wait")
	return wrap(s.s.Wait(e.e, 0), "making a stream wait for an event")
}

// WaitValue holds later work of the stream back until the 32-bit word at ptr, device or pinned memory, is at least v in
// the cyclic sense: int32(word-v) >= 0. The device waits, no thread of it spins.
func (s *Stream) WaitValue(ptr dev.Ptr, v uint32) error {
	s.d.inside("WaitValue")
	return failed(C.sluice_wait_value(s.h, C.uint64_t(ptr), C.uint32_t(v)), "making a stream wait for a value")
}

// WriteValue writes the 32-bit word at ptr once the work before it is done and visible.
func (s *Stream) WriteValue(ptr dev.Ptr, v uint32) error {
	s.d.inside("WriteValue")
	return failed(C.sluice_write_value(s.h, C.uint64_t(ptr), C.uint32_t(v)), "making a stream write a value")
}

// CopyIn copies pinned host memory to the device; src must keep its content until the copy is done.
func (s *Stream) CopyIn(dst dev.Ptr, src []byte) error {
	s.d.inside("CopyIn")
	if len(src) == 0 {
		return nil
	}
	p := s.d.pinned("CopyIn", src)
	s.d.count(Counters{CopiesIn: 1, BytesIn: int64(len(src))})
	return wrap(cu.MemcpyHtoDAsync(cu.DevicePtr(dst), p, int64(len(src)), s.s), "starting a copy to the device")
}

// CopyOut copies from the device to pinned host memory, whose content is there once the stream got so far.
func (s *Stream) CopyOut(dst []byte, src dev.Ptr) error {
	s.d.inside("CopyOut")
	if len(dst) == 0 {
		return nil
	}
	p := s.d.pinned("CopyOut", dst)
	s.d.count(Counters{CopiesOut: 1, BytesOut: int64(len(dst))})
	return wrap(cu.MemcpyDtoHAsync(p, cu.DevicePtr(src), int64(len(dst)), s.s), "starting a copy from the device")
}

// CopyWithin copies n bytes on the device; the two ranges must not overlap.
func (s *Stream) CopyWithin(dst, src dev.Ptr, n int64) error {
	s.d.inside("CopyWithin")
	if n == 0 {
		return nil
	}
	s.d.count(Counters{CopiesWithin: 1, BytesWithin: n})
	return wrap(cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), n, s.s), "starting a copy within the device")
}

// Zero sets n bytes of device memory to 0.
func (s *Stream) Zero(ptr dev.Ptr, n int64) error {
	s.d.inside("Zero")
	if n == 0 {
		return nil
	}
	return wrap(cu.MemsetD8Async(cu.DevicePtr(ptr), 0, n, s.s), "starting to zero device memory")
}

// count adds c to the counters, or to the graph that is being captured: its work is done when it is launched.
func (d *Device) count(c Counters) {
	if d.graph != nil {
		d.graph.n.add(c)
		return
	}
	d.n.add(c)
}

// Event is a mark in a stream.
type Event struct {
	e cu.Event
	d *Device
}

// NewEvent makes an event that keeps the time. It belongs to the caller, until Close.
func (d *Device) NewEvent() (*Event, error) {
	d.inside("NewEvent")
	e, err := cu.MakeEvent(cu.DefaultEvent)
	if err != nil {
		return nil, wrap(err, "making an event")
	}
	ev := &Event{e, d}
	d.owned[ev] = struct{}{}
	return ev, nil
}

// Close gives the event back. A second Close does nothing.
func (e *Event) Close() error {
	e.d.inside("Close")
	return e.d.drop(e)
}

func (e *Event) held() (string, int64) { return "event", 0 }
func (e *Event) release() error        { return wrap(cu.DestroyEvent(&e.e), "closing an event") }

// Record puts the mark behind all work that the stream has now.
func (e *Event) Record(s *Stream) error {
	e.d.inside("Record")
	return wrap(e.e.Record(s.s), "recording an event")
}

// Sync waits until the event, as last recorded, has happened; one never recorded has.
func (e *Event) Sync() error {
	e.d.inside("Sync")
	e.d.n.Syncs++
	return e.d.note(wrap(e.e.Synchronize(), "waiting for an event"))
}

// Query says whether the event has happened, without waiting.
func (e *Event) Query() (bool, error) {
	e.d.inside("Query")
	err := e.d.note(wrap(e.e.Query(), "asking an event"))
	if isCode(err, codeNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Elapsed returns the seconds from a to b, both recorded and past. The driver's clock counts half microseconds.
func Elapsed(a, b *Event) (float64, error) {
	a.d.inside("Elapsed")
	ms, err := a.e.Elapsed(b.e)
	return ms / 1000, wrap(err, "asking for the time between two events")
}
