package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// attendReference is attention of one head in float64: scores, softmax over all of them, weighted sum. bound is the error
// that AttendF32 documents, per output.
func attendReference(q, k, v []float32, headDim, stride, n int, scale float32) (out, bound []float64) {
	score := make([]float64, n)
	m, largest := math.Inf(-1), 0.0
	for p := range score {
		var s, abs float64
		for i := range headDim {
			x := float64(q[i]) * float64(k[p*stride+i]) * float64(scale)
			s += x
			abs += math.Abs(x)
		}
		score[p], m, largest = s, max(m, s), max(largest, abs)
	}
	var sum float64
	for p := range score {
		score[p] = math.Exp(score[p] - m)
		sum += score[p]
	}
	out, bound = make([]float64, headDim), make([]float64, headDim)
	for i := range headDim {
		var abs float64
		for p := range score {
			x := score[p] / sum * float64(v[p*stride+i])
			out[i] += x
			abs += math.Abs(x)
		}
		bound[i] = (float64(n)+float64(headDim)*largest+16)*eps32*abs + 0x1p-140
	}
	return out, bound
}

func halves(x []float32) (h []uint16, back []float32) {
	h, back = make([]uint16, len(x)), make([]float32, len(x))
	for i, v := range x {
		h[i] = F32ToF16(v)
		back[i] = F16ToF32(h[i])
	}
	return h, back
}

func TestAttend(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, headDim := range []int{1, 3, 8, 31, 64, 80, 128, MaxHeadDim} {
		for _, n := range []int{0, 1, 2, KVTile - 1, KVTile, KVTile + 1, 3*KVTile - 1, 3 * KVTile, 3*KVTile + 5} {
			for _, g := range []int{1, 2, 7, attendRows, attendRows + 1, 2*attendRows + 3} {
				if headDim > 128 && g > attendRows+1 || headDim < 64 && g == 7 {
					continue // nothing new, and slow
				}
				stride := headDim + g%3*5
				size := max(0, (n-1)*stride+headDim) // the last row is not padded
				magnitude := []float32{0.1, 1, 4}[n%3]
				k, v := normals(r, size), normals(r, size)
				q := normals(r, g*headDim)
				for i := range k {
					k[i] *= magnitude
				}
				k16, k := halves(k)
				v16, v := halves(v)
				scale := float32(1 / math.Sqrt(float64(headDim)))

				out, check := guarded(g*headDim, n%4)
				AttendF32(out, q, k, v, headDim, stride, n, scale)
				check(t, "out")
				out16, check16 := guarded(g*headDim, (n+1)%4)
				AttendF16(out16, q, k16, v16, headDim, stride, n, scale)
				check16(t, "out")
				what := fmt.Sprintf("headDim=%d n=%d g=%d", headDim, n, g)
				if !sameBits(out, out16) {
					t.Fatalf("%s: AttendF16 differs from AttendF32 on the same values", what)
				}
				one := make([]float32, headDim)
				for h := range g {
					qh, got := q[h*headDim:][:headDim], out[h*headDim:][:headDim]
					AttendF32(one, qh, k, v, headDim, stride, n, scale)
					if !sameBits(one, got) {
						t.Fatalf("%s: head %d alone differs from the group", what, h)
					}
					if n == 0 {
						if !sameBits(got, make([]float32, headDim)) {
							t.Fatalf("%s: %v, want zeros", what, got)
						}
						continue
					}
					want, bound := attendReference(qh, k, v, headDim, stride, n, scale)
					for i := range want {
						if !(math.Abs(float64(got[i])-want[i]) <= bound[i]) {
							t.Fatalf("%s: head %d value %d is %v, want %v within %v", what, h, i, got[i], want[i], bound[i])
						}
					}
				}
			}
		}
	}
}

// A token's result may depend on nothing but its own query and the positions before it: not on what lies behind them in
// the cache, nor on what the output held.
func TestAttendIgnoresTheRest(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	const headDim, stride, rows = 16, 24, 3 * KVTile
	k, v := normals(r, rows*stride), normals(r, rows*stride)
	q := normals(r, 2*headDim)
	for _, n := range []int{1, KVTile - 1, KVTile, KVTile + 1, 2*KVTile + 9} {
		want := make([]float32, len(q))
		AttendF32(want, q, k[:n*stride], v[:n*stride], headDim, stride, n, 0.25)
		k2, v2 := append([]float32(nil), k...), append([]float32(nil), v...)
		nan := float32(math.NaN())
		for p := range rows {
			for i := range stride {
				if p >= n || i >= headDim {
					k2[p*stride+i], v2[p*stride+i] = nan, nan
				}
			}
		}
		got := make([]float32, len(q))
		for i := range got {
			got[i] = nan
		}
		AttendF32(got, q, k2, v2, headDim, stride, n, 0.25)
		if !sameBits(got, want) {
			t.Fatalf("n=%d: the result depends on what it must not read", n)
		}
	}
}

func TestAttendExtremes(t *testing.T) {
	const headDim = 4
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, n := range []int{1, KVTile, KVTile + 1, 3 * KVTile} {
		for _, at := range []int{0, n / 2, n - 1} {
			k, v := make([]float32, n*headDim), make([]float32, n*headDim)
			for p := range n {
				for i := range headDim {
					v[p*headDim+i] = float32(p)
				}
			}
			q := []float32{1, 0, 0, 0}
			run := func(score float32) []float32 {
				k[at*headDim] = score
				out := make([]float32, headDim)
				AttendF32(out, q, k, v, headDim, headDim, n, 1)
				return out
			}
			want := float32(at)
			for _, big := range []float32{1e4, 1e30, math.MaxFloat32} { // takes all the weight
				if got := run(big); got[0] != want || got[3] != want {
					t.Errorf("n=%d score %g at %d: %v, want %v", n, big, at, got, want)
				}
			}
			for _, bad := range []float32{nan, inf} {
				if got := run(bad); got[0] == got[0] || got[3] == got[3] {
					t.Errorf("n=%d score %v at %d: %v, want NaN", n, bad, at, got)
				}
			}
			got := run(-inf) // no weight, unless nothing else is there
			if n == 1 {
				if got[0] == got[0] {
					t.Errorf("only -Inf: %v, want NaN", got)
				}
			} else if mean := (float64(n*(n-1)/2) - float64(at)) / float64(n-1); math.Abs(float64(got[0])-mean) > 1e-3 {
				t.Errorf("n=%d score -Inf at %d: %v, want %v", n, at, got[0], mean)
			}
			run(0)
			v[at*headDim+1] = nan
			got = run(0)
			if got[1] == got[1] || got[0] != got[0] {
				t.Errorf("n=%d NaN in value 1 of %d: %v, want NaN there alone", n, at, got)
			}
		}
	}

	// A whole tile of -Inf before finite scores.
	n := KVTile + 3
	k, v := make([]float32, n), make([]float32, n)
	for p := range n {
		k[p], v[p] = -inf, -1
		if p >= KVTile {
			k[p], v[p] = -1000, 5
		}
	}
	out := []float32{0}
	if AttendF32(out, []float32{1}, k, v, 1, 1, n, 1); out[0] != 5 {
		t.Errorf("finite scores after a tile of -Inf: %v, want 5", out[0])
	}
}

func TestAttendArgumentsChecked(t *testing.T) {
	x, h := make([]float32, 64), make([]uint16, 64)
	for name, f := range map[string]func(){
		"head of 0":      func() { AttendF32(x, x, x, x, 0, 4, 1, 1) },
		"head too large": func() { AttendF32(make([]float32, 513), make([]float32, 513), x, x, 513, 513, 0, 1) },
		"stride":         func() { AttendF32(x, x, x, x, 8, 7, 1, 1) },
		"part of a head": func() { AttendF32(x[:12], x[:12], x, x, 8, 8, 1, 1) },
		"output":         func() { AttendF32(x[:8], x[:16], x, x, 8, 8, 1, 1) },
		"negative n":     func() { AttendF32(x[:8], x[:8], x, x, 8, 8, -1, 1) },
		"keys":           func() { AttendF32(x[:8], x[:8], x[:63], x, 8, 8, 8, 1) },
		"values":         func() { AttendF16(x[:8], x[:8], h, h[:63], 8, 8, 8, 1) },
	} {
		wantPanic(t, name, f)
	}
}

func TestAttendDoesNotAllocate(t *testing.T) {
	const headDim, n, g = MaxHeadDim, KVTile + 1, attendRows + 1
	q, out := make([]float32, g*headDim), make([]float32, g*headDim)
	k32, k16 := make([]float32, n*headDim), make([]uint16, n*headDim)
	if got := testing.AllocsPerRun(3, func() {
		AttendF32(out, q, k32, k32, headDim, headDim, n, 1)
		AttendF16(out, q, k16, k16, headDim, headDim, n, 1)
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}
