//go:build !noasm

package kernels

// Products of one activation row: eight weight rows at a time straight from the file's layout. Types that mulFew multiplies
// by one row faster have no such routine.

const (
	vecLanes = 8  // weight rows of a group
	vecRows  = 64 // rows whose sums a call keeps before it delivers them

	// Weights are prefetched a group of rows before their use, but at least aheadLeast and at most aheadMost bytes.
	// Two cores of a Zen 4 that together read 33 GB/s came to 30 to 34 so, for groups of 3 to 17 KiB; 4 KiB too short
	// cost a third, 16 KiB too long a tenth; without prefetching it was 13 to 25.
	aheadLeast, aheadMost = 8 << 10, 32 << 10
)

// hasVec reports whether the type has such a routine. Those of Q4_0, Q4_1, Q4_K, Q5_K, IQ4_NL and MXFP4 reached 0.75 to 0.95
// of what mulFew reads from memory.
func (t Type) hasVec() bool {
	switch t {
	case Q5_0, Q5_1, Q8_0, Q3_K, Q6_K, IQ4_XS:
		return true
	}
	return false
}

// mulVecs multiplies activation row after activation row by 64 weight rows, which stay in L2 meanwhile. The matrix has at
// least vecLanes rows.
func mulVecs(c *mul) {
	var (
		out  [vecRows]float32
		t    = c.w.Type
		nx   = c.x.N
		size = t.RowBytes(nx)
		perD = c.x.Kind.block()

		ahead = min(max(vecLanes*size, aheadLeast), aheadMost)
	)
	for r, rows := c.r0, 0; r < c.r1; r += rows {
		first, groups := r, min(vecRows, c.r1-r)/vecLanes
		rows = groups * vecLanes
		if groups == 0 { // a part of a group moves up to end with the matrix
			first, groups, rows = min(r, c.w.Rows-vecLanes), 1, c.r1-r
		}
		w := &c.w.Data[first*size]
		for i := range c.n {
			at := c.row(i) * nx
			q, d, sums := c.x.Q[at:at+nx], c.x.D[at/perD:(at+nx)/perD], c.x.Sums[at/16:(at+nx)/16]
			row := i
			if c.scale != nil {
				row = int(c.drow[i])
			}
			dst := c.dst[row*c.ld+r:][:rows]
			sum := out[:]
			direct := c.scale == nil && rows >= vecLanes
			if direct {
				sum = dst
			}
			vec512(t, &sum[0], w, size, groups, &q[0], &d[0], &sums[0], len(d), ahead)
			switch {
			case direct:
			case c.scale == nil:
				copy(dst, out[r-first:])
			default:
				s := c.scale[i]
				for j, v := range out[r-first:][:rows] {
					dst[j] += float32(s * v)
				}
			}
		}
	}
}

func vec512(t Type, dst *float32, w *byte, stride, groups int, q *int8, d *float32, sums *int16, blocks, ahead int) {
	switch t {
	case Q5_0:
		vecQ50AVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	case Q5_1:
		vecQ51AVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	case Q8_0:
		vecQ80AVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	case Q3_K:
		vecQ3KAVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	case Q6_K:
		vecQ6KAVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	case IQ4_XS:
		vecIQ4XSAVX512(dst, w, stride, groups, q, d, sums, blocks, ahead)
	}
}
