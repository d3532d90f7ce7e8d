package kernels_test

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

func TestCells(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"I32(-1)", dev.I32(-1), 0xffffffff},
		{"I32(MaxUint32)", dev.I32(math.MaxUint32), 0xffffffff},
		{"I64(-1)", dev.I64(-1), math.MaxUint64},
		{"F32(1)", dev.F32(1), 0x3f800000},
		{"Cell", dev.Ptr(1 << 40).At(8).Cell(), 1<<40 + 8},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", c.what, c.got, c.want)
		}
	}
	mustPanic(t, "I32 of 33 bits", func() { dev.I32(1 << 32) })
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		t    kernels.Type
		cols int
		want bool
	}{
		{kernels.F32, 32, true}, {kernels.F32, 48, false}, {kernels.F16, 96, true}, {kernels.Q8_0, 96, true}, {kernels.Q8_0, 16, false},
		{kernels.Q4_K, 96, false}, {kernels.Q4_K, 768, true}, {kernels.Q6_K, 256, true}, {kernels.F16, 0, false}, {kernels.F16, -32, false},
		{kernels.MXFP4, 256, false}, {kernels.Type(77), 256, false}, {kernels.F16, 1<<24 + 32, false},
	} {
		if got := dev.Fits(c.t, c.cols); got != c.want {
			t.Errorf("%v rows of %d: fits %v", c.t, c.cols, got)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"Q8_0 3x32", dev.DeviceBytes(kernels.Q8_0, 3, 32), 256},
		{"Q6_K 2x256", dev.DeviceBytes(kernels.Q6_K, 2, 256), 512},
		{"F16 128x256", dev.DeviceBytes(kernels.F16, 128, 256), 65536},
		{"Q8_1 row of 32", dev.Q8RowBytes(32), 48},
		{"Q8_1 row of 64", dev.Q8RowBytes(64), 80},
		{"Q8_1 rows", dev.Q8Bytes(3, 256), 960},
		{"float row", dev.ActBytes(kernels.BF16, 96), 384},
		{"Q8_1 row for Q4_0", dev.ActBytes(kernels.Q4_0, 96), 128},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.what, c.got, c.want)
		}
	}
}

// TestMisuse: arguments that would read or write out of bounds panic here rather than on the device.
func TestMisuse(t *testing.T) {
	tab := dev.NewTable(0, 8, 2, 4)
	mustPanic(t, "rows of part blocks", func() { dev.Product(kernels.Q4_K, 0, 0, 0, 1, 32, 1, dev.Out{}) })
	mustPanic(t, "type without a kernel", func() { dev.Product(kernels.Q2_K, 0, 0, 0, 1, 256, 1, dev.Out{}) })
	mustPanic(t, "no rows", func() { dev.Product(kernels.F16, 0, 0, 0, 0, 32, 1, dev.Out{}) })
	mustPanic(t, "no columns", func() { dev.Product(kernels.F16, 0, 0, 0, 1, 32, 0, dev.Out{}) })
	mustPanic(t, "stride below the rows", func() { dev.Product(kernels.F16, 0, 0, 0, 8, 32, 2, dev.Out{LD: 7}) })
	mustPanic(t, "weights at 8", func() { dev.Product(kernels.F16, 0, 8, 0, 8, 32, 1, dev.Out{}) })
	mustPanic(t, "activations past 2^35 bytes", func() { dev.Product(kernels.F32, 0, 0, 0, 1, 1<<24, 513, dev.Out{}) })
	mustPanic(t, "matrix past 2^33 values", func() { dev.DeviceBytes(kernels.Q8_0, 1<<10, 1<<23) })
	mustPanic(t, "repack of F16", func() { dev.Repack(kernels.F16, 0, 0, 1, 32) })
	mustPanic(t, "Q8_1 row of 33", func() { dev.Quantize(0, 0, 1, 33, 0) })
	mustPanic(t, "no rows to quantise", func() { dev.Quantize(0, 0, 0, 32, 0) })
	mustPanic(t, "silu of nothing", func() { dev.SiluMul(0, 0, 0, 1, 0) })
	mustPanic(t, "more rows than the table", func() { tab.ExpertDown(kernels.F16, 0, 0, 0, 32, 32, 5, dev.ByTile) })
}

// TestKernelNames: the names that the launches of the products make are those of the sources.
func TestKernelNames(t *testing.T) {
	have := map[string]bool{}
	for _, file := range []string{"product.cu", "experts.cu", "repack.cu", "quantize.cu", "silu.cu"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:[A-Z_]+\(|extern "C" __global__ void )(\w+)[,(]`).FindAllSubmatch(src, -1) {
			have[string(m[1])] = true
		}
	}
	used := map[string]bool{}
	use := func(l dev.Launch) {
		used[l.Func] = true
		if !have[l.Func] {
			t.Errorf("no kernel %s", l.Func)
		}
	}
	tab := dev.NewTable(0, 8, 2, 4)
	for typ := kernels.Type(0); typ < 50; typ++ {
		if !dev.Supported(typ) {
			continue
		}
		for n := 1; n <= 9; n++ {
			use(dev.Product(typ, 0, 0, 0, 5, 256, n, dev.Out{}))
		}
		for _, form := range []dev.Form{dev.ByEntry, dev.ByTile} {
			use(tab.ExpertGateUp(typ, 0, 0, 0, 256, 256, 4, form))
			use(tab.ExpertDown(typ, 0, 0, 0, 256, 256, 4, form))
		}
		if dev.NeedsRepack(typ) {
			use(dev.Repack(typ, 0, 0, 3, 256))
		}
	}
	use(dev.Quantize(0, 0, 1, 32, 0))
	use(dev.SiluMul(0, 0, 0, 1, 1))
	use(dev.SiluMulQuantize(0, 0, 0, 1, 32))
	for name := range have {
		if !used[name] && !strings.Contains(name, "#") {
			t.Errorf("no launch uses kernel %s", name)
		}
	}
}
