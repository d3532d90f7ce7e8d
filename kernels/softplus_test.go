package kernels

import (
	"math"
	"testing"
)

func TestSqrtSoftplus(t *testing.T) {
	worst := 0.0
	for bits := uint32(0); bits < 0x42d00000; bits += 977 { // up to 104
		for _, x := range []float32{math.Float32frombits(bits), -math.Float32frombits(bits)} {
			got := SqrtSoftplus(x)
			want := math.Sqrt(math.Log1p(math.Exp(float64(x))))
			if x > 80 {
				want = math.Sqrt(float64(x))
			}
			ulp := float64(math.Nextafter32(float32(want), math.MaxFloat32) - float32(want))
			if x < -87 {
				ulp = 1e-19 // of a denormal with few bits
			}
			if d := math.Abs(float64(got)-want) / ulp; d > worst {
				worst = d
				if d > 2 {
					t.Fatalf("SqrtSoftplus(%g) = %g, want %g: %.2f units off", x, got, want, d)
				}
			}
		}
	}
	t.Logf("at most %.2f units in the last place", worst)
	inf := float32(math.Inf(1))
	for x, want := range map[float32]float32{inf: inf, -inf: 0, math.MaxFloat32: float32(math.Sqrt(math.MaxFloat32)), -200: 0} {
		if got := SqrtSoftplus(x); got != want {
			t.Errorf("SqrtSoftplus(%g) = %g, want %g", x, got, want)
		}
	}
	if got := SqrtSoftplus(float32(math.NaN())); got == got {
		t.Errorf("SqrtSoftplus(NaN) = %g", got)
	}
}
