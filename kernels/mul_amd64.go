//go:build !noasm

package kernels

// mulRows picks the implementation. Float activations (mulFloat) pick theirs later; rows of nothing and matrices of a few
// rows have none but the portable one.
//
// With AVX-512 a tile pays from about 16 activation rows on: to decode it costs as much as four rows' products. Fewer
// rows have routines that unpack into registers, and one row has another kind where that is faster. AVX2 goes through tiles
// always.
func mulRows(c *mul) {
	vec := useAVX512 && c.w.Type.hasVec() && c.w.Rows >= vecLanes
	switch {
	case c.x.Kind == ActF32 || c.x.N == 0 || c.n == 0 || c.r0 == c.r1:
		mulRowsGeneric(c)
	case vec && (c.n == 1 || c.w.Rows < tileLanes):
		mulVecs(c)
	case useAVX512 && c.n <= fewMost && c.w.Rows >= tileLanes:
		mulFew(c)
	case useAVX2 && c.w.Rows >= tileLanes:
		mulTiles(c)
	default:
		mulRowsGeneric(c)
	}
}
