package kernels

import "fmt"

// Q8_1 is the form of activations for quantised weights. A row of K values (a multiple of 32) takes Q8RowBytes(K):
//
//	codes int8 [K], activation = d * code
//	K/32 pairs of float32: d, NaN where the 32 values have a NaN or Inf; d times the sum of the 32 codes
//	padding to a multiple of 16 bytes, never read
//
// Codes and d are those of the CPU's ActQ8_0 (kernels.Acts.SetRow) bit for bit. Rows stand alone, so that a part of a
// buffer is again a buffer: row i begins at Q8Row(q, K, i).

// Q8RowBytes returns the bytes of a Q8_1 row of k values. It panics unless k is a positive multiple of 32.
func Q8RowBytes(k int) int64 {
	if k < 1 || k%32 != 0 {
		panic(fmt.Sprintf("kernels: Q8_1 row of %d values", k))
	}
	return (int64(k)/4*5 + 15) &^ 15
}

// Q8Bytes returns the bytes of rows Q8_1 rows of k values.
func Q8Bytes(rows, k int) int64 { return int64(rows) * Q8RowBytes(k) }

// Q8Row returns the address of row i of the Q8_1 rows of k values at q.
func Q8Row(q Ptr, k, i int) Ptr { return q.At(int64(i) * Q8RowBytes(k)) }

// quantizeThreads is the block of the quantisers; 8 threads take the 32 values of one scale.
const quantizeThreads = 256

// Quantize writes the Q8_1 form of rows float32 rows of k values at x (row after row) to q (Q8Bytes). Where count is not
// 0, only the first i32[count] rows are, rows being the most there may be.
func Quantize(q, x Ptr, rows, k int, count Ptr) Launch {
	return quantizer("quantize_q8_1", q, rows, k, []uint64{q.Cell(), x.Cell(), count.Cell()})
}

// quantizer is a launch over rows x k values whose arguments end in rows, k and the bytes of a Q8_1 row.
func quantizer(name string, q Ptr, rows, k int, args []uint64) Launch {
	stride := Q8RowBytes(k)
	if rows < 1 || q%16 != 0 {
		panic(fmt.Sprintf("kernels: %s: %d rows of %d at %#x", name, rows, k, uint64(q)))
	}
	groups := int64(rows) * int64(k/32)
	const perBlock = quantizeThreads / 8
	return Launch{
		Func:  name,
		Grid:  grid(int((groups+perBlock-1)/perBlock), 1),
		Block: [3]uint32{quantizeThreads, 1, 1},
		Args:  append(args, I32(rows), I32(k), I64(stride)),
	}
}
