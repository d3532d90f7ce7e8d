package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantisers writes the two forms of setRow.
func quantisers(v isa) {
	v.quantise("quantQ8x32", 32)
	v.quantise("quantQ8x256", 256)
}

// topMagnitude leaves the largest magnitude of 32 values at x, as integers order them, in the registers 4 (and 5 for AVX2).
func (v isa) magnitudes(x Mem, first bool) {
	for i := range 2 * v.per() {
		acc, t := v.r(4+i%v.per()), v.r(6)
		m := x
		m.Disp += i * v.bytes()
		if first && i < v.per() {
			VMOVUPS(m, acc)
			v.and(v.r(8), acc, acc)
			continue
		}
		VMOVUPS(m, t)
		v.and(v.r(8), t, t)
		VPMAXSD(t, acc, acc)
	}
}

func (v isa) quantise(name string, blk int) {
	v.function(name, "func(q *int8, d *float32, sums *int16, x *float32, blocks int)", "setRow with blocks of its size; sums may be nil")
	q, d, sums, x, blocks := arg("q"), arg("d"), arg("sums"), arg("x"), arg("blocks")
	top, bits, n, p := GP64(), GP64(), GP64(), GP64()
	absMask, sign, half := v.r(8), v.r(9), v.r(10)
	VMOVUPS(table("absMask", 1<<31-1), absMask)
	if blk == 32 {
		VMOVUPS(table("sign", 1<<31), sign)
		VMOVUPS(table("almostHalf", math.Float32bits(0.5)-1), half)
	}

	Label("block")
	v.magnitudes(Mem{Base: x}, true)
	if blk > 32 {
		MOVQ(U32(uint32(blk/32-1)), n)
		LEAQ(at(x, 128), p)
		Label("magnitudes")
		v.magnitudes(Mem{Base: p}, false)
		ADDQ(Imm(128), p)
		DECQ(n)
		JNE(LabelRef("magnitudes"))
	}
	if v.z {
		VEXTRACTI64X4(Imm(1), reg.Z4, reg.Y5)
	}
	VPMAXSD(reg.Y5, reg.Y4, reg.Y4)
	VEXTRACTI128(Imm(1), reg.Y4, reg.X5)
	VPMAXSD(reg.X5, reg.X4, reg.X4)
	VPSHUFD(Imm(0xee), reg.X4, reg.X5)
	VPMAXSD(reg.X5, reg.X4, reg.X4)
	VPSHUFD(Imm(0x55), reg.X4, reg.X5)
	VPMAXSD(reg.X5, reg.X4, reg.X4)
	VMOVD(reg.X4, top.As32())
	bad := GP64()
	MOVL(U32(0x7fc00000), bad.As32()) // NaN
	CMPL(top.As32(), U32(0x7f800000))
	JCC(LabelRef("nothing"))

	// The scale in X5, its inverse in X4.
	XORQ(bad, bad)
	if blk == 32 {
		VDIVSS(table("q127", math.Float32bits(127)), reg.X4, reg.X5)
		VMOVSS(table("one", math.Float32bits(1)), reg.X6)
		VDIVSS(reg.X5, reg.X6, reg.X4)
	} else {
		// The first value of the largest magnitude, with its sign.
		VPBROADCASTD(reg.X4, v.r(4))
		XORQ(p, p)
		Label("first")
		VMOVUPS(Mem{Base: x, Index: p, Scale: 4}, v.r(6))
		v.and(absMask, v.r(6), v.r(6))
		if v.z {
			VPCMPEQD(v.r(4), v.r(6), reg.K1)
			KMOVW(reg.K1, bits.As32())
		} else {
			VPCMPEQD(v.r(4), v.r(6), v.r(6))
			VMOVMSKPS(v.r(6), bits.As32())
		}
		ADDQ(Imm(uint64(v.bytes()/4)), p)
		TESTL(bits.As32(), bits.As32())
		JEQ(LabelRef("first"))
		BSFQ(bits, bits)
		ADDQ(bits, p)
		VMOVSS(table("minus127", math.Float32bits(-127)), reg.X6)
		VDIVSS(Mem{Base: x, Index: p, Scale: 4, Disp: -v.bytes()}, reg.X6, reg.X4)
		VMOVSS(table("one", math.Float32bits(1)), reg.X6)
		VDIVSS(reg.X4, reg.X6, reg.X5)
	}
	VMOVD(reg.X4, bits.As32())
	ANDL(U32(0x7fffffff), bits.As32())
	CMPL(bits.As32(), U32(0x7f800000))
	JCC(LabelRef("nothing"))
	VMOVSS(reg.X5, at(d, 0))
	VBROADCASTSS(reg.X4, v.r(4))
	MOVQ(U32(uint32(blk/32)), n)

	Label("codes")
	for i := range 2 * v.per() {
		r, t := v.r(i), v.r(6)
		VMULPS(at(x, i*v.bytes()), v.r(4), r)
		if blk == 32 {
			// The largest float below a half, with the sign of the product: adding it and cutting rounds halves away from
			// zero, and leaves what is just below a half below.
			v.and(sign, r, t)
			v.or(half, t, t)
			VADDPS(t, r, r)
			VCVTTPS2DQ(r, r)
		} else {
			VCVTPS2DQ(r, r)
		}
	}
	if v.z {
		VPMOVDB(reg.Z0, reg.X0)
		VPMOVDB(reg.Z1, reg.X1)
		VINSERTI128(Imm(1), reg.X1, reg.Y0, reg.Y0)
	} else {
		VPACKSSDW(reg.Y1, reg.Y0, reg.Y0)
		VPACKSSDW(reg.Y3, reg.Y2, reg.Y2)
		VPACKSSWB(reg.Y2, reg.Y0, reg.Y0)
		VMOVDQU(table("unpacked", 0, 4, 1, 5, 2, 6, 3, 7), reg.Y1)
		VPERMD(reg.Y0, reg.Y1, reg.Y0)
	}
	VMOVDQU(reg.Y0, at(q, 0))
	// Sums of 16: of the codes plus 128, which are unsigned.
	TESTQ(sums, sums)
	JEQ(LabelRef("noSums"))
	VPXOR(table("bytes128", 0x80808080), reg.Y0, reg.Y0)
	VPXOR(reg.Y1, reg.Y1, reg.Y1)
	VPSADBW(reg.Y1, reg.Y0, reg.Y0)
	VPSHUFD(Imm(0xee), reg.Y0, reg.Y1)
	VPADDD(reg.Y1, reg.Y0, reg.Y0)
	VPSUBD(table("bias2048", 2048), reg.Y0, reg.Y0)
	VEXTRACTI128(Imm(1), reg.Y0, reg.X1)
	VPEXTRW(Imm(0), reg.X0, at(sums, 0))
	VPEXTRW(Imm(0), reg.X1, at(sums, 2))
	ADDQ(Imm(4), sums)
	Label("noSums")
	ADDQ(Imm(128), x)
	ADDQ(Imm(32), q)
	DECQ(n)
	JNE(LabelRef("codes"))
	Label("next")
	ADDQ(Imm(4), d)
	DECQ(blocks)
	JNE(LabelRef("block"))
	ret()

	Label("nothing")
	MOVL(bad.As32(), at(d, 0))
	VPXOR(reg.Y0, reg.Y0, reg.Y0)
	for i := range blk / 32 {
		VMOVDQU(reg.Y0, at(q, i*32))
	}
	TESTQ(sums, sums)
	JEQ(LabelRef("cleared"))
	if blk == 32 {
		VMOVD(reg.X0, at(sums, 0))
	} else {
		VMOVDQU(reg.Y0, at(sums, 0))
	}
	ADDQ(Imm(uint64(blk/8)), sums)
	Label("cleared")
	ADDQ(U32(uint32(4*blk)), x)
	ADDQ(U32(uint32(blk)), q)
	JMP(LabelRef("next"))
}
