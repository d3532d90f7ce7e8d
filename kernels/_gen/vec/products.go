package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// products writes Dot and the products of unquantised weights with float32 activations.
func products(v isa) {
	v.dotPart()
	for _, e := range []element{f32, f16, bf16} {
		v.dotRows(e)
		if v.z {
			v.dotTile(e)
		}
	}
}

// element is a type of numbers that widen exactly to float32.
type element struct {
	name string
	size int
}

var (
	f32  = element{"F32", 4}
	f16  = element{"F16", 2}
	bf16 = element{"BF16", 2}
)

// widen loads a register of elements.
func (v isa) widen(e element, m Mem, dst reg.VecPhysical) {
	switch e {
	case f32:
		VMOVUPS(m, dst)
	case f16:
		VCVTPH2PS(m, dst)
	case bf16:
		VPMOVZXWD(m, dst)
		VPSLLD(Imm(16), dst, dst)
	}
}

func (v isa) dotPart() {
	v.function("dotPart", "func(acc *[16]float32, a, b *float32, n int)", "acc[i%16] += float32(a[i] * b[i])")
	acc, a, b, n := arg("acc"), arg("a"), arg("b"), arg("n")
	for i := range v.per() {
		VMOVUPS(at(acc, i*v.bytes()), v.r(i))
	}
	loop("loop", n, func() {
		for i := range v.per() {
			t := v.r(2 + i)
			VMOVUPS(at(a, i*v.bytes()), t)
			VMULPS(at(b, i*v.bytes()), t, t)
			VADDPS(t, v.r(i), v.r(i))
		}
	}, a, 4, b, 4)
	for i := range v.per() {
		VMOVUPS(v.r(i), at(acc, i*v.bytes()))
	}
	ret()
}

// dotRows takes four rows of weights at once: four times the chains of a single sum, and one load of the activations.
func (v isa) dotRows(e element) {
	v.function("dotRows"+e.name, "func(out *[4]float32, w *byte, stride int, x *float32, n int)", "out[r] = Dot(w[r*stride:], x), stride in bytes")
	row := v.rows("w", "stride", 4)
	x, n := arg("x"), arg("n")
	per := v.per()
	for i := range 4 * per {
		v.zero(v.r(i))
	}
	i := GP64()
	XORQ(i, i)
	Label("loop")
	for h := range per {
		xs := v.r(8 + h)
		VMOVUPS(Mem{Base: x, Index: i, Scale: 4, Disp: h * v.bytes()}, xs)
		for r := range 4 {
			t := v.r(10 + r)
			m := Mem{Base: row[r], Index: i, Scale: uint8(e.size), Disp: h * v.bytes() * e.size / 4}
			if e == f32 {
				VMULPS(m, xs, t)
			} else {
				v.widen(e, m, t)
				VMULPS(xs, t, t)
			}
			VADDPS(t, v.r(r*per+h), v.r(r*per+h))
		}
	}
	ADDQ(Imm(16), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	v.fold4()
	out := arg("out")
	VMOVUPS(reg.X0, at(out, 0))
	ret()
}

// rows makes pointers to rows that are a stride in bytes apart.
func (v isa) rows(first, stride string, n int) []reg.GPVirtual {
	p, s := []reg.GPVirtual{arg(first)}, arg(stride)
	for i := 1; i < n; i++ {
		p = append(p, GP64())
		LEAQ(Mem{Base: p[i-1], Index: s, Scale: 1}, p[i])
	}
	return p
}

// halve adds the halves that two shuffles of a and b bring together, into dst.
func halve(shuffle func(imm, b, a, dst Op), low, high uint64, a, b, dst, t reg.VecPhysical) {
	shuffle(Imm(low), b, a, t)
	shuffle(Imm(high), b, a, dst)
	VADDPS(dst, t, dst)
}

func shuffle128(imm, b, a, dst Op) { VSHUFF64X2(imm, b, a, dst) }
func shuffle32(imm, b, a, dst Op)  { VSHUFPS(imm, b, a, dst) }
func permute128(imm, b, a, dst Op) { VPERM2F128(imm, b, a, dst) }

// fold4 folds four sums of 16 lanes, in the registers from 0 up, into X0. Order as in Dot.
func (v isa) fold4() {
	t := v.r(15)
	if v.z {
		halve(shuffle128, 0x44, 0xee, zmm[0], zmm[1], zmm[0], t)
		halve(shuffle128, 0x44, 0xee, zmm[2], zmm[3], zmm[2], t)
		halve(shuffle128, 0x88, 0xdd, zmm[0], zmm[2], zmm[0], t)
		halve(shuffle32, 0x44, 0xee, zmm[0], zmm[0], zmm[0], t)
		halve(shuffle32, 0x88, 0xdd, zmm[0], zmm[0], zmm[0], t)
		VMOVUPS(table("every4th", 0, 4, 8, 12), reg.Z1)
		VPERMPS(reg.Z0, reg.Z1, reg.Z0)
		return
	}
	for r := range 4 {
		VADDPS(ymm[2*r+1], ymm[2*r], ymm[2*r])
	}
	halve(permute128, 0x20, 0x31, ymm[0], ymm[2], ymm[0], t)
	halve(permute128, 0x20, 0x31, ymm[4], ymm[6], ymm[4], t)
	halve(shuffle32, 0x44, 0xee, ymm[0], ymm[4], ymm[0], t)
	halve(shuffle32, 0x88, 0xdd, ymm[0], ymm[0], ymm[0], t)
	VEXTRACTF128(Imm(1), reg.Y0, reg.X1)
	VUNPCKLPS(reg.X1, reg.X0, reg.X0)
}

// fold16 folds sixteen sums of 16 lanes, in Z0 to Z15, into Z0: sum 4*i+j becomes element 4*j+i. Order as in Dot.
func fold16(t reg.VecPhysical) {
	for i := 0; i < 16; i += 2 {
		halve(shuffle128, 0x44, 0xee, zmm[i], zmm[i+1], zmm[i], t)
	}
	for i := 0; i < 16; i += 4 {
		halve(shuffle128, 0x88, 0xdd, zmm[i], zmm[i+2], zmm[i], t)
	}
	for i := 0; i < 16; i += 8 {
		halve(shuffle32, 0x44, 0xee, zmm[i], zmm[i+4], zmm[i], t)
	}
	halve(shuffle32, 0x88, 0xdd, zmm[0], zmm[8], zmm[0], t)
}

// dotTile takes four rows of weights and two to four of activations: up to sixteen products for eight loads.
func (v isa) dotTile(e element) {
	v.function("dotTile"+e.name, "func(out *[16]float32, w *byte, stride int, x0, x1, x2, x3 *float32, acts, n int)",
		"out[4*i+r] = Dot(w[r*stride:], x[i]), i < acts, 2 to 4; stride in bytes")
	row := v.rows("w", "stride", 4)
	x, n := []reg.GPVirtual{arg("x0"), arg("x1"), arg("x2"), arg("x3")}, arg("n")
	for i := range 16 {
		v.zero(zmm[i])
	}
	i, acts := GP64(), arg("acts")
	XORQ(i, i)
	for m := 4; m >= 2; m-- {
		label, next := fmt.Sprintf("acts%d", m), fmt.Sprintf("below%d", m)
		if m > 2 {
			CMPQ(acts, Imm(uint64(m)))
			JNE(LabelRef(next))
		}
		Label(label)
		for r := range 4 {
			v.widen(e, Mem{Base: row[r], Index: i, Scale: uint8(e.size)}, zmm[16+r])
		}
		for j := range m {
			VMOVUPS(Mem{Base: x[j], Index: i, Scale: 4}, zmm[20])
			for r := range 4 {
				VMULPS(zmm[16+r], zmm[20], zmm[21+r])
				VADDPS(zmm[21+r], zmm[4*r+j], zmm[4*r+j])
			}
		}
		ADDQ(Imm(16), i)
		CMPQ(i, n)
		JLT(LabelRef(label))
		if m > 2 {
			JMP(LabelRef("fold"))
			Label(next)
		}
	}
	Label("fold")
	fold16(zmm[16])
	out := arg("out")
	VMOVUPS(reg.Z0, at(out, 0))
	ret()
}
