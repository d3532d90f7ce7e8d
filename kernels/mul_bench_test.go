package kernels

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkMulRows streams the bytes of the weight rows once per call, whatever n is: with mem=hot always the same few
// hundred kilobytes, with mem=cold the next matrix of more than the caches hold.
func BenchmarkMulRows(b *testing.B) {
	const rows, cols, coldBytes = 256, 2048, 96 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	var cold []byte
	for _, typ := range supported() {
		hot := randomMat(b, rng, typ, rows, cols)
		for _, n := range []int{1, 2, 4, 16, 64} {
			x := randomActs(rng, typ.ActKind(), cols, n)
			dst := make([]float32, n*rows)
			for _, isa := range []string{"generic", "avx2", "avx512"} {
				for _, mem := range []string{"hot", "cold"} {
					if mem == "cold" && n > 4 || isa == "generic" && mem == "cold" {
						continue // bound by arithmetic
					}
					name := fmt.Sprintf("type=%s/rows=%d/cols=%d/n=%d/isa=%s/mem=%s", strings.ToLower(typ.String()), rows, cols, n, isa, mem)
					b.Run(name, func(b *testing.B) {
						restore, ok := takeISA(b, isa)
						if !ok {
							b.SkipNow()
						}
						defer restore()
						mats := []Mat{hot}
						if mem == "cold" {
							if cold == nil {
								cold = make([]byte, coldBytes)
							}
							size := len(hot.Data)
							mats = make([]Mat, len(cold)/size)
							for i := range mats {
								mats[i] = hot
								mats[i].Data = cold[i*size : (i+1)*size]
								copy(mats[i].Data, hot.Data)
							}
						}
						b.ReportAllocs()
						b.SetBytes(int64(len(hot.Data)))
						i := 0
						for b.Loop() {
							MulRows(dst, rows, &mats[i], 0, rows, x, nil, n)
							if i++; i == len(mats) {
								i = 0
							}
						}
						b.ReportMetric(float64(rows*cols*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
					})
				}
			}
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
