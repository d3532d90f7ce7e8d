package kernels

import (
	"math"
	"strings"
	"testing"
)

func TestTypeSizes(t *testing.T) {
	for _, c := range []struct {
		typ        Type
		name       string
		len, bytes int
		act        ActKind
		ok         bool
	}{
		{F32, "F32", 1, 4, ActF32, true}, {F16, "F16", 1, 2, ActF32, true}, {BF16, "BF16", 1, 2, ActF32, true},
		{Q4_0, "Q4_0", 32, 18, ActQ8_0, true}, {Q4_1, "Q4_1", 32, 20, ActQ8_0, true},
		{Q5_0, "Q5_0", 32, 22, ActQ8_0, true}, {Q5_1, "Q5_1", 32, 24, ActQ8_0, true},
		{Q8_0, "Q8_0", 32, 34, ActQ8_0, true}, {Q8_1, "Q8_1", 32, 36, ActF32, false},
		{Q2_K, "Q2_K", 256, 84, ActQ8_K, true}, {Q3_K, "Q3_K", 256, 110, ActQ8_K, true},
		{Q4_K, "Q4_K", 256, 144, ActQ8_K, true}, {Q5_K, "Q5_K", 256, 176, ActQ8_K, true},
		{Q6_K, "Q6_K", 256, 210, ActQ8_K, true}, {Q8_K, "Q8_K", 256, 292, ActF32, false},
		{IQ2_XXS, "IQ2_XXS", 256, 66, ActF32, false}, {IQ1_M, "IQ1_M", 256, 56, ActF32, false},
		{IQ4_NL, "IQ4_NL", 32, 18, ActQ8_0, true}, {IQ4_XS, "IQ4_XS", 256, 136, ActQ8_K, true},
		{MXFP4, "MXFP4", 32, 17, ActQ8_0, true}, {NVFP4, "NVFP4", 64, 36, ActF32, false},
		{TQ1_0, "TQ1_0", 256, 54, ActF32, false}, {Q1_0, "Q1_0", 128, 18, ActF32, false},
		{4, "type(4)", 0, 0, ActF32, false}, {36, "type(36)", 0, 0, ActF32, false},
		{77, "type(77)", 0, 0, ActF32, false}, {math.MaxUint32, "type(4294967295)", 0, 0, ActF32, false},
	} {
		if c.typ.String() != c.name || c.typ.BlockLen() != c.len || c.typ.BlockBytes() != c.bytes || c.typ.ActKind() != c.act || c.typ.Supported() != c.ok {
			t.Errorf("%d: got %v %d %d %v %v, want %+v", c.typ, c.typ, c.typ.BlockLen(), c.typ.BlockBytes(), c.typ.ActKind(), c.typ.Supported(), c)
		}
		if c.len == 0 {
			continue
		}
		if got := c.typ.RowBytes(3 * c.len); got != 3*c.bytes {
			t.Errorf("%v: row of 3 blocks: %d bytes", c.typ, got)
		}
		if got, err := ParseType(strings.ToLower(c.name)); got != c.typ || err != nil {
			t.Errorf("%q parses to %v, %v", c.name, got, err)
		}
	}
}

func TestParseTypeError(t *testing.T) {
	for _, s := range []string{"", "Q4", "type(4)"} {
		if _, err := ParseType(s); err == nil || !strings.Contains(err.Error(), "Q4_K") {
			t.Errorf("%q: error %v does not list the choices", s, err)
		}
	}
}

func TestNewMat(t *testing.T) {
	for _, c := range []struct {
		typ        Type
		rows, cols int
		bytes      int
		err        string
	}{
		{Q4_K, 2, 512, 2 * 288, ""},
		{F32, 0, 7, 0, ""},
		{Q8_0, 3, 0, 0, ""},
		{IQ2_XS, 1, 256, 74, "not supported"},
		{5, 1, 256, 74, "type(5)"},
		{Q4_K, 2, 300, 288, "whole blocks of 256"},
		{Q8_0, -1, 32, 34, "whole blocks"},
		{Q8_0, 1, -32, 34, "whole blocks"},
		{Q4_K, 2, 512, 575, "575 bytes do not fit, want rows of 288"},
		{Q4_K, 2, 512, 577, "do not fit"},
		{Q6_K, 1 << 40, 256 << 20, 0, "do not fit"}, // rows * bytes is beyond 2^64 but small modulo it
		{F32, math.MaxInt, math.MaxInt, 4, "do not fit"},
	} {
		w, err := NewMat(c.typ, c.rows, c.cols, make([]byte, c.bytes))
		switch {
		case c.err == "" && (err != nil || w.Rows != c.rows || w.Cols != c.cols || w.Type != c.typ):
			t.Errorf("%+v: %+v, %v", c, w, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

func TestISA(t *testing.T) {
	restore, err := SetISA("generic")
	if err != nil {
		t.Fatal(err)
	}
	if ISA() != "generic" {
		t.Errorf("after SetISA: %s", ISA())
	}
	restore()
	if _, err := SetISA("mmx"); err == nil || !strings.Contains(err.Error(), "generic") {
		t.Errorf("error %v does not list the choices", err)
	}
	if Features() == "" {
		t.Error("no features, not even none")
	}
}
