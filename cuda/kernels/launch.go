package kernels

import (
	"fmt"
	"math"
)

// Ptr is an address in device memory; 0 stands for no buffer where an argument is optional.
type Ptr uint64

// Cell returns the parameter cell of an address.
func (p Ptr) Cell() uint64 { return uint64(p) }

// At returns the address n bytes behind p.
func (p Ptr) At(n int64) Ptr { return p + Ptr(n) }

// Launch is one kernel launch: a function of the image by its name, grid and block in threads, bytes of dynamic shared
// memory, and one 8-byte cell for each parameter in order. A parameter of 4 bytes stands in the low half of its cell.
type Launch struct {
	Func   string
	Grid   [3]uint32
	Block  [3]uint32
	Shared uint32
	Args   []uint64
}

// I32 returns the cell of an int32 or uint32 parameter. It panics when v fits neither.
func I32(v int) uint64 {
	if int64(v) < math.MinInt32 || int64(v) > math.MaxUint32 {
		panic(fmt.Sprintf("kernels: parameter %d does not fit 32 bits", v))
	}
	return uint64(uint32(v))
}

// I64 returns the cell of an int64 parameter.
func I64(v int64) uint64 { return uint64(v) }

// F32 returns the cell of a float parameter.
func F32(v float32) uint64 { return uint64(math.Float32bits(v)) }

// limitY is CUDA's limit for the second and third extent of a grid; the first may be up to 2^31-1.
const limitY = 65535

// grid returns a two-dimensional grid. It panics unless both extents are at least 1 and within CUDA's limits: an empty
// launch is an error of the driver, so a caller with nothing to do launches nothing.
func grid(x, y int) [3]uint32 {
	if x < 1 || x > math.MaxInt32 || y < 1 || y > limitY {
		panic(fmt.Sprintf("kernels: grid of %d x %d blocks", x, y))
	}
	return [3]uint32{uint32(x), uint32(y), 1}
}

// ceil returns the number of groups of size that n items need.
func ceil(n, size int) int { return (n + size - 1) / size }
