package kernels

import (
	"encoding/binary"
	"math"
)

// The 4-bit types whose nibble indexes a table of 16 unevenly spaced values. Bit layouts: block_iq4_nl and block_iq4_xs
// in ggml's src/ggml-common.h.

// iq4Codes are the values, kvalues_iq4nl there, with the bias 128 of their form. Never written.
var iq4Codes = [16]byte{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}

// lookup writes table[low nibble] of 16 bytes to u[0:16] and table[high nibble] to u[16:32].
func lookup(u, src []byte, table *[16]byte) {
	lo, hi := u[:16], u[16:32]
	for i, c := range src[:16] {
		lo[i], hi[i] = table[c&15], table[c>>4]
	}
}

// decodeIQ4NL: d, nibbles [16] placed as in Q4_0.
func (b *block) decodeIQ4NL(src []byte) {
	for i := 0; len(src) >= 18; i, src = i+1, src[18:] {
		b.d[i] = half(src)
		lookup(b.u[i*32:], src[2:18], &iq4Codes)
	}
}

// decodeIQ4XS: d, upper bit pairs of 8 scales (16 bits), their low nibbles [4], nibbles [128] placed as in 8 blocks of
// IQ4_NL. The scales have 6 bits and a bias of 32.
func (b *block) decodeIQ4XS(src []byte) {
	s := (*[136]byte)(src)
	b.d[0] = half(s[:])
	h := binary.LittleEndian.Uint16(s[2:])
	for j := range 8 {
		sc := int32(s[4+j/2]>>(j%2*4)&15) | int32(h>>(2*j)&3<<4)
		b.sc[2*j], b.sc[2*j+1] = sc-32, sc-32
		lookup(b.u[32*j:], s[8+16*j:24+16*j], &iq4Codes)
	}
}

// nearestCode returns the first index whose value (table minus bias) is closest to v.
func nearestCode(v float32, table *[16]byte, bias float32) byte {
	best, at := float32(math.Inf(1)), byte(0)
	for i, c := range table {
		if e := float32(math.Abs(float64(v - (float32(c) - bias)))); e < best {
			best, at = e, byte(i)
		}
	}
	return at
}

// putLookup packs the indices of the values nearest to 32 elements in units of scale.
func putLookup(nib []byte, x []float32, scale float32, table *[16]byte, bias float32) {
	var code [32]byte
	for i, v := range x[:32] {
		if scale != 0 {
			v /= scale
		}
		code[i] = nearestCode(v, table, bias)
	}
	putNibbles(nib, nil, &code)
}

// encodeIQ4NL maps the value of largest magnitude to -127, the largest of the table's.
func encodeIQ4NL(dst []byte, x []float32) {
	p, finite := peak(x)
	scale := putHalf(dst, p/-127, finite)
	putLookup(dst[2:18], x, scale, &iq4Codes, 128)
}

func encodeIQ4XS(dst []byte, x []float32) {
	clear(dst)
	var sc [8]float32
	for j := range sc {
		p, _ := peak(x[32*j : 32*j+32])
		sc[j] = p / -127
	}
	p, finite := peak(sc[:])
	d := putHalf(dst, p/-32, finite)
	for j := range sc {
		ls := nearest(sc[j], d, -32, 31)
		c := byte(ls + 32)
		dst[4+j/2] |= c & 15 << (j % 2 * 4)
		dst[2+j/4] |= c >> 4 << (j % 4 * 2)
		putLookup(dst[8+16*j:24+16*j], x[32*j:], d*ls, &iq4Codes, 128)
	}
}
