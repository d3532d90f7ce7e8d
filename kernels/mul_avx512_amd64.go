//go:build !noasm

package kernels

import "unsafe"

// mulTile512 decodes a chunk of rows weight rows, stride bytes apart, and multiplies n activation rows by it. What is
// wanted next is prefetched.
func mulTile512(t Type, tl *tile, w unsafe.Pointer, stride int, next uintptr, rows int, acc *float32, toks *token, n, k, blocks int) {
	tb, tok, bias := (*byte)(unsafe.Pointer(tl)), (*byte)(unsafe.Pointer(toks)), int(t.form().bias)
	decode512(t, tb, (*byte)(w), stride, blocks, next)
	if rows > 16 {
		decode512(t, (*byte)(unsafe.Add(unsafe.Pointer(tl), 64)), (*byte)(unsafe.Add(w, 16*stride)), stride, blocks, next+uintptr(16*stride))
	}
	switch t {
	case Q4_K, Q5_K:
		tileSuperMin32AVX512(acc, tb, tok, n, k, blocks, bias)
	case Q2_K:
		tileSuperMin16AVX512(acc, tb, tok, n, k, blocks, bias)
	case Q3_K, Q6_K, IQ4_XS:
		tileSuper16AVX512(acc, tb, tok, n, k, blocks, bias)
	case Q4_1, Q5_1:
		tileSmallMinAVX512(acc, tb, tok, n, k, blocks, bias)
	default:
		tileSmallAVX512(acc, tb, tok, n, k, blocks, bias)
	}
}

func decode512(typ Type, t, w *byte, stride, blocks int, next uintptr) {
	switch typ {
	case Q4_0:
		decodeQ40AVX512(t, w, stride, blocks, next)
	case Q4_1:
		decodeQ41AVX512(t, w, stride, blocks, next)
	case Q5_0:
		decodeQ50AVX512(t, w, stride, blocks, next)
	case Q5_1:
		decodeQ51AVX512(t, w, stride, blocks, next)
	case Q8_0:
		decodeQ80AVX512(t, w, stride, blocks, next)
	case IQ4_NL:
		decodeIQ4NLAVX512(t, w, stride, blocks, next)
	case MXFP4:
		decodeMXFP4AVX512(t, w, stride, blocks, next)
	case Q2_K:
		decodeQ2KAVX512(t, w, stride, next)
	case Q3_K:
		decodeQ3KAVX512(t, w, stride, next)
	case Q4_K:
		decodeQ4KAVX512(t, w, stride, next)
	case Q5_K:
		decodeQ5KAVX512(t, w, stride, next)
	case Q6_K:
		decodeQ6KAVX512(t, w, stride, next)
	case IQ4_XS:
		decodeIQ4XSAVX512(t, w, stride, next)
	}
}
