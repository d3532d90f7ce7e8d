package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

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
	mins := name == "Q51"
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
	if name == "Q51" {
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

// q5Pair512 reads the fifth bits at disp of each block and the nibbles after them.
func q5Pair512(disp int) func(v *vecState, size int) pair {
	return func(v *vecState, size int) pair {
		p := pair{}
		if disp == 2 {
			p.bias = 16
		}
		m4, m1, by := wide.splat(0x0f0f0f0f), wide.splat(0x10101010), ZMM()
		VMOVDQU32(table("high", cycle(64, append(cycle(16, words(0)...), cycle(16, words(4)...)...)...)), by)
		k := lowMask(0xff00)
		p.codes = func(r int, last bool) reg.VecVirtual {
			c := ZMM()
			VBROADCASTI32X4(v.row(r, disp+4), c)
			if !last {
				VBROADCASTI32X4(v.row(r, size+disp+4), k, c)
			}
			VPSRLVW(by, c, c)
			VPANDD(m4, c, c)
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
