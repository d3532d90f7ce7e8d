package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize writes the len(dst) elements at the start of src, in float32 as ggml's dequantize_row_* do, bit for bit. It
// panics unless the type is Supported, len(dst) is whole blocks and src holds them. It allocates nothing.
func Dequantize(t Type, dst []float32, src []byte) {
	src = src[:checkRow("Dequantize", t, len(dst), len(src))]
	var b block
	for n, size := chunk, t.RowBytes(chunk); len(dst) > 0; {
		n = min(n, len(dst))
		size = min(size, len(src))
		b.chunkFloats(t, dst[:n], src[:size])
		dst, src = dst[n:], src[size:]
	}
}

// Quantize rounds src to the nearest codes of t's blocks, without a search for better scales; it is meant for synthetic
// models and tests. A block (for F32, F16 and BF16 a value) with a NaN or Inf stays non-finite. Scales are clamped to
// float16's range. It panics unless the type is Supported, len(src) is whole blocks and dst has room for them.
func Quantize(t Type, dst []byte, src []float32) {
	dst = dst[:checkRow("Quantize", t, len(src), len(dst))]
	switch t {
	case F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
		return
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(v))
		}
		return
	case BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(v))
		}
		return
	}
	for n, size := t.BlockLen(), t.BlockBytes(); len(src) > 0; src, dst = src[n:], dst[size:] {
		encode(t, dst[:size], src[:n])
	}
}

func encode(t Type, dst []byte, x []float32) {
	switch t {
	case Q4_0:
		encodeQ4_0(dst, x)
	case Q4_1:
		encodeQ4_1(dst, x)
	case Q5_0:
		encodeQ5_0(dst, x)
	case Q5_1:
		encodeQ5_1(dst, x)
	case Q8_0:
		encodeQ8_0(dst, x)
	case Q2_K:
		encodeQ2K(dst, x)
	case Q3_K:
		encodeQ3K(dst, x)
	case Q4_K:
		encodeQ4K(dst, x)
	case Q5_K:
		encodeQ5K(dst, x)
	case Q6_K:
		encodeQ6K(dst, x)
	case IQ4_NL:
		encodeIQ4NL(dst, x)
	case IQ4_XS:
		encodeIQ4XS(dst, x)
	case MXFP4:
		encodeMXFP4(dst, x)
	}
}

// checkRow returns the bytes of n elements.
func checkRow(what string, t Type, n, have int) int {
	if !t.Supported() || n%t.BlockLen() != 0 || t.RowBytes(n) > have {
		panic(fmt.Sprintf("kernels: %s: %v: %d elements in %d bytes", what, t, n, have))
	}
	return t.RowBytes(n)
}

// chunkFloats decodes up to a chunk of any Supported type; b is scratch.
func (b *block) chunkFloats(t Type, dst []float32, src []byte) {
	switch t {
	case F32:
		readF32(dst, src)
	case F16:
		for ; len(dst) >= 4 && len(src) >= 8; dst, src = dst[4:], src[8:] {
			v := binary.LittleEndian.Uint64(src)
			dst[0], dst[1] = F16ToF32(uint16(v)), F16ToF32(uint16(v>>16))
			dst[2], dst[3] = F16ToF32(uint16(v>>32)), F16ToF32(uint16(v>>48))
		}
		for i := range dst {
			dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for ; len(dst) >= 4 && len(src) >= 8; dst, src = dst[4:], src[8:] {
			v := binary.LittleEndian.Uint64(src)
			dst[0], dst[1] = BF16ToF32(uint16(v)), BF16ToF32(uint16(v>>16))
			dst[2], dst[3] = BF16ToF32(uint16(v>>32)), BF16ToF32(uint16(v>>48))
		}
		for i := range dst {
			dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		b.decode(t, src)
		b.floats(t, dst)
	}
}

func readF32(dst []float32, src []byte) {
	for ; len(dst) >= 4 && len(src) >= 16; dst, src = dst[4:], src[16:] {
		v, w := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		dst[0], dst[1] = math.Float32frombits(uint32(v)), math.Float32frombits(uint32(v>>32))
		dst[2], dst[3] = math.Float32frombits(uint32(w)), math.Float32frombits(uint32(w>>32))
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// putHalf stores a scale as float16, NaN when the values it stands for are not finite, and returns the value stored. A
// scale beyond float16's range is clamped: Inf times a zero code would be NaN.
func putHalf(dst []byte, v float32, finite bool) float32 {
	h := F32ToF16(min(max(v, -65504), 65504))
	if h == 0x8000 {
		h = 0
	}
	if !finite {
		h = 0x7e00
	}
	binary.LittleEndian.PutUint16(dst, h)
	return F16ToF32(h)
}

// nearest returns v/scale rounded to an integer, ties to even, within lo..hi; 0 for a zero scale, lo for a NaN.
func nearest(v, scale, lo, hi float32) float32 {
	if scale == 0 {
		return 0
	}
	r := float32(math.RoundToEven(float64(v / scale)))
	if !(r > lo) {
		return lo
	}
	return min(r, hi)
}

// span returns the smallest and largest value, and whether all are finite.
func span(x []float32) (lo, hi float32, finite bool) {
	lo, hi = x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi, hi-hi == 0 && lo-lo == 0
}
