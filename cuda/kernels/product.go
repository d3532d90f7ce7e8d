package kernels

import (
	"fmt"
	"math"

	"sluice/kernels"
)

// Out says what becomes of the products.
type Out struct {
	Bias Ptr  // float32, one a row of weights, added to each product; 0: none
	Add  bool // add to what y holds instead of overwriting it
	LD   int  // floats from one column of y to the next; 0: as many as the weights have rows
}

// productCols are the columns of the instances of product.cu, with the rows of weights that a warp of each takes.
var productCols = [...]struct{ cols, rows int }{{1, 2}, {2, 2}, {4, 4}, {8, 4}}

// Product multiplies n rows of activations by a matrix of rows x k:
//
//	y[i*LD + r] = sum over j of w[r][j] * act[i][j],  i < n
//
// y is float32. w lies as DeviceBytes and NeedsRepack say. act are Q8_1 rows if Quantised(t), else float32 rows. n is at
// least 1. The bits of a result depend on its two rows alone, and the experts' products have the same.
//
// A NaN or Inf in an activation row makes its results NaN or Inf. So do quantised activations beyond about 8e34 (d*sum
// overflows) with Q4_K and Q5_K. It panics on arguments that do not fit together.
func Product(t kernels.Type, y, w, act Ptr, rows, k, n int, o Out) Launch {
	checkMat("Product", t, rows, k)
	if o.LD == 0 {
		o.LD = rows
	}
	if n < 1 || o.LD < rows && n > 1 || w%16 != 0 || act%16 != 0 {
		panic(fmt.Sprintf("kernels: Product: %v matrix of %d rows of %d at %#x, %d columns at %#x, stride %d", t, rows, k, uint64(w), n, uint64(act), o.LD))
	}
	i := 0
	for productCols[i].cols < n && i < len(productCols)-1 {
		i++
	}
	add := 0
	if o.Add {
		add = 1
	}
	c := productCols[i]
	return Launch{
		Func:  fmt.Sprintf("product_%s_%d", suffix(t), c.cols),
		Grid:  grid(dotBlocks(t, rows, c.rows)*ceil(n, c.cols), 1),
		Block: [3]uint32{dotThreads, 1, 1},
		Args: []uint64{y.Cell(), w.Cell(), act.Cell(), o.Bias.Cell(), I32(rows), I32(k), I32(n), I32(o.LD), I32(add),
			I32(actStride16(t, k, n))},
	}
}

const dotThreads = 128

// dotBlocks is the blocks that rows of weights take if a warp takes perWarp of them; the warps of a block share their rows
// for F32.
func dotBlocks(t kernels.Type, rows, perWarp int) int {
	if t != kernels.F32 {
		perWarp *= dotThreads / 32
	}
	return ceil(rows, perWarp)
}

// ActBytes returns the bytes of one row of k activations for products with the type: Q8RowBytes, or 4 a value.
func ActBytes(t kernels.Type, k int) int64 {
	if Quantised(t) {
		return Q8RowBytes(k)
	}
	return 4 * int64(k)
}

// actStride16 is ActBytes in units of 16 bytes. It panics where n rows, and those that fill the last group of columns up,
// would lie beyond what the kernels' int32 reach.
func actStride16(t kernels.Type, k, n int) int {
	s := ActBytes(t, k) / 16
	if s*int64(n+8) > math.MaxInt32 {
		panic(fmt.Sprintf("kernels: %d rows of %d activations for %v are too many for one launch", n, k, t))
	}
	return int(s)
}
