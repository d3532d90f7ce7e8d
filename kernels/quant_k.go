package kernels

import "encoding/binary"

// The super-blocks of 256 with linear codes ("K" types). Bit layouts: block_q2_K to block_q6_K in ggml's
// src/ggml-common.h and the loops of dequantize_row_q*_K in src/ggml-quants.c.

// decodeQ2K: scales [16] (low nibble scale, high nibble min, one per 16), codes [64], d, dmin. In each half of 128 the
// bit pair p of byte l is element 32*p+l.
func (b *block) decodeQ2K(src []byte) {
	s := (*[84]byte)(src)
	b.d[0], b.d[1] = half(s[80:]), half(s[82:])
	for g, c := range s[:16] {
		b.sc[g], b.mn[g] = int32(c&15), int32(c>>4)
	}
	for h := range 2 {
		for w := range 4 {
			q := binary.LittleEndian.Uint64(s[16+32*h+8*w:])
			u := b.u[128*h+8*w:]
			binary.LittleEndian.PutUint64(u, q&low2)
			binary.LittleEndian.PutUint64(u[32:], q>>2&low2)
			binary.LittleEndian.PutUint64(u[64:], q>>4&low2)
			binary.LittleEndian.PutUint64(u[96:], q>>6&low2)
		}
	}
}

// decodeQ3K: high bits [32], low bit pairs [64] placed as in Q2_K, scales [12] of 6 bits, d. The high bit of element
// 32*k+l, 0 <= k < 8, is bit k of byte l.
func (b *block) decodeQ3K(src []byte) {
	s := (*[110]byte)(src)
	b.d[0] = half(s[108:])
	for g := range 16 {
		// Low nibbles: scales 0-7 in the low halves of bytes 0-7, 8-15 in the high halves. Upper pairs in bytes 8-11.
		c := s[96+g%8] >> (g / 8 * 4) & 15
		c |= s[104+g%4] >> (g / 4 * 2) & 3 << 4
		b.sc[g] = int32(c) - 32
	}
	for h := range 2 {
		for w := range 4 {
			m := binary.LittleEndian.Uint64(s[8*w:]) >> (4 * h)
			q := binary.LittleEndian.Uint64(s[32+32*h+8*w:])
			u := b.u[128*h+8*w:]
			binary.LittleEndian.PutUint64(u, q&low2|m&low1<<2)
			binary.LittleEndian.PutUint64(u[32:], q>>2&low2|m>>1&low1<<2)
			binary.LittleEndian.PutUint64(u[64:], q>>4&low2|m>>2&low1<<2)
			binary.LittleEndian.PutUint64(u[96:], q>>6&low2|m>>3&low1<<2)
		}
	}
}

// scales4K reads the 12 bytes of 6-bit scales and mins, one of each per 32, that Q4_K and Q5_K share: those of sub-blocks
// 0-3 in the low six bits of bytes 0-3 and 4-7; of the others the low nibbles in bytes 8-11 (min in the high half) and
// the upper pairs on top of bytes 0-3 and 4-7.
func (b *block) scales4K(s *[12]byte) {
	for j := range 4 {
		sc, mn := int32(s[j]&63), int32(s[j+4]&63)
		b.sc[2*j], b.sc[2*j+1] = sc, sc
		b.mn[2*j], b.mn[2*j+1] = mn, mn
		sc, mn = int32(s[j+8]&15|s[j]>>6<<4), int32(s[j+8]>>4|s[j+4]>>6<<4)
		b.sc[2*j+8], b.sc[2*j+9] = sc, sc
		b.mn[2*j+8], b.mn[2*j+9] = mn, mn
	}
}

// decodeQ4K: d, dmin, scales [12], codes [128]; of each 64 elements the first 32 are low nibbles, the others high.
func (b *block) decodeQ4K(src []byte) {
	s := (*[144]byte)(src)
	b.d[0], b.d[1] = half(s[:]), half(s[2:])
	b.scales4K((*[12]byte)(s[4:16]))
	for j := range 4 {
		nibbles(b.u[64*j:64*j+48], s[16+32*j:32+32*j], 32)
		nibbles(b.u[64*j+16:64*j+64], s[32+32*j:48+32*j], 32)
	}
}

// decodeQ5K: d, dmin, scales [12], fifth bits [32], low nibbles [128] placed as in Q4_K. The fifth bit of element
// 32*k+l is bit k of byte l.
func (b *block) decodeQ5K(src []byte) {
	s := (*[176]byte)(src)
	b.d[0], b.d[1] = half(s[:]), half(s[2:])
	b.scales4K((*[12]byte)(s[4:16]))
	for w := range 4 {
		h := binary.LittleEndian.Uint64(s[16+8*w:])
		for j := range 4 {
			q := binary.LittleEndian.Uint64(s[48+32*j+8*w:])
			u := b.u[64*j+8*w:]
			binary.LittleEndian.PutUint64(u, q&low4|h&low1<<4)
			binary.LittleEndian.PutUint64(u[32:], q>>4&low4|h>>1&low1<<4)
			h >>= 2
		}
	}
}

// decodeQ6K: low nibbles [128], upper bit pairs [64], int8 scales [16], d. In each half of 128 elements, byte l of 64
// low nibbles is element l (low half) and 64+l (high half), and the bit pair p of byte l belongs to element 32*p+l.
func (b *block) decodeQ6K(src []byte) {
	s := (*[210]byte)(src)
	b.d[0] = half(s[208:])
	for g, c := range s[192:208] {
		b.sc[g] = int32(int8(c))
	}
	for h := range 2 {
		for w := range 4 {
			q0 := binary.LittleEndian.Uint64(s[64*h+8*w:])
			q1 := binary.LittleEndian.Uint64(s[64*h+32+8*w:])
			t := binary.LittleEndian.Uint64(s[128+32*h+8*w:])
			u := b.u[128*h+8*w:]
			binary.LittleEndian.PutUint64(u, q0&low4|t&low2<<4)
			binary.LittleEndian.PutUint64(u[32:], q1&low4|t>>2&low2<<4)
			binary.LittleEndian.PutUint64(u[64:], q0>>4&low4|t>>4&low2<<4)
			binary.LittleEndian.PutUint64(u[96:], q1>>4&low4|t>>6&low2<<4)
		}
	}
}
