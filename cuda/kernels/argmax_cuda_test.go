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

// argMax chooses from rows of n values each.
func argMax(t *testing.T, x []float32, n int) []int32 {
	t.Helper()
	rows := len(x) / n
	scratch, next := alloc(t, int64(rows)*dev.ArgMaxScratch), alloc(t, int64(4*rows))
	run(t, dev.ArgMaxPart(scratch, upload(t, x), rows, n), dev.ArgMaxStep(scratch, next, 0, rows, n))
	return download[int32](t, next, rows)
}

func TestCUDAArgMax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	zero, minus := float32(0), float32(math.Copysign(0, -1))
	check := func(what string, x []float32) {
		t.Helper()
		if got, want := argMax(t, x, len(x)), []int32{int32(kernels.ArgMax(x))}; !slices.Equal(got, want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
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

// Rows are chosen from each by itself.
func TestCUDAArgMaxRows(t *testing.T) {
	r := denseRand(9)
	for _, n := range []int{1, 5, 2048, 2049, 40000} {
		for _, rows := range []int{2, 3, 8, 33} {
			x := denseNormals(r, rows*n, 1)
			var want []int32
			for i := range rows {
				own := x[i*n:][:n]
				switch r.IntN(4) {
				case 0:
					own[r.IntN(n)] = float32(math.NaN())
				case 1:
					own[r.IntN(n)], own[r.IntN(n)] = 9, 9
				}
				want = append(want, int32(kernels.ArgMax(own)))
			}
			if got := argMax(t, x, n); !slices.Equal(got, want) {
				t.Errorf("%d rows of %d: %v, want %v", rows, n, got, want)
			}
		}
	}
}

// As a graph does: the same launches over and over, and the rows move on by themselves.
func TestCUDAArgMaxMovesRows(t *testing.T) {
	const n = 4
	inf := float32(math.Inf(1))
	scratch, next := alloc(t, 3*dev.ArgMaxScratch), alloc(t, 3*4)
	x := upload(t, []float32{1, 5, 3, 4, 0, 0, 7, 7, 1, inf, 2, 3})
	rows := []dev.Row{{Pos: 7, Table: 8, Token: 2, Exempt: true}, {Pos: 0, Table: 4, Token: 3}, {Pos: 300, Table: 0, Token: 1}}
	at := upload(t, putRows(rows))
	ls := []dev.Launch{dev.ArgMaxPart(scratch, x, 3, n), dev.ArgMaxStep(scratch, next, at, 3, n)}
	look := func(what string, ids ...int32) {
		t.Helper()
		for i := range rows {
			rows[i].Token = int(ids[i])
		}
		if got := download[int32](t, next, 3); !slices.Equal(got, ids) {
			t.Errorf("%s: %v, want %v", what, got, ids)
		}
		if got := download[byte](t, at, 3*dev.RowBytes); !slices.Equal(got, putRows(rows)) {
			t.Errorf("%s: rows %v, want %v", what, got, putRows(rows))
		}
	}
	for i := range 7 {
		run(t, ls...)
		for j := range rows {
			rows[j].Pos++
		}
		look(fmt.Sprint("run ", i), 1, 2, 1)
	}
	run(t, dev.ChoiceCheck(x, next, at, 3, n))
	look("an infinite logit", 1, 2, -1)
	run(t, dev.ArgMaxStep(scratch, next, 0, 3, n), dev.ChoiceCheck(x, next, 0, 3, n))
	look("rows that stay", 1, 2, -1)
}

// A choice is taken back in its own row alone.
func TestCUDAChoiceCheck(t *testing.T) {
	r := denseRand(10)
	for _, rows := range []int{1, 31, 32, 70} {
		const n = 5
		x, next := denseNormals(r, rows*n, 1), make([]int32, rows)
		for i := range next {
			next[i] = int32(r.IntN(n+1)) - 1
			if r.IntN(3) == 0 {
				x[i*n+r.IntN(n)] = float32([]float64{math.Inf(1), math.Inf(-1), math.NaN()}[r.IntN(3)])
			}
		}
		at := upload(t, next)
		run(t, dev.ChoiceCheck(upload(t, x), at, 0, rows, n))
		for i, id := range next {
			if id >= 0 && (math.IsInf(float64(x[i*n+int(id)]), 0) || x[i*n+int(id)] != x[i*n+int(id)]) {
				next[i] = -1
			}
		}
		if got := download[int32](t, at, rows); !slices.Equal(got, next) {
			t.Errorf("%d rows: %v, want %v", rows, got, next)
		}
	}
}
