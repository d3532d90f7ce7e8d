package kernels

import "encoding/binary"

// The integer dot product of the generic path: four products in one 64-bit multiplication.
//
// Take four codes as the polynomial a = a0 + a1*B + a2*B^2 + a3*B^3 with B = 2^16, and four activations in reverse, x =
// x3 + x2*B + x1*B^2 + x0*B^3. The coefficient of B^3 in a*x is a0*x0 + a1*x1 + a2*x2 + a3*x3, and higher ones overflow
// out of the word. Products may be added up before the top 16 bits are read as long as every coefficient stays within
// 16 signed bits; what lower coefficients borrow from it is put right by adding 2^47 first. The result is the exact
// integer. With |x| <= 127 the sum of n products of codes below 2^k fits for
//
//	k = 4: n = 16 (30480)    k = 5: n = 8 (31496)    k = 6: n = 4 (32004)
//
// and codes of 8 bits are taken as two of 4. Codes have no sign here, so that a mask is all their unpacking; a type's
// bias is taken off afterwards, through the sums of the activations.

// lanes holds a chunk of activations as such polynomials: word 2*i has elements 8*i+6, +4, +2, +0 from the low lane up,
// word 2*i+1 elements 8*i+7, +5, +3, +1. A negative lane borrows from the next, as the arithmetic wants.
type lanes [chunk / 4]uint64

// laneMask keeps every second byte of eight codes.
const laneMask = 0x00ff00ff00ff00ff

// pack fills the lanes of the first len(q) elements, whole groups of 8.
func (p *lanes) pack(q []int8) {
	for i := 0; len(q) >= 8 && i < len(p)-1; i += 2 {
		p[i] = uint64(int64(q[6]) + int64(q[4])<<16 + int64(q[2])<<32 + int64(q[0])<<48)
		p[i+1] = uint64(int64(q[7]) + int64(q[5])<<16 + int64(q[3])<<32 + int64(q[1])<<48)
		q = q[8:]
	}
}

// sums writes to s[g] the sum of u[e]*x[e] over the 16 elements e of group g.
func (p *lanes) sums(s *[chunk / 16]int32, u *[chunk]byte, bits uint8) {
	switch bits {
	case 4:
		p.sums4(s, u)
	case 5:
		p.sums5(s, u)
	case 6:
		p.sums6(s, u)
	default:
		p.sums8(s, u)
	}
}

// top reads the coefficient of B^3.
func top(v uint64) int32 { return int32(int64(v+1<<47) >> 48) }

// four returns the polynomial whose B^3 is the sum of eight products: two words' worth of w.
func four(w, even, odd uint64) uint64 { return w&laneMask*even + w>>8&laneMask*odd }

func (p *lanes) sums4(s *[chunk / 16]int32, u *[chunk]byte) {
	for g := range s {
		w, x := u[g*16:g*16+16], p[g*4:g*4+4]
		w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		s[g] = top(four(w0, x[0], x[1]) + four(w1, x[2], x[3]))
	}
}

func (p *lanes) sums5(s *[chunk / 16]int32, u *[chunk]byte) {
	for g := range s {
		w, x := u[g*16:g*16+16], p[g*4:g*4+4]
		w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		s[g] = top(four(w0, x[0], x[1])) + top(four(w1, x[2], x[3]))
	}
}

func (p *lanes) sums6(s *[chunk / 16]int32, u *[chunk]byte) {
	for g := range s {
		w, x := u[g*16:g*16+16], p[g*4:g*4+4]
		w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		s[g] = top(w0&laneMask*x[0]) + top(w0>>8&laneMask*x[1]) + top(w1&laneMask*x[2]) + top(w1>>8&laneMask*x[3])
	}
}

func (p *lanes) sums8(s *[chunk / 16]int32, u *[chunk]byte) {
	for g := range s {
		w, x := u[g*16:g*16+16], p[g*4:g*4+4]
		w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		s[g] = top(four(w0&low4, x[0], x[1])+four(w1&low4, x[2], x[3])) +
			top(four(w0>>4&low4, x[0], x[1])+four(w1>>4&low4, x[2], x[3]))<<4
	}
}
