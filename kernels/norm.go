package kernels

import "math"

// RMSNorm writes x[i] / sqrt(mean(x^2) + eps) * w[i] to dst[i]. dst, x and w (when not nil) have one length; w nil stands
// for ones; dst may be x. An empty x is left alone. It allocates nothing.
//
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", section 4.
//
// The squares are summed in float64: the square of a float32 is exact there, so neither fusing nor overflow can change the
// sum, and four lanes (lane l takes i mod 4 = l, folded as (0+1)+(2+3)) fix its order. Then three float32 roundings follow:
// the reciprocal root, the product with x, the product with w. Relative error per element: at most 3*2^-24 plus a term of
// n*2^-53. A NaN in x makes all of dst NaN; an Inf makes its own element NaN and the others 0.
func RMSNorm(dst, x, w []float32, eps float32) {
	if len(dst) != len(x) {
		panicLen("RMSNorm", len(dst), len(x))
	}
	if w != nil && len(w) != len(x) {
		panicLen("RMSNorm weight", len(w), len(x))
	}
	if len(x) == 0 {
		return
	}
	scale := float32(1 / math.Sqrt(sumSquares(x)/float64(len(x))+float64(eps)))
	if w == nil {
		for i, v := range x {
			dst[i] = v * scale
		}
		return
	}
	dst, w = dst[:len(x)], w[:len(x)]
	for i, v := range x {
		dst[i] = float32(v*scale) * w[i]
	}
}

// sumSquares returns the sum of x[i]^2 in the order that RMSNorm documents.
func sumSquares(x []float32) float64 {
	var s [4]float64
	s0, s1, s2, s3 := 0.0, 0.0, 0.0, 0.0
	for len(x) >= 4 {
		a, b, c, d := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0 += a * a
		s1 += b * b
		s2 += c * c
		s3 += d * d
		x = x[4:]
	}
	for i, v := range x {
		s[i] = float64(v) * float64(v)
	}
	return ((s0 + s[0]) + (s1 + s[1])) + ((s2 + s[2]) + s3)
}
