package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// goldenActs returns the row of testdata/quant/acts.bin and its two quantised forms.
func goldenActs(tb testing.TB) (x []float32, q8_0, q8_k []byte) {
	tb.Helper()
	data, err := os.ReadFile("testdata/quant/acts.bin")
	if err != nil {
		tb.Fatal(err)
	}
	x = make([]float32, 512)
	Dequantize(F32, x, data)
	return x, data[2048 : 2048+16*34], data[2048+16*34:]
}

func TestSetRowGolden(t *testing.T) {
	x, q8_0, q8_k := goldenActs(t)
	a := NewActs(ActQ8_0, len(x), 2)
	a.SetRow(1, x)
	for b := range 16 {
		blk := q8_0[b*34 : b*34+34]
		if got, want := F32ToF16(a.D[16+b]), binary.LittleEndian.Uint16(blk); got != want {
			t.Errorf("q8_0 block %d: scale %#04x, want %#04x", b, got, want)
		}
		for j := range 32 {
			if got, want := a.Q[512+b*32+j], int8(blk[2+j]); got != want {
				t.Errorf("q8_0 block %d code %d: got %d, want %d", b, j, got, want)
			}
		}
	}
	a = NewActs(ActQ8_K, len(x), 2)
	a.SetRow(1, x)
	for b := range 2 {
		blk := q8_k[b*292 : b*292+292]
		if got, want := math.Float32bits(a.D[2+b]), binary.LittleEndian.Uint32(blk); got != want {
			t.Errorf("q8_k block %d: scale %#08x, want %#08x", b, got, want)
		}
		for j := range 256 {
			if got, want := a.Q[512+b*256+j], int8(blk[4+j]); got != want {
				t.Errorf("q8_k block %d code %d: got %d, want %d", b, j, got, want)
			}
		}
		for g := range 16 {
			if got, want := a.Sums[32+b*16+g], int16(binary.LittleEndian.Uint16(blk[260+2*g:])); got != want {
				t.Errorf("q8_k block %d sum %d: got %d, want %d", b, g, got, want)
			}
		}
	}
}

// TestSetRowBound checks half a step of error, codes within +-127 and the sums, for inputs that hurt.
func TestSetRowBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	fill := func(f func(i int) float32) []float32 {
		x := make([]float32, 512)
		for i := range x {
			x[i] = f(i)
		}
		return x
	}
	inputs := map[string][]float32{
		"normal":     normals(rng, 512),
		"zero":       fill(func(int) float32 { return 0 }),
		"equal":      fill(func(int) float32 { return -3.7 }),
		"one peak":   fill(func(i int) float32 { return float32(i/511) * 1000 }),
		"ties":       fill(func(i int) float32 { return float32(i%255) - 127 + 0.5*float32(i%2) }),
		"huge":       fill(func(i int) float32 { return math.MaxFloat32 * float32(1-2*(i%2)) }),
		"small":      fill(func(i int) float32 { return 1e-36 * float32(i) }),
		"subnormal":  fill(func(i int) float32 { return math.Float32frombits(uint32(i)) }),
		"minus zero": fill(func(int) float32 { return float32(math.Copysign(0, -1)) }),
	}
	for _, kind := range []ActKind{ActQ8_0, ActQ8_K} {
		for name, x := range inputs {
			a := NewActs(kind, len(x), 1)
			for i := range a.Q { // a row is overwritten whole
				a.Q[i] = 99
			}
			a.SetRow(0, x)
			for i, v := range x {
				d := float64(a.D[i/kind.block()])
				if a.Q[i] == -128 {
					t.Errorf("%v %s: code %d is -128", kind, name, i)
				}
				// Half a step, and the rounding of the scale and its inverse at 127 steps. Blocks below 4e-37 are zero.
				if e := math.Abs(float64(v) - d*float64(a.Q[i])); e > math.Abs(d)*(0.5+127*4*eps32) && e > 4e-37 {
					t.Errorf("%v %s: value %g is %g*%d", kind, name, v, d, a.Q[i])
				}
			}
			for g, s := range a.Sums {
				var want int16
				for _, q := range a.Q[g*16 : g*16+16] {
					want += int16(q)
				}
				if s != want {
					t.Errorf("%v %s: sum %d is %d, want %d", kind, name, g, s, want)
				}
			}
		}
	}
}

func TestSetRowNotFinite(t *testing.T) {
	for _, kind := range []ActKind{ActQ8_0, ActQ8_K} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			x := make([]float32, 512)
			x[0], x[300] = 1, float32(bad)
			a := NewActs(kind, len(x), 1)
			a.SetRow(0, x)
			for b, d := range a.D {
				if isBad := b == 300/kind.block(); (d != d) != isBad {
					t.Errorf("%v with %g: block %d has scale %g", kind, bad, b, d)
				}
			}
			if a.D[0] = 0; a.Q[300] != 0 {
				t.Errorf("%v with %g: code %d beside a NaN scale", kind, bad, a.Q[300])
			}
		}
	}
}

func TestActsMisuse(t *testing.T) {
	a := NewActs(ActQ8_0, 64, 2)
	for name, f := range map[string]func(){
		"ragged":    func() { NewActs(ActQ8_K, 128, 1) },
		"kind":      func() { NewActs(3, 128, 1) },
		"row":       func() { a.SetRow(2, make([]float32, 64)) },
		"short row": func() { a.SetRow(0, make([]float32, 63)) },
	} {
		wantPanic(t, name, f)
	}
	if n := NewActs(ActF32, 0, 3); len(n.F) != 0 {
		t.Error("rows of nothing have values")
	}
}

func TestSetRowAllocs(t *testing.T) {
	x := make([]float32, 256)
	for _, kind := range []ActKind{ActF32, ActQ8_0, ActQ8_K} {
		a := NewActs(kind, len(x), 1)
		if n := testing.AllocsPerRun(10, func() { a.SetRow(0, x) }); n != 0 {
			t.Errorf("%v: %g allocations", kind, n)
		}
	}
}
