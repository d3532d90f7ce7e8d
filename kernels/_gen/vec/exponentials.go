package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// exponentials writes the routines over Exp. n is a positive multiple of 16 everywhere.
func exponentials(v isa) {
	v.expSum()
	v.siluMul()
}

// The constants of Exp, as exp.go has them.
var expBits = map[string]float32{
	"expMax": 89, "expMin": -104,
	"expLog2E": 0x1.715476p+0, "expMagic": 0x1.8p+23, "expLn2Hi": 0x1.63p-1, "expLn2Lo": -0x1.bd0106p-13,
	"expC2": 0x1.fffffcp-2, "expC3": 0x1.555492p-3, "expC4": 0x1.5558b2p-5, "expC5": 0x1.12398ep-7, "expC6": 0x1.6a4b34p-10,
	"one": 1,
}

// expRegs are the constants that AVX-512 keeps in the registers from 20 up; AVX2 uses them in place.
var expRegs = []string{"expMax", "expMin", "expLog2E", "expMagic", "expLn2Hi", "expLn2Lo", "expC2", "expC3", "expC4", "expC5", "expC6", "one"}

func constant(name string) Mem { return table(name, math.Float32bits(expBits[name])) }

func (v isa) loadExp() {
	if v.z {
		for i, name := range expRegs {
			VMOVUPS(constant(name), v.r(20+i))
		}
	}
}

func (v isa) c(name string) Op {
	if v.z {
		for i, n := range expRegs {
			if n == name {
				return v.r(20 + i)
			}
		}
	}
	return constant(name)
}

// exp replaces register x by its exponentials, the steps of Exp one for one. It needs three registers from tmp up.
//
// Step 1 is a clamp here: at 89 the later steps overflow to +Inf, at -104 they underflow to +0, and the order of the
// operands lets NaN through. Step 9 is one instruction in AVX-512, which rounds once like the two products.
func (v isa) exp(x, tmp int) {
	r, t, n, q := v.r(x), v.r(tmp), v.r(tmp+1), v.r(tmp+2)
	if v.z {
		VMINPS(r, v.c("expMax"), r)
		VMAXPS(r, v.c("expMin"), r)
	} else {
		VMOVUPS(constant("expMax"), t)
		VMINPS(r, t, r)
		VMOVUPS(constant("expMin"), t)
		VMAXPS(r, t, r)
	}
	VMULPS(v.c("expLog2E"), r, t)
	VADDPS(v.c("expMagic"), t, t)
	VSUBPS(v.c("expMagic"), t, n)
	VMULPS(v.c("expLn2Hi"), n, q)
	VSUBPS(q, r, r)
	VMULPS(v.c("expLn2Lo"), n, q)
	VSUBPS(q, r, r)
	VMULPS(v.c("expC6"), r, q)
	for _, name := range []string{"expC5", "expC4", "expC3"} {
		VADDPS(v.c(name), q, q)
		VMULPS(r, q, q)
	}
	VADDPS(v.c("expC2"), q, q)
	if v.z {
		VMULPS(r, r, t)
		VMULPS(t, q, q)
		VADDPS(r, q, q)
		VADDPS(v.c("one"), q, q)
		VSCALEFPS(n, q, r)
		return
	}
	VMULPS(r, r, n)
	VMULPS(n, q, q)
	VADDPS(r, q, q)
	VADDPS(v.c("one"), q, q)
	bias := table("expBias", 127)
	VPSUBD(constant("expMagic"), t, t) // k
	VPSRAD(Imm(1), t, n)               // k1
	VPSUBD(n, t, t)
	VPADDD(bias, n, n)
	VPSLLD(Imm(23), n, n)
	VMULPS(n, q, q)
	VPADDD(bias, t, t)
	VPSLLD(Imm(23), t, t)
	VMULPS(t, q, r)
}

func (v isa) expSum() {
	v.function("expSum", "func(lanes *[16]float64, dst, x *float32, n int, m float32)",
		"e := Exp(x[i] - m); lanes[i%16] += float64(e); dst[i] = e unless dst is nil")
	lanes, dst, x, n := arg("lanes"), arg("dst"), arg("x"), arg("n")
	v.loadExp()
	acc := func(i int) reg.VecPhysical { return v.r(8 + i) }
	for i := range v.doubles() {
		VMOVUPD(at(lanes, i*v.bytes()), acc(i))
	}
	m := v.r(7)
	v.broadcast("m", m)
	loop("loop", n, func() {
		for i := range v.per() {
			e := v.r(i)
			VMOVUPS(at(x, i*v.bytes()), e)
			VSUBPS(m, e, e)
			v.exp(i, 2)
		}
		TESTQ(dst, dst)
		JEQ(LabelRef("kept"))
		for i := range v.per() {
			VMOVUPS(v.r(i), at(dst, i*v.bytes()))
		}
		ADDQ(Imm(64), dst)
		Label("kept")
		for i := range v.per() {
			low, high, sum := v.r(2), v.r(3), acc(2*i)
			if v.z {
				VCVTPS2PD(reg.Y0, low)
				VEXTRACTF64X4(Imm(1), reg.Z0, reg.Y1)
				VCVTPS2PD(reg.Y1, high)
			} else {
				VCVTPS2PD(xmm[i], low)
				VEXTRACTF128(Imm(1), ymm[i], reg.X4)
				VCVTPS2PD(reg.X4, high)
			}
			VADDPD(low, sum, sum)
			VADDPD(high, acc(2*i+1), acc(2*i+1))
		}
	}, x, 4)
	for i := range v.doubles() {
		VMOVUPD(acc(i), at(lanes, i*v.bytes()))
	}
	ret()
}

func (v isa) siluMul() {
	v.function("siluMul", "func(dst, gate, up *float32, n int)", "dst[i] = float32(gate[i]*Sigmoid(gate[i])) * up[i]")
	dst, gate, up, n := arg("dst"), arg("gate"), arg("up"), arg("n")
	v.loadExp()
	x, e, top := v.r(0), v.r(1), v.r(2)
	loop("loop", n, func() {
		for i := range v.per() {
			o := i * v.bytes()
			VMOVUPS(at(gate, o), x)
			v.or(table("sign", 1<<31), x, e)
			v.exp(1, 2) // of -|x|
			if v.z {
				v.zero(top)
				VCMPPS(Imm(lessThan), top, x, reg.K1)
				VBLENDMPS(e, v.c("one"), reg.K1, top)
			} else {
				VMOVUPS(constant("one"), top)
				VBLENDVPS(x, e, top, top) // by the sign; -0 may take either, both are 1
			}
			VADDPS(v.c("one"), e, e)
			VDIVPS(e, top, e)
			VMULPS(e, x, x)
			VMULPS(at(up, o), x, x)
			VMOVUPS(x, at(dst, o))
		}
	}, dst, 4, gate, 4, up, 4)
	ret()
}
