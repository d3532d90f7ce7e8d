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
	superVec512("Q4K", 144, q4KVec512)
	superVec512("Q5K", 176, q5KVec512)
	superVec512("Q6K", 210, q6KVec512)
	smallVec512("Q80", 34, q80Pair512)
	smallVec512("Q40", 18, nibblePair512(2, nil))
	smallVec512("Q41", 20, nibblePair512(4, nil))
	smallVec512("Q50", 22, q5Pair512(2))
	smallVec512("Q51", 24, q5Pair512(4))
	smallVec512("IQ4NL", 18, nibblePair512(2, iq4Codes))
	smallVec512("MXFP4", 17, nibblePair512(1, e2m1Codes))
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
// sums of the codes and float32 d of eight rows, and those of the minima, or nil.
func superVec512(name string, size int, setup func(v *vecState) func() [4]reg.VecVirtual) {
	v := &vecState{}
	acc := YMM()
	var body func() [4]reg.VecVirtual
	v.loop(name, size, 256, 256, func() { body = setup(v) }, func() {
		r := body()
		isum, d, msum, m := r[0], r[1], r[2], r[3]
		VCVTDQ2PS(isum, isum)
		VMULPS_BCST(at(v.x, 0), d, d)
		VMULPS(isum, d, d)
		if msum != nil {
			VCVTDQ2PS(msum.AsY(), msum.AsY())
			VMULPS_BCST(at(v.x, 0), m, m)
			VMULPS(msum.AsY(), m, m)
			VSUBPS(m, d, d)
		}
		VADDPS(d, acc, acc)
	}, nil, acc, func() { VMOVUPS(acc, at(v.dst, 0)) })
}

// laneWords is an index for VPSHUFB: in lanes 0 and 1 byte lo of the lane as eight words, in lanes 2 and 3 byte hi.
func laneWords(name string, lo, hi byte) reg.VecVirtual {
	z := ZMM()
	VMOVDQU32(table(name, append(cycle(32, lo, 0x80), cycle(32, hi, 0x80)...)), z)
	return z
}

// load4K loads two vectors of four rows' 16 bytes at disp.
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

// kVec512 is what Q4_K and Q5_K share. codes returns the codes of half h of row r, of its even and odd sub-blocks, whose
// nibbles start disp bytes into the block.
func (v *vecState) kVec512(codes func(r, h int) [2]reg.VecVirtual) func() [4]reg.VecVirtual {
	// Bytes of a row's unpacked scales: 0-3 scales 0-3, 4-7 minima 0-3, 8-11 scales 4-7, 12-15 minima 4-7.
	scale := []reg.VecVirtual{laneWords("sc02", 0, 2), laneWords("sc13", 1, 3), laneWords("sc46", 8, 10), laneWords("sc57", 9, 11)}
	shiftA := table("shiftA", cycle(64, dwords(0, 0, 2, 2)...))
	shiftB := table("shiftB", cycle(64, dwords(32, 32, 0, 4)...))
	maskA := table("maskA", cycle(64, dwords(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030)...))
	maskB := table("maskB", cycle(64, dwords(0, 0, 0x0f0f0f0f, 0x0f0f0f0f)...))
	minWords := table("minWords", cycle(64, 4, 0x80, 5, 0x80, 6, 0x80, 7, 0x80, 12, 0x80, 13, 0x80, 14, 0x80, 15, 0x80))
	firsts := table("firsts", dwords(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28))
	minRows := table("minRows", dwords(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14))
	return func() [4]reg.VecVirtual {
		h := v.heads(0)
		// Sums of 32 activations as eight words in every lane.
		xs := ZMM()
		VBROADCASTI64X4(at(v.sums, 0), xs)
		VPMADDWD(wide.splat(0x00010001), xs, xs)
		VPACKSSDW(xs, xs, xs)
		VPERMQ(Imm(0x88), xs, xs)
		var low [2]reg.VecVirtual
		for i := range h {
			a, b := ZMM(), ZMM()
			VPSHUFD(Imm(0x99), h[i], a) // dwords 1 2 1 2
			VPSHUFD(Imm(0xff), h[i], b)
			VPSRLVD(shiftA, a, a)
			VPSRLVD(shiftB, b, b)
			VPANDD(maskB, b, b)
			mask := ZMM()
			VMOVDQU32(maskA, mask)
			VPTERNLOGD(U8(0xea), b, mask, a)
			VMOVDQU32(a, v.frame.Offset(64*i))
			low[i] = ZMM()
			VPSHUFB(minWords, a, low[i])
			VPMADDWD(xs, low[i], low[i])
		}
		a, b := ZMM(), ZMM()
		VSHUFPS(Imm(0x88), low[1], low[0], a)
		VSHUFPS(Imm(0xdd), low[1], low[0], b)
		VPADDD(a, b, b)
		VPSHUFD(Imm(0xb1), b, a)
		VPADDD(a, b, b)
		msum := ZMM()
		VMOVDQU32(minRows, a)
		VPERMD(b, a, msum)
		VMOVDQU32(firsts, a)
		VPERMT2D(h[1], a, h[0])
		d, m := YMM(), YMM()
		VPSRLD(Imm(16), h[0].AsY(), m)
		VPMOVDW(h[0].AsY(), d.AsX())
		VPMOVDW(m, m.AsX())
		VCVTPH2PS(d.AsX(), d)
		VCVTPH2PS(m.AsX(), m)

		// The activations of even sub-blocks and of odd ones.
		var x [2][2]reg.VecVirtual
		for h := range x {
			a, b := ZMM(), ZMM()
			VMOVDQU32(at(v.q, 128*h), a)
			VMOVDQU32(at(v.q, 128*h+64), b)
			x[h][0], x[h][1] = ZMM(), ZMM()
			VSHUFI64X2(Imm(0x44), b, a, x[h][0])
			VSHUFI64X2(Imm(0xee), b, a, x[h][1])
		}
		isum := eight512(quads512(func(r int) reg.VecVirtual {
			sc, acc := ZMM(), wide.zero()
			VBROADCASTI32X4(v.frame.Offset(16*r), sc)
			for h := range 2 {
				for i, c := range codes(r, h) {
					p, s := ZMM(), ZMM()
					VPMADDUBSW(x[h][i], c, p)
					VPSHUFB(scale[2*h+i], sc, s)
					VPDPWSSD(s, p, acc)
				}
			}
			return acc
		}))
		return [4]reg.VecVirtual{isum, d, msum, m}
	}
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

func q4KVec512(v *vecState) func() [4]reg.VecVirtual {
	m4 := wide.splat(0x0f0f0f0f)
	return v.kVec512(func(r, h int) [2]reg.VecVirtual { return v.nibbles(r, 16+64*h, m4) })
}

func q5KVec512(v *vecState) func() [4]reg.VecVirtual {
	m4, m1 := wide.splat(0x0f0f0f0f), wide.splat(0x10101010)
	// Bit k of 32 bytes belongs to sub-block k: words are shifted until it stands at bit 4.
	left := func(name string, lo, hi uint16) Mem {
		return table(name, append(cycle(32, words(lo)...), cycle(32, words(hi)...)...))
	}
	by := [2][2]Mem{{left("left42", 4, 2), left("left31", 3, 1)}, {left("right02", 0, 2), left("right13", 1, 3)}}
	return v.kVec512(func(r, h int) [2]reg.VecVirtual {
		c := v.nibbles(r, 48+64*h, m4)
		high := ZMM()
		VBROADCASTI64X4(v.row(r, 16), high)
		for i := range c {
			b := ZMM()
			if h == 0 {
				VPSLLVW(by[h][i], high, b)
			} else {
				VPSRLVW(by[h][i], high, b)
			}
			VPTERNLOGD(U8(0xea), c[i], m1, b)
			c[i] = b
		}
		return c
	})
}

func q6KVec512(v *vecState) func() [4]reg.VecVirtual {
	m4, m2 := wide.splat(0x0f0f0f0f), wide.splat(0x30303030)
	two := func(name string, lo, hi uint16) reg.VecVirtual {
		z := ZMM()
		VMOVDQU32(table(name, append(cycle(32, words(lo)...), cycle(32, words(hi)...)...)), z)
		return z
	}
	left, right := two("left42", 4, 2), two("right02", 0, 2)
	index := each(4, ZMM)
	for i, z := range index {
		var w []uint16
		for l := range 32 {
			w = append(w, uint16(4*i+l/8))
		}
		VMOVDQU32(table([]string{"words0", "words4", "words8", "words12"}[i], words(w...)), z)
	}
	return func() [4]reg.VecVirtual {
		h, d := XMM(), YMM()
		VPXOR(h, h, h)
		for r := range 8 {
			VPINSRW(Imm(uint64(r)), v.row(r, 208), h, h)
		}
		VCVTPH2PS(h, d)
		// -16 times the sums of the activations: with the scales and doubled the share of the bias, 32.
		bias, z := YMM(), YMM()
		VPXOR(z, z, z)
		VPSUBW(at(v.sums, 0), z, bias)
		VPSLLW(Imm(4), bias, bias)
		x := each(4, ZMM)
		for i := range x {
			VMOVDQU32(at(v.q, 64*i), x[i])
		}
		isum := eight512(quads512(func(r int) reg.VecVirtual {
			// Physical, because a write of the lower half clears the upper, which avo does not know.
			sc := reg.Z31
			VPMOVSXBW(v.row(r, 192), sc.AsY())
			start := reg.Z30
			VPMADDWD(bias, sc.AsY(), start.AsY())
			VPADDD(start.AsY(), start.AsY(), start.AsY())
			acc := ZMM()
			VMOVDQA32(start, acc)
			for h := range 2 {
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
					p, s := ZMM(), ZMM()
					VPMADDUBSW(x[2*h+i], b, p)
					VPERMW(sc, index[2*h+i], s)
					VPDPWSSD(s, p, acc)
				}
			}
			return acc
		}))
		return [4]reg.VecVirtual{isum, d, nil, nil}
	}
}

// pair is how a type of 32 is read two blocks at a time: codes returns those of row r in column order, the first block's
// alone when last.
type pair struct {
	bias  uint32
	codes func(r int, last bool) reg.VecVirtual
}

// smallVec512 writes the routine of a type of 32.
func smallVec512(name string, size int, setup func(v *vecState, size int) pair) {
	v := &vecState{}
	acc := ZMM()
	var p pair
	var biases, spread reg.VecVirtual
	mins := name == "Q41" || name == "Q51"
	body := func(last bool) {
		x, start := ZMM(), wide.zero()
		if last {
			k := lowMask(0x00ff)
			VMOVDQU32_Z(at(v.q, 0), k, x)
		} else {
			VMOVDQU32(at(v.q, 0), x)
		}
		if p.bias != 0 {
			VPDPBUSD(x, biases, start)
			VPSUBD(start, wide.zero(), start)
		}
		q := quads512(func(r int) reg.VecVirtual {
			a := ZMM()
			VMOVDQA32(start, a)
			VPDPBUSD(x, p.codes(r, last), a)
			return a
		})
		// Lanes: first block of rows 0-3, second block of rows 0-3, the same of rows 4-7.
		isum := ZMM()
		VSHUFI32X4(Imm(0x88), q[1], q[0], isum)
		VSHUFI32X4(Imm(0xdd), q[1], q[0], q[0])
		VPADDD(q[0], isum, isum)
		VCVTDQ2PS(isum, isum)
		dx, d := ZMM(), ZMM()
		if last {
			one := XMM()
			VMOVSS(at(v.x, 0), one)
			VBROADCASTSD(one, dx)
		} else {
			VBROADCASTSD(at(v.x, 0), dx)
		}
		VPERMILPS(spread, dx, dx)
		m := v.scales32(name, size, last, d)
		VMULPS(dx, d, d)
		VMULPS(isum, d, d)
		if mins {
			xs, s := ZMM(), XMM()
			if last {
				VMOVD(at(v.sums, 0), s)
			} else {
				VMOVQ(at(v.sums, 0), s)
			}
			one := XMM()
			VPBROADCASTD(table32(0x00010001), one)
			VPMADDWD(one, s, s)
			VCVTDQ2PS(s, s)
			VBROADCASTSD(s, xs)
			VPERMILPS(spread, xs, xs)
			VMULPS(dx, m, m)
			VMULPS(xs, m, m)
			VADDPS(m, d, d)
		}
		VADDPS(d, acc, acc)
		VSHUFI32X4(Imm(0xb1), d, d, d)
		VADDPS(d, acc, acc)
	}
	v.loop(name, 2*size, 64, 32, func() {
		spread = ZMM()
		VMOVDQU32(table("spread", cycle(64, dwords(0, 0, 0, 0, 1, 1, 1, 1)...)), spread)
		p = setup(v, size)
		if p.bias != 0 {
			biases = wide.splat(p.bias * 0x01010101)
		}
	}, func() { body(false) }, func() { body(true) }, acc, func() {
		VSHUFI32X4(Imm(0x08), acc, acc, acc)
		VMOVUPS(acc.AsY(), at(v.dst, 0))
	})
}

// lowMask is a mask register.
func lowMask(bits uint32) reg.OpmaskVirtual {
	k, t := K(), GP32()
	MOVL(U32(bits), t)
	KMOVW(t, k)
	return k
}

// scales32 loads d, in the lanes' order, and returns m.
func (v *vecState) scales32(name string, size int, last bool, d reg.VecVirtual) reg.VecVirtual {
	// insert fills lane h*2+b of dwords, or quarter of words or bytes, from block b of rows 4h to 4h+3.
	switch name {
	case "Q41", "Q51":
		z, m := wide.zero(), ZMM()
		for l := range 4 {
			if last && l%2 == 1 {
				continue
			}
			x := XMM()
			VMOVD(v.row(l/2*4, l%2*size), x)
			for r := 1; r < 4; r++ {
				VPINSRD(Imm(uint64(r)), v.row(l/2*4+r, l%2*size), x, x)
			}
			VINSERTI32X4(Imm(uint64(l)), x, z, z)
		}
		VPMOVDW(z, d.AsY())
		VPSRLD(Imm(16), z, z)
		VPMOVDW(z, m.AsY())
		VCVTPH2PS(d.AsY(), d)
		VCVTPH2PS(m.AsY(), m)
		return m
	case "MXFP4":
		x := XMM()
		VPXOR(x, x, x)
		for l := range 16 {
			if last && l/4%2 == 1 {
				continue
			}
			VPINSRB(Imm(uint64(l)), v.row(l/8*4+l%4, l/4%2*size), x, x)
		}
		k, small := K(), ZMM()
		VPMOVZXBD(x, d)
		VPCMPUD(Imm(1), wide.splat(2), d, k)
		VPSLLVD(d, wide.splat(0x00200000), small)
		VPSUBD(wide.splat(1), d, d)
		VPSLLD(Imm(23), d, d)
		VMOVDQA32(small, k, d)
		if last {
			VMOVDQA32_Z(d, lowMask(0x0f0f), d)
		}
		return nil
	}
	y := wide.zero()
	for h := range 2 {
		x := XMM()
		VPXOR(x, x, x)
		for l := range 8 {
			if last && l >= 4 {
				continue
			}
			VPINSRW(Imm(uint64(l)), v.row(4*h+l%4, l/4*size), x, x)
		}
		VINSERTI32X4(Imm(uint64(h)), x, y, y)
	}
	VCVTPH2PS(y.AsY(), d)
	return nil
}

func q80Pair512(v *vecState, size int) pair {
	flip := wide.splat(0x80808080)
	return pair{128, func(r int, last bool) reg.VecVirtual {
		c := ZMM()
		if last {
			VBROADCASTI64X4(v.row(r, 2), c) // the upper half meets zero activations
		} else {
			VBROADCASTI64X4(v.row(r, 2), c)
			VINSERTI64X4(Imm(1), v.row(r, size+2), c, c)
		}
		VPXORD(flip, c, c)
		return c
	}}
}

// nibblePair512 reads 16 bytes of nibbles at disp of each block, through a table when there is one.
func nibblePair512(disp int, codes []byte) func(v *vecState, size int) pair {
	return func(v *vecState, size int) pair {
		m4, by := wide.splat(0x0f0f0f0f), ZMM()
		VMOVDQU32(table("high", cycle(64, append(cycle(16, words(0)...), cycle(16, words(4)...)...)...)), by)
		k := lowMask(0xff00)
		var values reg.VecVirtual
		p := pair{}
		switch {
		case codes != nil:
			values = wide.table16(fmt.Sprintf("codes%d", codes[0]), codes)
			p.bias = map[byte]uint32{1: 128, 12: 12}[codes[0]]
		case disp == 2:
			p.bias = 8
		}
		p.codes = func(r int, last bool) reg.VecVirtual {
			c := ZMM()
			VBROADCASTI32X4(v.row(r, disp), c)
			if !last {
				VBROADCASTI32X4(v.row(r, size+disp), k, c)
			}
			VPSRLVW(by, c, c)
			VPANDD(m4, c, c)
			if values != nil {
				VPSHUFB(c, values, c)
			}
			return c
		}
		return p
	}
}

func q5Pair512(disp int) func(v *vecState, size int) pair {
	return func(v *vecState, size int) pair {
		p := nibblePair512(disp+4, nil)(v, size)
		p.bias = 0
		if disp == 2 {
			p.bias = 16
		}
		m1, nibbles := wide.splat(0x10101010), p.codes
		p.codes = func(r int, last bool) reg.VecVirtual {
			c := nibbles(r, last)
			a, b := K(), K()
			KMOVD(v.row(r, disp), a)
			if !last {
				KMOVD(v.row(r, size+disp), b)
				KUNPCKDQ(a, b, a)
			}
			VPADDB(m1, c, a, c)
			return c
		}
		return p
	}
}
