//go:build cuda

package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// siluRows returns gates and ups, normal values and then the extremes of both in all pairs, in whole groups of 32.
func siluRows(r *rand.Rand) (gate, up []float32) {
	for range 1024 {
		gate, up = append(gate, float32(4*r.NormFloat64())), append(up, float32(r.NormFloat64()))
	}
	inf := float32(math.Inf(1))
	ends := []float32{0, float32(math.Copysign(0, -1)), 1e-45, -1e-45, 1e-38, -17, 88.7, -88.7, 89.1, -89.1, 104, -104.5, math.MaxFloat32,
		-math.MaxFloat32, inf, -inf, float32(math.NaN())}
	for _, g := range ends {
		for _, u := range ends {
			gate, up = append(gate, g), append(up, u)
		}
	}
	for len(gate)%32 != 0 {
		gate, up = append(gate, 1), append(up, 1)
	}
	return gate, up
}

// TestCUDASiluMul wants the bits of kernels.SiluMul, also with the result in place of an operand.
func TestCUDASiluMul(t *testing.T) {
	gate, up := siluRows(rand.New(rand.NewPCG(4, 0)))
	want := make([]float32, len(gate))
	kernels.SiluMul(want, gate, up)
	for n := range 3 {
		rows, width := 1, len(gate)-n // lengths that fill no warp too
		g, u, dst := upload(t, gate), upload(t, up), alloc(t, int64(4*len(gate)))
		for _, to := range []dev.Ptr{dst, g} {
			run(t, dev.SiluMul(to, g, u, rows, width))
			wantFloats(t, "silu", download[float32](t, to, width), want[:width])
		}
		if n > 0 && download[uint32](t, dst, len(gate))[width] != 0xffffffff {
			t.Fatal("wrote past the end")
		}
	}
}

// TestCUDASiluMulQuantize wants what SiluMul and Quantize give one after the other.
func TestCUDASiluMulQuantize(t *testing.T) {
	gate, up := siluRows(rand.New(rand.NewPCG(5, 0)))
	for _, k := range []int{32, 96, 256} {
		rows := len(gate) / k
		g, u, q := upload(t, gate[:rows*k]), upload(t, up[:rows*k]), alloc(t, dev.Q8Bytes(rows, k))
		run(t, dev.SiluMulQuantize(q, g, u, rows, k))
		want := make([]float32, rows*k)
		kernels.SiluMul(want, gate[:rows*k], up[:rows*k])
		wantQ8(t, q8Rows(t, q, rows, k), want, k)
	}
}
