package kernels

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// golden is one type's file of testdata/quant; its README draws the format.
type golden struct {
	blocks    []byte
	floats    []float32
	row       []byte
	rowFloats []float32
	dot       float32
}

func readGolden(tb testing.TB, t Type) golden {
	tb.Helper()
	data, err := os.ReadFile("testdata/quant/" + strings.ToLower(t.String()) + ".bin")
	if err != nil {
		tb.Fatal(err)
	}
	take := func(n int) []byte {
		b := data[:n]
		data = data[n:]
		return b
	}
	floats := func(n int) []float32 {
		f := make([]float32, n)
		Dequantize(F32, f, take(4*n))
		return f
	}
	n := 8 * 32
	if t.BlockLen() == 256 {
		n = 5 * 256
	}
	g := golden{blocks: take(t.RowBytes(n)), floats: floats(n), row: take(t.RowBytes(512)), rowFloats: floats(512)}
	g.dot = floats(1)[0]
	if len(data) != 0 {
		tb.Fatalf("%v: %d bytes left over", t, len(data))
	}
	return g
}

// quantised lists the Supported types that have blocks.
func quantised() []Type {
	var s []Type
	for _, t := range supported() {
		if t.BlockLen() > 1 {
			s = append(s, t)
		}
	}
	return s
}

func TestDequantizeGolden(t *testing.T) {
	for _, typ := range quantised() {
		g := readGolden(t, typ)
		for _, part := range []struct {
			src  []byte
			want []float32
		}{{g.blocks, g.floats}, {g.row, g.rowFloats}} {
			got := make([]float32, len(part.want))
			Dequantize(typ, got, part.src)
			for i, v := range part.want {
				if math.Float32bits(got[i]) != math.Float32bits(v) {
					t.Fatalf("%v element %d: got %g (%#08x), want %g (%#08x)", typ, i, got[i], math.Float32bits(got[i]), v, math.Float32bits(v))
				}
			}
		}
	}
}

// TestDequantizeByHand reads blocks worked out on paper, so that the layouts do not rest on one golden source.
func TestDequantizeByHand(t *testing.T) {
	one, two := []byte{0x00, 0x3c}, []byte{0x00, 0x40} // float16
	z := func(n int) []byte { return make([]byte, n) }
	rep := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
	for _, c := range []struct {
		name string
		typ  Type
		src  [][]byte
		want map[int]float32 // by element
	}{
		{"lowest and highest", Q4_0, [][]byte{one, {0xf0}, z(15)}, map[int]float32{0: -8, 16: 7, 1: -8, 31: -8}},
		{"min added", Q4_1, [][]byte{one, two, {0xf1}, z(15)}, map[int]float32{0: 3, 16: 17, 5: 2}},
		{"fifth bits", Q5_0, [][]byte{one, {0x01, 0, 0, 0x80}, {0x0f}, z(14), {0xf0}}, map[int]float32{0: 15, 31: 15, 16: -16, 15: -16}},
		{"fifth bits and min", Q5_1, [][]byte{one, two, {0x02, 0, 1, 0}, z(16)}, map[int]float32{0: 2, 1: 18, 16: 18, 17: 2}},
		{"signed", Q8_0, [][]byte{two, {0x80, 0x7f, 0xff}, z(29)}, map[int]float32{0: -256, 1: 254, 2: -2, 31: 0}},
		{"table ends", IQ4_NL, [][]byte{one, {0xf0, 0x78}, z(14)}, map[int]float32{0: -127, 16: 113, 1: 1, 17: -10}},
		{"half steps", MXFP4, [][]byte{{128}, {0x71, 0xf8}, z(14)}, map[int]float32{0: 1, 16: 12, 1: 0, 17: -12}},
		{"smallest scale", MXFP4, [][]byte{{0}, {0x07}, z(15)}, map[int]float32{0: 6 * 0x1p-127, 1: 0}},
		{"pairs", Q2_K, [][]byte{{0x21}, z(14), {0x0f}, {0xe4}, z(62), {0xc0}, one, two}, map[int]float32{0: -4, 32: 0, 64: 0, 96: 0, 255: 45, 16: 0}},
		{"high bit set is plain", Q3_K, [][]byte{rep(0xff, 32), rep(0xff, 64), rep(0, 12), one}, map[int]float32{0: -96, 255: -96}},
		{"high bit clear is minus 4", Q3_K, [][]byte{z(32), z(64), rep(0xff, 12), one}, map[int]float32{0: -124, 255: -124}},
		{"scale bits", Q4_K, [][]byte{one, one, {0xff, 0, 0, 0, 0xff, 0, 0, 0, 0xff, 0, 0, 0}, rep(0x21, 128)},
			map[int]float32{0: 0, 32: 0, 64: 0, 128: 0, 160: 0}},
		{"sub-block 4 scale", Q4_K, [][]byte{one, one, {0xc0, 0, 0, 0, 0x00, 0, 0, 0, 0x0f, 0, 0, 0}, rep(0x31, 128)},
			map[int]float32{0: 0, 128: 63, 160: 0}},
		{"sub-block 5 min", Q5_K, [][]byte{one, one, {0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0xf0, 0, 0}, rep(0xff, 32), z(128)},
			map[int]float32{0: 0, 160: -63, 191: -63, 192: 0}},
		{"lowest codes, scale -128", Q6_K, [][]byte{z(192), rep(0x80, 16), one}, map[int]float32{0: 4096, 255: 4096}},
		{"highest codes, scale 127", Q6_K, [][]byte{rep(0xff, 192), rep(0x7f, 16), one}, map[int]float32{0: 31 * 127, 255: 31 * 127}},
		{"scale -32 and 31", IQ4_XS, [][]byte{one, {0x0c, 0}, {0x0f, 0, 0, 0}, z(128)}, map[int]float32{0: 127 * 17, 32: -127 * 16, 64: 127 * 32}},
	} {
		src := bytes.Join(c.src, nil)
		if len(src) != c.typ.BlockBytes() {
			t.Errorf("%v %s: block of %d bytes", c.typ, c.name, len(src))
			continue
		}
		got := make([]float32, c.typ.BlockLen())
		Dequantize(c.typ, got, src)
		for i, v := range c.want {
			if got[i] != v {
				t.Errorf("%v %s: element %d is %g, want %g", c.typ, c.name, i, got[i], v)
			}
		}
	}
}

// quantLimit bounds |x - Dequantize(Quantize(x))| by a share of the largest magnitude in the super-block (or block of
// 32): half a step of the codes, half a step of the sub-block's scale at the end of the code range, and the clamping
// that both may cause. In affine types the range may be twice the magnitude.
var quantLimit = map[Type]float64{
	F32: 0, F16: 0x1p-11, BF16: 0x1p-8,
	Q8_0: 0.005, Q6_K: 0.04, Q5_0: 0.065, Q5_1: 0.035, Q5_K: 0.05, Q4_0: 0.13, Q4_1: 0.07, Q4_K: 0.09,
	Q3_K: 0.29, Q2_K: 0.45, IQ4_NL: 0.12, IQ4_XS: 0.16, MXFP4: 0.26,
}

func TestQuantizeError(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	inputs := map[string]func(i int) float64{
		"normal":    func(int) float64 { return rng.NormFloat64() },
		"uniform":   func(int) float64 { return rng.Float64()*2 - 1 },
		"positive":  func(int) float64 { return 2 + rng.Float64() },
		"negative":  func(int) float64 { return -2 - rng.Float64() },
		"uneven":    func(i int) float64 { return rng.NormFloat64() * math.Exp2(-float64(i/32%8)) },
		"one peak":  func(i int) float64 { return float64(i % 256 / 255) },
		"small":     func(int) float64 { return 0.02 * rng.NormFloat64() },
		"large":     func(int) float64 { return 1000 * rng.NormFloat64() },
		"zero":      func(int) float64 { return 0 },
		"equal":     func(int) float64 { return 0.3 },
		"equal neg": func(int) float64 { return -0.3 },
	}
	for _, typ := range supported() {
		worst := 0.0
		for name, f := range inputs {
			x := make([]float32, 1024)
			for i := range x {
				x[i] = float32(f(i))
			}
			data := bytes.Repeat([]byte{0xa5}, typ.RowBytes(len(x))) // every byte is written
			Quantize(typ, data, x)
			again := make([]byte, len(data))
			Quantize(typ, again, x)
			if !bytes.Equal(data, again) {
				t.Errorf("%v %s: result depends on what dst held", typ, name)
			}
			y := make([]float32, len(x))
			Dequantize(typ, y, data)
			n := max(typ.BlockLen(), 32)
			for i := range x {
				p, _ := peak(x[i/n*n : i/n*n+n])
				amax := math.Abs(float64(p))
				if amax == 0 {
					if y[i] != 0 {
						t.Fatalf("%v %s: zero becomes %g", typ, name, y[i])
					}
					continue
				}
				e := math.Abs(float64(x[i])-float64(y[i])) / amax
				if worst = max(worst, e); e > quantLimit[typ] {
					t.Fatalf("%v %s: element %d: %g becomes %g, %.3f of the largest %g", typ, name, i, x[i], y[i], e, amax)
				}
			}
		}
		t.Logf("%v: worst %.4f of %.4f", typ, worst, quantLimit[typ])
	}
}

func TestQuantizeNotFinite(t *testing.T) {
	for _, typ := range supported() {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			x := make([]float32, 512)
			x[0], x[511], x[7] = 1, -1, float32(bad)
			data := make([]byte, typ.RowBytes(len(x)))
			Quantize(typ, data, x)
			Dequantize(typ, x, data)
			if v := x[7]; v-v == 0 {
				t.Errorf("%v: %g becomes %g", typ, bad, v)
			}
			if v := x[511]; math.Abs(float64(v)+1) > 0.01 {
				t.Errorf("%v: a block without %g changes: -1 becomes %g", typ, bad, v)
			}
		}
		// Beyond the range of a float16 scale values are clamped, never NaN.
		x := make([]float32, 256)
		x[0], x[1] = math.MaxFloat32, -math.MaxFloat32
		data := make([]byte, typ.RowBytes(len(x)))
		Quantize(typ, data, x)
		Dequantize(typ, x, data)
		for i, v := range x {
			if v != v {
				t.Errorf("%v: element %d beside the largest float is NaN", typ, i)
				break
			}
		}
	}
}

func TestQuantMisuse(t *testing.T) {
	f := make([]float32, 64)
	for name, call := range map[string]func(){
		"ragged":      func() { Dequantize(Q4_K, f, make([]byte, 1000)) },
		"short":       func() { Dequantize(Q8_0, f, make([]byte, 67)) },
		"unsupported": func() { Dequantize(IQ2_S, make([]float32, 256), make([]byte, 1000)) },
		"no type":     func() { Dequantize(4, f, make([]byte, 1000)) },
		"short dst":   func() { Quantize(Q8_0, make([]byte, 67), f) },
	} {
		wantPanic(t, name, call)
	}
	for _, typ := range supported() {
		Dequantize(typ, nil, nil)
		Quantize(typ, nil, nil)
	}
}

func TestQuantAllocs(t *testing.T) {
	f := make([]float32, 512)
	for _, typ := range supported() {
		data := make([]byte, typ.RowBytes(len(f)))
		if n := testing.AllocsPerRun(5, func() { Quantize(typ, data, f); Dequantize(typ, f, data) }); n != 0 {
			t.Errorf("%v: %g allocations", typ, n)
		}
	}
}

// FuzzDequantize reads any bytes as blocks: pieces must equal the whole, and quantising the result again must stay
// within the type's limit.
func FuzzDequantize(f *testing.F) {
	for i, typ := range quantised() {
		f.Add(uint8(i), readGolden(f, typ).blocks)
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		typ := quantised()[int(which)%len(quantised())]
		n, size := typ.BlockLen(), typ.BlockBytes()
		blocks := min(len(data)/size, 64)
		x := make([]float32, blocks*n)
		Dequantize(typ, x, data)
		one, back, enc := make([]float32, n), make([]float32, n), make([]byte, size)
		for b := range blocks {
			want := x[b*n : b*n+n]
			Dequantize(typ, one, data[b*size:])
			for i := range one {
				if math.Float32bits(one[i]) != math.Float32bits(want[i]) && one[i] == one[i] {
					t.Fatalf("%v block %d element %d: alone %g, in the row %g", typ, b, i, one[i], want[i])
				}
			}
			p, finite := peak(want)
			amax := math.Abs(float64(p))
			if !finite || amax > 60000 || amax < 1 { // where float16 scales are normal numbers, not clamped
				continue
			}
			Quantize(typ, enc, want)
			Dequantize(typ, back, enc)
			for i, v := range back {
				if e := math.Abs(float64(v) - float64(want[i])); e > quantLimit[typ]*amax {
					t.Fatalf("%v block %d element %d: %g becomes %g, largest %g", typ, b, i, want[i], v, amax)
				}
			}
		}
	})
}

func BenchmarkDequantize(b *testing.B) {
	x := normals(rand.New(rand.NewPCG(1, 2)), 4096)
	for _, typ := range supported() {
		data := make([]byte, typ.RowBytes(len(x)))
		Quantize(typ, data, x)
		dst := make([]float32, len(x))
		b.Run("type="+strings.ToLower(typ.String()), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				Dequantize(typ, dst, data)
			}
		})
	}
}
