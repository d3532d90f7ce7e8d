package kernels

import "encoding/binary"

// chunk is the unit of decoding: 256 elements, one super-block or eight blocks of 32 (fewer at the end of a row).
const chunk = 256

// block is one decoded chunk of a weight row, the same form for every quantised type. Codes are kept unsigned with a
// bias by type, because the integer dot product (lanes.go) wants them so. Element e of a chunk is, with g = e/16,
//
//	types of 256:  (d[0]*sc[g]) * (u[e]-bias) - d[1]*mn[g]
//	types of 32:   d[e/32] * (u[e]-bias) + m[e/32]
//
// rounded to float32 after each step, in this order, which is ggml's (dequantize_row_* in ggml-quants.c).
type block struct {
	u  [chunk]byte
	sc [chunk / 16]int32 // scale of each 16
	mn [chunk / 16]int32 // min of each 16; only types whose form has mins
	d  [chunk / 32]float32
	m  [chunk / 32]float32 // only types whose form has mins
}

// form says how a quantised type's codes are to be read.
type form struct {
	bias int32
	bits uint8 // largest code is below 1<<bits: 4, 5, 6 or 8
	mins bool
}

func (t Type) form() form {
	switch t {
	case Q4_0:
		return form{bias: 8, bits: 4}
	case Q4_1:
		return form{bits: 4, mins: true}
	case Q5_0:
		return form{bias: 16, bits: 5}
	case Q5_1:
		return form{bits: 5, mins: true}
	case Q2_K, Q4_K:
		return form{bits: 4, mins: true}
	case Q3_K:
		return form{bias: 4, bits: 4}
	case Q5_K:
		return form{bits: 5, mins: true}
	case Q6_K:
		return form{bias: 32, bits: 6}
	case MXFP4:
		return form{bias: 12, bits: 5}
	}
	return form{bias: 128, bits: 8} // Q8_0 IQ4_NL IQ4_XS
}

// decode reads the blocks of one chunk: src holds one super-block, or one to eight blocks of 32.
func (b *block) decode(t Type, src []byte) {
	switch t {
	case Q4_0:
		b.decodeQ4_0(src)
	case Q4_1:
		b.decodeQ4_1(src)
	case Q5_0:
		b.decodeQ5_0(src)
	case Q5_1:
		b.decodeQ5_1(src)
	case Q8_0:
		b.decodeQ8_0(src)
	case Q2_K:
		b.decodeQ2K(src)
	case Q3_K:
		b.decodeQ3K(src)
	case Q4_K:
		b.decodeQ4K(src)
	case Q5_K:
		b.decodeQ5K(src)
	case Q6_K:
		b.decodeQ6K(src)
	case IQ4_NL:
		b.decodeIQ4NL(src)
	case IQ4_XS:
		b.decodeIQ4XS(src)
	case MXFP4:
		b.decodeMXFP4(src)
	}
}

// floats writes the chunk's first len(dst) elements.
func (b *block) floats(t Type, dst []float32) {
	f := t.form()
	super := t.BlockLen() == 256
	for g := 0; g < len(dst)/16; g++ {
		var scale, low float32
		if super {
			scale = b.d[0] * float32(b.sc[g])
			low = -float32(b.d[1] * float32(b.mn[g]))
		} else {
			scale = b.d[g/2]
			low = b.m[g/2]
		}
		out, u := dst[g*16:g*16+16], b.u[g*16:g*16+16]
		if f.mins {
			for i, c := range u {
				out[i] = float32(scale*float32(int32(c)-f.bias)) + low
			}
			continue
		}
		for i, c := range u { // adding 0 would turn a -0 into 0
			out[i] = scale * float32(int32(c)-f.bias)
		}
	}
}

// half reads a float16 scale.
func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

// Masks for eight codes at a time.
const (
	low4 = 0x0f0f0f0f0f0f0f0f
	low2 = 0x0303030303030303
	low1 = 0x0101010101010101
)

// nibbles writes the low nibbles of 16 bytes to u[0:16] and the high ones to u[at:at+16].
func nibbles(u, src []byte, at int) {
	x, y := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
	binary.LittleEndian.PutUint64(u, x&low4)
	binary.LittleEndian.PutUint64(u[8:], y&low4)
	u = u[at : at+16]
	binary.LittleEndian.PutUint64(u, x>>4&low4)
	binary.LittleEndian.PutUint64(u[8:], y>>4&low4)
}
