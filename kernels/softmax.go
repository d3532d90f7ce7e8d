package kernels

import "math"

// Softmax replaces x by e^x[i] / sum(e^x), computed as e^(x[i]-max). The terms are added in float64 in ascending order, so
// the error per element is that of Exp and of two float32 roundings, about 4 units in the last place of a normal result,
// at any length. An empty x is left alone. A NaN or +Inf anywhere, or -Inf everywhere, makes all of x NaN. It allocates
// nothing.
func Softmax(x []float32) {
	if len(x) == 0 {
		return
	}
	m := maxOf(x)
	var sum float64
	for i, v := range x {
		e := Exp(v - m)
		x[i] = e
		sum += float64(e)
	}
	inv := float32(1 / sum)
	for i := range x {
		x[i] *= inv
	}
}

// LogSumExp returns ln(sum(e^x[i])) with an absolute error of about 2^-22 plus 2^-53*len(x): the terms are float32, their
// sum is float64. Of nothing it is -Inf, as of -Inf everywhere; +Inf gives +Inf, a NaN anywhere gives NaN. It allocates
// nothing.
func LogSumExp(x []float32) float64 {
	m := maxOf(x)
	if math.IsInf(float64(m), -1) {
		// Nothing finite: NaN is the one value that can still hide here.
		for _, v := range x {
			if v != v {
				return math.NaN()
			}
		}
		return math.Inf(-1)
	}
	var sum float64
	for _, v := range x {
		if v == m {
			sum++ // also keeps Inf-Inf out
		} else {
			sum += float64(Exp(v - m))
		}
	}
	return float64(m) + math.Log(sum)
}

// maxOf returns the largest value that is not NaN, -Inf if there is none.
func maxOf(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}
