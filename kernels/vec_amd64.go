//go:build !noasm

package kernels

// The dispatchers of the float operations. The assembly takes whole groups of dotLanes elements, the portable form the
// rest; a sum's lanes lie in memory between the two.

const groups = ^(dotLanes - 1)

func add(dst, x []float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		addAVX512(&dst[0], &x[0], n)
	case useAVX2:
		addAVX2(&dst[0], &x[0], n)
	default:
		n = 0
	}
	addGeneric(dst[n:], x[n:])
}

func axpy(dst []float32, a float32, x []float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		axpyAVX512(&dst[0], &x[0], n, a)
	case useAVX2:
		axpyAVX2(&dst[0], &x[0], n, a)
	default:
		n = 0
	}
	axpyGeneric(dst[n:], a, x[n:])
}

func scale(dst, x []float32, a float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		scaleAVX512(&dst[0], &x[0], n, a)
	case useAVX2:
		scaleAVX2(&dst[0], &x[0], n, a)
	default:
		n = 0
	}
	scaleGeneric(dst[n:], x[n:], a)
}

func scaleMul(dst, x, w []float32, a float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		scaleMulAVX512(&dst[0], &x[0], &w[0], n, a)
	case useAVX2:
		scaleMulAVX2(&dst[0], &x[0], &w[0], n, a)
	default:
		n = 0
	}
	scaleMulGeneric(dst[n:], x[n:], w[n:], a)
}

func sumSquares(lanes *[dotLanes]float64, x []float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		sumSquaresAVX512(lanes, &x[0], n)
	case useAVX2:
		sumSquaresAVX2(lanes, &x[0], n)
	default:
		n = 0
	}
	sumSquaresGeneric(lanes, x[n:])
}

func ropeHalves(a, b, cos, sin []float32) {
	n := len(cos) & groups
	switch {
	case n == 0:
	case useAVX512:
		ropeHalvesAVX512(&a[0], &b[0], &cos[0], &sin[0], n)
	case useAVX2:
		ropeHalvesAVX2(&a[0], &b[0], &cos[0], &sin[0], n)
	default:
		n = 0
	}
	ropeHalvesGeneric(a[n:], b[n:], cos[n:], sin[n:])
}

func ropePairs(x, cos, sin []float32) {
	n := len(x) & groups
	switch {
	case n == 0:
	case useAVX512:
		ropePairsAVX512(&x[0], &cos[0], &sin[0], n)
	case useAVX2:
		ropePairsAVX2(&x[0], &cos[0], &sin[0], n)
	default:
		n = 0
	}
	ropePairsGeneric(x[n:], cos[n/2:], sin[n/2:])
}

func siluMul(dst, gate, up []float32) {
	n := len(dst) & groups
	switch {
	case n == 0:
	case useAVX512:
		siluMulAVX512(&dst[0], &gate[0], &up[0], n)
	case useAVX2:
		siluMulAVX2(&dst[0], &gate[0], &up[0], n)
	default:
		n = 0
	}
	siluMulGeneric(dst[n:], gate[n:], up[n:])
}

func expSum(lanes *[dotLanes]float64, dst, x []float32, m float32) {
	n := len(x) & groups
	var to *float32
	if len(dst) > 0 {
		to = &dst[0]
	}
	switch {
	case n == 0:
	case useAVX512:
		expSumAVX512(lanes, to, &x[0], n, m)
	case useAVX2:
		expSumAVX2(lanes, to, &x[0], n, m)
	default:
		n = 0
	}
	if dst != nil {
		dst = dst[n:]
	}
	expSumGeneric(lanes, dst, x[n:], m)
}

func maxOf(x []float32) float32 {
	n := len(x) & groups
	var m float32
	switch {
	case n == 0:
		return maxOfGeneric(x)
	case useAVX512:
		m = maxOfAVX512(&x[0], n)
	case useAVX2:
		m = maxOfAVX2(&x[0], n)
	default:
		return maxOfGeneric(x)
	}
	return max32(m, maxOfGeneric(x[n:]))
}

func argMax(x []float32) int {
	n := len(x) & groups
	var best int
	switch {
	case n == 0:
		return argMaxGeneric(x)
	case useAVX512:
		best = argMaxAVX512(&x[0], n)
	case useAVX2:
		best = argMaxAVX2(&x[0], n)
	default:
		return argMaxGeneric(x)
	}
	if best < 0 || n == len(x) {
		return best
	}
	rest := argMaxGeneric(x[n:])
	switch {
	case rest < 0:
		return -1
	case x[n+rest] > x[best]:
		return n + rest
	}
	return best
}

func nextAbove(x []float32, t float32) int {
	n := len(x) & groups
	i := 0
	switch {
	case n == 0:
	case useAVX512:
		i = nextAboveAVX512(&x[0], n, t)
	case useAVX2:
		i = nextAboveAVX2(&x[0], n, t)
	default:
		n = 0
	}
	if i < n {
		return i
	}
	return n + nextAboveGeneric(x[n:], t)
}

func widenF16(dst []float32, src []uint16) {
	n := len(src) & groups
	switch {
	case n == 0:
	case useAVX512:
		widenF16AVX512(&dst[0], &src[0], n)
	case useAVX2:
		widenF16AVX2(&dst[0], &src[0], n)
	default:
		n = 0
	}
	widenF16Generic(dst[n:], src[n:])
}

func narrowF16(dst []uint16, src []float32) {
	n := len(src) & groups
	switch {
	case n == 0:
	case useAVX512:
		narrowF16AVX512(&dst[0], &src[0], n)
	case useAVX2:
		narrowF16AVX2(&dst[0], &src[0], n)
	default:
		n = 0
	}
	narrowF16Generic(dst[n:], src[n:])
}

func quantise(q []int8, d []float32, sums []int16, x []float32, blk int) {
	var s *int16
	if len(sums) > 0 {
		s = &sums[0]
	}
	switch {
	case len(d) == 0:
	case useAVX512 && blk == 32:
		quantQ8x32AVX512(&q[0], &d[0], s, &x[0], len(d))
	case useAVX512:
		quantQ8x256AVX512(&q[0], &d[0], s, &x[0], len(d))
	case useAVX2 && blk == 32:
		quantQ8x32AVX2(&q[0], &d[0], s, &x[0], len(d))
	case useAVX2:
		quantQ8x256AVX2(&q[0], &d[0], s, &x[0], len(d))
	default:
		quantiseGeneric(q, d, sums, x, blk)
	}
}

func dotPart(acc *[dotLanes]float32, a, b []float32) {
	n := len(a) & groups
	switch {
	case n == 0:
	case useAVX512:
		dotPartAVX512(acc, &a[0], &b[0], n)
	case useAVX2:
		dotPartAVX2(acc, &a[0], &b[0], n)
	default:
		n = 0
	}
	dotPartGeneric(acc, a[n:], b[n:])
}
