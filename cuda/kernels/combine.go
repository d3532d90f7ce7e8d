package kernels

import "fmt"

// combineThreads is the block of Combine, one value a thread.
const combineThreads = 256

// Combine describes the end of an MoE layer: to each of rows rows of x (float32 rows x width, the residual stream) come
// the outputs y (float32, one row of width an entry) of the row's entries times their weights, experts ascending, then
// the shared expert's row (shared, rows x width; 0 for none) times its gate (float32 x rows; 0 for 1).
func (t Table) Combine(x, y, shared, gate Ptr, rows, width int) Launch {
	if rows < 1 || rows > t.MaxT || width < 1 || gate != 0 && shared == 0 {
		panic(fmt.Sprintf("kernels: combine %d rows of %d, shared at %#x, gate at %#x", rows, width, uint64(shared), uint64(gate)))
	}
	return Launch{
		Func:  "combine_rows",
		Grid:  grid(ceil(width, combineThreads), rows),
		Block: [3]uint32{combineThreads, 1, 1},
		Args: []uint64{x.Cell(), y.Cell(), t.EntryOf.Cell(), t.Weight.Cell(), I32(t.K), I32(width),
			shared.Cell(), gate.Cell()},
	}
}
