//go:build cuda

package driver

// #include "launch.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gorgonia.org/cu"

	_ "sluice/cuda/driver/first" // before gorgonia.org/cu
	"sluice/cuda/driver/image"
	dev "sluice/cuda/kernels"
)

// minDriver is the oldest driver that has every call we make: the second version of the stream memory operations.
const minDriver = 11070

// ErrClosed is what Do answers after Close.
var ErrClosed = errors.New("cuda: the device is closed")

// Device is one device with one context. See the package comment for what may be called where.
type Device struct {
	mu    sync.Mutex // one Do at a time, Close among them
	calls chan func() error
	done  chan outcome
	tid   atomic.Int64 // the context's thread; 0: none
	dead  bool

	info  Info
	ctx   cu.CUContext
	mods  []cu.Module
	funcs map[string]function
	owned map[owner]struct{}
	pins  []*Pinned
	graph *Graph // being captured; nil: none
	n     Counters

	spoilt int // CUresult that a kernel left the context with; 0: none
}

// Info describes a device.
type Info struct {
	Name         string
	Major, Minor int   // compute capability
	Driver       int   // CUDA version of the driver, 11080 for 11.8
	Total, Free  int64 // bytes of device memory; Free when asked
	SMs          int   // multiprocessors
	L2           int64 // bytes
}

// Counters count what this package asked of the driver since Open.
type Counters struct {
	Launches      int64 // kernels started one by one
	GraphLaunches int64
	GraphKernels  int64 // kernels started by graph launches
	CopiesIn      int64 // host to device, those inside launched graphs among them
	BytesIn       int64
	CopiesOut     int64 // device to host, likewise
	BytesOut      int64
	CopiesWithin  int64
	BytesWithin   int64
	Syncs         int64 // times that the host waited: Sync, Upload, Download
}

// Sub returns the difference to an earlier reading.
func (c Counters) Sub(o Counters) Counters {
	return Counters{c.Launches - o.Launches, c.GraphLaunches - o.GraphLaunches, c.GraphKernels - o.GraphKernels,
		c.CopiesIn - o.CopiesIn, c.BytesIn - o.BytesIn, c.CopiesOut - o.CopiesOut, c.BytesOut - o.BytesOut,
		c.CopiesWithin - o.CopiesWithin, c.BytesWithin - o.BytesWithin, c.Syncs - o.Syncs}
}

func (c *Counters) add(o Counters) {
	*c = c.Sub(Counters{}.Sub(o))
}

// owner is something that must be released before the device closes.
type owner interface {
	held() (what string, bytes int64)
	release() error
}

// Open takes device number ordinal, checks that driver, device and image fit together and proves it with one launch.
// fatbin is an image; nil is the device code that this binary was built with.
//
// The errors it tells apart: *DriverError (too old), *ArchError (no code for this device), *NoMemoryError.
func Open(fatbin []byte, ordinal int) (*Device, error) {
	modules := [][]byte{fatbin}
	if fatbin == nil {
		var err error
		if modules, err = image.Modules(); err != nil {
			return nil, err
		}
	}
	d := &Device{calls: make(chan func() error), done: make(chan outcome), funcs: map[string]function{}, owned: map[owner]struct{}{}}
	started := make(chan error)
	go d.serve(modules, ordinal, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open(modules [][]byte, ordinal int) error {
	count, err := cu.NumDevices()
	if err != nil {
		return wrap(err, "counting devices")
	}
	if ordinal < 0 || ordinal >= count {
		return fmt.Errorf("cuda: device %d: the driver has %d (0 is the first; CUDA_VISIBLE_DEVICES hides devices)", ordinal, count)
	}
	g, err := cu.GetDevice(ordinal)
	if err != nil {
		return wrap(err, "taking the device")
	}
	d.info.Driver = cu.Version()
	if need := max(minDriver, image.Toolkit()/1000*1000); d.info.Driver < need {
		return &DriverError{d.info.Driver, need}
	}
	if d.info.Name, err = g.Name(); err != nil {
		return wrap(err, "asking the device's name")
	}
	var l2 int
	for _, a := range []struct {
		attr cu.DeviceAttribute
		dst  *int
	}{{cu.ComputeCapabilityMajor, &d.info.Major}, {cu.ComputeCapabilityMinor, &d.info.Minor}, {cu.MultiprocessorCount, &d.info.SMs}, {cu.L2CacheSize, &l2}} {
		if *a.dst, err = g.Attribute(a.attr); err != nil {
			return wrap(err, "asking the device's attributes")
		}
	}
	d.info.L2 = int64(l2)
	if d.ctx, err = g.MakeContext(cu.SchedAuto | cu.MapHost); err != nil {
		err = wrap(err, "making a context")
		if isCode(err, codeOutOfMemory) {
			return &NoMemoryError{What: "context on " + d.info.Name}
		}
		return err
	}
	if err := d.load(modules); err != nil {
		return errors.Join(err, wrap(d.ctx.Destroy(), "destroying the context"))
	}
	return nil
}

// load takes the kernels and starts the smallest one: an image that loads may still have nothing for this device.
func (d *Device) load(modules [][]byte) (err error) {
	fits := func(err error) error {
		if isCode(err, codeInvalidImage, codeNoBinary, codeInvalidPTX, codePTXVersion) {
			if d.info.Driver < image.Toolkit() { // it cannot read what a newer compiler wrote
				return &DriverError{d.info.Driver, image.Toolkit()}
			}
			return &ArchError{d.info.Name, d.info.Major, d.info.Minor, image.Built(), err}
		}
		return err
	}
	if _, d.info.Total, err = cu.MemInfo(); err != nil {
		return fits(wrap(err, "asking for the device's memory"))
	}
	for _, m := range modules {
		mod, err := cu.LoadData(string(m))
		if err != nil {
			return fits(wrap(err, "loading the kernels"))
		}
		d.mods = append(d.mods, mod)
	}
	return fits(d.probe())
}

// probe starts a kernel that writes a word and reads the word back.
func (d *Device) probe() (err error) {
	const word = 0x51de
	m, err := d.Alloc(4, "probe")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	p, err := d.NewProgram([]dev.Launch{dev.Probe(m.Ptr, word)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := p.Run(s, 0, 1); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	var got uint32
	if err := d.Download(unsafe.Slice((*byte)(unsafe.Pointer(&got)), 4), m.Ptr); err != nil {
		return err
	}
	if got != word {
		return fmt.Errorf("cuda: %s: the probe kernel wrote %#x, want %#x: the device computes wrongly", d.info.Name, got, word)
	}
	return nil
}

// Info describes the device. It may be called anywhere.
func (d *Device) Info() Info {
	i := d.info
	_ = d.Do(func() (err error) { // a closed device has nothing free
		i.Free, _, err = cu.MemInfo()
		return err
	})
	return i
}

// Counters says what was done so far. It may be called anywhere.
func (d *Device) Counters() (c Counters) {
	_ = d.Do(func() error { c = d.n; return nil })
	return c
}

// Close waits for the device, releases it and ends its thread. What was not released before is a *LeakError, and
// released. It may be called anywhere outside Do; a second call does nothing.
func (d *Device) Close() error {
	if d.here() {
		panic("cuda: Close inside Do")
	}
	d.mu.Lock()
	dead := d.dead
	d.mu.Unlock()
	if dead {
		return nil
	}
	err := d.Do(func() error {
		err := d.again(wrap(cu.Synchronize(), "waiting for the device"))
		return errors.Join(err, d.releaseAll(), d.again(wrap(d.ctx.Destroy(), "destroying the context"))) // and its modules
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dead {
		d.dead = true
		close(d.calls)
	}
	return err
}

func (d *Device) releaseAll() error {
	if len(d.owned) == 0 {
		return nil
	}
	leak := &LeakError{Count: len(d.owned)}
	by := map[string]Leak{}
	var errs []error
	for o := range d.owned {
		what, bytes := o.held()
		l := by[what]
		by[what] = Leak{what, l.Count + 1, l.Bytes + bytes}
		leak.Bytes += bytes
		errs = append(errs, d.again(o.release()))
	}
	for _, l := range by {
		leak.By = append(leak.By, l)
	}
	slices.SortFunc(leak.By, func(a, b Leak) int { return strings.Compare(a.What, b.What) })
	return errors.Join(append([]error{leak}, errs...)...)
}

// drop releases o once; what is released twice does nothing the second time.
func (d *Device) drop(o owner) error {
	if _, ok := d.owned[o]; !ok {
		return nil
	}
	delete(d.owned, o)
	return d.again(o.release())
}

// outcome is how a function in Do ended.
type outcome struct {
	err      error
	panicked any
}

// serve is the device's thread.
func (d *Device) serve(modules [][]byte, ordinal int, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	d.tid.Store(int64(unix.Gettid()))
	err := d.open(modules, ordinal)
	started <- err
	if err != nil {
		return
	}
	for f := range d.calls {
		d.done <- run(d, f)
	}
	d.tid.Store(0) // the number may come back as another thread's
}

func run(d *Device, f func() error) (o outcome) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if o.panicked = recover(); o.panicked == nil { // runtime.Goexit cannot be stopped: the thread is lost
			d.dead = true
			d.done <- outcome{panicked: "cuda: runtime.Goexit inside Do (t.Fatal belongs on the test's goroutine)"}
		}
	}()
	o.err = f()
	returned = true
	return o
}

// here says whether the caller is on the device's thread.
func (d *Device) here() bool { return int64(unix.Gettid()) == d.tid.Load() }

// Do runs f on the device's thread and returns its error. It may be called anywhere; inside Do it just calls f. A panic
// of f is the caller's.
func (d *Device) Do(f func() error) error {
	if d.here() {
		return f()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return ErrClosed
	}
	d.calls <- f
	o := <-d.done
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

// inside panics unless the caller is on the device's thread.
func (d *Device) inside(method string) {
	if !d.here() {
		panic("cuda: " + method + " outside Do")
	}
}
