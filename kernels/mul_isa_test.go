package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// sameResults is sameBits with all NaN taken as one: which of two NaN operands a sum keeps is not part of the result.
func sameResults(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
			return false
		}
	}
	return true
}

// rawMat is a matrix at an odd address between guard bytes.
func rawMat(tb testing.TB, typ Type, rows, cols, offset int, fill func([]byte)) (w Mat, check func()) {
	const guard = 96
	size := rows * typ.RowBytes(cols)
	all := make([]byte, guard+offset+size+guard)
	for i := range all {
		all[i] = 0xa5
	}
	lo := guard + offset
	data := all[lo : lo+size : lo+size]
	fill(data)
	before := string(all)
	w, err := NewMat(typ, rows, cols, data)
	if err != nil {
		tb.Fatal(err)
	}
	return w, func() {
		tb.Helper()
		if string(all) != before {
			tb.Fatalf("%v %dx%d: weights or their surroundings written", typ, rows, cols)
		}
	}
}

// fills are contents of a weight matrix: plausible ones, any bytes, and the ends of every code and scale.
func fills(rng *rand.Rand, typ Type, cols int) map[string]func([]byte) {
	return map[string]func([]byte){
		"quantised": func(b []byte) {
			for n := typ.RowBytes(cols); len(b) > 0; b = b[n:] {
				Quantize(typ, b[:n], normals(rng, cols))
			}
		},
		"random": func(b []byte) {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		},
		"ones": func(b []byte) {
			for i := range b {
				b[i] = 0xff
			}
			finiteScales(typ, b)
		},
		"high bits": func(b []byte) {
			for i := range b {
				b[i] = 0x80
			}
			finiteScales(typ, b)
		},
		"low bits": func(b []byte) {
			for i := range b {
				b[i] = 0x7f
			}
			finiteScales(typ, b)
		},
	}
}

// finiteScales puts float16 numbers where blocks of a constant byte would have NaN.
func finiteScales(typ Type, b []byte) {
	var places []int
	switch typ {
	case Q4_0, Q5_0, Q8_0, IQ4_NL, IQ4_XS:
		places = []int{0}
	case Q4_1, Q5_1, Q4_K, Q5_K:
		places = []int{0, 2}
	case Q2_K:
		places = []int{80, 82}
	case Q3_K:
		places = []int{108}
	case Q6_K:
		places = []int{208}
	case MXFP4:
		return
	}
	for at := 0; at < len(b); at += typ.BlockBytes() {
		for _, p := range places {
			b[at+p], b[at+p+1] = 0x66, 0x2e // 0.1
		}
	}
}

// extremeActs are activation rows whose codes stand at both ends, with a row that has a NaN.
func extremeActs(rng *rand.Rand, kind ActKind, cols, rows int) *Acts {
	x := NewActs(kind, cols, rows)
	for i := range rows {
		v := normals(rng, cols)
		switch i % 5 {
		case 1:
			for j := range v {
				v[j] = 1
			}
		case 2:
			for j := range v {
				v[j] = float32(1 - 2*(j&1))
			}
		case 3:
			hurtful(rng, v)
		}
		if i == 6 {
			v[rng.IntN(cols)] = float32(math.NaN())
		}
		x.SetRow(i, v)
	}
	return x
}

// TestMulISA wants from every instruction set the bits of the generic path, at every tail of rows and activations.
func TestMulISA(t *testing.T) {
	isas(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(23, 24))
		for _, typ := range quantised() {
			cols := []int{256, 512, 1280}
			if typ.BlockLen() == 32 {
				cols = []int{32, 64, 96, 256, 288, 352, 992}
			}
			for _, nx := range cols {
				for what, fill := range fills(rng, typ, nx) {
					rows := []int{1, 7, 8, 9, 31, 32, 33, 40, 50, 63, 64, 70, 97}[rng.IntN(13)]
					w, check := rawMat(t, typ, rows, nx, rng.IntN(64), fill)
					x := extremeActs(rng, typ.ActKind(), nx, 70)
					for range 6 {
						n := 1 + rng.IntN(70)
						if rng.IntN(2) == 0 {
							n = 1 + rng.IntN(4)
						}
						compareISA(t, fmt.Sprintf("%v %dx%d %s n=%d", typ, rows, nx, what, n), rng, &w, x, n)
					}
					check()
				}
			}
		}
	})
}

// compareISA makes one call of each function, with a random part of the rows, beside the generic one.
func compareISA(t *testing.T, what string, rng *rand.Rand, w *Mat, x *Acts, n int) {
	t.Helper()
	r0 := rng.IntN(w.Rows)
	r1 := r0 + 1 + rng.IntN(w.Rows-r0)
	if rng.IntN(3) == 0 {
		r0, r1 = 0, w.Rows
	}
	ld := w.Rows + rng.IntN(9)
	var xrow []int32
	if rng.IntN(2) == 0 {
		xrow = make([]int32, n)
		for i := range xrow {
			xrow[i] = int32(rng.IntN(x.Cap))
		}
	}
	got, check := guarded(n*ld, rng.IntN(5))
	for i := range got {
		got[i] = 12345
	}
	want := append([]float32(nil), got...)
	MulRows(got, ld, w, r0, r1, x, xrow, n)
	check(t, what)
	mulRowsGeneric(&mul{dst: want, ld: ld, w: w, r0: r0, r1: r1, x: x, xrow: xrow, n: n})
	if !sameResults(got, want) {
		i := firstDifference(got, want)
		t.Fatalf("%s: MulRows rows %d to %d: result %d,%d is %g, want %g", what, r0, r1, i/ld, i%ld, got[i], want[i])
	}
	x0 := rng.IntN(x.Cap - n + 1)
	drow, scale := make([]int32, n), normals(rng, n)
	for i := range drow {
		drow[i] = int32(rng.IntN(n))
	}
	copy(got, normals(rng, len(got)))
	copy(want, got)
	MulAddRows(got, ld, w, r0, r1, x, x0, drow, scale)
	check(t, what)
	mulRowsGeneric(&mul{dst: want, ld: ld, w: w, r0: r0, r1: r1, x: x, x0: x0, n: n, drow: drow, scale: scale})
	if !sameResults(got, want) {
		i := firstDifference(got, want)
		t.Fatalf("%s: MulAddRows rows %d to %d: result %d,%d is %g, want %g", what, r0, r1, i/ld, i%ld, got[i], want[i])
	}
}

func firstDifference(a, b []float32) int {
	for i := range a {
		if !sameResults(a[i:i+1], b[i:i+1]) {
			return i
		}
	}
	return -1
}

// FuzzMulISA reads any bytes as weights and wants the generic path's bits from the best instruction set.
func FuzzMulISA(f *testing.F) {
	for i, typ := range quantised() {
		f.Add(uint8(i), uint64(i), uint8(3), readGolden(f, typ).blocks)
	}
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, shape uint8, data []byte) {
		typ := quantised()[int(which)%len(quantised())]
		cols := typ.BlockLen() * (1 + int(shape)%19)
		if len(data) == 0 {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		rows := 1 + rng.IntN(40)
		w, check := rawMat(t, typ, rows, cols, rng.IntN(64), func(b []byte) {
			for i := range b {
				b[i] = data[(i+i/len(data))%len(data)]
			}
		})
		x := extremeActs(rng, typ.ActKind(), cols, 20)
		for _, isa := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, isa); ok {
				compareISA(t, fmt.Sprintf("%v %dx%d isa=%s", typ, rows, cols, isa), rng, &w, x, 1+rng.IntN(20))
				restore()
			}
		}
		check()
	})
}

func TestMulISAAllocs(t *testing.T) {
	isas(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(25, 26))
		for _, typ := range quantised() {
			w := randomMat(t, rng, typ, 40, 256)
			x := randomActs(rng, typ.ActKind(), 256, 3)
			dst := make([]float32, 3*40)
			drow, scale := []int32{1, 0, 2}, []float32{1, 2, 3}
			for _, n := range []int{1, 3} {
				if a := testing.AllocsPerRun(3, func() {
					MulRows(dst, 40, &w, 0, 40, x, drow, n)
					MulAddRows(dst, 40, &w, 0, 40, x, 0, drow[:n], scale[:n])
				}); a != 0 {
					t.Errorf("%v n=%d: %g allocations", typ, n, a)
				}
			}
		}
	})
}

// TestMulISALong takes more activation rows than a tile's sums have room for, and a long row.
func TestMulISALong(t *testing.T) {
	isas(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(27, 28))
		for _, typ := range []Type{Q8_0, Q4_K, Q6_K} {
			w := randomMat(t, rng, typ, 33, 1024)
			x := extremeActs(rng, typ.ActKind(), 1024, 130)
			compareISA(t, fmt.Sprintf("%v 33x1024 n=130", typ), rng, &w, x, 130)
		}
	})
}
