//go:build cuda

package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// argMax runs both stages and returns the step state, starting from one of row 40, 3 rows and 5 ids so far.
func argMax(t *testing.T, x []float32, c dev.Chosen) []int32 {
	t.Helper()
	scratch, step := alloc(t, dev.ArgMaxScratch), upload(t, []int32{40, 3, -7, 5, 0, 0, 0, 0})
	run(t, dev.ArgMaxPart(scratch, upload(t, x), len(x)), dev.ArgMaxStep(scratch, step, len(x), c))
	return download[int32](t, step, dev.StepLen)
}

func TestCUDAArgMax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	zero, minus := float32(0), float32(math.Copysign(0, -1))
	check := func(what string, x []float32) {
		t.Helper()
		want := []int32{40, 3, int32(kernels.ArgMax(x)), 5, 0, 0, 0, 0}
		if got := argMax(t, x, dev.Chosen{}); !slices.Equal(got, want) {
			t.Fatalf("%s: step %v, want %v", what, got, want)
		}
	}
	for name, x := range map[string][]float32{
		"one":                   {3},
		"one NaN":               {nan},
		"zeros, - first":        {minus, zero},
		"zeros, + first":        {-1, zero, minus},
		"-Inf everywhere":       {-inf, -inf, -inf},
		"+Inf twice":            {1, inf, inf},
		"NaN behind +Inf":       {1, inf, nan},
		"negative NaN":          {1, float32(math.Copysign(float64(nan), -1)), 2},
		"smallest and denormal": {-math.MaxFloat32, -math.SmallestNonzeroFloat32, math.SmallestNonzeroFloat32},
	} {
		check(name, x)
	}
	for _, n := range []int{2, 31, 257, 2047, 2048, 2049, 32000, 151936, 262145} {
		r := denseRand(uint64(n))
		x := denseNormals(r, n, 1)
		check(fmt.Sprint("random ", n), x)
		for i := range x { // many equal values
			x[i] = float32(r.IntN(3))
		}
		check(fmt.Sprint("ties ", n), x)
		for _, at := range []int{0, n / 3, n - 1} {
			y := slices.Repeat([]float32{-2}, n)
			y[at], y[n-1] = -1, -1
			check(fmt.Sprint("largest at ", at, " of ", n), y)
			y[at] = nan
			check(fmt.Sprint("NaN at ", at, " of ", n), y)
		}
		check(fmt.Sprint("all equal ", n), make([]float32, n))
	}
}

func TestCUDAArgMaxWritesTheStep(t *testing.T) {
	ids, ring := upload(t, []int32{-9, -9}), upload(t, []int32{-5, -5, -5})
	c := dev.Chosen{IDs: ids, Advance: 1, Ring: ring, RingLen: 3}
	if got, want := argMax(t, []float32{0, 2, 1}, c), []int32{41, 3, 1, 6, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("step %v, want %v", got, want)
	}
	if got, want := download[int32](t, ids, 2), []int32{1, -9}; !slices.Equal(got, want) {
		t.Errorf("ids %v, want %v", got, want)
	}
	if got, want := download[int32](t, ring, 3), []int32{-5, -5, 1}; !slices.Equal(got, want) { // the sixth id
		t.Errorf("ring %v, want %v", got, want)
	}

	// As a graph does: the same launches over and over.
	scratch, step := alloc(t, dev.ArgMaxScratch), upload(t, make([]int32, dev.StepLen))
	x := upload(t, []float32{1, 5, 3, 4})
	ls := []dev.Launch{dev.ArgMaxPart(scratch, x, 4), dev.ArgMaxStep(scratch, step, 4, c)}
	for i := range 7 {
		run(t, ls...)
		if got := download[int32](t, step, 4); got[dev.StepPos] != int32(i+1) || got[dev.StepCount] != int32(i+1) {
			t.Fatalf("after %d runs: step %v", i+1, got)
		}
	}
	if got, want := download[int32](t, ring, 3), []int32{1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("ring %v, want %v", got, want)
	}
}
