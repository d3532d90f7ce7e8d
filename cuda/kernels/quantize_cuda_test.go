//go:build cuda

package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// hurtful are rows of 32 values each with something that a quantiser may trip over.
func hurtful() [][]float32 {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	row := func(first ...float32) []float32 {
		r := make([]float32, 32)
		copy(r, first)
		return r
	}
	halves := row(127)
	for i := 1; i < 32; i++ {
		halves[i] = float32(i) - 15.5
	}
	return [][]float32{
		row(), row(1), row(-1), row(0, 0, 0, float32(math.Copysign(0, -1))),
		row(math.MaxFloat32, -math.MaxFloat32, 1), row(1e-45, -1e-45), row(4e-37), row(3e-37, 1e-37), row(1e-38, 5e-39),
		row(inf), row(1, -inf), row(nan), row(1, nan, inf), row(halves...), row(0.49999997*127/127, 127),
		row(1, 1, 1, 1, -1, -1, -1, -1),
	}
}

// activationRows returns n rows of k normal values, the scale of 32 neighbours spread over six decades.
func activationRows(r *rand.Rand, n, k int) []float32 {
	x := make([]float32, n*k)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for g := 0; g < len(x); g += 32 {
		s := float32(math.Pow(10, 6*r.Float64()-4))
		for i := range x[g:min(g+32, len(x))] {
			x[g+i] *= s
		}
	}
	return x
}

// TestCUDAQuantize wants the codes and scales of kernels.Acts, bit for bit.
func TestCUDAQuantize(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	check := func(t *testing.T, x []float32, k int) {
		n := len(x) / k
		q := alloc(t, dev.Q8Bytes(n, k))
		run(t, dev.Quantize(q, upload(t, x), n, k, 0))
		wantQ8(t, q8Rows(t, q, n, k), x, k)
	}
	for _, shape := range [][2]int{{1, 32}, {3, 32}, {5, 96}, {2, 256}, {9, 768}, {1, 2048}} {
		t.Run(fmt.Sprintf("rows=%d/k=%d", shape[0], shape[1]), func(t *testing.T) {
			check(t, activationRows(r, shape[0], shape[1]), shape[1])
		})
	}
	t.Run("hurtful", func(t *testing.T) {
		var x []float32
		for _, row := range hurtful() {
			x = append(x, row...)
		}
		check(t, x, 32)
		check(t, x, 64)
	})
	t.Run("bits", func(t *testing.T) {
		x := make([]float32, 64*32)
		for i := range x {
			x[i] = math.Float32frombits(r.Uint32()&0xff8fffff | 0x3f000000&r.Uint32())
		}
		check(t, x, 64)
	})
}

// wantQ8 compares device rows with the CPU's.
func wantQ8(t *testing.T, rows []q8Row, x []float32, k int) {
	t.Helper()
	a := kernels.NewActs(kernels.ActQ8_0, k, 1)
	for i, row := range rows {
		a.SetRow(0, x[i*k:(i+1)*k])
		for j, c := range row.codes {
			if c != a.Q[j] {
				t.Fatalf("row %d: code %d of %g is %d, want %d", i, j, x[i*k+j], c, a.Q[j])
			}
		}
		wantFloats(t, fmt.Sprintf("row %d: d", i), row.d, a.D)
		for j, d := range a.D {
			sum := float32(d * float32(int(a.Sums[2*j])+int(a.Sums[2*j+1])))
			wantFloats(t, fmt.Sprintf("row %d: d*sum %d", i, j), row.ds[j:j+1], []float32{sum})
		}
	}
}

// TestCUDAQuantizeCount wants the first rows alone, as many as the device says.
func TestCUDAQuantizeCount(t *testing.T) {
	const rows, k = 7, 96
	x := activationRows(rand.New(rand.NewPCG(3, 0)), rows, k)
	px := upload(t, x)
	for _, count := range []int32{0, 1, 6, 7} {
		q := alloc(t, dev.Q8Bytes(rows, k))
		run(t, dev.Quantize(q, px, rows, k, upload(t, []int32{count})))
		got := q8Rows(t, q, rows, k)
		wantQ8(t, got[:count], x, k)
		for i, row := range got[count:] {
			for _, c := range row.codes {
				if c != -1 {
					t.Fatalf("count %d: row %d was written", count, int(count)+i)
				}
			}
		}
	}
}
