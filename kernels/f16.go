package kernels

import "math"

// F16ToF32 converts an IEEE 754 binary16 value. Every value is exact; a NaN keeps its payload. It inlines, which the
// decode loops need: the fields are shifted into place, and one exact product moves the exponent bias from 15 to 127, for
// subnormals as well.
func F16ToF32(h uint16) float32 {
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	b := math.Float32bits(f) | uint32(h&0x8000)<<16
	if f >= 65536 { // the exponent field of Inf and NaN
		b |= 0x7f800000
	}
	return math.Float32frombits(b)
}

// F32ToF16 rounds to the nearest binary16 value, ties to even. Values of at least 65520 become Inf, Inf stays, a NaN
// stays a (quiet) NaN with the upper bits of its payload.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x01ff)
	case b >= 0x477ff000: // 65520, half way between the largest finite value and 2^16
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: subnormal, in units of 2^-24
		// Adding 0.5, whose unit in the last place is 2^-24, lets the adder round.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0x0fff + b>>13&1 // round; a carry into the exponent is the right result
	return sign | uint16((b-112<<23)>>13)
}

// RowToF16 writes F32ToF16(src[i]) to dst[i]: what a float16 key/value cache keeps. len(dst) must equal len(src). It
// allocates nothing.
func RowToF16(dst []uint16, src []float32) {
	if len(dst) != len(src) {
		panicLen("RowToF16", len(dst), len(src))
	}
	narrowF16(dst, src)
}

func narrowF16Generic(dst []uint16, src []float32) {
	for i, v := range src {
		dst[i] = F32ToF16(v)
	}
}

func widenF16Generic(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = F16ToF32(h)
	}
}

// BF16ToF32 converts a bfloat16 value, the upper half of a float32; exact for every value.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds to the nearest bfloat16 value, ties to even; Inf stays, a NaN stays a (quiet) NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x0040
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
