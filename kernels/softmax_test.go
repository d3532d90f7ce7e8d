package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSoftmax(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, n := range []int{1, 2, 3, 5, 8, 16, 63, 64, 65, 128, 1000, 20000} {
		for _, spread := range []float64{0, 1, 10, 80, 1e6} {
			x, check := guarded(n, n%4)
			in := make([]float32, n)
			m, sum := math.Inf(-1), 0.0
			for i := range x {
				x[i] = float32(r.NormFloat64() * spread)
				in[i] = x[i]
				m = max(m, float64(x[i]))
			}
			for _, v := range in {
				sum += math.Exp(float64(v) - m)
			}
			lse := LogSumExp(x)
			Softmax(x)
			var total float64
			for i, v := range in {
				d := float64(v) - m
				want := math.Exp(d) / sum
				// The float32 difference is off by eps*|d|, Exp by 2 units, then two roundings; the sum by as much.
				bound := (2*math.Abs(d)+12)*eps32*want + 0x1p-148
				if d < -87 {
					bound += 0x1p-149 + 2*math.Abs(d)*eps32*want
				}
				if !(math.Abs(float64(x[i])-want) <= bound) {
					t.Fatalf("n=%d spread=%g i=%d: %v, want %v within %v", n, spread, i, x[i], want, bound)
				}
				total += float64(x[i])
			}
			if math.Abs(total-1) > 1e-5 {
				t.Fatalf("n=%d spread=%g: sum %v", n, spread, total)
			}
			if want := m + math.Log(sum); !(math.Abs(lse-want) <= 0x1p-20+1e-15*math.Abs(want)) {
				t.Fatalf("n=%d spread=%g: LogSumExp %v, want %v", n, spread, lse, want)
			}
			check(t, "x")
		}
	}
}

func TestSoftmaxNonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name string
		x    []float32
		soft []float32 // nil: every element NaN
		lse  float64
	}{
		{"empty", nil, []float32{}, math.Inf(-1)},
		{"nan first", []float32{nan, 1, 2}, nil, math.NaN()},
		{"nan last", []float32{1, 2, nan}, nil, math.NaN()},
		{"only nan", []float32{nan}, nil, math.NaN()},
		{"nan among -inf", []float32{-inf, nan}, nil, math.NaN()},
		{"only -inf", []float32{-inf, -inf}, nil, math.Inf(-1)},
		{"inf", []float32{0, inf}, nil, math.Inf(1)},
		{"inf and nan", []float32{nan, inf}, nil, math.NaN()},
		{"masked", []float32{-inf, 3, -inf, 3}, []float32{0, 0.5, 0, 0.5}, 3 + math.Ln2},
		{"largest", []float32{math.MaxFloat32, math.MaxFloat32}, []float32{0.5, 0.5}, math.MaxFloat32},
		{"far apart", []float32{math.MaxFloat32, -math.MaxFloat32}, []float32{1, 0}, math.MaxFloat32},
	} {
		if got := LogSumExp(c.x); math.Abs(got-c.lse) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.lse) {
			t.Errorf("%s: LogSumExp %v, want %v", c.name, got, c.lse)
		}
		Softmax(c.x)
		for i, v := range c.x {
			if c.soft == nil && v == v || c.soft != nil && v != c.soft[i] {
				t.Errorf("%s: Softmax %v, want %v (nil: all NaN)", c.name, c.x, c.soft)
				break
			}
		}
	}
}
