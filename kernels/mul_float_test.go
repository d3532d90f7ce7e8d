package kernels

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// checkMulFloat compares MulRows and MulAddRows with float32 activations on the current instruction set with the portable
// path, and MulRows with Dot over the dequantised row.
func checkMulFloat(t *testing.T, r *rand.Rand, typ Type, cols, rows, n int) {
	t.Helper()
	wf := make([]float32, rows*cols)
	hurtful(r, wf)
	if r.IntN(3) == 0 {
		salt(r, wf)
	}
	data := make([]byte, 1+rows*typ.RowBytes(cols))[1:] // unaligned
	Quantize(typ, data, wf)
	w, err := NewMat(typ, rows, cols, data)
	if err != nil {
		t.Fatal(err)
	}
	x := NewActs(ActF32, cols, n+1)
	row := make([]float32, cols)
	for i := range n + 1 {
		hurtful(r, row)
		salt(r, row)
		x.SetRow(i, row)
	}
	r0 := r.IntN(rows)
	r1 := r0 + r.IntN(rows-r0+1)
	xrow, drow, scale := make([]int32, n), make([]int32, n), make([]float32, n)
	for i := range xrow {
		xrow[i], drow[i], scale[i] = int32(r.IntN(n+1)), int32(r.IntN(n)), float32(r.NormFloat64())
	}
	ld := rows + r.IntN(3)
	want, wantAdd := make([]float32, n*ld), make([]float32, n*ld)
	onGeneric(t, func() {
		MulRows(want, ld, &w, r0, r1, x, xrow, n)
		MulAddRows(wantAdd, ld, &w, r0, r1, x, 1, drow, scale)
	})
	got, check := guarded(n*ld, r.IntN(17))
	clear(got)
	gotAdd := make([]float32, n*ld)
	MulRows(got, ld, &w, r0, r1, x, xrow, n)
	MulAddRows(gotAdd, ld, &w, r0, r1, x, 1, drow, scale)
	what := fmt.Sprintf("%v cols=%d rows=%d..%d n=%d", typ, cols, r0, r1, n)
	if i := firstUnequal(got, want); i >= 0 {
		t.Fatalf("%s: MulRows[%d] is %v, want %v", what, i, got[i], want[i])
	}
	if i := firstUnequal(gotAdd, wantAdd); i >= 0 {
		t.Fatalf("%s: MulAddRows[%d] is %v, want %v", what, i, gotAdd[i], wantAdd[i])
	}
	check(t, what)
	for i := range n {
		for k := r0; k < r1; k++ {
			Dequantize(typ, row, w.row(k))
			if dot := Dot(row, x.F[int(xrow[i])*cols:][:cols]); !sameFloat(dot, got[i*ld+k]) {
				t.Fatalf("%s: row %d is %v, Dot gives %v", what, k, got[i*ld+k], dot)
			}
		}
	}
}

func TestMulFloatEqualsGeneric(t *testing.T) {
	onEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(25, 1))
		for _, typ := range []Type{F32, F16, BF16, Q8_0, Q4_K} {
			for _, cols := range []int{0, 1, 15, 16, 17, 32, 48, 64, 100, 256, 272, 512} {
				if cols%typ.BlockLen() != 0 {
					continue
				}
				for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9} {
					checkMulFloat(t, r, typ, cols, 1+r.IntN(13), n)
				}
			}
			checkMulFloat(t, r, typ, 256, 9, floatTestActs)
		}
	})
}

// floatTestActs is more rows of activations than one pass takes.
const floatTestActs = 37

func FuzzMulFloat(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(3), uint8(5), uint8(4))
	f.Fuzz(func(t *testing.T, seed uint64, which, cols, rows, n uint8) {
		typ := []Type{F32, F16, BF16, Q8_0}[which%4]
		for _, name := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, name); ok {
				r := rand.New(rand.NewPCG(seed, 2))
				checkMulFloat(t, r, typ, int(cols)/typ.BlockLen()*typ.BlockLen(), 1+int(rows)%40, 1+int(n)%40)
				restore()
			}
		}
	})
}

// BenchmarkMulFloat counts the bytes of the weights, once a call. cold rotates over matrices that no cache holds.
func BenchmarkMulFloat(b *testing.B) {
	const rows, cols = 512, 2048
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range []Type{F32, F16, BF16} {
		one := randomMat(b, r, typ, rows, cols)
		mats := []Mat{one}
		for size := len(one.Data); size < 128<<20; size += len(one.Data) {
			m := one
			m.Data = append([]byte(nil), one.Data...)
			mats = append(mats, m)
		}
		for _, n := range []int{1, 32} {
			x := NewActs(ActF32, cols, n)
			for i := range n {
				x.SetRow(i, normals(r, cols))
			}
			dst := make([]float32, n*rows)
			benchEachISA(b, fmt.Sprintf("type=%s/rows=%d/cols=%d/n=%d/cache=cold", strings.ToLower(typ.String()), rows, cols, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(one.Data)))
				at := 0
				for b.Loop() {
					MulRows(dst, rows, &mats[at], 0, rows, x, nil, n)
					at = (at + 1) % len(mats)
				}
				b.ReportMetric(float64(rows*cols*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}
