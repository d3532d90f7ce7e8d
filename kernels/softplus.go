package kernels

import "math"

// SqrtSoftplus returns sqrt(log(1 + e**x)), at most 2 units in the last place from the true value down to x = -87, and below
// within 1e-19. NaN gives NaN, +Inf gives +Inf, -Inf gives +0.
//
// Like Exp it is a fixed sequence of single float32 operations, each rounded to nearest even, none fused, denormals kept,
// so that routers agree in every bit wherever they run:
//
//	1  y = Exp(-|x|), in 0..1
//	2  z = y / (y + 2)                 log(1+y) = 2*atanh(z), |z| <= 1/3
//	3  w = z*z
//	4  q = 1/15; q = q*w + 1/13; q = q*w + 1/11; ... q = q*w + 1/3; the fractions rounded to float32
//	5  l = 2*z; l = l + (l*w)*q
//	6  x > 0: l = x + l
//	7  sqrt, correctly rounded
func SqrtSoftplus(x float32) float32 {
	a := x
	if a > 0 {
		a = -a
	}
	y := Exp(a)
	z := y / (y + 2)
	w := float32(z * z)
	q := float32(1. / 15)
	q = float32(q*w) + 1./13
	q = float32(q*w) + 1./11
	q = float32(q*w) + 1./9
	q = float32(q*w) + 1./7
	q = float32(q*w) + 1./5
	q = float32(q*w) + 1./3
	l := float32(2 * z)
	l = l + float32(float32(l*w)*q)
	if x > 0 {
		l = x + l
	}
	return float32(math.Sqrt(float64(l))) // the root of a float32 in float64, rounded: correctly rounded
}
