package kernels

import "math"

// RMSNorm writes x[i] / sqrt(mean(x^2) + eps) * w[i] to dst[i]. dst, x and w (when not nil) have one length; w nil stands
// for ones; dst may be x. An empty x is left alone. It allocates nothing.
//
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", section 4.
//
// The squares are summed in float64: the square of a float32 is exact there, so neither fusing nor overflow can change the
// sum, and the sixteen lanes of Dot fix its order. Then three float32 roundings follow:
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
	var lanes [dotLanes]float64
	sumSquares(&lanes, x)
	rms := float32(1 / math.Sqrt(fold(&lanes)/float64(len(x))+float64(eps)))
	if w == nil {
		scale(dst, x, rms)
		return
	}
	scaleMul(dst, x, w, rms)
}

// scaleMulGeneric writes (x[i]*a)*w[i] to dst[i].
func scaleMulGeneric(dst, x, w []float32, a float32) {
	dst, w = dst[:len(x)], w[:len(x)]
	for i, v := range x {
		dst[i] = float32(v*a) * w[i]
	}
}

// sumSquaresGeneric adds x[i]^2 to lane i mod 16, four lanes at a time.
func sumSquaresGeneric(lanes *[dotLanes]float64, x []float32) {
	n := len(x) &^ (dotLanes - 1)
	for l := 0; l < dotLanes && n > 0; l += 4 {
		s0, s1, s2, s3 := lanes[l], lanes[l+1], lanes[l+2], lanes[l+3]
		for i := l; i < n; i += dotLanes {
			v := x[i : i+4]
			a, b, c, d := float64(v[0]), float64(v[1]), float64(v[2]), float64(v[3])
			s0 += a * a
			s1 += b * b
			s2 += c * c
			s3 += d * d
		}
		lanes[l], lanes[l+1], lanes[l+2], lanes[l+3] = s0, s1, s2, s3
	}
	for i, v := range x[n:] {
		lanes[i] += float64(v) * float64(v)
	}
}
