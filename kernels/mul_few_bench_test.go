package kernels

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// BenchmarkFewRows is the products of one token of each of a few sequences, with wide products beside them: few rows
// should cost what one row does, or what their share of the wide product would, whichever is more. Weights lie in L2. It
// reports the fastest call, which other work on the machine changes least.
func BenchmarkFewRows(b *testing.B) {
	const rows, cols, most = 64, 2048, 512
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range supported() {
		w := randomMat(b, rng, typ, rows, cols)
		x := NewActs(typ.ActKind(), cols, most)
		for i := range most {
			x.SetRow(i, normals(rng, cols))
		}
		dst := make([]float32, most*rows)
		for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17, 32, most} {
			benchEachISA(b, fmt.Sprintf("type=%s/rows=%d/cols=%d/n=%d", strings.ToLower(typ.String()), rows, cols, n), func(b *testing.B) {
				if ISA() == "generic" {
					b.Skip("measured by BenchmarkMulRows")
				}
				best := time.Duration(1 << 62)
				for b.Loop() {
					start := time.Now()
					MulRows(dst, rows, &w, 0, rows, x, nil, n)
					best = min(best, time.Since(start))
				}
				ns := float64(best.Nanoseconds())
				b.ReportMetric(ns, "min-ns/call")
				b.ReportMetric(ns/float64(n), "min-ns/row")
				b.ReportMetric(float64(rows*cols*n)/ns, "MAC/ns")
			})
		}
	}
}
