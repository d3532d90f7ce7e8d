//go:build cuda

package driver

// #include <stdlib.h>
// #include "launch.h"
import "C"

import (
	"fmt"
	"unsafe"

	dev "sluice/cuda/kernels"
)

// function is a kernel of the image, with the dynamic shared memory that was asked for.
type function struct {
	f      unsafe.Pointer
	shared uint32
}

func (d *Device) function(name string, shared uint32) (unsafe.Pointer, error) {
	if k, ok := d.funcs[name]; ok && shared <= k.shared {
		return k.f, nil
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	for i, mod := range d.mods {
		var f unsafe.Pointer
		err := failed(C.sluice_function(handle(mod), c, C.uint32_t(shared), &f), "looking for kernel "+name)
		if err == nil {
			d.funcs[name] = function{f, shared}
			return f, nil
		}
		if !isCode(err, codeNotFound) || i == len(d.mods)-1 {
			return nil, err
		}
	}
	return nil, fmt.Errorf("cuda: looking for kernel %s: no device code is loaded", name)
}

// Program is a list of launches whose arguments lie ready in C memory: Run makes one call for a whole range of them
// and allocates nothing.
type Program struct {
	d      *Device
	names  []string
	ls     []C.sluice_launch
	cells  [][]uint64 // per launch
	failed *C.int64_t
	block  unsafe.Pointer // all of it
}

// NewProgram looks the functions up and lays the launches out. The launches are copied. The program belongs to the
// caller, until Close.
func (d *Device) NewProgram(ls []dev.Launch) (*Program, error) {
	d.inside("NewProgram")
	const word = 8
	nargs := 0
	for _, l := range ls {
		nargs += len(l.Args)
	}
	head := word + len(ls)*C.sizeof_sluice_launch
	p := &Program{d: d, names: make([]string, len(ls)), cells: make([][]uint64, len(ls))}
	p.block = C.calloc(1, C.size_t(head+2*word*nargs))
	if p.block == nil {
		return nil, fmt.Errorf("cuda: no host memory for the arguments of %d launches", len(ls))
	}
	p.failed = (*C.int64_t)(p.block)
	p.ls = unsafe.Slice((*C.sluice_launch)(unsafe.Add(p.block, word)), len(ls))
	ptrs := unsafe.Slice((*unsafe.Pointer)(unsafe.Add(p.block, head)), nargs)
	cells := unsafe.Slice((*uint64)(unsafe.Add(p.block, head+word*nargs)), nargs)
	for i, l := range ls {
		f, err := d.function(l.Func, l.Shared)
		if err != nil {
			C.free(p.block)
			return nil, err
		}
		p.names[i] = l.Func
		c := &p.ls[i]
		c._func = f
		for j := range l.Grid {
			c.grid[j], c.block[j] = C.uint32_t(l.Grid[j]), C.uint32_t(l.Block[j])
		}
		c.shared = C.uint32_t(l.Shared)
		n := len(l.Args)
		c.nargs = C.uint32_t(n)
		if n > 0 {
			c.args = &ptrs[0]
		}
		copy(cells, l.Args)
		for j := range l.Args {
			ptrs[j] = unsafe.Pointer(&cells[j])
		}
		p.cells[i] = cells[:n:n]
		ptrs, cells = ptrs[n:], cells[n:]
	}
	d.owned[p] = struct{}{}
	return p, nil
}

// Len returns the number of launches.
func (p *Program) Len() int { return len(p.ls) }

// Set replaces argument arg of launch i. Launches already started, and graphs already captured, keep what they had. It
// may be called anywhere while Run is not running.
func (p *Program) Set(i, arg int, cell uint64) { p.cells[i][arg] = cell }

// SetGrid replaces the grid of launch i, likewise. A launch whose grid's first extent is 0 is left out.
func (p *Program) SetGrid(i int, grid [3]uint32) {
	for j, n := range grid {
		p.ls[i].grid[j] = C.uint32_t(n)
	}
}

// Run starts launches from up to but not including to in s, in order, and waits for none. An error names the kernel that
// was refused; those before it are started.
func (p *Program) Run(s *Stream, from, to int) error {
	p.d.inside("Run")
	if from < 0 || to < from || to > len(p.ls) {
		panic(fmt.Sprintf("cuda: Run of launches %d..%d of %d", from, to, len(p.ls)))
	}
	if from == to {
		return nil
	}
	n := to - from
	for i := from; i < to; i++ {
		if p.ls[i].grid[0] == 0 {
			n--
		}
	}
	p.d.count(Counters{Launches: int64(n)})
	if code := C.sluice_run(&p.ls[0], C.int64_t(from), C.int64_t(to), s.h, p.failed); code != 0 {
		return p.refused(code)
	}
	return nil
}

func (p *Program) refused(code C.int) error {
	i := int(*p.failed)
	l := &p.ls[i]
	return p.d.note(failed(code, fmt.Sprintf("launching kernel %s (number %d, grid %v, block %v, %d bytes of shared memory, %d arguments)",
		p.names[i], i, l.grid, l.block, l.shared, l.nargs)))
}

// Close gives the host memory back; launches already started have their arguments. A second Close does nothing.
func (p *Program) Close() error {
	p.d.inside("Close")
	return p.d.drop(p)
}

func (p *Program) held() (string, int64) { return "program", 0 }

func (p *Program) release() error {
	C.free(p.block)
	p.block, p.failed, p.ls, p.cells = nil, nil, nil, nil
	return nil
}
