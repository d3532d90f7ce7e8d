package kernels

import "fmt"

// mul is one call of MulRows or MulAddRows, checked; the dispatchers take it by pointer and do not keep it.
type mul struct {
	dst    []float32
	ld     int
	w      *Mat
	r0, r1 int
	x      *Acts
	xrow   []int32 // nil: rows x0, x0+1, ...
	x0     int
	n      int // activation rows
	drow   []int32
	scale  []float32 // nil: MulRows
}

// row returns the index in x of activation row i.
func (c *mul) row(i int) int {
	if c.xrow != nil {
		return int(c.xrow[i])
	}
	return c.x0 + i
}

// put delivers the dot product of weight row r and activation row i.
func (c *mul) put(i, r int, v float32) {
	if c.scale == nil {
		c.dst[i*c.ld+r] = v
		return
	}
	c.dst[int(c.drow[i])*c.ld+r] += float32(c.scale[i] * v)
}

// MulRows multiplies n rows of activations by rows r0 <= r < r1 of the weights:
//
//	dst[i*ld+r] = sum over j of w[r][j] * x[xrow[i]][j],  i < n
//
// with xrow nil meaning rows 0 to n-1. dst holds n rows of stride ld >= r1 (any ld when n is 1) and only the named places are written. x.Kind
// is w.Type.ActKind(), or ActF32 with any weight type; x.N is w.Cols.
//
// With quantised activations each block adds scale*scale*integer, the integer exact, in block order. With ActF32 the
// result is that of Dot over the dequantised row, bit for bit. Either way a result's bits depend on its two rows alone,
// not on n, r0, r1 or xrow. A NaN or Inf in an activation row makes its quantised results NaN.
//
// It allocates nothing. Concurrent calls may share w and x and write disjoint parts of dst. Arguments that do not fit
// together panic.
func MulRows(dst []float32, ld int, w *Mat, r0, r1 int, x *Acts, xrow []int32, n int) {
	c := mul{dst: dst, ld: ld, w: w, r0: r0, r1: r1, x: x, xrow: xrow, n: n}
	if !c.fits() || n < 0 || xrow != nil && len(xrow) < n || xrow == nil && n > x.Cap || n > 0 && r1 > r0 && (n-1)*ld+r1 > len(dst) {
		panicMul("MulRows", &c)
	}
	mulRows(&c)
}

// MulAddRows adds scaled products of rows x0, x0+1, ... of the activations to rows of dst named by drow:
//
//	dst[drow[i]*ld+r] += scale[i] * (sum over j of w[r][j] * x[x0+i][j]),  i < len(drow), r0 <= r < r1
//
// in ascending i, so that a row named twice has one result. len(scale) is len(drow). Everything else is as in MulRows;
// product and sum are rounded apart.
func MulAddRows(dst []float32, ld int, w *Mat, r0, r1 int, x *Acts, x0 int, drow []int32, scale []float32) {
	c := mul{dst: dst, ld: ld, w: w, r0: r0, r1: r1, x: x, x0: x0, n: len(drow), drow: drow, scale: scale}
	if !c.fits() || x0 < 0 || x0+c.n > x.Cap || len(scale) != len(drow) {
		panicMul("MulAddRows", &c)
	}
	mulRows(&c)
}

// fits checks what both calls have in common.
func (c *mul) fits() bool {
	w, x := c.w, c.x
	return 0 <= c.r0 && c.r0 <= c.r1 && c.r1 <= w.Rows && (c.r1 <= c.ld || c.n <= 1 && c.scale == nil) && x.N == w.Cols && (x.Kind == ActF32 || x.Kind == w.Type.ActKind())
}

//go:noinline
func panicMul(what string, c *mul) {
	panic(fmt.Sprintf("kernels: %s: %v weights %dx%d, rows %d to %d, with %d of %d %v activations of %d (xrow %d, x0 %d, drow %d, scale %d) into %d floats of stride %d",
		what, c.w.Type, c.w.Rows, c.w.Cols, c.r0, c.r1, c.n, c.x.Cap, c.x.Kind, c.x.N, len(c.xrow), c.x0, len(c.drow), len(c.scale), len(c.dst), c.ld))
}
