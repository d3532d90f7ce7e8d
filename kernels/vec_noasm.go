//go:build !amd64 || noasm

package kernels

func dotPart(acc *[dotLanes]float32, a, b []float32)               { dotPartGeneric(acc, a, b) }
func axpy(dst []float32, a float32, x []float32)                   { axpyGeneric(dst, a, x) }
func add(dst, x []float32)                                         { addGeneric(dst, x) }
func scale(dst, x []float32, a float32)                            { scaleGeneric(dst, x, a) }
func scaleMul(dst, x, w []float32, a float32)                      { scaleMulGeneric(dst, x, w, a) }
func sumSquares(lanes *[dotLanes]float64, x []float32)             { sumSquaresGeneric(lanes, x) }
func ropeHalves(a, b, cos, sin []float32)                          { ropeHalvesGeneric(a, b, cos, sin) }
func ropePairs(x, cos, sin []float32)                              { ropePairsGeneric(x, cos, sin) }
func siluMul(dst, gate, up []float32)                              { siluMulGeneric(dst, gate, up) }
func expSum(lanes *[dotLanes]float64, dst, x []float32, m float32) { expSumGeneric(lanes, dst, x, m) }
func maxOf(x []float32) float32                                    { return maxOfGeneric(x) }
func argMax(x []float32) int                                       { return argMaxGeneric(x) }
func nextAbove(x []float32, t float32) int                         { return nextAboveGeneric(x, t) }
func widenF16(dst []float32, src []uint16)                         { widenF16Generic(dst, src) }
func narrowF16(dst []uint16, src []float32)                        { narrowF16Generic(dst, src) }
func quantise(q []int8, d []float32, sums []int16, x []float32, blk int) {
	quantiseGeneric(q, d, sums, x, blk)
}
func mulFloat(c *mul) { mulFloatGeneric(c) }

func (s *attendState) tile(out, q []float32, kv *keyValues, headDim, p0, tile int, factor float32) {
	s.tileGeneric(out, q, kv, headDim, p0, tile, factor)
}
