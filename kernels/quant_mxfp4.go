package kernels

import "math"

// MXFP4 (OCP Microscaling Formats Specification v1.0, section 5.3): one E8M0 exponent per 32 elements of E2M1. ggml's
// layout (block_mxfp4 in src/ggml-common.h) places the nibbles as in Q4_0 and has no NaN exponent: 255 is 2^128.

// e2m1Codes are twice the E2M1 values, so integers, with the bias 12 of their form. Never written.
var e2m1Codes = [16]byte{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}

// e8m0Half returns 2^(e-128): half the scale, as the values are doubled. It is subnormal for e < 2.
func e8m0Half(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func (b *block) decodeMXFP4(src []byte) {
	for i := 0; len(src) >= 17; i, src = i+1, src[17:] {
		b.d[i] = e8m0Half(src[0])
		lookup(b.u[i*32:], src[1:17], &e2m1Codes)
	}
}

// encodeMXFP4 takes the specification's exponent, that of the largest magnitude less 2 (E2M1's largest is 6 = 1.5 * 2^2).
// The form has no NaN: a block with NaN or Inf becomes all +Inf.
func encodeMXFP4(dst []byte, x []float32) {
	p, finite := peak(x)
	if !finite {
		dst[0] = 255
		for i := range dst[1:17] {
			dst[1+i] = 0x77
		}
		return
	}
	_, exp := math.Frexp(float64(p)) // |p| = f * 2^exp with 0.5 <= f < 1
	dst[0] = 0
	if p != 0 {
		dst[0] = byte(max(0, exp-1-2+127))
	}
	putLookup(dst[1:17], x, e8m0Half(dst[0]), &e2m1Codes, 12)
}
