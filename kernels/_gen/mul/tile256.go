package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrowForm is a form with the range of its codes. AVX2 multiplies bytes into words (VPMADDUBSW), and words into dwords
// (VPMADDWD) only when they would overflow: run is after how many steps of four columns, run*2*127*code staying below
// 2^15. Signed codes move their sign to the activation (VPSIGNB) and are added up as dwords.
type narrowForm struct {
	form
	run    int
	signed bool
}

var narrowForms = []narrowForm{
	{form{"SuperMin32x4", true, 32, true}, 8, false},  // codes below 16
	{form{"SuperMin32x5", true, 32, true}, 4, false},  // below 32
	{form{"SuperMin16x4", true, 16, true}, 4, false},  // below 16
	{form{"Super16x6", true, 16, false}, 2, false},    // below 64
	{form{"Super16Signed", true, 16, false}, 1, true}, // int8
	{form{"Smallx4", false, 32, false}, 8, false},     // below 16
	{form{"Smallx5", false, 32, false}, 4, false},     // below 32
	{form{"SmallSigned", false, 32, false}, 1, true},  // int8
	{form{"SmallMinx5", false, 32, true}, 4, false},   // below 32
}

// groups256 are the numbers of activation rows taken together.
var groups256 = []int{4, 3, 2, 1}

func tile256() {
	for _, f := range narrowForms {
		f.mul256()
	}
	put256("tilePutAVX2", false)
	put256("tileAddAVX2", true)
}

// mul256 writes the product of a quarter of a tile's chunk, 8 rows, with n activation rows.
func (f narrowForm) mul256() {
	TEXT("tile"+f.name+"AVX2", NOSPLIT, "func(acc *float32, tile, tok *byte, n, k, blocks, bias int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("tile%sAVX2 adds to acc[i*32+r] the product of row r < 8 of a decoded tile with columns k to k+32*blocks of activation row i < n.", f.name))
	acc, tok, n := Load(Param("acc"), reg.RDI), Load(Param("tok"), reg.RSI), Load(Param("n"), reg.RDX)
	frame := AllocLocal(64 * groups256[0])
	for _, g := range groups256 {
		name := fmt.Sprintf("rows%d", g)
		Label(name)
		CMPQ(n, Imm(uint64(g)))
		JL(LabelRef("end" + name))
		f.rows256(g, name, acc, tok, frame)
		ADDQ(U32(uint32(g*tokSize)), tok)
		ADDQ(U32(uint32(g*step)), acc)
		SUBQ(Imm(uint64(g)), n)
		JMP(LabelRef(name))
		Label("end" + name)
	}
	VZEROUPPER()
	RET()
}

// The registers that live through a group's loop: sums, and the words or dwords of the present group of columns.
var (
	sumRegs256  = []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3}
	partRegs256 = []reg.VecPhysical{reg.Y4, reg.Y5, reg.Y6, reg.Y7}
	wordRegs256 = []reg.VecPhysical{reg.Y8, reg.Y9, reg.Y10, reg.Y11}
)

func (f narrowForm) rows256(g int, name string, acc, tok reg.Register, frame Mem) {
	f.prepare256(g, tok, frame)
	k := reg.RAX
	Load(Param("k"), k)
	q := rowRegs[:g]
	for i := range q {
		MOVQ(at(tok, i*tokSize+tokQ), q[i])
		ADDQ(k, q[i])
	}
	sum, part := sumRegs256[:g], partRegs256[:g]
	for i, s := range sum {
		if f.super {
			VPXOR(s, s, s)
		} else {
			VMOVUPS(at(acc, i*step), s)
		}
	}
	w, sc, col, j := reg.RAX, reg.RBX, reg.RCX, reg.R15
	Load(Param("tile"), w)
	LEAQ(at(w, tileSc), sc)
	XORQ(col, col)
	XORQ(j, j)
	Label(name + "group")
	if f.super {
		f.group256(g, q, w, sc, col, sum)
	} else {
		for i, p := range part {
			if f.mins {
				VPXOR(p, p, p)
			} else {
				VPBROADCASTD(frame.Offset(64*i).Idx(j, 4), p)
			}
		}
		f.group256(g, q, w, nil, col, part)
		f.small256(g, sc, j, frame, part, sum)
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
		f.finish256(g, acc, tok, frame, sum)
		return
	}
	for i, s := range sum {
		VMOVUPS(s, at(acc, i*step))
	}
}

// prepare256 is prepare512 for the narrow forms: the frame has the sums that minima or scales are multiplied by, or what
// the parts start with, and of small blocks the scales.
func (f narrowForm) prepare256(g int, tok reg.Register, frame Mem) {
	p, off := GP64(), GP64()
	Load(Param("k"), off)
	SHRQ(Imm(3), off) // int16 sums of 16, and float32 scales of 32
	factor, mask := YMM(), YMM()
	if f.mins {
		VPBROADCASTD(table32(0x00010001), factor)
	} else {
		b, x := GP64(), XMM()
		Load(Param("bias"), b)
		NEGQ(b)
		VMOVD(b.As32(), x)
		VPBROADCASTW(x, factor)
	}
	if !f.super {
		// The row may end before the chunk does.
		b, x := GP64(), XMM()
		Load(Param("blocks"), b)
		VMOVD(b.As32(), x)
		VPBROADCASTD(x, mask)
		VPCMPGTD(table("iota", dwords(0, 1, 2, 3, 4, 5, 6, 7)), mask, mask)
	}
	for i := range g {
		MOVQ(at(tok, i*tokSize+tokSums), p)
		at0 := frame.Offset(64 * i)
		x, sums := YMM(), Mem{Base: p, Index: off, Scale: 1}
		switch {
		case f.super && f.group == 16:
			VMOVDQU(sums, x)
			VMOVDQU(x, at0)
		case f.super:
			VPMADDWD(sums, factor, x)
			VPACKSSDW(x, x, x)
			VPERMQ(Imm(0x08), x, x)
			VMOVDQU(x.AsX(), at0)
		default:
			VPMASKMOVD(sums, mask, x)
			VPMADDWD(factor, x, x)
			if f.mins {
				VCVTDQ2PS(x, x)
			}
			VMOVDQU(x, at0)
			MOVQ(at(tok, i*tokSize+tokD), p)
			d := YMM()
			VMASKMOVPS(Mem{Base: p, Index: off, Scale: 1}, mask, d)
			VMOVUPS(d, at0.Offset(32))
		}
	}
}

// group256 adds the products of one group of columns to sum, times the scales at sc where there are any.
func (f narrowForm) group256(g int, q []reg.GPPhysical, w, sc, col reg.Register, sum []reg.VecPhysical) {
	scale := YMM()
	if sc == nil {
		VPBROADCASTD(table32(0x00010001), scale)
	} else {
		t := YMM()
		VMOVDQU(at(sc, 0), scale)
		VPSLLD(Imm(16), scale, t)
		VPBLENDW(Imm(0xaa), t, scale, scale)
	}
	words := wordRegs256[:g]
	for s := range f.group / 4 {
		c := YMM()
		VMOVDQU(at(w, s*step), c)
		var size reg.VecVirtual
		if f.signed {
			size = YMM()
			VPABSB(c, size)
		}
		for i := range g {
			x := YMM()
			VPBROADCASTD(Mem{Base: q[i], Index: col, Scale: 1, Disp: 4 * s}, x)
			if f.signed {
				VPSIGNB(c, x, x)
				VPMADDUBSW(x, size, x)
				VPMADDWD(scale, x, x)
				VPADDD(x, sum[i], sum[i])
				continue
			}
			if s%f.run == 0 {
				VPMADDUBSW(x, c, words[i])
			} else {
				VPMADDUBSW(x, c, x)
				VPADDW(x, words[i], words[i])
			}
			if s%f.run == f.run-1 {
				VPMADDWD(scale, words[i], words[i])
				VPADDD(words[i], sum[i], sum[i])
			}
		}
	}
}

// small256 adds the products of a block of 32 to the float32 sums.
func (f narrowForm) small256(g int, sc, j reg.Register, frame Mem, part, sum []reg.VecPhysical) {
	for i := range g {
		p, v, dx := part[i], YMM(), YMM()
		VCVTDQ2PS(p, p)
		VBROADCASTSS(frame.Offset(64*i+32).Idx(j, 4), dx)
		VMULPS(at(sc, 0), dx, v)
		VMULPS(p, v, v)
		if f.mins {
			VMULPS(at(sc, 8*step), dx, dx)
			VBROADCASTSS(frame.Offset(64*i).Idx(j, 4), p)
			VMULPS(p, dx, dx)
			VADDPS(dx, v, v)
		}
		VADDPS(v, sum[i], sum[i])
	}
}

// finish256 adds a super-block's product to acc. Biased codes took no notice of the bias so far.
func (f narrowForm) finish256(g int, acc, tok reg.Register, frame Mem, sum []reg.VecPhysical) {
	t := Load(Param("tile"), reg.RAX)
	low := partRegs256[:g]
	if !f.signed {
		for i := range low {
			VPXOR(low[i], low[i], low[i])
		}
		for p := range 128 / f.group {
			m := YMM()
			VMOVDQU(at(t, tileMin+p*step), m)
			for i := range g {
				x := YMM()
				VPBROADCASTD(frame.Offset(64*i+4*p), x)
				VPMADDWD(x, m, x)
				VPADDD(x, low[i], low[i])
			}
		}
	}
	if !f.mins && !f.signed {
		b, x, bias := GP64(), XMM(), YMM()
		Load(Param("bias"), b)
		VMOVD(b.As32(), x)
		VPBROADCASTD(x, bias)
		for i := range g {
			VPMULLD(bias, low[i], low[i])
			VPSUBD(low[i], sum[i], sum[i])
		}
	}
	off, p := reg.RBX, reg.RCX
	Load(Param("k"), off)
	SHRQ(Imm(6), off)
	for i, s := range sum {
		v, dx := YMM(), YMM()
		MOVQ(at(tok, i*tokSize+tokD), p)
		VBROADCASTSS(Mem{Base: p, Index: off, Scale: 1}, dx)
		VCVTDQ2PS(s, s)
		VMULPS(at(t, tileD), dx, v)
		VMULPS(s, v, v)
		if f.mins {
			VCVTDQ2PS(low[i], low[i])
			VMULPS(at(t, tileM), dx, dx)
			VMULPS(low[i], dx, dx)
			VSUBPS(dx, v, v)
		}
		VADDPS(at(acc, i*step), v, v)
		VMOVUPS(v, at(acc, i*step))
	}
}

// put256 writes the delivery of a tile's sums.
func put256(name string, add bool) {
	TEXT(name, NOSPLIT, "func(acc *float32, tok *byte, n, r int, mask uint32)")
	Pragma("noescape")
	what := "stores acc[i*32+j] to"
	if add {
		what = "adds acc[i*32+j] times the row's factor to"
	}
	Doc(fmt.Sprintf("%s %s place r+j of the destination of row i < n, where bit j of mask is set.", name, what))
	acc, tok, n, r := Load(Param("acc"), GP64()), Load(Param("tok"), GP64()), Load(Param("n"), GP64()), Load(Param("r"), GP64())
	bits, p := GP32(), GP64()
	Load(Param("mask"), bits)
	// Bit 8q+i to the top of dword i.
	mask := each(4, YMM)
	all, x := YMM(), XMM()
	VMOVD(bits, x)
	VPBROADCASTD(x, all)
	for q := range mask {
		var by []uint32
		for i := range 8 {
			by = append(by, uint32(31-8*q-i))
		}
		VPSLLVD(table(fmt.Sprintf("top%d", q), dwords(by...)), all, mask[q])
	}
	Label("row")
	TESTQ(n, n)
	JE(LabelRef("end"))
	MOVQ(at(tok, tokDst), p)
	for q := range mask {
		dst := Mem{Base: p, Index: r, Scale: 4, Disp: q * 32}
		v := YMM()
		VMOVUPS(at(acc, q*32), v)
		if add {
			s, old := YMM(), YMM()
			VBROADCASTSS(at(tok, tokMul), s)
			VMULPS(s, v, v)
			VMASKMOVPS(dst, mask[q], old)
			VADDPS(old, v, v)
		}
		VMASKMOVPS(v, mask[q], dst)
	}
	ADDQ(U32(tokSize), tok)
	ADDQ(U32(step), acc)
	DECQ(n)
	JMP(LabelRef("row"))
	Label("end")
	VZEROUPPER()
	RET()
}
