package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The float operations give the same bits on every instruction set. A test computes its results with portable Go first
// and then wants them from each of the others that this processor has. A NaN is equal to any other: which of two NaN
// operands an addition passes on is the compiler's choice.

func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// firstUnequal returns the first index at which the two differ, -1 if none.
func firstUnequal(a, b []float32) int {
	for i := range a {
		if !sameFloat(a[i], b[i]) {
			return i
		}
	}
	return -1
}

var awkward = []float32{
	0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1, -1, 0.5, -0.5,
	math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, 0x1.fffffcp-127,
	88.72, 88.73, 89, 90, -87.3, -103.9, -104, -104.1, 65504, 65519.99, 65520, 0x1p-24, 0x1p-25, 0x1.000002p-25,
}

// lengths are all of several unrolls with every tail, and some that are long.
func lengths() []int {
	var ns []int
	for n := range 100 {
		ns = append(ns, n)
	}
	return append(ns, 127, 128, 255, 256, 257, 1000, 1024, 2051)
}

// salt puts an awkward value in some places, in one of every three calls.
func salt(r *rand.Rand, x []float32) {
	if r.IntN(3) > 0 {
		return
	}
	for i := range x {
		if r.IntN(8) == 0 {
			x[i] = awkward[r.IntN(len(awkward))]
		}
	}
}

// floatOp is an operation over four vectors of n values, which it may change, and a number.
type floatOp struct {
	name string
	f    func(a, b, c, d []float32, s float32)
}

func floatOps() []floatOp {
	lanes := func(l *[dotLanes]float64, a []float32) {
		for i, v := range l[:min(len(a), dotLanes)] {
			a[i] = float32(v) // a sum that differs in float64 shows in half of all cases
			if v-float64(float32(v)) > 0 {
				a[i] = -a[i]
			}
		}
	}
	first := func(a []float32, v float32) {
		if len(a) > 0 {
			a[0] = v
		}
	}
	return []floatOp{
		{"Dot", func(a, b, c, d []float32, s float32) { first(a, Dot(b, c)) }},
		{"Axpy", func(a, b, c, d []float32, s float32) { Axpy(a, s, b) }},
		{"Axpy self", func(a, b, c, d []float32, s float32) { Axpy(a, s, a) }},
		{"Add", func(a, b, c, d []float32, s float32) { Add(a, b) }},
		{"scale", func(a, b, c, d []float32, s float32) { scale(a, b, s) }},
		{"RMSNorm", func(a, b, c, d []float32, s float32) { RMSNorm(a, b, c, 1e-6) }},
		{"RMSNorm in place", func(a, b, c, d []float32, s float32) { RMSNorm(a, a, nil, 1e-6) }},
		{"sumSquares", func(a, b, c, d []float32, s float32) { var l [dotLanes]float64; sumSquares(&l, b); lanes(&l, a) }},
		{"Rope halves", func(a, b, c, d []float32, s float32) { h := len(a) / 2; Rope(a, c[:h], d[:h], true) }},
		{"Rope pairs", func(a, b, c, d []float32, s float32) { h := len(a) / 2; Rope(a, c[:h], d[:h], false) }},
		{"Rope part", func(a, b, c, d []float32, s float32) { h := len(a) / 3; Rope(a, c[:h], d[:h], false) }},
		{"SiluMul", func(a, b, c, d []float32, s float32) { SiluMul(a, b, c) }},
		{"SiluMul in place", func(a, b, c, d []float32, s float32) { SiluMul(a, a, c) }},
		{"Softmax", func(a, b, c, d []float32, s float32) { Softmax(a) }},
		{"LogSumExp", func(a, b, c, d []float32, s float32) {
			var l [dotLanes]float64
			l[0] = LogSumExp(b)
			lanes(&l, a)
		}},
		{"maxOf", func(a, b, c, d []float32, s float32) { first(a, maxOf(b)+0) }}, // the sign of a zero is open
		{"expSum", func(a, b, c, d []float32, s float32) { var l [dotLanes]float64; expSum(&l, a, b, s) }},
		{"ArgMax", func(a, b, c, d []float32, s float32) { first(a, float32(ArgMax(b))) }},
		{"TopK", func(a, b, c, d []float32, s float32) {
			top := make([]int32, min(5, len(b)))
			TopK(top, b)
			for i, v := range top {
				a[i] = float32(v)
			}
		}},
		{"float16", func(a, b, c, d []float32, s float32) {
			h := make([]uint16, len(b))
			RowToF16(h, b)
			widenF16(a, h)
		}},
	}
}

// checkFloatOp compares one operation on the current instruction set with the portable one, on the same inputs.
func checkFloatOp(t *testing.T, op floatOp, r *rand.Rand, n int) {
	t.Helper()
	var in, want, got [4][]float32
	var checks [4]func(*testing.T, string)
	for j := range in {
		in[j] = make([]float32, n)
		hurtful(r, in[j])
		salt(r, in[j])
		want[j] = append([]float32(nil), in[j]...)
		got[j], checks[j] = guarded(n, r.IntN(17))
		copy(got[j], in[j])
	}
	s := float32(r.NormFloat64())
	onGeneric(t, func() { op.f(want[0], want[1], want[2], want[3], s) })
	op.f(got[0], got[1], got[2], got[3], s)
	for j := range got {
		if i := firstUnequal(got[j], want[j]); i >= 0 {
			t.Fatalf("%s n=%d: vector %d element %d is %v (%#08x), want %v (%#08x); it was %v", op.name, n, j, i,
				got[j][i], math.Float32bits(got[j][i]), want[j][i], math.Float32bits(want[j][i]), in[j][i])
		}
		checks[j](t, op.name)
	}
}

func TestFloatOpsEqualGeneric(t *testing.T) {
	onEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(21, 1))
		for _, op := range floatOps() {
			for _, n := range lengths() {
				for range 6 {
					checkFloatOp(t, op, r, n)
				}
			}
		}
	})
}

func FuzzFloatOps(f *testing.F) {
	f.Add(uint64(1), uint16(33), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, n uint16, which uint8) {
		ops := floatOps()
		for _, name := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, name); ok {
				checkFloatOp(t, ops[int(which)%len(ops)], rand.New(rand.NewPCG(seed, 1)), int(n%3000))
				restore()
			}
		}
	})
}

// TestExpVectorEqualsExp sweeps every exponent with many mantissas, and all of the neighbourhoods of the recipe's limits.
func TestExpVectorEqualsExp(t *testing.T) {
	onEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(22, 1))
		const n = 4096
		x, got := make([]float32, n), make([]float32, n)
		check := func() {
			var lanes [dotLanes]float64
			expSum(&lanes, got, x, 0)
			for i, v := range x {
				if want := Exp(v); !sameFloat(got[i], want) {
					t.Fatalf("exp(%v = %#08x) is %v, want %v", v, math.Float32bits(v), got[i], want)
				}
			}
		}
		for exponent := range 256 {
			for i := range x {
				x[i] = math.Float32frombits(uint32(exponent)<<23 | r.Uint32()&0x807fffff)
			}
			check()
		}
		for range 200 {
			for i := range x {
				x[i] = float32(r.Float64()*200 - 110)
			}
			check()
		}
		for _, at := range awkward {
			for i := range x {
				x[i] = math.Float32frombits(math.Float32bits(at) + uint32(i-n/2))
			}
			check()
		}
	})
}

func TestRowToF16EqualsF32ToF16(t *testing.T) {
	check := func(t *testing.T) {
		r := rand.New(rand.NewPCG(23, 1))
		x, h := make([]float32, 512), make([]uint16, 512)
		for high := range 1 << 12 { // every sign, exponent and three bits of mantissa
			for i := range x {
				x[i] = math.Float32frombits(uint32(high)<<20 | r.Uint32()&0xfffff)
			}
			for i, low := range []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0xfffff} {
				x[i] = math.Float32frombits(uint32(high)<<20 | low)
			}
			RowToF16(h, x)
			for i, v := range x {
				if want := F32ToF16(v); h[i] != want {
					t.Fatalf("%#08x: %#04x, want %#04x", math.Float32bits(v), h[i], want)
				}
			}
		}
		all, wide := make([]uint16, 1<<16), make([]float32, 1<<16)
		for i := range all {
			all[i] = uint16(i)
		}
		widenF16(wide, all)
		for i, v := range wide {
			if want := F16ToF32(uint16(i)); !sameFloat(v, want) {
				t.Fatalf("%#04x: %v, want %v", i, v, want)
			}
		}
	}
	check(t)
	onEachISA(t, check)
	wantPanic(t, "RowToF16", func() { RowToF16(make([]uint16, 1), make([]float32, 2)) })
}

// actRows gives rows of n values that hurt a quantiser.
func actRows(r *rand.Rand, n int) [][]float32 {
	rows := make([][]float32, 0, 40)
	for i := range 40 {
		x := make([]float32, n)
		hurtful(r, x)
		switch i % 8 {
		case 1: // exact halves: the largest magnitude makes the inverse scale 1
			for j := range x {
				x[j] = float32(r.IntN(255)-127) * 0.5
			}
			for j := 0; j < n; j += 32 {
				x[j+r.IntN(32)] = 127
			}
		case 2: // beside halves
			for j := range x {
				x[j] = float32(r.IntN(253)-126) + 0.5
				x[j] = math.Float32frombits(math.Float32bits(x[j]) + uint32(r.IntN(3)-1))
			}
			for j := 0; j < n; j += 32 {
				x[j+r.IntN(32)] = -127
			}
		case 3: // both signs of the peak
			for j := range x {
				x[j] = float32(r.IntN(2)*2-1) * 3
			}
		case 4:
			for j := range x {
				x[j] *= 1e-37
			}
		case 5:
			salt(r, x)
			x[r.IntN(n)] = awkward[r.IntN(len(awkward))]
		case 6:
			clear(x)
			x[n-1-r.IntN(n)] = float32(r.NormFloat64())
		case 7:
			for j := range x {
				x[j] = math.MaxFloat32 * float32(r.Float64()*2-1)
			}
		}
		rows = append(rows, x)
	}
	return rows
}

func checkSetRow(t *testing.T, kind ActKind, x []float32) {
	t.Helper()
	want, got := NewActs(kind, len(x), 3), NewActs(kind, len(x), 3)
	for i := range got.Q {
		want.Q[i], got.Q[i] = 99, 99
	}
	for i := range got.Sums {
		want.Sums[i], got.Sums[i] = 99, 99
	}
	for i := range got.D {
		want.D[i], got.D[i] = 99, 99
	}
	onGeneric(t, func() { want.SetRow(1, x) })
	got.SetRow(1, x)
	for i, q := range got.Q {
		if q != want.Q[i] {
			t.Fatalf("%v n=%d: code %d is %d, want %d (value %v)", kind, len(x), i-len(x), q, want.Q[i], x[i-len(x)])
		}
	}
	for i, s := range got.Sums {
		if s != want.Sums[i] {
			t.Fatalf("%v n=%d: sum %d is %d, want %d", kind, len(x), i-len(x)/16, s, want.Sums[i])
		}
	}
	for i, d := range got.D {
		if math.Float32bits(d) != math.Float32bits(want.D[i]) {
			t.Fatalf("%v n=%d: scale %d is %v, want %v", kind, len(x), i, d, want.D[i])
		}
	}
}

func TestSetRowEqualsGeneric(t *testing.T) {
	onEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(24, 1))
		for _, kind := range []ActKind{ActQ8_0, ActQ8_K} {
			for blocks := range 10 {
				n := blocks * kind.block()
				if n == 0 {
					checkSetRow(t, kind, nil)
					continue
				}
				for range 8 {
					for _, x := range actRows(r, n) {
						checkSetRow(t, kind, x)
					}
				}
			}
		}
	})
}

func FuzzSetRow(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xbf}, false)
	f.Fuzz(func(t *testing.T, data []byte, super bool) {
		kind := ActQ8_0
		if super {
			kind = ActQ8_K
		}
		x := make([]float32, (len(data)/4+kind.block()-1)/kind.block()*kind.block())
		Dequantize(F32, x[:len(data)/4], data[:len(data)/4*4])
		for _, name := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, name); ok {
				checkSetRow(t, kind, x)
				restore()
			}
		}
	})
}

func BenchmarkFloatOps(b *testing.B) {
	for _, n := range []int{128, 2048, 32768} {
		r := rand.New(rand.NewPCG(1, 2))
		x, y, z := normals(r, n), normals(r, n), make([]float32, n)
		h, top := make([]uint16, n), make([]int32, 40)
		q80, q8k := NewActs(ActQ8_0, n, 1), NewActs(ActQ8_K, n&^255, 1)
		for _, op := range []struct {
			name  string
			bytes int // streamed per element
			f     func()
		}{
			{"dot", 8, func() { z[0] = Dot(x, y) }},
			{"axpy", 12, func() { Axpy(z, 1e-9, x) }},
			{"add", 12, func() { Add(z, x) }},
			{"rmsnorm", 12, func() { RMSNorm(z, x, y, 1e-6) }},
			{"rope_halves", 12, func() { Rope(x, y[:n/2], y[n/2:], true) }},
			{"rope_pairs", 12, func() { Rope(x, y[:n/2], y[n/2:], false) }},
			{"silumul", 12, func() { SiluMul(z, x, y) }},
			{"softmax", 8, func() { copy(z, y); Softmax(z) }},
			{"logsumexp", 4, func() { _ = LogSumExp(y) }},
			{"argmax", 4, func() { _ = ArgMax(y) }},
			{"top_40", 4, func() { TopK(top, y) }},
			{"row_to_f16", 6, func() { RowToF16(h, y) }},
			{"setrow_q8_0", 5, func() { q80.SetRow(0, y) }},
			{"setrow_q8_k", 5, func() { q8k.SetRow(0, y[:n&^255]) }},
		} {
			if n < 256 && op.name == "setrow_q8_k" || n > 2048 && op.bytes > 4 && op.name != "softmax" {
				continue // shorter than a block; longer than any row but the logits
			}
			benchEachISA(b, fmt.Sprintf("op=%s/n=%d", op.name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(op.bytes * n))
				for b.Loop() {
					op.f()
				}
			})
		}
	}
}
