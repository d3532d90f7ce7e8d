//go:build cuda

package kernels_test

import (
	"fmt"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// tokens is rows that have them.
func tokens(t testing.TB, ids []int32) dev.Ptr {
	rows := make([]dev.Row, len(ids))
	for i, id := range ids {
		rows[i] = dev.Row{Pos: -3, Table: 1 << 20, Token: int(id), Exempt: i%2 == 0}
	}
	return upload(t, putRows(rows))
}

func TestCUDAEmbed(t *testing.T) {
	const vocab = 37
	for _, typ := range []kernels.Type{kernels.F32, kernels.F16, kernels.BF16, kernels.Q8_0, kernels.Q4_0, kernels.Q4_K, kernels.Q5_K, kernels.Q6_K} {
		for _, n := range []int{32, 96, 256, 768} {
			if !dev.Fits(typ, n) {
				continue
			}
			r := denseRand(uint64(n) + uint64(typ))
			rowBytes := typ.RowBytes(n)
			quantised := make([]byte, vocab*rowBytes)
			kernels.Quantize(typ, quantised, denseHurtful(r, vocab*n, 1))
			noise := make([]byte, vocab*rowBytes) // every code and scale, NaN and infinity among them
			for i := range noise {
				noise[i] = byte(r.Uint32())
			}
			for name, data := range map[string][]byte{"quantised": quantised, "noise": noise} {
				all := make([]float32, vocab*n)
				kernels.Dequantize(typ, all, data)
				w := upload(t, data)
				for _, ids := range [][]int32{{0}, {vocab - 1}, {5, 0, 36, 5, 17, 1, 2}} {
					var want []float32
					for _, id := range ids {
						want = append(want, all[int(id)*n:][:n]...)
					}
					fault, read := faultWord(t)
					out := alloc(t, int64(4*len(want)))
					run(t, dev.Embed(typ, out, w, tokens(t, ids), fault, len(ids), n, vocab))
					wantFloats(t, fmt.Sprintf("%v n=%d %s ids=%v", typ, n, name, ids), download[float32](t, out, len(want)), want)
					if f, bad := read(); bad {
						t.Fatalf("%v n=%d: fault %+v", typ, n, f)
					}
				}
			}
		}
	}
}

// An id outside the vocabulary is never an address.
func TestCUDAEmbedUnknownToken(t *testing.T) {
	const vocab, n = 3, 64
	w := upload(t, slices.Repeat([]float32{1}, vocab*n))
	for _, bad := range []int32{-1, vocab, -1 << 31, 1<<31 - 1} {
		fault, read := faultWord(t)
		ids := tokens(t, []int32{0, bad, 2, bad})
		out := alloc(t, 4*n*4)
		run(t, dev.Embed(kernels.F32, out, w, ids, fault, 4, n, vocab), dev.Embed(kernels.F32, out, w, ids, 0, 4, n, vocab))
		one, zero := slices.Repeat([]float32{1}, n), make([]float32, n)
		wantFloats(t, "rows", download[float32](t, out, 4*n), slices.Concat(one, zero, one, zero))
		if f, _ := read(); f != (dev.Fault{Where: dev.WhereToken, Row: 1}) {
			t.Errorf("id %d: fault %+v, want row 1's token", bad, f)
		}
	}
}
