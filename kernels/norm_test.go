package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRMSNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	const eps = 1e-6
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 128, 255, 256, 2048, 2051} {
		for _, magnitude := range []float32{1e-30, 1e-3, 1, 1e3, 1e25} { // the square of the last overflows float32
			x, checkX := guarded(n, n%4)
			hurtful(r, x)
			for i := range x {
				x[i] *= magnitude
			}
			w := normals(r, n)
			dst, check := guarded(n, (n+2)%4)
			for _, weight := range [][]float32{nil, w} {
				RMSNorm(dst, x, weight, eps)
				var ss float64
				for _, v := range x {
					ss += float64(v) * float64(v)
				}
				root := math.Sqrt(ss/float64(n) + float64(float32(eps)))
				for i := range dst {
					want := float64(x[i]) / root
					if weight != nil {
						want *= float64(weight[i])
					}
					// Three roundings, and 2^-149 (times the weight, times the weight) where the first product is denormal.
					bound := 3.01*eps32*math.Abs(want) + 0x1p-148*(1+math.Abs(float64(w[i])))
					if !(math.Abs(float64(dst[i])-want) <= bound) {
						t.Fatalf("n=%d magnitude=%g i=%d: %v, want %v within %v", n, magnitude, i, dst[i], want, bound)
					}
				}
				check(t, "dst")
				checkX(t, "x")
			}
			RMSNorm(x, x, w, eps)
			if !sameBits(x, dst) {
				t.Fatalf("n=%d: in place differs", n)
			}
		}
	}
	RMSNorm(nil, nil, nil, eps)
}

func TestRMSNormNonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for n := 1; n < 10; n++ {
		for at := range n {
			x, dst := make([]float32, n), make([]float32, n)
			for i := range x {
				x[i] = 1
			}
			x[at] = nan
			RMSNorm(dst, x, nil, 1e-6)
			for i, v := range dst {
				if v == v {
					t.Fatalf("n=%d: NaN at %d left %v at %d", n, at, v, i)
				}
			}
			x[at] = -inf
			RMSNorm(dst, x, nil, 1e-6)
			for i, v := range dst {
				if i == at && v == v || i != at && v != 0 {
					t.Fatalf("n=%d: -Inf at %d left %v at %d", n, at, v, i)
				}
			}
		}
	}
}
