package kernels

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkMulRows streams the bytes of the weight rows once per call, whatever n is.
func BenchmarkMulRows(b *testing.B) {
	const rows, cols = 256, 2048
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range supported() {
		w := randomMat(b, rng, typ, rows, cols)
		for _, n := range []int{1, 8} {
			x := randomActs(rng, typ.ActKind(), cols, n)
			dst := make([]float32, n*rows)
			b.Run(fmt.Sprintf("type=%s/rows=%d/cols=%d/n=%d/isa=%s", strings.ToLower(typ.String()), rows, cols, n, ISA()), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(w.Data)))
				for b.Loop() {
					MulRows(dst, rows, &w, 0, rows, x, nil, n)
				}
				b.ReportMetric(float64(rows*cols*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}

// BenchmarkMulRowsFloat is the path of quantised weights with float32 activations.
func BenchmarkMulRowsFloat(b *testing.B) {
	const rows, cols, n = 256, 2048, 8
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range []Type{Q8_0, Q4_K} {
		w := randomMat(b, rng, typ, rows, cols)
		x := randomActs(rng, ActF32, cols, n)
		dst := make([]float32, n*rows)
		b.Run(fmt.Sprintf("type=%s/rows=%d/cols=%d/n=%d/isa=%s", strings.ToLower(typ.String()), rows, cols, n, ISA()), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(w.Data)))
			for b.Loop() {
				MulRows(dst, rows, &w, 0, rows, x, nil, n)
			}
		})
	}
}

func BenchmarkSetRow(b *testing.B) {
	x := normals(rand.New(rand.NewPCG(1, 2)), 2048)
	for _, kind := range []ActKind{ActF32, ActQ8_0, ActQ8_K} {
		a := NewActs(kind, len(x), 1)
		b.Run(fmt.Sprintf("kind=%v/cols=%d", kind, len(x)), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				a.SetRow(0, x)
			}
		})
	}
}
