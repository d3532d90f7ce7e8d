package kernels

import "fmt"

// SiluMul writes silu(gate[i])*up[i] to dst[i] for rows x n float32 values; dst may be gate or up. The bits are those of
// kernels.SiluMul. ExpertGateUp has it built in.
func SiluMul(dst, gate, up Ptr, rows, n int) Launch {
	const threads = 256
	all := int64(rows) * int64(n)
	if rows < 1 || n < 1 {
		panic(fmt.Sprintf("kernels: SiluMul: %d rows of %d", rows, n))
	}
	return Launch{
		Func:  "silu_mul",
		Grid:  grid(int((all+threads-1)/threads), 1),
		Block: [3]uint32{threads, 1, 1},
		Args:  []uint64{dst.Cell(), gate.Cell(), up.Cell(), I64(all)},
	}
}

// SiluMulQuantize writes the Q8_1 form (Q8Bytes) of SiluMul of rows x k values, k a multiple of 32: the same bits as
// SiluMul and then Quantize, without the rows in between.
func SiluMulQuantize(q, gate, up Ptr, rows, k int) Launch {
	return quantizer("silu_mul_quantize", q, rows, k, []uint64{q.Cell(), gate.Cell(), up.Cell()})
}
