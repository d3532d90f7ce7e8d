//go:build cuda

package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// productTypes are the types with products.
var productTypes = []kernels.Type{kernels.F32, kernels.F16, kernels.BF16, kernels.Q8_0, kernels.Q4_0, kernels.Q4_K, kernels.Q5_K, kernels.Q6_K}

// gaussWeights returns rows x k normal values rounded to the type.
func gaussWeights(r *rand.Rand, t kernels.Type, rows, k int) []byte {
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	b := make([]byte, t.RowBytes(rows*k))
	kernels.Quantize(t, b, x)
	return b
}

// wildWeights returns blocks of random bits, so that every code and scale occurs, with finite scales up to 2^limit.
func wildWeights(r *rand.Rand, t kernels.Type, rows, k, limit int) []byte {
	b := make([]byte, t.RowBytes(rows*k))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	size := t.BlockBytes()
	half := func(at int) {
		v := math.Ldexp(2*r.Float64()-1, limit-r.IntN(12))
		binary.LittleEndian.PutUint16(b[at:], kernels.F32ToF16(float32(min(max(v, -65504), 65504))))
	}
	for at := 0; at < len(b); at += size {
		switch t {
		case kernels.F32:
			binary.LittleEndian.PutUint32(b[at:], math.Float32bits(float32(math.Ldexp(2*r.Float64()-1, limit-r.IntN(30)))))
		case kernels.BF16:
			binary.LittleEndian.PutUint16(b[at:], kernels.F32ToBF16(float32(math.Ldexp(2*r.Float64()-1, limit-r.IntN(30)))))
		case kernels.Q4_K, kernels.Q5_K:
			half(at)
			half(at + 2)
		case kernels.Q6_K:
			half(at + 208)
		default: // F16 too
			half(at)
		}
	}
	return b
}

// place uploads a matrix and returns it as the products want it.
func place(t testing.TB, typ kernels.Type, raw []byte, rows, k int) dev.Ptr {
	t.Helper()
	if !dev.NeedsRepack(typ) {
		return upload(t, raw)
	}
	src := upload(t, raw)
	dst := alloc(t, dev.DeviceBytes(typ, rows, k))
	run(t, dev.Repack(typ, dst, src, rows, k))
	return dst
}

// activations uploads n rows of k values in the form that the type's products take, quantised by the device, and returns
// them with the values that they then stand for.
func activations(t testing.TB, typ kernels.Type, x []float32, k int) (dev.Ptr, []float64) {
	t.Helper()
	p, n := upload(t, x), len(x)/k
	values := make([]float64, len(x))
	if !dev.Quantised(typ) {
		for i, v := range x {
			values[i] = float64(v)
		}
		return p, values
	}
	q := alloc(t, dev.Q8Bytes(n, k))
	run(t, dev.Quantize(q, p, n, k, 0))
	for i, row := range q8Rows(t, q, n, k) {
		for j, c := range row.codes {
			values[i*k+j] = float64(row.d[j/32]) * float64(c)
		}
	}
	return q, values
}

// q8Row is a Q8_1 row as it lies on the device.
type q8Row struct {
	codes []int8
	d, ds []float32
}

func q8Rows(t testing.TB, q dev.Ptr, n, k int) []q8Row {
	t.Helper()
	b := download[byte](t, q, int(dev.Q8Bytes(n, k)))
	rows := make([]q8Row, n)
	for i := range rows {
		row := b[dev.Q8Row(0, k, i):]
		for _, c := range row[:k] {
			rows[i].codes = append(rows[i].codes, int8(c))
		}
		for j, v := range floats(row[k : k+k/4]) {
			if j%2 == 0 {
				rows[i].d = append(rows[i].d, v)
			} else {
				rows[i].ds = append(rows[i].ds, v)
			}
		}
	}
	return rows
}
