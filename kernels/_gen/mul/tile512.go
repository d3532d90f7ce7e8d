package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// groups512 are the numbers of activation rows taken together, largest first: 2*6 sums and 2*6 partial sums leave eight
// of the 32 registers for operands.
var groups512 = []int{6, 4, 2, 1}

// The registers that live through a group's loop. The rest is allocated.
var (
	rowRegs  = []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11, reg.R12, reg.R13}
	sumRegs  = []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11}
	partRegs = []reg.VecPhysical{reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23}
)

// form is how a type's integers become a float32: once per super-block of 256 with an integer scale per group, or once per
// block of 32.
type form struct {
	name  string
	super bool
	group int  // columns that share an integer scale
	mins  bool // minima, else a bias on the codes
}

var forms = []form{
	{"SuperMin32", true, 32, true},
	{"SuperMin16", true, 16, true},
	{"Super16", true, 16, false},
	{"Small", false, 32, false},
	{"SmallMin", false, 32, true},
}

func tile512() {
	for _, f := range forms {
		f.mul512()
	}
	put512("tilePutAVX512", false)
	put512("tileAddAVX512", true)
}

// mul512 writes the product of a tile's chunk with n activation rows.
func (f form) mul512() {
	TEXT("tile"+f.name+"AVX512", NOSPLIT, "func(acc *float32, tile, tok *byte, n, k, blocks, bias int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("tile%sAVX512 adds to acc[i*32+r] the product of row r of a decoded tile with columns k to k+32*blocks of activation row i < n.", f.name))
	acc, tok, n := Load(Param("acc"), reg.RDI), Load(Param("tok"), reg.RSI), Load(Param("n"), reg.RDX)
	frame := AllocLocal(64 * groups512[0])
	for _, g := range groups512 {
		name := fmt.Sprintf("rows%d", g)
		Label(name)
		CMPQ(n, Imm(uint64(g)))
		JL(LabelRef("end" + name))
		f.rows512(g, name, acc, tok, frame)
		ADDQ(U32(uint32(g*tokSize)), tok)
		ADDQ(U32(uint32(g*step)), acc)
		SUBQ(Imm(uint64(g)), n)
		JMP(LabelRef(name))
		Label("end" + name)
	}
	VZEROUPPER()
	RET()
}

// rows512 multiplies g activation rows.
func (f form) rows512(g int, name string, acc, tok reg.Register, frame Mem) {
	f.prepare512(g, tok, frame)
	k := reg.RAX
	Load(Param("k"), k)
	q := rowRegs[:g]
	for i := range q {
		MOVQ(at(tok, i*tokSize+tokQ), q[i])
		ADDQ(k, q[i])
	}
	var sum [2][]reg.VecPhysical
	for h := range sum {
		sum[h] = sumRegs[h*6 : h*6+g]
		for i, s := range sum[h] {
			if f.super {
				VPXORD(s, s, s)
			} else {
				VMOVUPS(at(acc, i*step+h*half), s)
			}
		}
	}
	w, sc, col, j := reg.RAX, reg.RBX, reg.RCX, reg.R15
	Load(Param("tile"), w) // tileW is 0
	LEAQ(at(w, tileSc), sc)
	XORQ(col, col)
	XORQ(j, j)
	Label(name + "group")
	part := f.group512(g, q, w, col, j, frame)
	if f.super {
		for h := range sum {
			scale := ZMM()
			VMOVDQU32(at(sc, h*half), scale)
			for i := range g {
				VPMULLD(scale, part[h][i], part[h][i])
				VPADDD(part[h][i], sum[h][i], sum[h][i])
			}
		}
	} else {
		f.small512(g, sc, j, frame, part, sum)
	}
	ADDQ(U32(uint32(f.group/4*step)), w)
	ADDQ(U32(step), sc)
	ADDQ(U32(uint32(f.group)), col)
	INCQ(j)
	if f.super {
		CMPQ(j, Imm(uint64(256/f.group)))
	} else {
		blocks := reg.R14
		Load(Param("blocks"), blocks)
		CMPQ(j, blocks)
	}
	JL(LabelRef(name + "group"))
	if f.super {
		f.finish512(g, acc, tok, frame, sum)
		return
	}
	for h := range sum {
		for i, s := range sum[h] {
			VMOVUPS(s, at(acc, i*step+h*half))
		}
	}
}

// prepare512 lays the parts of the activations that are not codes into the frame, 64 bytes a row: what the accumulators
// start with, or what the minima are multiplied by; and of small blocks the scales.
func (f form) prepare512(g int, tok reg.Register, frame Mem) {
	p, off := GP64(), GP64()
	Load(Param("k"), off)
	SHRQ(Imm(3), off) // int16 sums of 16, and float32 scales of 32
	var bias reg.VecVirtual
	if !f.mins {
		b := GP64()
		Load(Param("bias"), b)
		NEGQ(b)
		bias = ZMM()
		if f.super {
			VPBROADCASTD(b.As32(), bias)
		} else {
			VPBROADCASTW(b.As32(), bias)
		}
	}
	if f.mins {
		bias = YMM()
		VPBROADCASTD(table32(0x00010001), bias)
	}
	var k8, k16 Op
	if !f.super {
		// The row may end before the chunk does.
		c, m := reg.RCX, GP64()
		MOVQ(U32(1), m)
		Load(Param("blocks"), c)
		SHLQ(reg.CL, m)
		DECQ(m)
		k8 = K()
		KMOVD(m.As32(), k8)
		k16 = k8 // pairs of sums are dwords
	}
	for i := range g {
		MOVQ(at(tok, i*tokSize+tokSums), p)
		at0 := frame.Offset(64 * i)
		sums := Mem{Base: p, Index: off, Scale: 1}
		switch {
		case f.super && f.mins:
			if f.group == 16 { // 16 sums as they are
				x := YMM()
				VMOVDQU32(sums, x)
				VMOVDQU32(x, at0)
				break
			}
			x := YMM()
			VPMADDWD(sums, bias.AsY(), x)
			VPACKSSDW(x, x, x)
			VPERMQ(Imm(0x08), x, x)
			VMOVDQU32(x.AsX(), at0)
		case f.super:
			x := ZMM()
			VPMOVSXWD(sums, x)
			VPMULLD(bias, x, x)
			VMOVDQU32(x, at0)
		default:
			x := YMM()
			VMOVDQU32_Z(sums, k16, x)
			VPMADDWD(bias.AsY(), x, x)
			if f.mins {
				VCVTDQ2PS(x, x)
			}
			VMOVDQU32(x, at0)
			MOVQ(at(tok, i*tokSize+tokD), p)
			d := YMM()
			VMOVUPS_Z(Mem{Base: p, Index: off, Scale: 1}, k8, d)
			VMOVUPS(d, at0.Offset(32))
		}
	}
}

// group512 returns the integer sums of one group of columns.
func (f form) group512(g int, q []reg.GPPhysical, w, col, j reg.Register, frame Mem) (part [2][]reg.VecPhysical) {
	for h := range part {
		part[h] = partRegs[h*6 : h*6+g]
		for i, p := range part[h] {
			if f.mins {
				VPXORD(p, p, p)
			} else {
				VPBROADCASTD(frame.Offset(64*i).Idx(j, 4), p)
			}
		}
	}
	for s := range f.group / 4 {
		codes := each(2, ZMM)
		for h, c := range codes {
			VMOVDQU32(at(w, s*step+h*half), c)
		}
		for i := range g {
			x := ZMM()
			VPBROADCASTD(Mem{Base: q[i], Index: col, Scale: 1, Disp: 4 * s}, x)
			for h, c := range codes {
				VPDPBUSD(x, c, part[h][i])
			}
		}
	}
	return part
}

// small512 adds the products of a block of 32 to the float32 sums.
func (f form) small512(g int, sc, j reg.Register, frame Mem, part, sum [2][]reg.VecPhysical) {
	for h := range sum {
		d := ZMM()
		VMOVUPS(at(sc, h*half), d)
		var m reg.VecVirtual
		if f.mins {
			m = ZMM()
			VMOVUPS(at(sc, 8*step+h*half), m)
		}
		for i := range g {
			p, v := part[h][i], ZMM()
			VCVTDQ2PS(p, p)
			VMULPS_BCST(frame.Offset(64*i+32).Idx(j, 4), d, v)
			VMULPS(p, v, v)
			if f.mins {
				VMULPS_BCST(frame.Offset(64*i+32).Idx(j, 4), m, p)
				VMULPS_BCST(frame.Offset(64*i).Idx(j, 4), p, p)
				VADDPS(p, v, v)
			}
			VADDPS(v, sum[h][i], sum[h][i])
		}
	}
}

// finish512 adds a super-block's product to acc.
func (f form) finish512(g int, acc, tok reg.Register, frame Mem, sum [2][]reg.VecPhysical) {
	t := Load(Param("tile"), reg.RAX)
	var low [2][]reg.VecPhysical
	if f.mins {
		for h := range low {
			low[h] = partRegs[h*6 : h*6+g]
			for i := range low[h] {
				VPXORD(low[h][i], low[h][i], low[h][i])
			}
			for p := range 128 / f.group {
				m := ZMM()
				VMOVDQU32(at(t, tileMin+p*step+h*half), m)
				for i := range g {
					VPDPWSSD_BCST(frame.Offset(64*i+4*p), m, low[h][i])
				}
			}
		}
	}
	off, p := reg.RBX, reg.RCX
	Load(Param("k"), off)
	SHRQ(Imm(6), off)
	d := each(2, ZMM)
	for h := range d {
		VMOVUPS(at(t, tileD+h*half), d[h])
	}
	var m []reg.VecVirtual
	if f.mins {
		m = each(2, ZMM)
		for h := range m {
			VMOVUPS(at(t, tileM+h*half), m[h])
		}
	}
	for i := range g {
		MOVQ(at(tok, i*tokSize+tokD), p)
		dx := Mem{Base: p, Index: off, Scale: 1}
		for h := range sum {
			s, v := sum[h][i], ZMM()
			VCVTDQ2PS(s, s)
			VMULPS_BCST(dx, d[h], v)
			VMULPS(s, v, v)
			if f.mins {
				VCVTDQ2PS(low[h][i], low[h][i])
				VMULPS_BCST(dx, m[h], s)
				VMULPS(low[h][i], s, s)
				VSUBPS(s, v, v)
			}
			VADDPS(at(acc, i*step+h*half), v, v)
			VMOVUPS(v, at(acc, i*step+h*half))
		}
	}
}

// put512 writes the delivery of a tile's sums.
func put512(name string, add bool) {
	TEXT(name, NOSPLIT, "func(acc *float32, tok *byte, n, r int, mask uint32)")
	what := "stores acc[i*32+j] to"
	if add {
		what = "adds acc[i*32+j] times the row's factor to"
	}
	Pragma("noescape")
	Doc(fmt.Sprintf("%s %s place r+j of the destination of row i < n, where bit j of mask is set.", name, what))
	acc, tok, n, r := Load(Param("acc"), GP64()), Load(Param("tok"), GP64()), Load(Param("n"), GP64()), Load(Param("r"), GP64())
	mask, p := GP32(), GP64()
	Load(Param("mask"), mask)
	k := []reg.OpmaskVirtual{K(), K()}
	KMOVW(mask, k[0])
	SHRL(Imm(16), mask)
	KMOVW(mask, k[1])
	Label("row")
	TESTQ(n, n)
	JE(LabelRef("end"))
	MOVQ(at(tok, tokDst), p)
	for h := range 2 {
		dst := Mem{Base: p, Index: r, Scale: 4, Disp: h * half}
		v := ZMM()
		VMOVUPS(at(acc, h*half), v)
		if add {
			VMULPS_BCST(at(tok, tokMul), v, v)
			VADDPS_Z(dst, v, k[h], v)
		}
		VMOVUPS(v, k[h], dst)
	}
	ADDQ(U32(tokSize), tok)
	ADDQ(U32(step), acc)
	DECQ(n)
	JMP(LabelRef("row"))
	Label("end")
	VZEROUPPER()
	RET()
}
