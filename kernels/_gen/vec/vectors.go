package main

import (
	"log"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vectors writes the element-wise routines and the searches. n is a positive multiple of 16 everywhere.
func vectors(v isa) {
	v.add()
	v.axpy()
	v.scale()
	v.scaleMul()
	v.sumSquares()
	v.ropeHalves()
	v.ropePairs()
	v.widenF16()
	v.narrowF16()
	v.maxOf()
	v.argMax()
	v.nextAbove()
}

func (v isa) add() {
	v.function("add", "func(dst, x *float32, n int)", "dst[i] += x[i]")
	dst, x, n := arg("dst"), arg("x"), arg("n")
	loop("loop", n, func() {
		for i := range v.per() {
			r, o := v.r(i), i*v.bytes()
			VMOVUPS(at(dst, o), r)
			VADDPS(at(x, o), r, r)
			VMOVUPS(r, at(dst, o))
		}
	}, dst, 4, x, 4)
	ret()
}

func (v isa) axpy() {
	v.function("axpy", "func(dst, x *float32, n int, a float32)", "dst[i] += float32(a * x[i])")
	dst, x, n := arg("dst"), arg("x"), arg("n")
	a := v.r(2)
	v.broadcast("a", a)
	loop("loop", n, func() {
		for i := range v.per() {
			r, o := v.r(i), i*v.bytes()
			VMULPS(at(x, o), a, r)
			VADDPS(at(dst, o), r, r)
			VMOVUPS(r, at(dst, o))
		}
	}, dst, 4, x, 4)
	ret()
}

func (v isa) scale() {
	v.function("scale", "func(dst, x *float32, n int, a float32)", "dst[i] = x[i] * a")
	dst, x, n := arg("dst"), arg("x"), arg("n")
	a := v.r(2)
	v.broadcast("a", a)
	loop("loop", n, func() {
		for i := range v.per() {
			r, o := v.r(i), i*v.bytes()
			VMULPS(at(x, o), a, r)
			VMOVUPS(r, at(dst, o))
		}
	}, dst, 4, x, 4)
	ret()
}

func (v isa) scaleMul() {
	v.function("scaleMul", "func(dst, x, w *float32, n int, a float32)", "dst[i] = float32(x[i]*a) * w[i]")
	dst, x, w, n := arg("dst"), arg("x"), arg("w"), arg("n")
	a := v.r(2)
	v.broadcast("a", a)
	loop("loop", n, func() {
		for i := range v.per() {
			r, o := v.r(i), i*v.bytes()
			VMULPS(at(x, o), a, r)
			VMULPS(at(w, o), r, r)
			VMOVUPS(r, at(dst, o))
		}
	}, dst, 4, x, 4, w, 4)
	ret()
}

// doubles is the number of registers for 16 float64.
func (v isa) doubles() int { return 128 / v.bytes() }

func (v isa) sumSquares() {
	v.function("sumSquares", "func(lanes *[16]float64, x *float32, n int)", "lanes[i%16] += float64(x[i]) * float64(x[i])")
	lanes, x, n := arg("lanes"), arg("x"), arg("n")
	for i := range v.doubles() {
		VMOVUPD(at(lanes, i*v.bytes()), v.r(i))
	}
	loop("loop", n, func() {
		for i := range v.doubles() {
			r := v.r(4 + i)
			VCVTPS2PD(at(x, i*v.bytes()/2), r)
			VMULPD(r, r, r)
			VADDPD(r, v.r(i), v.r(i))
		}
	}, x, 4)
	for i := range v.doubles() {
		VMOVUPD(v.r(i), at(lanes, i*v.bytes()))
	}
	ret()
}

func (v isa) ropeHalves() {
	v.function("ropeHalves", "func(a, b, cos, sin *float32, n int)",
		"a[i], b[i] = float32(a[i]*cos[i])-float32(b[i]*sin[i]), float32(a[i]*sin[i])+float32(b[i]*cos[i])")
	a, b, cos, sin, n := arg("a"), arg("b"), arg("cos"), arg("sin"), arg("n")
	loop("loop", n, func() {
		for i := range v.per() {
			o := i * v.bytes()
			u, w, c, s, p, q := v.r(0), v.r(1), v.r(2), v.r(3), v.r(4), v.r(5)
			VMOVUPS(at(a, o), u)
			VMOVUPS(at(b, o), w)
			VMOVUPS(at(cos, o), c)
			VMOVUPS(at(sin, o), s)
			VMULPS(c, u, p)
			VMULPS(s, w, q)
			VSUBPS(q, p, p)
			VMOVUPS(p, at(a, o))
			VMULPS(s, u, u)
			VMULPS(c, w, w)
			VADDPS(w, u, u)
			VMOVUPS(u, at(b, o))
		}
	}, a, 4, b, 4, cos, 4, sin, 4)
	ret()
}

func (v isa) ropePairs() {
	v.function("ropePairs", "func(x, cos, sin *float32, n int)", "n values of x, n/2 of cos and sin:",
		"x[2*j], x[2*j+1] = float32(x[2*j]*cos[j])-float32(x[2*j+1]*sin[j]), float32(x[2*j]*sin[j])+float32(x[2*j+1]*cos[j])")
	x, cos, sin, n := arg("x"), arg("cos"), arg("sin"), arg("n")
	twice, negate := v.r(8), v.r(9)
	if v.z {
		VMOVUPS(table("twice", 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), twice)
		VMOVUPS(table("evenSign", 1<<31, 0), negate)
	} else {
		VMOVUPS(table("twiceHalf", 0, 0, 1, 1, 2, 2, 3, 3), twice)
	}
	loop("loop", n, func() {
		for i := range v.per() {
			o := i * v.bytes()
			u, w, c, s := v.r(0), v.r(1), v.r(2), v.r(3)
			VMOVUPS(at(x, o), u)
			VPERMILPS(Imm(0xb1), u, w)
			if v.z {
				VMOVUPS(at(cos, 0), ymm[2])
				VMOVUPS(at(sin, 0), ymm[3])
				VPERMPS(c, twice, c)
				VPERMPS(s, twice, s)
			} else {
				VBROADCASTF128(at(cos, o/2), c)
				VBROADCASTF128(at(sin, o/2), s)
				VPERMILPS(twice, c, c)
				VPERMILPS(twice, s, s)
			}
			VMULPS(c, u, u)
			VMULPS(s, w, w)
			if v.z {
				VPXORD(negate, w, w)
				VADDPS(w, u, u)
			} else {
				VADDSUBPS(w, u, u)
			}
			VMOVUPS(u, at(x, o))
		}
	}, x, 4, cos, 2, sin, 2)
	ret()
}

func (v isa) widenF16() {
	v.function("widenF16", "func(dst *float32, src *uint16, n int)", "dst[i] = F16ToF32(src[i])")
	dst, src, n := arg("dst"), arg("src"), arg("n")
	loop("loop", n, func() {
		for i := range v.per() {
			VCVTPH2PS(at(src, i*v.bytes()/2), v.r(i))
			VMOVUPS(v.r(i), at(dst, i*v.bytes()))
		}
	}, dst, 4, src, 2)
	ret()
}

func (v isa) narrowF16() {
	v.function("narrowF16", "func(dst *uint16, src *float32, n int)", "dst[i] = F32ToF16(src[i])")
	dst, src, n := arg("dst"), arg("src"), arg("n")
	loop("loop", n, func() {
		for i := range v.per() {
			VMOVUPS(at(src, i*v.bytes()), v.r(i))
			VCVTPS2PH(Imm(0), v.r(i), at(dst, i*v.bytes()/2))
		}
	}, dst, 2, src, 4)
	ret()
}

// foldMax leaves the largest element of register 0 in its element 0.
func (v isa) foldMax(tmp int) {
	if v.z {
		VEXTRACTF64X4(Imm(1), reg.Z0, ymm[tmp])
		VMAXPS(ymm[tmp], reg.Y0, reg.Y0)
	}
	VEXTRACTF128(Imm(1), reg.Y0, xmm[tmp])
	VMAXPS(xmm[tmp], reg.X0, reg.X0)
	VPERMILPS(Imm(0xee), reg.X0, xmm[tmp])
	VMAXPS(xmm[tmp], reg.X0, reg.X0)
	VPERMILPS(Imm(0x55), reg.X0, xmm[tmp])
	VMAXPS(xmm[tmp], reg.X0, reg.X0)
}

var minusInf uint32 = 0xff800000

func (v isa) maxOf() {
	v.function("maxOf", "func(x *float32, n int) float32", "the largest value that is not NaN, or -Inf")
	x, n := arg("x"), arg("n")
	for i := range v.per() {
		VMOVUPS(table("minusInf", minusInf), v.r(i))
	}
	loop("loop", n, func() {
		for i := range v.per() {
			t := v.r(2 + i)
			VMOVUPS(at(x, i*v.bytes()), t)
			VMAXPS(v.r(i), t, v.r(i)) // where t is NaN the result is the other
		}
	}, x, 4)
	if !v.z {
		VMAXPS(reg.Y1, reg.Y0, reg.Y0)
	}
	v.foldMax(2)
	result, err := ReturnIndex(0).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	VMOVSS(reg.X0, result.Addr)
	ret()
}

// mask compares a with b and leaves the outcome as bits in dst; no bit above the lanes is set.
func (v isa) mask(predicate int, b, a Op, tmp int, dst reg.GPVirtual) {
	if v.z {
		VCMPPS(Imm(uint64(predicate)), b, a, reg.K1)
		KMOVW(reg.K1, dst.As32())
	} else {
		VCMPPS(Imm(uint64(predicate)), b, a, v.r(tmp))
		VMOVMSKPS(v.r(tmp), dst.As32())
	}
}

const (
	equal     = 0  // EQ_OQ
	unordered = 3  // UNORD_Q
	notAtMost = 22 // NLE_UQ: larger, or either is NaN
	lessThan  = 17 // LT_OQ
)

func (v isa) argMax() {
	v.function("argMax", "func(x *float32, n int) int", "the first index of the largest value, -1 if one is NaN")
	x, n := arg("x"), arg("n")
	p, left, bits, any := GP64(), GP64(), GP64(), GP64()
	best, t := v.r(0), v.r(1)
	VMOVUPS(table("minusInf", minusInf), best)
	XORQ(any, any)
	MOVQ(x, p)
	MOVQ(n, left)
	loop("largest", left, func() {
		for i := range v.per() {
			VMOVUPS(at(p, i*v.bytes()), t)
			VMAXPS(best, t, best)
			v.mask(unordered, t, t, 2, bits)
			ORQ(bits, any)
		}
	}, p, 4)
	TESTQ(any, any)
	JNE(LabelRef("nan"))
	v.foldMax(2)
	VBROADCASTSS(reg.X0, best)
	i := GP64()
	XORQ(i, i)
	Label("where")
	VMOVUPS(Mem{Base: x, Index: i, Scale: 4}, t)
	v.mask(equal, best, t, 2, bits)
	TESTL(bits.As32(), bits.As32())
	JNE(LabelRef("found"))
	ADDQ(Imm(uint64(v.bytes()/4)), i)
	JMP(LabelRef("where"))
	Label("found")
	BSFQ(bits, bits)
	ADDQ(bits, i)
	Store(i, ReturnIndex(0))
	ret()
	Label("nan")
	MOVQ(I32(-1), i)
	Store(i, ReturnIndex(0))
	ret()
}

func (v isa) nextAbove() {
	v.function("nextAbove", "func(x *float32, n int, t float32) int", "the first index where !(x[i] <= t), or n")
	x, n := arg("x"), arg("n")
	limit, t := v.r(0), v.r(1)
	v.broadcast("t", limit)
	i, bits := GP64(), GP64()
	XORQ(i, i)
	Label("loop")
	VMOVUPS(Mem{Base: x, Index: i, Scale: 4}, t)
	v.mask(notAtMost, limit, t, 2, bits)
	TESTL(bits.As32(), bits.As32())
	JNE(LabelRef("found"))
	ADDQ(Imm(uint64(v.bytes()/4)), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	Store(i, ReturnIndex(0))
	ret()
	Label("found")
	BSFQ(bits, bits)
	ADDQ(bits, i)
	Store(i, ReturnIndex(0))
	ret()
}
