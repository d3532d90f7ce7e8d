//go:build !noasm

package kernels

// floatActs is the number of activation rows that pass over a group of weight rows while they stay in the first two
// caches.
const floatActs = 32

// mulFloat picks the implementation. Quantised weights, and rows that are not whole groups of lanes, take the portable
// form, whose inner loop (dotPart) has assembly.
func mulFloat(c *mul) {
	t := c.w.Type
	if !useAVX2 || t != F32 && t != F16 && t != BF16 || c.x.N == 0 || c.x.N%dotLanes != 0 {
		mulFloatGeneric(c)
		return
	}
	size := t.RowBytes(c.x.N)
	for i0 := 0; i0 < c.n; i0 += floatActs {
		i1 := min(i0+floatActs, c.n)
		r := c.r0
		for ; r+4 <= c.r1; r += 4 {
			mulFloatRows(c, i0, i1, r, 4, size)
		}
		for ; r < c.r1; r++ {
			mulFloatRows(c, i0, i1, r, 1, 0) // four times the same row: few, and one kernel less
		}
	}
}

// mulFloatRows multiplies activation rows i0 to i1 by the first rows (4 or 1) of the four that start at row r and are a
// stride apart.
func mulFloatRows(c *mul, i0, i1, r, rows, stride int) {
	t, n := c.w.Type, c.x.N
	w := &c.w.Data[r*t.RowBytes(n)]
	var out [16]float32
	i := i0
	for useAVX512 && i+2 <= i1 {
		acts := min(4, i1-i)
		var x [4]*float32
		for j := range x {
			x[j] = &c.x.F[c.row(i+min(j, acts-1))*n]
		}
		switch t {
		case F32:
			dotTileF32AVX512(&out, w, stride, x[0], x[1], x[2], x[3], acts, n)
		case F16:
			dotTileF16AVX512(&out, w, stride, x[0], x[1], x[2], x[3], acts, n)
		case BF16:
			dotTileBF16AVX512(&out, w, stride, x[0], x[1], x[2], x[3], acts, n)
		}
		for j := range acts {
			for k := range rows {
				c.put(i+j, r+k, out[4*j+k])
			}
		}
		i += acts
	}
	for ; i < i1; i++ {
		dotRows((*[4]float32)(out[:4]), t, w, stride, &c.x.F[c.row(i)*n], n)
		for k := range rows {
			c.put(i, r+k, out[k])
		}
	}
}

func dotRows(out *[4]float32, t Type, w *byte, stride int, x *float32, n int) {
	switch {
	case useAVX512 && t == F32:
		dotRowsF32AVX512(out, w, stride, x, n)
	case useAVX512 && t == F16:
		dotRowsF16AVX512(out, w, stride, x, n)
	case useAVX512:
		dotRowsBF16AVX512(out, w, stride, x, n)
	case t == F32:
		dotRowsF32AVX2(out, w, stride, x, n)
	case t == F16:
		dotRowsF16AVX2(out, w, stride, x, n)
	default:
		dotRowsBF16AVX2(out, w, stride, x, n)
	}
}
