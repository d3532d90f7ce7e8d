package kernels

import "fmt"

// Finite raises the guard's fault word where one of rows float32 rows of n values at x holds a NaN or an infinity.
func Finite(x Ptr, rows, n int, g Guard) Launch {
	if rows < 1 || n < 1 || g.Word == 0 {
		panic(fmt.Sprintf("kernels: Finite: %d rows of %d, word %#x", rows, n, uint64(g.Word)))
	}
	return Launch{
		Func:  "finite_rows",
		Grid:  grid(rows, 1),
		Block: rowBlock(n),
		Args:  append([]uint64{x.Cell(), I32(n)}, g.cells()...),
	}
}
