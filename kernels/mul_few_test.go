package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestMulFewRows multiplies 1 to 17 rows of activations, those of one token of each of a few sequences, by every type: the
// bits of the portable path, and each row's those of the row alone.
func TestMulFewRows(t *testing.T) {
	onEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(33, 34))
		for _, typ := range supported() {
			const rows, most = 75, 17
			cols := 768
			if typ.BlockLen() == 32 {
				cols = 288
			}
			w := randomMat(t, rng, typ, rows, cols)
			x := NewActs(typ.ActKind(), cols, most)
			for i := range most {
				v := normals(rng, cols)
				hurtful(rng, v[:cols/2])
				x.SetRow(i, v)
			}
			want := make([]float32, most*rows)
			onGeneric(t, func() { MulRows(want, rows, &w, 0, rows, x, nil, most) })
			alone := make([]float32, rows)
			for i := range most {
				MulRows(alone, rows, &w, 0, rows, x, []int32{int32(i)}, 1)
				if !sameBits(alone, want[i*rows:(i+1)*rows]) {
					t.Fatalf("%v: row %d alone differs at %d", typ, i, firstUnequal(alone, want[i*rows:]))
				}
			}
			for n := 1; n <= most; n++ {
				got, check := guarded(n*rows, n%5)
				MulRows(got, rows, &w, 0, rows, x, nil, n)
				check(t, fmt.Sprint(typ, n))
				if !sameBits(got, want[:n*rows]) {
					t.Fatalf("%v: %d rows: value %d differs", typ, n, firstUnequal(got, want))
				}
				// The last rows first, added to what is there.
				drow, scale, sum := make([]int32, n), make([]float32, n), make([]float32, n*rows)
				for i := range n {
					drow[i], scale[i] = int32(n-1-i), float32(i)-1.5
				}
				wantSum := normals(rng, n*rows)
				copy(sum, wantSum)
				for i := range n {
					for r := range rows {
						wantSum[int(drow[i])*rows+r] += float32(scale[i] * want[(most-n+i)*rows+r])
					}
				}
				MulAddRows(sum, rows, &w, 0, rows, x, most-n, drow, scale)
				if !sameBits(sum, wantSum) {
					t.Fatalf("%v: %d rows added: value %d differs", typ, n, firstUnequal(sum, wantSum))
				}
			}
		}
	})
}
