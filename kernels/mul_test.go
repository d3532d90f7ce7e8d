package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

// supported lists the types this package computes with.
func supported() []Type {
	var s []Type
	for i := range types {
		if Type(i).Supported() {
			s = append(s, Type(i))
		}
	}
	return s
}

func randomMat(tb testing.TB, rng *rand.Rand, t Type, rows, cols int) Mat {
	tb.Helper()
	data := make([]byte, rows*t.RowBytes(cols))
	Quantize(t, data, normals(rng, rows*cols))
	w, err := NewMat(t, rows, cols, data)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func randomActs(rng *rand.Rand, kind ActKind, n, rows int) *Acts {
	a := NewActs(kind, n, rows)
	for i := range rows {
		a.SetRow(i, normals(rng, n))
	}
	return a
}

// cases calls f with every type and the kinds of activations it takes. The row lengths are whole chunks, a part of one,
// and for types without blocks a ragged end.
func cases(f func(t Type, kind ActKind, cols int)) {
	for _, typ := range supported() {
		cols := []int{256, 1280}
		switch typ.BlockLen() {
		case 1:
			cols = []int{1, 7, 256, 1003}
		case 32:
			cols = []int{32, 256, 288, 1248}
		}
		for _, n := range cols {
			f(typ, ActF32, n)
			if typ.ActKind() != ActF32 {
				f(typ, typ.ActKind(), n)
			}
		}
	}
}

// intReference multiplies a weight row by a quantised activation row in float64, with the exact values of codes and
// scales, and bounds the error of the float32 sum: each block rounds scale*scale, the integer and their product once,
// for the codes and for the mins, subtracts, and is added to a sum that is rounded once per block. Where a product of two
// scales is beyond float32 there is no bound: the kernels then give an infinity, or NaN where the integer is 0.
func intReference(w *Mat, r int, x *Acts, i int) (want, bound float64) {
	t, n := w.Type, w.Cols
	f, perD := t.form(), x.Kind.block()
	var b block
	var abs float64
	var beyond bool
	size := t.RowBytes(n)
	row := w.Data[r*size : (r+1)*size]
	for e := range n {
		k := e % chunk
		if k == 0 {
			step := min(t.RowBytes(chunk), len(row))
			b.decode(t, row[:step])
			row = row[step:]
		}
		var code, low float64
		if t.BlockLen() == 256 {
			code = float64(b.d[0]) * float64(b.sc[k/16])
			low = -float64(b.d[1]) * float64(b.mn[k/16])
		} else {
			code, low = float64(b.d[k/32]), float64(b.m[k/32])
		}
		code *= float64(int32(b.u[k]) - f.bias)
		if !f.mins {
			low = 0
		}
		dx := float64(x.D[(i*n+e)/perD])
		act := dx * float64(x.Q[i*n+e])
		for _, d := range [][]float32{b.d[:], b.m[:]} {
			for _, v := range d {
				beyond = beyond || math.Abs(float64(v)*dx) > math.MaxFloat32
			}
		}
		want += (code + low) * act
		abs += (math.Abs(code) + math.Abs(low)) * math.Abs(act)
	}
	if beyond {
		return want, math.Inf(1)
	}
	return want, float64(n/perD+5) * eps32 * abs
}

func TestMulRowsReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	cases(func(typ Type, kind ActKind, cols int) {
		const rows, n = 5, 3
		w := randomMat(t, rng, typ, rows, cols)
		floats := normals(rng, n*cols)
		hurtful(rng, floats[cols:])
		x := NewActs(kind, cols, n)
		for i := range n {
			x.SetRow(i, floats[i*cols:(i+1)*cols])
		}
		dst := make([]float32, n*rows)
		MulRows(dst, rows, &w, 0, rows, x, nil, n)
		wf := make([]float32, cols)
		for r := range rows {
			Dequantize(typ, wf, w.Data[r*typ.RowBytes(cols):])
			for i := range n {
				got := dst[i*rows+r]
				xf := floats[i*cols : (i+1)*cols]
				if kind == ActF32 {
					if want := Dot(wf, xf); math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("%v %v cols %d: got %g, Dot of the dequantised row is %g", typ, kind, cols, got, want)
					}
					continue
				}
				want, bound := intReference(&w, r, x, i)
				if e := math.Abs(float64(got) - want); !(e <= bound) {
					t.Fatalf("%v %v cols %d row %d,%d: got %g, want %g, error %g > %g", typ, kind, cols, r, i, got, want, e, bound)
				}
				// Against the activations before rounding: half a step each, and the rounding of the step itself.
				var exact, half float64
				for e, v := range xf {
					exact += float64(wf[e]) * float64(v)
					half += math.Abs(float64(wf[e])) * math.Abs(float64(x.D[(i*cols+e)/kind.block()])) * 0.5001
				}
				if e := math.Abs(float64(got) - exact); e > half+2*bound {
					t.Fatalf("%v %v cols %d row %d,%d: got %g, unrounded %g, error %g > %g", typ, kind, cols, r, i, got, exact, e, half)
				}
			}
		}
	})
}

// TestMulRowsGolden compares with ggml's portable dot product, which keeps scales of 32 activations as float16.
func TestMulRowsGolden(t *testing.T) {
	xs, _, _ := goldenActs(t)
	for _, typ := range quantised() {
		g := readGolden(t, typ)
		w, err := NewMat(typ, 1, 512, g.row)
		if err != nil {
			t.Fatal(err)
		}
		x := NewActs(typ.ActKind(), 512, 1)
		x.SetRow(0, xs)
		var dst [1]float32
		MulRows(dst[:], 1, &w, 0, 1, x, nil, 1)
		var abs float64
		for i, v := range g.rowFloats {
			abs += math.Abs(float64(v) * float64(xs[i]))
		}
		limit := abs * 0x1p-20
		if x.Kind == ActQ8_0 {
			limit = abs * 0x1p-11
		}
		if e := math.Abs(float64(dst[0]) - float64(g.dot)); e > limit {
			t.Errorf("%v: got %g, ggml has %g, limit %g", typ, dst[0], g.dot, limit)
		}
	}
}

// TestMulRowsTiling wants the same bits for a result however the call is cut.
func TestMulRowsTiling(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	cases(func(typ Type, kind ActKind, cols int) {
		const rows, n = tileRows + 5, 2*tileActs + 3
		w := randomMat(t, rng, typ, rows, cols)
		x := randomActs(rng, kind, cols, n)
		whole := make([]float32, n*rows)
		MulRows(whole, rows, &w, 0, rows, x, nil, n)
		one := make([]float32, rows)
		for i := range n {
			for r := 0; r < rows; r += 3 {
				MulRows(one, 0, &w, r, min(r+3, rows), x, []int32{int32(i)}, 1)
			}
			if !sameBits(one, whole[i*rows:(i+1)*rows]) {
				t.Fatalf("%v %v cols %d: row %d alone differs", typ, kind, cols, i)
			}
		}
		const m, ld = 2*n + 1, rows + 4
		xrow := make([]int32, m)
		for i := range xrow {
			xrow[i] = int32(rng.IntN(n))
		}
		dst, check := guarded(m*ld, 1)
		for i := range dst {
			dst[i] = 12345
		}
		MulRows(dst, ld, &w, 2, rows-1, x, xrow, m)
		check(t, "MulRows")
		for i, v := range dst {
			want := float32(12345)
			if r := i % ld; r >= 2 && r < rows-1 {
				want = whole[int(xrow[i/ld])*rows+r]
			}
			if math.Float32bits(v) != math.Float32bits(want) {
				t.Fatalf("%v %v cols %d: place %d,%d is %g, want %g", typ, kind, cols, i/ld, i%ld, v, want)
			}
		}
	})
}

func TestMulAddRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	cases(func(typ Type, kind ActKind, cols int) {
		const rows, n, dstRows, ld = 9, tileActs + 4, 6, 11
		w := randomMat(t, rng, typ, rows, cols)
		x := randomActs(rng, kind, cols, n+2)
		prod := make([]float32, (n+2)*rows)
		MulRows(prod, rows, &w, 0, rows, x, nil, n+2)
		drow, scale := make([]int32, n), make([]float32, n)
		for i := range n {
			drow[i], scale[i] = int32(rng.IntN(dstRows)), rng.Float32()
		}
		want := normals(rng, dstRows*ld)
		dst, check := guarded(len(want), 3)
		copy(dst, want)
		for i := range n {
			for r := 1; r < 8; r++ {
				want[int(drow[i])*ld+r] += float32(scale[i] * prod[(2+i)*rows+r])
			}
		}
		MulAddRows(dst, ld, &w, 1, 8, x, 2, drow, scale)
		check(t, "MulAddRows")
		if !sameBits(dst, want) {
			t.Fatalf("%v %v cols %d: sums differ", typ, kind, cols)
		}
	})
}

func TestMulRowsNotFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	cases(func(typ Type, kind ActKind, cols int) {
		const rows = 3
		w := randomMat(t, rng, typ, rows, cols)
		clear(w.Data[:typ.RowBytes(cols)]) // zero scales and codes do not hide a NaN
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			x := randomActs(rng, kind, cols, 2)
			v := normals(rng, cols)
			v[rng.IntN(cols)] = float32(bad)
			x.SetRow(1, v)
			dst := make([]float32, 2*rows)
			MulRows(dst, rows, &w, 0, rows, x, nil, 2)
			for i, v := range dst {
				if good := v-v == 0; good != (i < rows) {
					t.Fatalf("%v %v cols %d with %g: result %d is %g", typ, kind, cols, bad, i, v)
				}
				if kind != ActF32 && i >= rows && v == v {
					t.Fatalf("%v %v cols %d with %g: result %d is %g, want NaN", typ, kind, cols, bad, i, v)
				}
			}
		}
	})
}

func TestMulRowsEmpty(t *testing.T) {
	for _, typ := range supported() {
		for _, kind := range []ActKind{ActF32, typ.ActKind()} {
			w, err := NewMat(typ, 2, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			x := NewActs(kind, 0, 2)
			dst := []float32{1, 2, 3, 4}
			MulRows(dst, 2, &w, 0, 2, x, nil, 0)
			MulRows(dst, 2, &w, 1, 1, x, nil, 2)
			MulRows(nil, 0, &w, 0, 0, x, nil, 0)
			MulAddRows(dst, 2, &w, 0, 2, x, 0, nil, nil)
			if !sameBits(dst, []float32{1, 2, 3, 4}) {
				t.Errorf("%v %v: nothing to do wrote %v", typ, kind, dst)
			}
			MulRows(dst, 2, &w, 0, 2, x, nil, 2)
			if !sameBits(dst, make([]float32, 4)) {
				t.Errorf("%v %v: rows of nothing give %v", typ, kind, dst)
			}
		}
	}
}

func TestMulRowsMisuse(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	w := randomMat(t, rng, Q4_K, 4, 256)
	x, other := NewActs(ActQ8_K, 256, 2), NewActs(ActQ8_0, 256, 2)
	long, dst := NewActs(ActQ8_K, 512, 2), make([]float32, 8)
	for name, f := range map[string]func(){
		"kind":         func() { MulRows(dst, 4, &w, 0, 4, other, nil, 2) },
		"cols":         func() { MulRows(dst, 4, &w, 0, 4, long, nil, 2) },
		"rows":         func() { MulRows(dst, 5, &w, 0, 5, x, nil, 1) },
		"negative row": func() { MulRows(dst, 4, &w, -1, 4, x, nil, 1) },
		"order":        func() { MulRows(dst, 4, &w, 3, 2, x, nil, 1) },
		"n":            func() { MulRows(dst, 4, &w, 0, 4, x, nil, 3) },
		"negative n":   func() { MulRows(dst, 4, &w, 0, 4, x, nil, -1) },
		"stride":       func() { MulRows(dst, 3, &w, 0, 4, x, nil, 2) },
		"short dst":    func() { MulRows(dst[:7], 4, &w, 0, 4, x, nil, 2) },
		"short xrow":   func() { MulRows(dst, 4, &w, 0, 4, x, []int32{0}, 2) },
		"xrow":         func() { MulRows(dst, 4, &w, 0, 4, x, []int32{2}, 1) },
		"scale":        func() { MulAddRows(dst, 4, &w, 0, 4, x, 0, []int32{0, 1}, []float32{1}) },
		"x0":           func() { MulAddRows(dst, 4, &w, 0, 4, x, 1, []int32{0, 1}, []float32{1, 1}) },
		"drow":         func() { MulAddRows(dst, 4, &w, 0, 4, x, 0, []int32{2}, []float32{1}) },
	} {
		wantPanic(t, name, f)
	}
}

func TestMulRowsAllocs(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	cases(func(typ Type, kind ActKind, cols int) {
		w := randomMat(t, rng, typ, 3, cols)
		x := randomActs(rng, kind, cols, 2)
		dst := make([]float32, 6)
		drow, scale := []int32{1, 0}, []float32{1, 2}
		if n := testing.AllocsPerRun(3, func() {
			MulRows(dst, 3, &w, 0, 3, x, drow, 2)
			MulAddRows(dst, 3, &w, 0, 3, x, 0, drow, scale)
		}); n != 0 {
			t.Errorf("%v %v: %g allocations", typ, kind, n)
		}
	})
}

// TestMulRowsConcurrent runs two products over shared weights and activations.
func TestMulRowsConcurrent(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	w := randomMat(t, rng, Q4_K, 64, 512)
	x := randomActs(rng, ActQ8_K, 512, 4)
	var dst [2][]float32
	var wg sync.WaitGroup
	for g := range dst {
		dst[g] = make([]float32, 4*64)
		wg.Go(func() {
			for r := 0; r < 64; r += 16 {
				MulRows(dst[g], 64, &w, r, r+16, x, nil, 4)
			}
		})
	}
	wg.Wait()
	if !sameBits(dst[0], dst[1]) {
		t.Error("two products at once differ")
	}
}

// TestLanesExact takes the integer sums at the ends of every code and activation.
func TestLanesExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, bits := range []uint8{4, 5, 6, 8} {
		largest := byte(1<<bits - 1)
		for round := range 200 {
			var u [chunk]byte
			var q [chunk]int8
			for i := range u {
				switch round {
				case 0:
					u[i], q[i] = largest, 127
				case 1:
					u[i], q[i] = largest, -127
				case 2:
					u[i], q[i] = largest, int8(127-254*(i&1))
				case 3:
					u[i], q[i] = largest, int8(-127+254*(i>>1&1))
				default:
					u[i], q[i] = byte(rng.IntN(int(largest)+1)), int8(rng.IntN(255)-127)
				}
			}
			var p lanes
			var s [chunk / 16]int32
			p.pack(q[:])
			p.sums(&s, &u, bits)
			for g := range s {
				var want int32
				for e := g * 16; e < g*16+16; e++ {
					want += int32(u[e]) * int32(q[e])
				}
				if s[g] != want {
					t.Fatalf("%d bits round %d group %d: got %d, want %d", bits, round, g, s[g], want)
				}
			}
		}
	}
}

// FuzzMulRows reads any bytes as weights and wants the integer path within its bound of the float64 product.
func FuzzMulRows(f *testing.F) {
	for i, typ := range quantised() {
		f.Add(uint8(i), uint64(i), uint8(3), readGolden(f, typ).blocks)
	}
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, shape uint8, data []byte) {
		typ := quantised()[int(which)%len(quantised())]
		cols := typ.BlockLen() * (1 + int(shape)%9)
		rows := min(len(data)/typ.RowBytes(cols), 4)
		w, err := NewMat(typ, rows, cols, data[:rows*typ.RowBytes(cols)])
		if err != nil {
			t.Fatal(err)
		}
		const n = 3
		rng := rand.New(rand.NewPCG(seed, 0))
		x := NewActs(typ.ActKind(), cols, n)
		v := make([]float32, cols)
		for i := range n {
			hurtful(rng, v)
			x.SetRow(i, v)
		}
		dst := make([]float32, n*rows)
		MulRows(dst, rows, &w, 0, rows, x, nil, n)
		for i := range n {
			for r := range rows {
				got := float64(dst[i*rows+r])
				want, bound := intReference(&w, r, x, i)
				// Products of tiny scales underflow by at most one subnormal step, times an integer below 2^29, per block.
				bound += float64(cols/x.Kind.block()) * 2 * 0x1p-149 * (1 << 29)
				if math.Abs(want)+bound/eps32 > 1e38 || want != want {
					continue // beyond float32, or scales that are not finite
				}
				if e := math.Abs(got - want); !(e <= bound) {
					t.Fatalf("%v cols %d row %d,%d: got %g, want %g, error %g > %g", typ, cols, r, i, got, want, e, bound)
				}
			}
		}
	})
}

func ExampleMulRows() {
	w, err := NewMat(Q8_0, 1, 32, append([]byte{0x00, 0x38}, make([]byte, 32)...)) // scale 0.5
	if err != nil {
		fmt.Println(err)
		return
	}
	w.Data[2], w.Data[3] = 4, 0xff // 2 and -0.5
	x := NewActs(w.Type.ActKind(), w.Cols, 1)
	row := make([]float32, 32)
	row[0], row[1] = 127, 2
	x.SetRow(0, row)
	var y [1]float32
	MulRows(y[:], 1, &w, 0, 1, x, nil, 1)
	fmt.Println(y[0])
	// Output: 253
}
