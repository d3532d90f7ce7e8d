//go:build !noasm

package kernels

// mulRows picks the implementation. Float activations (mulFloat) pick theirs later; rows of nothing and matrices of a few
// rows have none but the portable one.
//
// One activation row has routines of its own, as a tile's transposition costs as much as two to three rows' products.
// They pay for two rows of super-blocks as well (15 against 11 GB/s of Q6_K from memory), not of blocks of 32, nor for
// three. AVX2 goes through tiles always.
func mulRows(c *mul) {
	vec := useAVX512 && c.w.Type.hasVec() && c.w.Rows >= vecLanes
	switch {
	case c.x.Kind == ActF32 || c.x.N == 0 || c.n == 0 || c.r0 == c.r1:
		mulRowsGeneric(c)
	case vec && (c.n == 1 || c.n == 2 && c.x.Kind == ActQ8_K || c.w.Rows < tileLanes):
		mulVecs(c)
	case useAVX2 && c.w.Rows >= tileLanes:
		mulTiles(c)
	default:
		mulRowsGeneric(c)
	}
}
