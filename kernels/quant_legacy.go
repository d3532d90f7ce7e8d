package kernels

import (
	"encoding/binary"
	"math"
)

// The types of 32 elements with linear codes. Bit layouts: block_q4_0 to block_q8_0 in ggml's src/ggml-common.h. In the
// 4- and 5-bit ones byte j holds element j (low nibble) and element j+16 (high); the fifth bits stand in a 32-bit word.

func (b *block) decodeQ4_0(src []byte) {
	for i := 0; len(src) >= 18; i, src = i+1, src[18:] {
		b.d[i] = half(src)
		nibbles(b.u[i*32:], src[2:18], 16)
	}
}

func (b *block) decodeQ4_1(src []byte) {
	for i := 0; len(src) >= 20; i, src = i+1, src[20:] {
		b.d[i], b.m[i] = half(src), half(src[2:])
		nibbles(b.u[i*32:], src[4:20], 16)
	}
}

func (b *block) decodeQ5_0(src []byte) {
	for i := 0; len(src) >= 22; i, src = i+1, src[22:] {
		b.d[i] = half(src)
		nibbles(b.u[i*32:], src[6:22], 16)
		fifthBits(b.u[i*32:i*32+32], binary.LittleEndian.Uint32(src[2:]))
	}
}

func (b *block) decodeQ5_1(src []byte) {
	for i := 0; len(src) >= 24; i, src = i+1, src[24:] {
		b.d[i], b.m[i] = half(src), half(src[2:])
		nibbles(b.u[i*32:], src[8:24], 16)
		fifthBits(b.u[i*32:i*32+32], binary.LittleEndian.Uint32(src[4:]))
	}
}

func (b *block) decodeQ8_0(src []byte) {
	const flip = 0x8080808080808080 // int8 to a code with bias 128
	for i := 0; len(src) >= 34; i, src = i+1, src[34:] {
		b.d[i] = half(src)
		u, q := b.u[i*32:i*32+32], src[2:34]
		for len(u) >= 8 && len(q) >= 8 {
			binary.LittleEndian.PutUint64(u, binary.LittleEndian.Uint64(q)^flip)
			u, q = u[8:], q[8:]
		}
	}
}

// fifthBits adds 16 to code j where bit j is set.
func fifthBits(u []byte, set uint32) {
	for len(u) >= 8 {
		// The product copies 8 bits to every byte, the mask keeps bit j in byte j, and the addition carries a kept bit
		// to the byte's top, never beyond it.
		x := uint64(set&0xff) * low1 & 0x8040201008040201
		x = (x + 0x7f7f7f7f7f7f7f7f) & 0x8080808080808080
		binary.LittleEndian.PutUint64(u, binary.LittleEndian.Uint64(u)|x>>3)
		u, set = u[8:], set>>8
	}
}

func encodeQ4_0(dst []byte, x []float32) { encode0(dst[:2], dst[2:], nil, x, 8) }

func encodeQ5_0(dst []byte, x []float32) { encode0(dst[:2], dst[6:], dst[2:6], x, 16) }

func encodeQ4_1(dst []byte, x []float32) { encode1(dst[:4], dst[4:], nil, x, 15) }

func encodeQ5_1(dst []byte, x []float32) { encode1(dst[:4], dst[8:], dst[4:8], x, 31) }

// encode0 maps the value of largest magnitude to code -half, so that the side with the peak gets the extra code.
func encode0(d, nib, high []byte, x []float32, half float32) {
	p, finite := peak(x)
	scale := putHalf(d, p/-half, finite)
	var code [32]byte
	for i, v := range x {
		code[i] = byte(nearest(v, scale, -half, half-1) + half)
	}
	putNibbles(nib, high, &code)
}

// encode1 maps the smallest value to code 0 and the largest to code top.
func encode1(dm, nib, high []byte, x []float32, top float32) {
	lo, hi, finite := span(x)
	scale := putHalf(dm, (hi-lo)/top, finite)
	low := putHalf(dm[2:], lo, finite)
	var code [32]byte
	for i, v := range x {
		code[i] = byte(nearest(v-low, scale, 0, top))
	}
	putNibbles(nib, high, &code)
}

func encodeQ8_0(dst []byte, x []float32) {
	p, finite := peak(x)
	scale := putHalf(dst, float32(math.Abs(float64(p)))/127, finite)
	for i, v := range x {
		dst[2+i] = byte(int8(nearest(v, scale, -127, 127)))
	}
}

// putNibbles packs 32 codes; the fifth bits go to high, nil when there are none.
func putNibbles(nib, high []byte, code *[32]byte) {
	clear(high)
	for j := range nib {
		nib[j] = code[j]&15 | code[j+16]<<4
	}
	for j := range 8 * len(high) {
		high[j/8] |= code[j] >> 4 << (j % 8)
	}
}
