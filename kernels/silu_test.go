package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSigmoid(t *testing.T) {
	for x := -120.0; x < 120; x += 0.0137 {
		x32 := float32(x)
		got, want := Sigmoid(x32), 1/(1+math.Exp(-float64(x32)))
		if u := ulps(got, want); !(u <= 4) {
			t.Fatalf("Sigmoid(%v) = %v, want %v: %.2f ulp", x32, got, want, u)
		}
	}
	inf := float32(math.Inf(1))
	if got := Sigmoid(float32(math.NaN())); got == got {
		t.Errorf("Sigmoid(NaN) = %v", got)
	}
	if got := [3]float32{Sigmoid(-inf), Sigmoid(0), Sigmoid(inf)}; got != [3]float32{0, 0.5, 1} {
		t.Errorf("Sigmoid of -Inf, 0, Inf = %v, want 0, 0.5, 1", got)
	}
}

func TestSiluMul(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	for n := range 40 {
		gate, checkGate := guarded(n, n%4)
		up, checkUp := guarded(n, (n+1)%4)
		dst, check := guarded(n, (n+2)%4)
		hurtful(r, gate)
		hurtful(r, up)
		SiluMul(dst, gate, up)
		for i := range dst {
			g := float64(gate[i])
			want := g / (1 + math.Exp(-g)) * float64(up[i])
			// Sigmoid within 4 units (8 half units), two products; 2^-149 per product, the first times up.
			bound := 10.01*eps32*math.Abs(want) + 0x1p-148*(1+math.Abs(float64(up[i]))*(1+math.Abs(g)))
			if !(math.Abs(float64(dst[i])-want) <= bound) {
				t.Fatalf("n=%d i=%d: silu(%v)*%v = %v, want %v within %v", n, i, gate[i], up[i], dst[i], want, bound)
			}
		}
		check(t, "dst")
		checkGate(t, "gate")
		checkUp(t, "up")
		want := append([]float32(nil), dst...)
		inGate := append([]float32(nil), gate...)
		if SiluMul(inGate, inGate, up); !sameBits(inGate, want) {
			t.Fatalf("n=%d: dst = gate differs", n)
		}
		inUp := append([]float32(nil), up...)
		if SiluMul(inUp, gate, inUp); !sameBits(inUp, want) {
			t.Fatalf("n=%d: dst = up differs", n)
		}
	}
}

func TestSiluMulNonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	gate := []float32{nan, 1, -inf, inf}
	up := []float32{1, nan, 1, 1}
	dst := make([]float32, 4)
	SiluMul(dst, gate, up)
	for i, v := range dst[:3] {
		if v == v {
			t.Errorf("silu(%v)*%v = %v, want NaN", gate[i], up[i], v)
		}
	}
	if dst[3] != inf {
		t.Errorf("silu(+Inf)*1 = %v, want +Inf", dst[3])
	}
}
