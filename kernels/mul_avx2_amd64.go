//go:build !noasm

package kernels

import "unsafe"

// mulTile256 is mulTile512 in quarters of 8 rows.
func mulTile256(t Type, tl *tile, w unsafe.Pointer, stride int, next uintptr, rows int, acc *float32, toks *token, n, k, blocks int) {
	tok, bias := (*byte)(unsafe.Pointer(toks)), int(t.form().bias)
	for r := 0; r < rows; r += 8 {
		tb := (*byte)(unsafe.Add(unsafe.Pointer(tl), 4*r))
		sums := (*float32)(unsafe.Add(unsafe.Pointer(acc), 4*r))
		decode256(t, tb, (*byte)(unsafe.Add(w, r*stride)), stride, blocks, next+uintptr(r*stride))
		switch t {
		case Q4_K:
			tileSuperMin32x4AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q5_K:
			tileSuperMin32x5AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q2_K:
			tileSuperMin16x4AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q3_K, Q6_K:
			tileSuper16x6AVX2(sums, tb, tok, n, k, blocks, bias)
		case IQ4_XS:
			tileSuper16SignedAVX2(sums, tb, tok, n, k, blocks, 0)
		case Q4_1, Q5_1:
			tileSmallMinx5AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q4_0:
			tileSmallx4AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q5_0, MXFP4:
			tileSmallx5AVX2(sums, tb, tok, n, k, blocks, bias)
		case Q8_0, IQ4_NL:
			tileSmallSignedAVX2(sums, tb, tok, n, k, blocks, 0)
		}
	}
}

func decode256(typ Type, t, w *byte, stride, blocks int, next uintptr) {
	switch typ {
	case Q4_0:
		decodeQ40AVX2(t, w, stride, blocks, next)
	case Q4_1:
		decodeQ41AVX2(t, w, stride, blocks, next)
	case Q5_0:
		decodeQ50AVX2(t, w, stride, blocks, next)
	case Q5_1:
		decodeQ51AVX2(t, w, stride, blocks, next)
	case Q8_0:
		decodeQ80AVX2(t, w, stride, blocks, next)
	case IQ4_NL:
		decodeIQ4NLAVX2(t, w, stride, blocks, next)
	case MXFP4:
		decodeMXFP4AVX2(t, w, stride, blocks, next)
	case Q2_K:
		decodeQ2KAVX2(t, w, stride, next)
	case Q3_K:
		decodeQ3KAVX2(t, w, stride, next)
	case Q4_K:
		decodeQ4KAVX2(t, w, stride, next)
	case Q5_K:
		decodeQ5KAVX2(t, w, stride, next)
	case Q6_K:
		decodeQ6KAVX2(t, w, stride, next)
	case IQ4_XS:
		decodeIQ4XSAVX2(t, w, stride, next)
	}
}
