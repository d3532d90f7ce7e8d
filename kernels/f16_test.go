package kernels

import (
	"math"
	"testing"
)

// halfValue is the definition of binary16.
func halfValue(h uint16) float64 {
	frac, exp, sign := float64(h&0x3ff), int(h>>10&31), 1.0
	if h>>15 != 0 {
		sign = -1
	}
	switch {
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	case exp == 0:
		return math.Copysign(math.Ldexp(frac, -24), sign)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestF16ToF32Exhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got, want := F16ToF32(h), float32(halfValue(h))
		if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
			t.Fatalf("%#04x: got %g, want %g", h, got, want)
		}
		back := F32ToF16(got)
		if want == want && back != h || want != want && (back&0x7c00 != 0x7c00 || back&0x3ff == 0 || back&0x8000 != h&0x8000) {
			t.Fatalf("%#04x comes back as %#04x", h, back)
		}
	}
}

// TestF32ToF16Ties takes the point half way between every two neighbours and the float32 values beside it.
func TestF32ToF16Ties(t *testing.T) {
	for _, sign := range []uint16{0, 0x8000} {
		for h := range uint16(0x7c00) {
			a, b := halfValue(h), halfValue(h+1)
			if h == 0x7bff {
				b = 65536
			}
			mid := float32((a + b) / 2)
			even := h + h&1
			for _, c := range []struct {
				f    float32
				want uint16
			}{
				{mid, even},
				{math.Nextafter32(mid, 0), h},
				{math.Nextafter32(mid, 1e30), h + 1},
			} {
				f := float32(math.Copysign(float64(c.f), 1-float64(sign)))
				if got := F32ToF16(f); got != c.want|sign {
					t.Fatalf("%g: got %#04x, want %#04x", f, got, c.want|sign)
				}
			}
		}
	}
	for f, want := range map[float32]uint16{1e30: 0x7c00, -1e30: 0xfc00, float32(math.Inf(1)): 0x7c00, 1e-30: 0, -1e-45: 0x8000} {
		if got := F32ToF16(f); got != want {
			t.Errorf("%g: got %#04x, want %#04x", f, got, want)
		}
	}
}

func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := BF16ToF32(h)
		if back := F32ToBF16(f); back != h && !(f != f && back == h|0x40) {
			t.Fatalf("%#04x comes back as %#04x", h, back)
		}
		if h&0x7fff >= 0x7f80 {
			continue
		}
		mid := math.Float32frombits(uint32(h)<<16 | 0x8000)
		below, above := math.Float32frombits(uint32(h)<<16|0x7fff), math.Float32frombits(uint32(h)<<16|0x8001)
		if F32ToBF16(mid) != h+h&1 || F32ToBF16(below) != h || F32ToBF16(above) != h+1 {
			t.Fatalf("%#04x: ties go wrong", h)
		}
	}
	if h := F32ToBF16(math.Float32frombits(0x7f800001)); h != 0x7fc0 {
		t.Errorf("NaN with a low payload becomes %#04x", h)
	}
}

func BenchmarkF16ToF32(b *testing.B) {
	var src [4096]uint16
	for i := range src {
		src[i] = F32ToF16(float32(i)/4096 - 0.5)
	}
	var dst [4096]float32
	b.ReportAllocs()
	b.SetBytes(int64(2 * len(src)))
	for b.Loop() {
		for i, h := range src {
			dst[i] = F16ToF32(h)
		}
	}
}
