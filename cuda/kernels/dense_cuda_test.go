//go:build cuda

package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
)

// Inputs and comparisons that the tests of the dense operations share.

const eps32 = 0x1p-24 // half a unit in the last place of 1: the relative error of one rounding

func denseRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 71)) }

// denseNormals returns n values of standard deviation magnitude.
func denseNormals(r *rand.Rand, n int, magnitude float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * magnitude
	}
	return x
}

// denseHurtful is denseNormals with pairs that cancel, zeros of both signs and denormals among them.
func denseHurtful(r *rand.Rand, n int, magnitude float32) []float32 {
	x := denseNormals(r, n, magnitude)
	for i := range x {
		switch r.IntN(8) {
		case 0:
			x[i] = float32(math.Copysign(0, float64(x[i])))
		case 1:
			x[i] = math.Float32frombits(r.Uint32N(1 << 23))
		case 2, 3:
			if i > 0 {
				x[i] = -x[i-1] * (1 + 0x1p-20)
			}
		case 4:
			x[i] *= 1000
		}
	}
	return x
}

// sameFloats compares bits, but for NaN, which is one value whatever its payload.
func sameFloats(a, b []float32) (at int, same bool) {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) {
			return i, false
		}
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
			return i, false
		}
	}
	return 0, true
}

// wantFloats ends the test where got differs from want in a bit.
func wantFloats(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if i, same := sameFloats(got, want); !same {
		t.Fatalf("%s: value %d is %v, want %v (lengths %d and %d)", what, i, got[i], want[i], len(got), len(want))
	}
}

// faultWord returns a fault word that is zero, and how to read it.
func faultWord(t testing.TB) (p dev.Ptr, read func() (dev.Fault, bool)) {
	p = upload(t, []uint64{0})
	return p, func() (dev.Fault, bool) {
		t.Helper()
		return dev.ReadFault(download[uint64](t, p, 1)[0])
	}
}
