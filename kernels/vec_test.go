package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

const eps32 = 0x1p-24 // half a unit in the last place of 1: the relative error of one rounding

// guarded returns n values inside a larger array whose other elements are a pattern that check finds intact. offset
// shifts the start, so that alignments differ.
func guarded(n, offset int) (x []float32, check func(t *testing.T, what string)) {
	const canary = float32(-6.02214e23)
	all := make([]float32, offset+8+n+8)
	for i := range all {
		all[i] = canary
	}
	lo := offset + 8
	return all[lo : lo+n : lo+n], func(t *testing.T, what string) {
		t.Helper()
		for i, v := range all {
			if (i < lo || i >= lo+n) && v != canary {
				t.Fatalf("%s: wrote at element %d of %d", what, i-lo, n)
			}
		}
	}
}

// hurtful fills x with mixed signs and magnitudes, with zeros and denormals among them, so that sums cancel.
func hurtful(r *rand.Rand, x []float32) {
	for i := range x {
		switch r.IntN(16) {
		case 0:
			x[i] = 0
		case 1:
			x[i] = math.Float32frombits(r.Uint32() & 0x807fffff)
		case 2:
			x[i] = float32(r.NormFloat64() * 1e4)
		default:
			x[i] = float32(r.NormFloat64())
		}
	}
}

func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func TestDot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for n := range 100 {
		for offset := range 4 {
			a, _ := guarded(n, offset)
			b, _ := guarded(n, 3-offset)
			hurtful(r, a)
			hurtful(r, b)
			var want, abs float64
			var lane [dotLanes]float32
			for i := range a {
				p := float64(a[i]) * float64(b[i])
				want += p
				abs += math.Abs(p)
				lane[i%dotLanes] += float32(a[i] * b[i])
			}
			got := Dot(a, b)
			// One rounding per product and per addition; 2^-149 for each product that is denormal.
			bound := float64((n+15)/16+5)*eps32*abs + float64(n)*0x1p-149
			if math.Abs(float64(got)-want) > bound {
				t.Fatalf("n=%d: %v, want %v within %v", n, got, want, bound)
			}
			for half := dotLanes / 2; half > 0; half /= 2 {
				for l := range half {
					lane[l] += lane[l+half]
				}
			}
			if got != lane[0] {
				t.Fatalf("n=%d: %v, want %v, the documented order", n, got, lane[0])
			}
		}
	}
}

func TestDotNaN(t *testing.T) {
	for n := 1; n < 20; n++ {
		for at := range n {
			a, b := make([]float32, n), make([]float32, n)
			a[at] = float32(math.NaN())
			if got := Dot(a, b); got == got {
				t.Fatalf("n=%d: NaN at %d gave %v", n, at, got)
			}
		}
	}
}

func TestAxpyAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for n := range 40 {
		dst, check := guarded(n, n%4)
		x, checkX := guarded(n, (n+1)%4)
		hurtful(r, dst)
		hurtful(r, x)
		a := float32(r.NormFloat64())
		want := make([]float32, n)
		for i := range want {
			want[i] = dst[i] + float32(a*x[i])
		}
		Axpy(dst, a, x)
		if !sameBits(dst, want) {
			t.Fatalf("Axpy n=%d: %v, want %v", n, dst, want)
		}
		for i := range want {
			want[i] = dst[i] + x[i]
		}
		Add(dst, x)
		if !sameBits(dst, want) {
			t.Fatalf("Add n=%d: %v, want %v", n, dst, want)
		}
		for i := range want {
			want[i] = dst[i] + dst[i]
		}
		Add(dst, dst)
		if !sameBits(dst, want) {
			t.Fatalf("Add to itself n=%d: %v, want %v", n, dst, want)
		}
		check(t, "dst")
		checkX(t, "x")
	}
}

// wantPanic fails the test unless f panics.
func wantPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

func TestLengthsChecked(t *testing.T) {
	a, b := make([]float32, 4), make([]float32, 3)
	wantPanic(t, "Dot", func() { Dot(a, b) })
	wantPanic(t, "Axpy", func() { Axpy(a, 1, b) })
	wantPanic(t, "Add", func() { Add(a, b) })
	wantPanic(t, "RMSNorm", func() { RMSNorm(a, b, nil, 0) })
	wantPanic(t, "RMSNorm weight", func() { RMSNorm(a, a, b, 0) })
	wantPanic(t, "SiluMul gate", func() { SiluMul(a, b, a) })
	wantPanic(t, "SiluMul up", func() { SiluMul(a, a, b) })
	wantPanic(t, "Rope head", func() { Rope(b, a[:2], a[:2], true) })
	wantPanic(t, "Rope table", func() { Rope(a, a[:2], a[:1], true) })
	wantPanic(t, "TopK", func() { TopK(make([]int32, 4), b) })
}

func TestFloatOpsDoNotAllocate(t *testing.T) {
	x, y := make([]float32, 300), make([]float32, 300)
	top, half := make([]int32, 40), make([]uint16, 300)
	var sink float64
	ops := map[string]func(){
		"RowToF16":  func() { RowToF16(half, x) },
		"Dot":       func() { sink += float64(Dot(x, y)) },
		"Axpy":      func() { Axpy(x, 0.5, y) },
		"Add":       func() { Add(x, y) },
		"RMSNorm":   func() { RMSNorm(x, y, x, 1e-6) },
		"Rope":      func() { Rope(x, y[:64], y[64:128], true) },
		"SiluMul":   func() { SiluMul(x, y, x) },
		"Softmax":   func() { Softmax(x) },
		"LogSumExp": func() { sink += LogSumExp(x) },
		"ArgMax":    func() { sink += float64(ArgMax(x)) },
		"TopK":      func() { TopK(top, x) },
	}
	test := func(t *testing.T) {
		for name, f := range ops {
			if n := testing.AllocsPerRun(20, f); n != 0 {
				t.Errorf("%s: %v allocations per call, want 0", name, n)
			}
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
	_ = sink
}
