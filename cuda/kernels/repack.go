package kernels

import (
	"fmt"

	"sluice/kernels"
)

// Supported reports whether Product, ExpertGateUp and ExpertDown take matrices of the type. A model with a tensor of
// another type is refused when it is loaded.
func Supported(t kernels.Type) bool {
	switch t {
	case kernels.F32, kernels.F16, kernels.BF16, kernels.Q8_0, kernels.Q4_0, kernels.Q4_K, kernels.Q5_K, kernels.Q6_K:
		return true
	}
	return false
}

// Fits reports whether rows of cols elements suit the kernels of a Supported type: whole super-blocks of 256 for the K
// types, a multiple of 32 for the others, and no more than 2^24 elements.
func Fits(t kernels.Type, cols int) bool {
	return Supported(t) && cols > 0 && cols <= 1<<24 && cols%max(32, t.BlockLen()) == 0
}

// Quantised reports whether the type's products take Q8_1 activations; those of F32, F16 and BF16 take float32 rows.
func Quantised(t kernels.Type) bool { return Supported(t) && t.BlockLen() > 1 }

// NeedsRepack reports whether a matrix of the type lies on the device in planes rather than as in the file. The blocks of
// these types have sizes (34, 18 and 210 bytes) that would allow loads of 2 bytes only. With R rows of K elements and
// B = R*K/32 or, for Q6_K, R*K/256 blocks in all, numbered row after row, the planes are, without gaps:
//
//	Q8_0  codes int8 [R][K]; scales f16 [B]
//	Q4_0  nibbles [B][16] as in the file (byte j: element j low, j+16 high); scales f16 [B]
//	Q6_K  low nibbles [B][128] and upper pairs [B][64], both as in the file; scales int8 [B][8][2], where pair 4*h+i has
//	      those of elements 128*h+16*i and 128*h+64+16*i; super-block scales f16 [B]
func NeedsRepack(t kernels.Type) bool {
	return t == kernels.Q8_0 || t == kernels.Q4_0 || t == kernels.Q6_K
}

// DeviceBytes returns the bytes that a matrix takes on the device, the size in the file rounded up to 256. It panics
// unless Fits.
func DeviceBytes(t kernels.Type, rows, cols int) int64 {
	checkMat("DeviceBytes", t, rows, cols)
	n := int64(rows) * int64(t.RowBytes(cols))
	return (n + 255) &^ 255
}

// Repack rearranges the rows x cols matrix at src, laid out as in the file, to planes at dst (DeviceBytes, apart from
// src). It panics unless NeedsRepack and Fits.
func Repack(t kernels.Type, dst, src Ptr, rows, cols int) Launch {
	checkMat("Repack", t, rows, cols)
	if !NeedsRepack(t) {
		panic(fmt.Sprintf("kernels: Repack: %v needs none", t))
	}
	const threads = 256
	blocks := int64(rows) * int64(cols/t.BlockLen())
	words := blocks * int64(t.BlockBytes()/2) // a thread moves 2 bytes
	return Launch{
		Func:  "repack_" + suffix(t),
		Grid:  grid(int((words+threads-1)/threads), 1),
		Block: [3]uint32{threads, 1, 1},
		Args:  []uint64{dst.Cell(), src.Cell(), I64(blocks)},
	}
}

// suffix is the type's part of a kernel's name.
func suffix(t kernels.Type) string {
	switch t {
	case kernels.F32:
		return "f32"
	case kernels.F16:
		return "f16"
	case kernels.BF16:
		return "bf16"
	case kernels.Q8_0:
		return "q8_0"
	case kernels.Q4_0:
		return "q4_0"
	case kernels.Q4_K:
		return "q4_k"
	case kernels.Q5_K:
		return "q5_k"
	case kernels.Q6_K:
		return "q6_k"
	}
	panic(fmt.Sprintf("kernels: no device kernel for type %v", t))
}

// maxElements keeps the block numbers of dot.h in an int32, down to the 4 values of an F32 unit.
const maxElements = 4 << 31

func checkMat(what string, t kernels.Type, rows, cols int) {
	if !Fits(t, cols) || rows < 1 || int64(rows)*int64(cols) >= maxElements {
		panic(fmt.Sprintf("kernels: %s: %v matrix of %d rows of %d", what, t, rows, cols))
	}
}
