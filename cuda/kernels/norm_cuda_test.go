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

func TestCUDARMSNorm(t *testing.T) {
	const rows, eps = 3, 1e-6
	equal, all := 0, 0
	for _, n := range []int{1, 2, 3, 4, 5, 31, 32, 33, 128, 255, 256, 257, 1000, 2048, 2051, 4096} {
		for _, magnitude := range []float32{1e-30, 1e-3, 1, 1e3, 1e25} { // the square of the last overflows float32
			r := denseRand(uint64(n))
			x, w := denseHurtful(r, rows*n, magnitude), denseNormals(r, n, 1)
			px, pw, out, delta := upload(t, x), upload(t, w), alloc(t, int64(4*len(x))), alloc(t, int64(4*len(x)))
			fault, read := faultWord(t)
			guard := dev.Guard{Word: fault, Layer: 3, Where: dev.WhereAttention}
			what := fmt.Sprintf("n=%d magnitude=%g", n, magnitude)

			run(t, dev.RMSNorm(out, px, pw, rows, n, eps, guard))
			got := download[float32](t, out, rows*n)
			wantFloats(t, what+": x", download[float32](t, px, rows*n), x)
			ref := make([]float32, n)
			for row := range rows {
				in := x[row*n:][:n]
				kernels.RMSNorm(ref, in, w, eps)
				var ss float64
				for _, v := range in {
					ss += float64(v) * float64(v)
				}
				root := math.Sqrt(ss/float64(n) + float64(float32(eps)))
				for i, v := range got[row*n:][:n] {
					// The reference's bound: three roundings, and where the first product is denormal 2^-149 times the weight.
					want := float64(in[i]) / root * float64(w[i])
					bound := 3.01*eps32*math.Abs(want) + 0x1p-148*(1+math.Abs(float64(w[i])))
					if !(math.Abs(float64(v)-want) <= bound) {
						t.Fatalf("%s: row %d value %d is %v, want %v within %v", what, row, i, v, want, bound)
					}
					all++
					if v == ref[i] {
						equal++
					}
				}
			}

			ones := alloc(t, int64(4*len(x)))
			run(t, dev.RMSNorm(ones, px, 0, rows, n, eps, dev.Guard{}))
			plain := download[float32](t, ones, rows*n)
			for i := range plain {
				plain[i] *= w[i%n]
			}
			wantFloats(t, what+": without weights, then times them", plain, got)

			// What was the sum of x and delta before is now x.
			d := denseHurtful(r, rows*n, magnitude)
			parts := make([]float32, len(x))
			for i := range parts {
				parts[i] = x[i] + d[i]
			}
			store(t, delta, d)
			run(t, dev.AddRMSNorm(out, px, delta, pw, rows, n, eps, guard))
			wantFloats(t, what+": sum", download[float32](t, px, rows*n), parts)
			sum := download[float32](t, out, rows*n)
			run(t, dev.RMSNorm(px, px, pw, rows, n, eps, guard)) // in place
			wantFloats(t, what+": norm of the sum", sum, download[float32](t, px, rows*n))
			if f, bad := read(); bad {
				t.Fatalf("%s: fault %+v", what, f)
			}
		}
	}
	// Where they differ, the order of the sum moved the root by a unit in its last place.
	if float64(equal) < 0.999*float64(all) {
		t.Errorf("%d of %d values have the reference's bits", equal, all)
	}
}

func TestCUDANormNotFinite(t *testing.T) {
	const rows = 5
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, n := range []int{1, 7, 256, 300} {
		for _, bad := range []float32{nan, inf, -inf} {
			for _, at := range []int{0, n / 2, n - 1} {
				x := slices.Repeat([]float32{1}, rows*n)
				x[2*n+at], x[4*n+at] = bad, bad
				zero := alloc(t, int64(4*len(x)))
				store(t, zero, make([]float32, rows*n))
				px, out := upload(t, x), alloc(t, int64(4*len(x)))
				fault, read := faultWord(t)
				want := make([]float32, rows*n)
				for row := range rows {
					kernels.RMSNorm(want[row*n:][:n], x[row*n:][:n], nil, 1e-6)
				}
				what := fmt.Sprintf("n=%d %v at %d", n, bad, at)
				run(t, dev.AddRMSNorm(out, px, zero, 0, rows, n, 1e-6, dev.Guard{Word: fault, Layer: 7, Where: dev.WhereExperts}))
				wantFloats(t, what, download[float32](t, out, rows*n), want)
				if f, _ := read(); f != (dev.Fault{Layer: 7, Where: dev.WhereExperts, Row: 2}) {
					t.Errorf("%s: fault %+v, want row 2", what, f)
				}
				// A later layer's fault does not cover it, an earlier one's does.
				run(t, dev.Finite(px, rows, n, dev.Guard{Word: fault, Layer: 8}))
				if f, _ := read(); f.Layer != 7 {
					t.Errorf("%s: then fault %+v", what, f)
				}
				run(t, dev.Finite(px, rows, n, dev.Guard{Word: fault, Layer: 7, Where: dev.WhereAttention}))
				if f, _ := read(); f != (dev.Fault{Layer: 7, Where: dev.WhereAttention, Row: 2}) {
					t.Errorf("%s: then fault %+v", what, f)
				}
			}
		}
	}
}

func TestCUDAFinite(t *testing.T) {
	const rows = 4
	for _, n := range []int{1, 31, 33, 256, 1025} {
		x := denseHurtful(denseRand(uint64(n)), rows*n, math.MaxFloat32/10000)
		x[0] = math.MaxFloat32
		px := upload(t, x)
		for row := range rows {
			for _, at := range []int{0, n - 1} {
				fault, read := faultWord(t)
				guard := dev.Guard{Word: fault, Where: dev.WhereEmbedding}
				run(t, dev.Finite(px, rows, n, guard))
				if f, bad := read(); bad {
					t.Fatalf("n=%d: fault %+v", n, f)
				}
				y := slices.Clone(x)
				y[row*n+at] = float32(math.Inf(-1))
				run(t, dev.Finite(upload(t, y), rows, n, guard))
				if f, _ := read(); f != (dev.Fault{Where: dev.WhereEmbedding, Row: row}) {
					t.Fatalf("n=%d: fault %+v, want row %d", n, f, row)
				}
			}
		}
	}
}

func TestCUDASharedGate(t *testing.T) {
	for _, n := range []int{1, 31, 64, 256, 300, 2048} {
		for _, magnitude := range []float32{1e-3, 1, 30} {
			const rows = 3
			r := denseRand(uint64(n))
			x, w := denseHurtful(r, rows*n, magnitude), denseNormals(r, n, 1)
			gate := alloc(t, 4*rows)
			run(t, dev.SharedGate(gate, upload(t, x), upload(t, w), rows, n))
			for row, got := range download[float32](t, gate, rows) {
				var dot, abs float64
				for i, v := range x[row*n:][:n] {
					p := float64(v) * float64(w[i])
					dot += p
					abs += math.Abs(p)
				}
				want := 1 / (1 + math.Exp(-dot))
				// The sum's error moves the gate by at most a quarter of it, or by its own share of the gate where that is small;
				// the rest is the exponential (2 units), the sum and the quotient.
				sum := (float64(n)/32 + 10) * eps32 * abs
				bound := min(0.25*sum, want*(math.Expm1(sum))) + 8*eps32*want + 0x1p-149
				if !(math.Abs(float64(got)-want) <= bound) {
					t.Fatalf("n=%d magnitude=%g row %d: %v, want %v within %v", n, magnitude, row, got, want, bound)
				}
			}
		}
	}
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		gate := alloc(t, 4)
		run(t, dev.SharedGate(gate, upload(t, []float32{v}), upload(t, []float32{1}), 1, 1))
		wantFloats(t, fmt.Sprint(v), download[float32](t, gate, 1), []float32{1 / (1 + kernels.Exp(-v))})
	}
}

// The end of a pass: of some of its rows the norm, the logits and the choice, as of each row alone.
func TestCUDAHeadRows(t *testing.T) {
	const n, vocab, rows = 96, 500, 20
	r := denseRand(8)
	x := denseNormals(r, rows*n, 1)
	w, out := upload(t, denseNormals(r, n, 1)), upload(t, denseNormals(r, vocab*n, 1))
	x[7*n+3] = float32(math.NaN())
	px := upload(t, x)
	for _, list := range [][]int32{{0}, {19}, {0, 1, 2, 3}, {3, 7, 8, 15, 19}, {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}} {
		m := len(list)
		fault, read := faultWord(t)
		normed, logits, next := alloc(t, int64(4*m*n)), alloc(t, int64(4*m*vocab)), alloc(t, int64(4*m))
		scratch := alloc(t, int64(m)*dev.ArgMaxScratch)
		run(t, dev.RMSNormOf(normed, px, upload(t, list), w, m, n, 1e-6, dev.Guard{Word: fault, Layer: 3, Where: dev.WhereExperts}),
			dev.Product(kernels.F32, logits, out, normed, vocab, n, m, dev.Out{}),
			dev.ArgMaxPart(scratch, logits, m, vocab), dev.ArgMaxStep(scratch, next, 0, m, vocab), dev.ChoiceCheck(logits, next, 0, m, vocab))
		got, ids := download[float32](t, logits, m*vocab), download[int32](t, next, m)
		for i, row := range list {
			one, alone := alloc(t, 4*n), alloc(t, 4*vocab)
			run(t, dev.RMSNorm(one, px.At(int64(row)*4*n), w, 1, n, 1e-6, dev.Guard{}), dev.Product(kernels.F32, alone, out, one, vocab, n, 1, dev.Out{}))
			want := download[float32](t, alone, vocab)
			wantFloats(t, fmt.Sprintf("rows %v: row %d", list, row), got[i*vocab:][:vocab], want)
			if int(ids[i]) != kernels.ArgMax(want) {
				t.Errorf("rows %v: row %d: %d is chosen, want %d", list, row, ids[i], kernels.ArgMax(want))
			}
		}
		if f, bad := read(); bad != slices.Contains(list, 7) || bad && f != (dev.Fault{Layer: 3, Where: dev.WhereExperts, Row: 7}) {
			t.Errorf("rows %v: fault %+v, %v", list, f, bad)
		}
	}
}
