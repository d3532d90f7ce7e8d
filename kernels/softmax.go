package kernels

import "math"

// Softmax replaces x by e^x[i] / sum(e^x), computed as e^(x[i]-max). The terms are added in float64 in the order of Dot, so
// the error per element is that of Exp and of two float32 roundings, about 4 units in the last place of a normal result,
// at any length. An empty x is left alone. A NaN or +Inf anywhere, or -Inf everywhere, makes all of x NaN. It allocates
// nothing.
func Softmax(x []float32) {
	if len(x) == 0 {
		return
	}
	var lanes [dotLanes]float64
	expSum(&lanes, x, x, maxOf(x))
	scale(x, x, float32(1/fold(&lanes)))
}

// expSumGeneric writes e^(x[i]-m) to dst[i], unless dst is nil, and adds it to lane i mod 16.
func expSumGeneric(lanes *[dotLanes]float64, dst, x []float32, m float32) {
	for i, v := range x {
		e := Exp(v - m)
		if dst != nil {
			dst[i] = e
		}
		lanes[i%dotLanes] += float64(e)
	}
}

// LogSumExp returns ln(sum(e^x[i])) with an absolute error of about 2^-22 plus 2^-53*len(x): the terms are float32, their
// sum is float64. Of nothing it is -Inf, as of -Inf everywhere; +Inf gives +Inf, a NaN anywhere gives NaN. It allocates
// nothing.
func LogSumExp(x []float32) float64 {
	m := maxOf(x)
	if math.IsInf(float64(m), 0) { // Inf - Inf would make NaN of an answer; a NaN in x is the one value that can still hide
		for _, v := range x {
			if v != v {
				return math.NaN()
			}
		}
		return float64(m)
	}
	var lanes [dotLanes]float64
	expSum(&lanes, nil, x, m)
	return float64(m) + math.Log(fold(&lanes))
}

// maxOfGeneric returns the largest value that is not NaN, -Inf if there is none. Of zeros with both signs either may come.
func maxOfGeneric(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}
