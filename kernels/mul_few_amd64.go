//go:build !noasm

package kernels

import "unsafe"

// Products of a few activation rows, such as one token of each of as many sequences: 16 weight rows at a time, unpacked
// once for all of them as for a tile, but into registers.

const (
	fewLanes = 16 // weight rows of a group
	fewMost  = 16 // activation rows of a call, at most
)

// mulFew multiplies up to fewMost activation rows. The matrix has at least tileLanes rows.
func mulFew(c *mul) {
	var (
		acc  [fewMost][tileLanes]float32
		toks [fewMost]token
		t    = c.w.Type
		size = t.RowBytes(c.x.N)
		n    = c.n
	)
	c.tokens(toks[:n], 0)
	tok, blocks := (*byte)(unsafe.Pointer(&toks)), c.x.N/c.x.Kind.block()
	for ra := c.r0; ra < c.r1; ra += tileLanes {
		first, rows := min(ra, c.w.Rows-tileLanes), min(tileLanes, c.r1-ra)
		skip := ra - first
		for h := 0; h < skip+rows; h += fewLanes {
			w := &c.w.Data[(first+h)*size]
			ahead := uintptr(unsafe.Pointer(w)) + uintptr(fewLanes*size) // the next group, in whole: 64 KiB of it were slower
			few512(t, &acc[0][h], w, size, tok, n, blocks, ahead)
		}
		mask := uint32(1<<rows-1) << skip
		if c.scale == nil {
			tilePutAVX512(&acc[0][0], tok, n, first, mask)
		} else {
			tileAddAVX512(&acc[0][0], tok, n, first, mask)
		}
	}
}

func few512(t Type, acc *float32, w *byte, stride int, tok *byte, n, blocks int, ahead uintptr) {
	switch t {
	case Q4_0:
		fewQ40AVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q4_1:
		fewQ41AVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q5_0:
		fewQ50AVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q5_1:
		fewQ51AVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q8_0:
		fewQ80AVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q4_K:
		fewQ4KAVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q5_K:
		fewQ5KAVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q6_K:
		fewQ6KAVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q3_K:
		fewQ3KAVX512(acc, w, stride, tok, n, blocks, ahead)
	case Q2_K:
		fewQ2KAVX512(acc, w, stride, tok, n, blocks, ahead)
	case IQ4_XS:
		fewIQ4XSAVX512(acc, w, stride, tok, n, blocks, ahead)
	case IQ4_NL:
		fewIQ4NLAVX512(acc, w, stride, tok, n, blocks, ahead)
	case MXFP4:
		fewMXFP4AVX512(acc, w, stride, tok, n, blocks, ahead)
	}
}
