package kernels

import "fmt"

// SharedGate writes the gate of a shared expert, sigmoid(w . row), for each of rows float32 rows of n values at x to gate
// (float32, rows). Combine multiplies the shared expert's rows with it.
func SharedGate(gate, x, w Ptr, rows, n int) Launch {
	if rows < 1 || n < 1 {
		panic(fmt.Sprintf("kernels: SharedGate: %d rows of %d", rows, n))
	}
	return Launch{
		Func:  "gate_sigmoid",
		Grid:  grid(rows, 1),
		Block: rowBlock(n),
		Args:  []uint64{gate.Cell(), x.Cell(), w.Cell(), I32(n)},
	}
}
