package kernels

import (
	"fmt"
	"strings"
)

// Type is a tensor's element type; the values are ggml's type ids as they stand in a GGUF file.
type Type uint32

// The ids that ggml defines. Ids 4, 5, 31-33 and 36-38 once existed and were removed from the format.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42
)

// typeFacts are the sizes of one block, from the struct declarations in ggml's src/ggml-common.h.
type typeFacts struct {
	name     string
	len      uint16 // elements per block
	bytes    uint16 // bytes per block
	readable bool   // this package computes with it
}

// types is indexed by Type and never written; a row without a name is an id that ggml does not have.
var types = [...]typeFacts{
	F32:     {"F32", 1, 4, true},
	F16:     {"F16", 1, 2, true},
	Q4_0:    {"Q4_0", 32, 18, true},
	Q4_1:    {"Q4_1", 32, 20, true},
	Q5_0:    {"Q5_0", 32, 22, true},
	Q5_1:    {"Q5_1", 32, 24, true},
	Q8_0:    {"Q8_0", 32, 34, true},
	Q8_1:    {"Q8_1", 32, 36, false},
	Q2_K:    {"Q2_K", 256, 84, true},
	Q3_K:    {"Q3_K", 256, 110, true},
	Q4_K:    {"Q4_K", 256, 144, true},
	Q5_K:    {"Q5_K", 256, 176, true},
	Q6_K:    {"Q6_K", 256, 210, true},
	Q8_K:    {"Q8_K", 256, 292, false},
	IQ2_XXS: {"IQ2_XXS", 256, 66, false},
	IQ2_XS:  {"IQ2_XS", 256, 74, false},
	IQ3_XXS: {"IQ3_XXS", 256, 98, false},
	IQ1_S:   {"IQ1_S", 256, 50, false},
	IQ4_NL:  {"IQ4_NL", 32, 18, true},
	IQ3_S:   {"IQ3_S", 256, 110, false},
	IQ2_S:   {"IQ2_S", 256, 82, false},
	IQ4_XS:  {"IQ4_XS", 256, 136, true},
	I8:      {"I8", 1, 1, false},
	I16:     {"I16", 1, 2, false},
	I32:     {"I32", 1, 4, false},
	I64:     {"I64", 1, 8, false},
	F64:     {"F64", 1, 8, false},
	IQ1_M:   {"IQ1_M", 256, 56, false},
	BF16:    {"BF16", 1, 2, true},
	TQ1_0:   {"TQ1_0", 256, 54, false},
	TQ2_0:   {"TQ2_0", 256, 66, false},
	MXFP4:   {"MXFP4", 32, 17, true},
	NVFP4:   {"NVFP4", 64, 36, false},
	Q1_0:    {"Q1_0", 128, 18, false},
	Q2_0:    {"Q2_0", 64, 18, false},
}

// facts returns the zero typeFacts for an id that ggml does not have.
func (t Type) facts() typeFacts {
	if uint64(t) < uint64(len(types)) {
		return types[t]
	}
	return typeFacts{}
}

// String returns ggml's name in upper case ("F32", "Q4_K"), or "type(77)" for an id that ggml does not have.
func (t Type) String() string {
	if n := t.facts().name; n != "" {
		return n
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

// ParseType is the inverse of String, in any letter case. It takes every type whose size is known, supported or not;
// the error lists the choices.
func ParseType(s string) (Type, error) {
	var names []string
	for i := range types {
		if types[i].name == "" {
			continue
		}
		if strings.EqualFold(s, types[i].name) {
			return Type(i), nil
		}
		names = append(names, types[i].name)
	}
	return 0, fmt.Errorf("kernels: unknown tensor type %q, want one of %s", s, strings.Join(names, " "))
}

// BlockLen returns the elements per block, 1 for plain types, 0 for an id that ggml does not have.
func (t Type) BlockLen() int { return int(t.facts().len) }

// BlockBytes returns the bytes per block, 0 for an id that ggml does not have.
func (t Type) BlockBytes() int { return int(t.facts().bytes) }

// Supported reports whether Dequantize, Quantize and MulRows take the type.
func (t Type) Supported() bool { return t.facts().readable }

// RowBytes returns the bytes of a row of n elements. It panics unless n is a non-negative multiple of BlockLen, so a
// caller with an outside n checks first (NewMat does).
func (t Type) RowBytes(n int) int {
	f := t.facts()
	if f.len == 0 || n < 0 || n%int(f.len) != 0 {
		panicRow(t, n)
	}
	return n / int(f.len) * int(f.bytes)
}

func panicRow(t Type, n int) {
	panic(fmt.Sprintf("kernels: %v: row of %d elements is not whole blocks of %d", t, n, t.BlockLen()))
}

// ActKind returns the form of the activations that MulRows multiplies fastest with this weight type: ActF32 for F32,
// F16 and BF16 (and for types that are not Supported), ActQ8_0 for blocks of 32, ActQ8_K for super-blocks of 256.
func (t Type) ActKind() ActKind {
	f := t.facts()
	switch {
	case f.readable && f.len == 32:
		return ActQ8_0
	case f.readable && f.len == 256:
		return ActQ8_K
	}
	return ActF32
}
