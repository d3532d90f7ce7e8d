package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// wide serves for its constants.
var wide = &decoder{}

// vecState is the state of a routine that multiplies groups of eight weight rows by one row of activations.
//
// The eight rows share the loads of the activations, and their 16 partial sums each are added by transposing: 16 shuffles
// and 7 additions leave the eight sums in one register, where the float step is done for all at once.
type vecState struct {
	p0, p4, s, s3 reg.Register // rows 0 and 4; stride and three times it
	q, x, sums    reg.Register // codes, scales and sums of the activations at the present block
	ahead, dst    reg.Register // what to prefetch, where results go
	frame         Mem
}

func vec512() {
	superVec512("Q6K", 210, q6KVec512)
	superVec512("Q3K", 110, q3KVec512)
	superVec512("IQ4XS", 136, iq4XSVec512)
	smallVec512("Q80", 34, q80Pair512)
	smallVec512("Q50", 22, q5Pair512(2))
	smallVec512("Q51", 24, q5Pair512(4))
}

func (v *vecState) row(r, disp int) Mem {
	return (&decoder{p: []reg.Register{v.p0, v.p4}, s: v.s, s3: v.s3}).row(r, disp)
}

// loop writes the loops over groups of rows and over blocks. size is the bytes of a weight row and cols the columns that
// one turn of body takes; last, where there is one, takes the block that is left of an odd number.
func (v *vecState) loop(name string, size, cols, perD int, setup, body, last func(), acc reg.VecVirtual, end func()) {
	TEXT("vec"+name+"AVX512", NOSPLIT, "func(dst *float32, w *byte, stride, groups int, q *int8, d *float32, sums *int16, blocks, ahead int)")
	Pragma("noescape")
	Doc("vec"+name+"AVX512 stores to dst the products of 8*groups weight rows, stride bytes apart, with one activation row of as many blocks,",
		"and prefetches weights ahead bytes beyond those it reads.")
	v.frame = AllocLocal(128)
	v.s, v.s3 = Load(Param("stride"), GP64()), GP64()
	LEAQ(Mem{Base: v.s, Index: v.s, Scale: 2}, v.s3)
	base := Load(Param("w"), GP64())
	v.dst = Load(Param("dst"), GP64())
	groups := Load(Param("groups"), GP64())
	v.p0, v.p4, v.q, v.x, v.sums, v.ahead = GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	n := GP64()
	setup()
	Label("group")
	MOVQ(base, v.p0)
	LEAQ(Mem{Base: base, Index: v.s, Scale: 4}, v.p4)
	Load(Param("ahead"), v.ahead)
	ADDQ(base, v.ahead)
	Load(Param("q"), v.q)
	Load(Param("d"), v.x)
	Load(Param("sums"), v.sums)
	Load(Param("blocks"), n)
	VXORPS(acc, acc, acc)
	per := cols / perD
	if per > 1 {
		SUBQ(Imm(uint64(per)), n)
		JL(LabelRef("last"))
	}
	Label("block")
	for line := 0; line < 8*size; line += 64 {
		PREFETCHT1(at(v.ahead, line))
	}
	body()
	ADDQ(U32(uint32(8*size)), v.ahead)
	ADDQ(U32(uint32(size)), v.p0)
	ADDQ(U32(uint32(size)), v.p4)
	ADDQ(U32(uint32(cols)), v.q)
	ADDQ(U32(uint32(per*4)), v.x)
	ADDQ(U32(uint32(cols/16*2)), v.sums)
	SUBQ(Imm(uint64(per)), n)
	if per > 1 {
		JGE(LabelRef("block"))
		Label("last")
		ADDQ(Imm(uint64(per)), n)
		JE(LabelRef("end"))
		last()
		Label("end")
	} else {
		JNE(LabelRef("block"))
	}
	end()
	LEAQ(Mem{Base: base, Index: v.s, Scale: 8}, base)
	ADDQ(Imm(32), v.dst)
	DECQ(groups)
	JNE(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// quads returns for rows 0-3 and 4-7 a vector that has in each lane the sums of the four rows' dwords in that lane.
func quads512(row func(r int) reg.VecVirtual) [2]reg.VecVirtual {
	var out [2]reg.VecVirtual
	for h := range out {
		var pair [2]reg.VecVirtual
		for i := range pair {
			a := row(4*h + 2*i)
			b := row(4*h + 2*i + 1)
			lo := ZMM()
			VPUNPCKLDQ(b, a, lo)
			VPUNPCKHDQ(b, a, a)
			VPADDD(a, lo, lo)
			pair[i] = lo
		}
		out[h] = ZMM()
		VPUNPCKLQDQ(pair[1], pair[0], out[h])
		VPUNPCKHQDQ(pair[1], pair[0], pair[0])
		VPADDD(pair[0], out[h], out[h])
	}
	return out
}

// eight adds the lanes of two quads: the sums of rows 0 to 7.
func eight512(q [2]reg.VecVirtual) reg.VecVirtual {
	for _, x := range q {
		y := YMM()
		VEXTRACTI64X4(Imm(1), x, y)
		VPADDD(y, x.AsY(), x.AsY())
	}
	lo := YMM()
	VINSERTI32X4(Imm(1), q[1].AsX(), q[0].AsY(), lo)
	VSHUFI32X4(Imm(3), q[1].AsY(), q[0].AsY(), q[0].AsY())
	VPADDD(q[0].AsY(), lo, lo)
	return lo
}

// superVec512 writes the routine of a type of 256. setup loads constants and returns the body, which returns the integer
// sums of the codes and float32 d of eight rows.
func superVec512(name string, size int, setup func(v *vecState) func() (reg.VecVirtual, reg.VecVirtual)) {
	v := &vecState{}
	acc := YMM()
	var body func() (reg.VecVirtual, reg.VecVirtual)
	v.loop(name, size, 256, 256, func() { body = setup(v) }, func() {
		isum, d := body()
		VCVTDQ2PS(isum, isum)
		VMULPS_BCST(at(v.x, 0), d, d)
		VMULPS(isum, d, d)
		VADDPS(d, acc, acc)
	}, nil, acc, func() { VMOVUPS(acc, at(v.dst, 0)) })
}

// heads loads two vectors of four rows' 16 bytes at disp.
func (v *vecState) heads(disp int) [2]reg.VecVirtual {
	var h [2]reg.VecVirtual
	for i := range h {
		h[i] = ZMM()
		VBROADCASTI32X4(v.row(4*i, disp), h[i])
		for r := 1; r < 4; r++ {
			VINSERTI32X4(U8(r), v.row(4*i+r, disp), h[i], h[i])
		}
	}
	return h
}

// nibbles returns the low and high nibbles of 64 bytes of row r.
func (v *vecState) nibbles(r, disp int, m4 reg.VecVirtual) [2]reg.VecVirtual {
	lo, hi := ZMM(), ZMM()
	VMOVDQU32(v.row(r, disp), lo)
	VPSRLW(Imm(4), lo, hi)
	VPANDD(m4, lo, lo)
	VPANDD(m4, hi, hi)
	return [2]reg.VecVirtual{lo, hi}
}

// twoShifts is a vector of word shifts: lo in the lower 32 bytes, hi in the upper.
func twoShifts(lo, hi uint16) reg.VecVirtual {
	z := ZMM()
	VMOVDQU32(table(fmt.Sprintf("shifts%d%d", lo, hi), append(cycle(32, words(lo)...), cycle(32, words(hi)...)...)), z)
	return z
}

// laneIndex spreads words 4i to 4i+3, or dwords, over the lanes.
func laneIndex(name string, i int, dwordsWanted bool) reg.VecVirtual {
	var b []byte
	for l := range 4 {
		if dwordsWanted {
			b = append(b, cycle(16, dwords(uint32(4*i+l))...)...)
		} else {
			b = append(b, cycle(16, words(uint16(4*i+l))...)...)
		}
	}
	z := ZMM()
	VMOVDQU32(table(fmt.Sprintf("%s%d", name, i), b), z)
	return z
}

// halves8 returns the float16 at disp of all rows as float32.
func (v *vecState) halves8(disp int) reg.VecVirtual {
	h, d := XMM(), YMM()
	VPXOR(h, h, h)
	for r := range 8 {
		VPINSRW(Imm(uint64(r)), v.row(r, disp), h, h)
	}
	VCVTPH2PS(h, d)
	return d
}

// biased512 is what Q6_K and Q3_K share: a signed scale per 16 at the memory that scales names, and codes in column order.
// The bias is taken off by starting each row's sum with its scales times -bias*sums, in two steps where one would not fit
// into a word.
func (v *vecState) biased512(shift uint64, twice bool, head func() reg.VecVirtual, scales func(r int) Mem, codes func(r, h int) [2]reg.VecVirtual) func() (reg.VecVirtual, reg.VecVirtual) {
	index := make([]reg.VecVirtual, 4)
	for i := range index {
		index[i] = laneIndex("words", i, false)
	}
	return func() (reg.VecVirtual, reg.VecVirtual) {
		d := head()
		bias, z := YMM(), YMM()
		VPXOR(z, z, z)
		VPSUBW(at(v.sums, 0), z, bias)
		VPSLLW(Imm(shift), bias, bias)
		x := each(4, ZMM)
		for i := range x {
			VMOVDQU32(at(v.q, 64*i), x[i])
		}
		isum := eight512(quads512(func(r int) reg.VecVirtual {
			// Physical, because a write of the lower half clears the upper, which avo does not know.
			sc, start, acc := reg.Z31, reg.Z30, ZMM()
			VPMOVSXBW(scales(r), sc.AsY())
			VPMADDWD(bias, sc.AsY(), start.AsY())
			if twice {
				VPADDD(start.AsY(), start.AsY(), start.AsY())
			}
			VMOVDQA32(start, acc)
			for h := range 2 {
				for i, c := range codes(r, h) {
					p, s := ZMM(), ZMM()
					VPMADDUBSW(x[2*h+i], c, p)
					VPERMW(sc, index[2*h+i], s)
					VPDPWSSD(s, p, acc)
				}
			}
			return acc
		}))
		return isum, d
	}
}

func q6KVec512(v *vecState) func() (reg.VecVirtual, reg.VecVirtual) {
	m4, m2 := wide.splat(0x0f0f0f0f), wide.splat(0x30303030)
	left, right := twoShifts(4, 2), twoShifts(0, 2)
	return v.biased512(4, true, func() reg.VecVirtual { return v.halves8(208) }, func(r int) Mem { return v.row(r, 192) },
		func(r, h int) [2]reg.VecVirtual {
			c := v.nibbles(r, 64*h, m4)
			high := ZMM()
			VBROADCASTI64X4(v.row(r, 128+32*h), high)
			for i := range c {
				b := ZMM()
				if i == 0 {
					VPSLLVW(left, high, b)
				} else {
					VPSRLVW(right, high, b)
				}
				VPTERNLOGD(U8(0xea), c[i], m2, b)
				c[i] = b
			}
			return c
		})
}

func q3KVec512(v *vecState) func() (reg.VecVirtual, reg.VecVirtual) {
	m2, m1 := wide.splat(0x03030303), wide.splat(0x04040404)
	low := []reg.VecVirtual{twoShifts(0, 2), twoShifts(4, 6)}
	// Bit 4h+p of the high bits goes to bit 2; the first two have to go up.
	left := twoShifts(2, 1)
	right := [2][2]reg.VecVirtual{{nil, twoShifts(0, 1)}, {twoShifts(2, 3), twoShifts(4, 5)}}
	nibble := table("nibble", cycle(64, dwords(0, 0, 4, 4)...))
	upper := table("upper", cycle(64, dwords(0, 2, 4, 6)...))
	return v.biased512(2, false, func() reg.VecVirtual {
		// 12 bytes of scales and d end the block: 16 bytes from 94 on do not pass it.
		for i, h := range v.heads(94) {
			VPSRLDQ(Imm(2), h, h)
			a, b := ZMM(), ZMM()
			VPSHUFD(Imm(0x44), h, a) // dwords 0 1 0 1
			VPSHUFD(Imm(0xaa), h, b) // dword 2
			VPSRLVD(nibble, a, a)
			VPANDD(wide.splat(0x0f0f0f0f), a, a)
			VPSRLVD(upper, b, b)
			VPSLLD(Imm(4), b, b)
			VPTERNLOGD(U8(0xea), a, wide.splat(0x30303030), b)
			VPSUBB(wide.splat(0x20202020), b, b)
			VMOVDQU32(b, v.frame.Offset(64*i))
		}
		return v.halves8(108)
	}, func(r int) Mem { return v.frame.Offset(16 * r) }, func(r, h int) [2]reg.VecVirtual {
		var c [2]reg.VecVirtual
		q, high := ZMM(), ZMM()
		VBROADCASTI64X4(v.row(r, 32+32*h), q)
		VBROADCASTI64X4(v.row(r, 0), high)
		for i := range c {
			b := ZMM()
			if c[i] = ZMM(); right[h][i] == nil {
				VPSLLVW(left, high, b)
			} else {
				VPSRLVW(right[h][i], high, b)
			}
			VPSRLVW(low[i], q, c[i])
			VPANDD(m2, c[i], c[i])
			VPTERNLOGD(U8(0xea), c[i], m1, b)
			c[i] = b
		}
		return c
	})
}

// iq4XSVec512: codes of 8 bits would overflow words, so they are added up as dwords, four sub-blocks to a vector, and the
// bias is in what the sums start with.
func iq4XSVec512(v *vecState) func() (reg.VecVirtual, reg.VecVirtual) {
	m4, values := wide.splat(0x0f0f0f0f), wide.table16("iq4", iq4Codes)
	index := []reg.VecVirtual{laneIndex("dwords", 0, true), laneIndex("dwords", 1, true)}
	nibble, pair := table("nibbles8", cycle(8, 0x0f)), table("pairs8", cycle(8, 0x30))
	return func() (reg.VecVirtual, reg.VecVirtual) {
		d := v.halves8(0)
		bias := wide.splat(0x80808080)
		var x [2][2]reg.VecVirtual
		var start [2]reg.VecVirtual
		for h := range x {
			a, b := ZMM(), ZMM()
			VMOVDQU32(at(v.q, 128*h), a)
			VMOVDQU32(at(v.q, 128*h+64), b)
			x[h][0], x[h][1], start[h] = ZMM(), ZMM(), wide.zero()
			VSHUFI32X4(Imm(0x88), b, a, x[h][0])
			VSHUFI32X4(Imm(0xdd), b, a, x[h][1])
			VPDPBUSD(x[h][0], bias, start[h])
			VPDPBUSD(x[h][1], bias, start[h])
			VPSUBD(start[h], wide.zero(), start[h])
		}
		isum := eight512(quads512(func(r int) reg.VecVirtual {
			// Eight scales of 6 bits: low nibbles in 32 bits, upper pairs in 16.
			lo, hi := GP64(), GP64()
			MOVL(v.row(r, 4), lo.As32())
			MOVWLZX(v.row(r, 2), hi.As32())
			PDEPQ(nibble, lo, lo)
			PDEPQ(pair, hi, hi)
			ORQ(hi, lo)
			b, sc := XMM(), reg.Z31
			VMOVQ(lo, b)
			VPSUBB(wide.splat(0x20202020).AsX(), b, b)
			VPMOVSXBD(b, sc.AsY())
			var sum reg.VecVirtual
			for h := range 2 {
				c := v.nibbles(r, 8+64*h, m4)
				acc, s := ZMM(), ZMM()
				VMOVDQA32(start[h], acc)
				for i := range c {
					VPSHUFB(c[i], values, c[i])
					VPDPBUSD(x[h][i], c[i], acc)
				}
				VPERMD(sc, index[h], s)
				VPMULLD(s, acc, acc)
				if h == 0 {
					sum = acc
				} else {
					VPADDD(acc, sum, sum)
				}
			}
			return sum
		}))
		return isum, d
	}
}
