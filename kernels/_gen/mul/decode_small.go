package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// small writes the routine of a type of 32, with its loop over blocks.
func (d decoder) small(name string, size int, body func(d *decoder)) {
	r := d.begin(name, "func(tile, w *byte, stride, blocks int, next uintptr)", "up to eight blocks")
	n := Load(Param("blocks"), GP64())
	sc := *r
	sc.t = GP64()
	LEAQ(at(r.t, tileSc), sc.t)
	Label("block")
	r.size = size
	scale, low := r.scales32(name)
	sc.store(scale, 0)
	if low != nil {
		sc.store(low, 8*step)
	}
	body(r)
	r.prefetch(1000, size)
	for i := range r.p {
		ADDQ(Imm(uint64(size)), r.p[i])
		ADDQ(Imm(uint64(size)), r.next[i])
	}
	ADDQ(U32(8*step), r.t)
	ADDQ(U32(step), sc.t)
	DECQ(n)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// scales32 returns the scales of a block of every row, and the minima of types that have them.
func (d *decoder) scales32(name string) (scale, low reg.VecVirtual) {
	switch name {
	case "Q41", "Q51":
		v := d.dwords(0)
		return d.widened(v, false), d.widened(v, true)
	case "MXFP4":
		x, v := XMM(), d.vec()
		VPXOR(x, x, x)
		for i := range d.rows() {
			VPINSRB(Imm(uint64(i)), d.row(i, 0), x, x)
		}
		VPMOVZXBD(x, v)
		// 2^(e-128): (e-1)<<23, and subnormal below e = 2.
		small := d.vec()
		VPSLLVD(v, d.splat(0x00200000), small)
		if d.narrow {
			mask := YMM()
			VPCMPGTD(v, d.splat(2), mask)
			VPSUBD(d.splat(1), v, v)
			VPSLLD(Imm(23), v, v)
			VPBLENDVB(mask, small, v, v)
		} else {
			k := K()
			VPCMPUD(Imm(1), d.splat(2), v, k)
			VPSUBD(d.splat(1), v, v)
			VPSLLD(Imm(23), v, v)
			VMOVDQA32(small, k, v)
		}
		return v, nil
	}
	v := d.zero()
	for i := range d.rows() / 8 {
		x := XMM()
		VPXOR(x, x, x)
		for j := range 8 {
			VPINSRW(Imm(uint64(j)), d.row(8*i+j, 0), x, x)
		}
		if d.narrow {
			VCVTPH2PS(x, v)
		} else {
			VINSERTI32X4(Imm(uint64(i)), x, v, v)
		}
	}
	if !d.narrow {
		VCVTPH2PS(v.AsY(), v)
	}
	return v, nil
}

func q80Codes(d *decoder) {
	var flip reg.VecVirtual
	if !d.narrow {
		flip = d.splat(0x80808080)
	}
	for c := range 2 {
		for i, v := range d.columns(2 + 16*c) {
			if !d.narrow {
				VPXORD(flip, v, v)
			}
			d.code(v, 16*c+4*i)
		}
	}
}

// values is a table of 16 codes, those of 8 bits with their sign in the narrow form.
func (d *decoder) values(codes []byte) reg.VecVirtual {
	name := fmt.Sprintf("codes%d", codes[0])
	if d.narrow && codes[15] > 0x80 {
		signed := make([]byte, 16)
		for i, c := range codes {
			signed[i] = c ^ 0x80
		}
		codes = signed
	}
	return d.table16(name, codes)
}

// nibbles decodes 16 bytes of nibbles at disp, through a table when there is one.
func nibbles(disp int, codes []byte) func(d *decoder) {
	return func(d *decoder) {
		m4 := d.splat(0x0f0f0f0f)
		var values reg.VecVirtual
		if codes != nil {
			values = d.values(codes)
		}
		for i, v := range d.columns(disp) {
			for p := range 2 {
				x := d.and(d.shift(v, 4*p), m4)
				if codes != nil {
					VPSHUFB(x, values, x)
				}
				d.code(x, 16*p+4*i)
			}
		}
	}
}

// q5Codes decodes the fifth bits at disp and the nibbles after them. Bit j belongs to column j.
func q5Codes(disp int) func(d *decoder) {
	return func(d *decoder) {
		m4, m1 := d.splat(0x0f0f0f0f), d.splat(0x10101010)
		bits := d.splat(0x08040201)
		high := d.dwords(disp)
		for i, q := range d.columns(disp + 4) {
			for p := range 2 {
				// Columns 16p+4i to +3: their byte in all four places, the wanted nibble at the bottom, one bit each.
				b := d.vec()
				VPSHUFB(d.spreadIndex(byte(2*p+i/2)), high, b)
				b = d.shift(b, i%2*4)
				c := d.and(d.shift(q, 4*p), m4)
				if d.narrow {
					VPAND(bits, b, b)
					VPCMPEQB(bits, b, b)
					c = d.merge(b, m1, c)
				} else {
					k := K()
					VPTESTMB(bits, b, k)
					VPADDB(m1, c, k, c)
				}
				d.code(c, 16*p+4*i)
			}
		}
	}
}
