//go:build cuda

package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// productShapes are rows and k for a type: fewer rows than a warp takes, none over and some over, and lengths that leave
// lanes idle, fill them, and go round several times.
func productShapes(t kernels.Type) [][2]int {
	if t.BlockLen() == 256 {
		return [][2]int{{1, 256}, {3, 512}, {17, 768}, {40, 2048}, {6, 2304}}
	}
	return [][2]int{{1, 32}, {2, 64}, {3, 96}, {17, 256}, {33, 768}, {40, 2048}, {6, 2080}}
}

// productInputs make weights and n rows of activations.
var productInputs = []struct {
	name string
	make func(r *rand.Rand, t kernels.Type, rows, k, n int) (w []byte, x []float32)
}{
	{"random", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		return gaussWeights(r, t, rows, k), activationRows(r, n, k)
	}},
	// Neighbours of one size and two signs, on weights that are nearly equal: what remains is small beside the terms.
	{"cancelling", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		w, x := make([]float32, rows*k), make([]float32, n*k)
		for i := range w {
			w[i] = 1 + float32(r.NormFloat64())/1000
		}
		for i := range x {
			x[i] = 1e6 * float32(1+r.NormFloat64()/100)
			if i%2 == 1 {
				x[i] = -x[i-1] * (1 + 0x1p-18)
			}
		}
		b := make([]byte, t.RowBytes(rows*k))
		kernels.Quantize(t, b, w)
		return b, x
	}},
	{"wild", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		return wildWeights(r, t, rows, k, 15), activationRows(r, n, k)
	}},
	// The largest scales with large values; the smallest with values whose products are denormal.
	{"huge", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		x := activationRows(r, n, k)
		for i := range x {
			x[i] *= 1e20
		}
		return wildWeights(r, t, rows, k, 16), x
	}},
	{"tiny", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		x := activationRows(r, n, k)
		for i := range x {
			x[i] *= 1e-35
		}
		return wildWeights(r, t, rows, k, -13), x
	}},
	{"zero", func(r *rand.Rand, t kernels.Type, rows, k, n int) ([]byte, []float32) {
		return make([]byte, t.RowBytes(rows*k)), make([]float32, n*k)
	}},
}

// TestCUDAProduct compares products with sums in float64 over the weights as kernels.Dequantize has them and the
// activations as the device quantised them, within productBound.
func TestCUDAProduct(t *testing.T) {
	for _, typ := range productTypes {
		for i, in := range productInputs {
			for j, shape := range productShapes(typ) {
				rows, k := shape[0], shape[1]
				n := []int{1, 2, 3, 8, 13}[(i+j)%5]
				t.Run(fmt.Sprintf("type=%v/input=%s/rows=%d/k=%d/n=%d", typ, in.name, rows, k, n), func(t *testing.T) {
					r := rand.New(rand.NewPCG(uint64(typ), uint64(100*i+j)))
					raw, x := in.make(r, typ, rows, k, n)
					act, values := activations(t, typ, x, k)
					y := alloc(t, int64(4*rows*n))
					run(t, dev.Product(typ, y, place(t, typ, raw, rows, k), act, rows, k, n, dev.Out{}))
					checkProduct(t, typ, raw, rows, k, values, download[float32](t, y, rows*n))
				})
			}
		}
	}
}

func checkProduct(t *testing.T, typ kernels.Type, raw []byte, rows, k int, values []float64, got []float32) {
	t.Helper()
	w := make([]float32, k)
	for r := range rows {
		row := raw[r*typ.RowBytes(k) : (r+1)*typ.RowBytes(k)]
		kernels.Dequantize(typ, w, row)
		for c := range len(values) / k {
			x := values[c*k : (c+1)*k]
			want := 0.0
			for i, v := range w {
				want += float64(v) * x[i]
			}
			g := float64(got[c*rows+r])
			if bound := productBound(typ, row, w, x); !(math.Abs(g-want) <= bound) && bound < 1e37 {
				t.Fatalf("row %d column %d: %g, want %g within %g", r, c, g, want, bound)
			}
		}
	}
}

// productBound is how far a product may be from the exact one. With S the sum of the terms' magnitudes, each fused
// multiply-add, each addition of the tree, and each of the roundings inside a term (at most 4: d*sum, weight scale times
// activation scale, and two in what Dequantize rounds) costs at most eps32*S. A term of Q4_K and Q5_K is the difference of
// two products, whose minimum is up to 63 times dmin. A product that is denormal loses at most half of 2^-149, of which the
// scales' is multiplied by the sum of up to 16 products of codes (127 and less than 128 each).
func productBound(typ kernels.Type, row []byte, w []float32, x []float64) float64 {
	sum := 0.0
	for i, v := range w {
		m := math.Abs(float64(v))
		if typ == kernels.Q4_K || typ == kernels.Q5_K {
			m += 2 * 63 * math.Abs(float64(kernels.F16ToF32(binary.LittleEndian.Uint16(row[i/256*typ.BlockBytes()+2:]))))
		}
		sum += m * math.Abs(x[i])
	}
	lanes, values := 32, 16 // values a fused multiply-add takes
	switch typ {
	case kernels.F32:
		lanes, values = 128, 1
	case kernels.F16, kernels.BF16:
		values = 1
	}
	perLane := (len(w)/values+lanes-1)/lanes*3/2 + 8 // Q4_K and Q5_K add a third for 32 values; a unit is up to 8 values
	denormal := 0x1p-150
	if typ.BlockLen() > 1 {
		denormal *= 127 * 127
	}
	return float64(perLane+8+4)*eps32*sum + float64(len(w))*denormal
}

// TestCUDAProductBitsForAnyBatch: the bits of a result are the same for each number of columns from 1 to 64 (128 with
// SLUICE_LONG=1), so the size of a prompt's chunks cannot change its tokens.
func TestCUDAProductBitsForAnyBatch(t *testing.T) {
	most := 64
	if long() {
		most = 128
	}
	for _, typ := range productTypes {
		t.Run(fmt.Sprintf("type=%v", typ), func(t *testing.T) {
			const rows, k = 19, 768
			r := rand.New(rand.NewPCG(7, uint64(typ)))
			w := place(t, typ, gaussWeights(r, typ, rows, k), rows, k)
			act, _ := activations(t, typ, activationRows(r, most, k), k)
			y := alloc(t, int64(4*rows*most))
			var ls []dev.Launch
			for c := range most {
				ls = append(ls, dev.Product(typ, y.At(int64(4*rows*c)), w, act.At(dev.ActBytes(typ, k)*int64(c)), rows, k, 1, dev.Out{}))
			}
			run(t, ls...)
			want := download[float32](t, y, rows*most)
			for n := 2; n <= most; n++ {
				y := alloc(t, int64(4*rows*n))
				run(t, dev.Product(typ, y, w, act, rows, k, n, dev.Out{}))
				wantFloats(t, fmt.Sprintf("%d columns", n), download[float32](t, y, rows*n), want[:rows*n])
			}
		})
	}
}

// TestCUDAProductRepeats: the same launch 100 times, the same bits.
func TestCUDAProductRepeats(t *testing.T) {
	for _, typ := range productTypes {
		const rows, k, n, times = 9, 512, 5, 100
		r := rand.New(rand.NewPCG(8, uint64(typ)))
		w := place(t, typ, wildWeights(r, typ, rows, k, 3), rows, k)
		act, _ := activations(t, typ, activationRows(r, n, k), k)
		y := alloc(t, 4*rows*n*times)
		var ls []dev.Launch
		for i := range times {
			ls = append(ls, dev.Product(typ, y.At(int64(4*rows*n*i)), w, act, rows, k, n, dev.Out{}))
		}
		run(t, ls...)
		got := download[float32](t, y, rows*n*times)
		for i := range times {
			wantFloats(t, fmt.Sprintf("%v: time %d", typ, i), got[rows*n*i:rows*n*(i+1)], got[:rows*n])
		}
	}
}

// TestCUDAProductOut: bias, addition and stride give the product, rounded once more for each, and touch nothing else.
func TestCUDAProductOut(t *testing.T) {
	const rows, k, n, ld = 21, 256, 11, 24
	for _, typ := range productTypes {
		r := rand.New(rand.NewPCG(9, uint64(typ)))
		w := place(t, typ, gaussWeights(r, typ, rows, k), rows, k)
		act, _ := activations(t, typ, activationRows(r, n, k), k)
		y := alloc(t, 4*rows*n)
		run(t, dev.Product(typ, y, w, act, rows, k, n, dev.Out{}))
		plain := download[float32](t, y, rows*n)
		bias, old := denseNormals(r, rows, 1), denseNormals(r, ld*n, 1)
		pb := upload(t, bias)
		for _, o := range []dev.Out{{LD: ld}, {Bias: pb, LD: ld}, {Add: true, LD: ld}, {Bias: pb, Add: true, LD: ld}} {
			y := upload(t, old)
			run(t, dev.Product(typ, y, w, act, rows, k, n, o))
			want := append([]float32(nil), old...)
			for c := range n {
				for i := range rows {
					v := plain[c*rows+i]
					if o.Bias != 0 {
						v += bias[i]
					}
					if o.Add {
						v = old[c*ld+i] + v
					}
					want[c*ld+i] = v
				}
			}
			wantFloats(t, fmt.Sprintf("%v %+v", typ, o), download[float32](t, y, ld*n), want)
		}
	}
}

// TestCUDAProductNotFinite: a NaN or Inf in one column shows in every row of that column, and in no other.
func TestCUDAProductNotFinite(t *testing.T) {
	const rows, k, n = 5, 512, 4
	for _, typ := range productTypes {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			r := rand.New(rand.NewPCG(10, uint64(typ)))
			w := place(t, typ, gaussWeights(r, typ, rows, k), rows, k)
			x := activationRows(r, n, k)
			clean, _ := activations(t, typ, x, k)
			x[2*k+r.IntN(k)] = float32(bad)
			act, _ := activations(t, typ, x, k)
			y, yc := alloc(t, 4*rows*n), alloc(t, 4*rows*n)
			run(t, dev.Product(typ, y, w, act, rows, k, n, dev.Out{}), dev.Product(typ, yc, w, clean, rows, k, n, dev.Out{}))
			got, want := download[float32](t, y, rows*n), download[float32](t, yc, rows*n)
			for i := range rows {
				if v := got[2*rows+i]; v-v == 0 {
					t.Errorf("%v: %g became %g in row %d", typ, bad, v, i)
				}
			}
			copy(got[2*rows:3*rows], want[2*rows:3*rows])
			wantFloats(t, fmt.Sprintf("%v: columns without %g", typ, bad), got, want)
		}
	}
}
