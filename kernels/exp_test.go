package kernels

import (
	"bufio"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "renew the golden files instead of comparing with them")

// ulps returns how far got is from want, in units of the float32 spacing at want.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(e-24, -149))
}

func TestExpSpecial(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		x    float32
		want uint32
	}{
		{0, 0x3f800000},
		{float32(math.Copysign(0, -1)), 0x3f800000},
		{inf, 0x7f800000},
		{-inf, 0},
		{math.Float32frombits(0x7fc00000), 0x7fc00000},
		{math.Float32frombits(0xffc12345), 0x7fc00000}, // whatever NaN
		{math.Float32frombits(0x7f800001), 0x7fc00000}, // signalling
		{math.MaxFloat32, 0x7f800000},
		{-math.MaxFloat32, 0},
		{89, 0x7f800000},
		{88.72284, 0x7f800000}, // the first float32 that overflows
		{-104, 0},
		{-103.98, 0},            // below half the smallest denormal
		{-103.97, 1},            // above it
		{-87.33655, 0x007fffe6}, // the first denormal result
		{math.SmallestNonzeroFloat32, 0x3f800000},
	} {
		if got := math.Float32bits(Exp(c.x)); got != c.want {
			t.Errorf("Exp(%v) = %#08x, want %#08x", c.x, got, c.want)
		}
	}
}

// TestExpUlps walks the bit patterns from one end of the domain to the other, so that all magnitudes are covered equally.
// Step 1 was run once: the largest error is 0.9904 units, and all 2^32 results equal those of the C twin in every bit.
func TestExpUlps(t *testing.T) {
	const step, limit = 1009, 2.0 // prime: every low bit pattern occurs
	var worst float64
	var at float32
	for _, sign := range []uint32{0, 1 << 31} {
		for b := uint32(0); b <= math.Float32bits(104.5); b += step {
			x := math.Float32frombits(sign | b)
			got, want := Exp(x), math.Exp(float64(x))
			if want > math.MaxFloat32+math.Ldexp(1, 103) { // above the half way to 2^128
				if !math.IsInf(float64(got), 1) {
					t.Fatalf("Exp(%v) = %v, want +Inf", x, got)
				}
				continue
			}
			if u := ulps(got, want); u > worst || u != u {
				worst, at = u, x
				if !(u <= limit) {
					t.Fatalf("Exp(%v) = %v, want %v: %.3f ulp", x, got, want, u)
				}
			}
		}
	}
	t.Logf("largest error %.4f ulp at %v", worst, at)
}

// TestExpDenormal looks at every 16th pattern of the range whose results are denormal.
func TestExpDenormal(t *testing.T) {
	seen := 0
	for b := math.Float32bits(87.3); b <= math.Float32bits(104); b += 16 {
		x := -math.Float32frombits(b)
		got, want := Exp(x), math.Exp(float64(x))
		if u := ulps(got, want); !(u <= 1) {
			t.Fatalf("Exp(%v) = %v, want %v: %.3f ulp", x, got, want, u)
		}
		if got > 0 && got < 0x1p-126 {
			seen++
		}
	}
	if seen == 0 {
		t.Fatal("no denormal result was reached")
	}
}

// expGoldenInputs are the specials, both sides of each limit, and numbers over all magnitudes from a fixed generator.
func expGoldenInputs() []uint32 {
	in := []uint32{
		0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000,
		0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0x7f7fffff, 0xff7fffff,
	}
	for _, edge := range []float32{89, 88.72284, -87.33655, -103.278, -103.97208, -104, 0.34657359, -0.34657359, 1.0397208, -1.0397208, 1, -1} {
		for d := -2; d <= 2; d++ {
			in = append(in, math.Float32bits(edge)+uint32(d))
		}
	}
	s := uint64(0x9e3779b97f4a7c15)
	next := func() uint64 { // splitmix64
		s += 0x9e3779b97f4a7c15
		z := s
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	for range 600 { // uniform values: where routers live
		v := float32(int64(next()>>40)-1<<23) * (104.0 / (1 << 23))
		in = append(in, math.Float32bits(v))
	}
	for range 200 { // uniform exponents
		b := uint32(next())
		in = append(in, b&0x807fffff|(90+b>>8%45)<<23)
	}
	return in
}

func TestExpGolden(t *testing.T) {
	path := filepath.Join("testdata", "exp.golden")
	if *update {
		var b strings.Builder
		fmt.Fprintln(&b, "# Exp: bits of the argument, bits of the result. Pins the recipe in exp.go for every platform and twin.")
		for _, x := range expGoldenInputs() {
			fmt.Fprintf(&b, "%08x %08x\n", x, math.Float32bits(Exp(math.Float32frombits(x))))
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		var x, want uint32
		if _, err := fmt.Sscanf(sc.Text(), "%x %x", &x, &want); err != nil {
			t.Fatalf("%s: %q: %v", path, sc.Text(), err)
		}
		if got := math.Float32bits(Exp(math.Float32frombits(x))); got != want {
			t.Errorf("Exp(%#08x) = %#08x, want %#08x", x, got, want)
		}
		n++
	}
	if want := len(expGoldenInputs()); n != want {
		t.Errorf("%s has %d lines, want %d", path, n, want)
	}
}

func FuzzExp(f *testing.F) {
	for _, b := range expGoldenInputs()[:73] {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b uint32) {
		x := math.Float32frombits(b)
		got, want := Exp(x), math.Exp(float64(x))
		switch {
		case x != x:
			if got == got {
				t.Fatalf("Exp(NaN) = %v", got)
			}
		case want > math.MaxFloat32+math.Ldexp(1, 103):
			if !math.IsInf(float64(got), 1) {
				t.Fatalf("Exp(%v) = %v, want +Inf", x, got)
			}
		default:
			if u := ulps(got, want); !(u <= 2) {
				t.Fatalf("Exp(%v) = %v, want %v: %.3f ulp", x, got, want, u)
			}
		}
	})
}

func BenchmarkExp(b *testing.B) {
	x := make([]float32, 1024)
	for i := range x {
		x[i] = float32(i%80) - 75
	}
	var sink float32
	b.ReportAllocs()
	b.SetBytes(int64(4 * len(x)))
	for b.Loop() {
		for _, v := range x {
			sink += Exp(v)
		}
	}
	_ = sink
}
