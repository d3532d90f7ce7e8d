package kernels

import "fmt"

// RMSNorm writes the RMS norm of rows float32 rows of n values at x to out, which may be x; w holds n float32 weights, 0
// for ones. A row that is not finite is raised as the guard says.
func RMSNorm(out, x, w Ptr, rows, n int, eps float32, g Guard) Launch {
	return norm(out, x, 0, 0, w, rows, n, eps, g)
}

// NormListArg is the index of RMSNormOf's list among the arguments of its launch, for a program that is run again.
const NormListArg = 2

// RMSNormOf is RMSNorm of the rows of x whose numbers are in list (int32, rows of them), which out (not x) has one after the
// other. The guard counts rows of x.
func RMSNormOf(out, x, list, w Ptr, rows, n int, eps float32, g Guard) Launch {
	if list == 0 || out == x {
		panic("kernels: RMSNormOf: no rows are named, or others would be lost")
	}
	return norm(out, x, list, 0, w, rows, n, eps, g)
}

// AddRMSNorm adds delta (rows x n) to x in place, then writes RMSNorm of the sum to out, which must not be x. The guard
// looks at the sum.
func AddRMSNorm(out, x, delta, w Ptr, rows, n int, eps float32, g Guard) Launch {
	if delta == 0 || out == x {
		panic("kernels: AddRMSNorm: nothing to add, or the sum would be lost")
	}
	return norm(out, x, 0, delta, w, rows, n, eps, g)
}

func norm(out, x, list, delta, w Ptr, rows, n int, eps float32, g Guard) Launch {
	if rows < 1 || n < 1 {
		panic(fmt.Sprintf("kernels: RMSNorm: %d rows of %d", rows, n))
	}
	return Launch{
		Func:  "norm_rms",
		Grid:  grid(rows, 1),
		Block: rowBlock(n),
		Args:  append([]uint64{out.Cell(), x.Cell(), list.Cell(), delta.Cell(), w.Cell(), I32(n), F32(eps)}, g.cells()...),
	}
}

// rowBlock is the block of a kernel that gives a row of n values to each block: about 8 values a thread. It depends on n
// alone, and with it the order of a row's sums.
func rowBlock(n int) [3]uint32 {
	return [3]uint32{uint32(min(1024, 32*ceil(n, 256))), 1, 1}
}
