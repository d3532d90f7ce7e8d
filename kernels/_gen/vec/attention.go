package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// attention writes the three steps of attention over one tile of positions. Keys and values are widened to float32 once,
// a group of positions at a time, into a buffer in the routine's frame that stays in the first cache, and used there by
// every row (a query head of one token).
func attention(v isa) {
	for _, e := range []element{f32, f16, q8} {
		v.scores(e)
		v.values(e)
	}
	v.weigh()
}

// q8 is an int8 with a float32 scale per 32.
var q8 = element{"Q8", 1}

const (
	kvTile   = 64  // kernels.KVTile
	maxHead  = 512 // kernels.MaxHeadDim
	keyRows  = 16  // keys widened at a time
	valRows  = 32  // values widened at a time
	valUnits = 8   // groups of 16 value dimensions taken at a time, at most
)

// frame reserves bytes of the routine's frame and returns a pointer to them, aligned to a cache line.
func frame(bytes int) reg.GPVirtual {
	p := GP64()
	LEAQ(AllocLocal(bytes+64), p)
	ADDQ(Imm(63), p)
	ANDQ(I32(-64), p)
	return p
}

// widenRow emits the widening of dims values (a register, multiple of 16; of 32 for q8) at src, to groups of 16 float32
// that lie step bytes apart from dst on. It changes all four registers.
func (v isa) widenRow(label string, e element, src, scales, dst, dims reg.GPVirtual, step int) {
	Label(label)
	groups := 1
	if e == q8 {
		groups = 2
		VBROADCASTSS(at(scales, 0), v.r(2))
		ADDQ(Imm(4), scales)
	}
	for g := range groups {
		for i := range v.per() {
			r := v.r(i)
			m := at(src, (16*g+i*v.bytes()/4)*e.size)
			if e == q8 {
				VPMOVSXBD(m, r)
				VCVTDQ2PS(r, r)
				VMULPS(v.r(2), r, r)
			} else {
				v.widen(e, m, r)
			}
			VMOVUPS(r, at(dst, g*step+i*v.bytes()))
		}
	}
	ADDQ(Imm(uint64(16*groups*e.size)), src)
	ADDQ(U32(uint32(groups*step)), dst)
	SUBQ(Imm(uint64(16*groups)), dims)
	JNE(LabelRef(label))
}

// strides returns the distance of rows in bytes, and of their scales.
func (e element) strides() (row, scale reg.GPVirtual) {
	row = arg("stride")
	if e == q8 {
		scale = GP64()
		MOVQ(row, scale)
		SHRQ(Imm(3), scale)
	}
	if e.size > 1 {
		SHLQ(Imm(uint64(e.size/2)), row)
	}
	return row, scale
}

func (v isa) scores(e element) {
	signature := "func(w, q *float32, off *int, rows int, k *" + e.goType() + ", stride, npos, headDim int, scale float32)"
	if e == q8 {
		signature = "func(w, q *float32, off *int, rows int, k *int8, d *float32, stride, npos, headDim int, scale float32)"
	}
	TEXT("scores"+e.name+v.name(), 0, signature)
	Pragma("noescape")
	Doc("scores"+e.name+v.name()+":", "w[64*r+p] = Dot(q[off[r]:][:headDim], k[p*stride:][:headDim]) * scale, p < npos; up to a multiple of 16 w is overwritten")

	buf := frame(keyRows * maxHead * 4)
	k, w, npos := arg("k"), arg("w"), arg("npos")
	var d reg.GPVirtual
	if e == q8 {
		d = arg("d")
	}

	Label("group")
	if v.z && e != q8 {
		v.scoresAlone(e, k, w, npos)
	}
	// Widen up to 16 keys, so that group g of key j lies at 64*(16*g+j).
	func() {
		row, scaleRow := e.strides()
		j, dst := GP64(), GP64()
		MOVQ(U32(keyRows), j)
		CMPQ(npos, j)
		CMOVQLT(npos, j)
		MOVQ(buf, dst)
		Label("key")
		src, to, dims, sc := GP64(), GP64(), GP64(), reg.GPVirtual(nil)
		MOVQ(k, src)
		MOVQ(dst, to)
		if e == q8 {
			sc = GP64()
			MOVQ(d, sc)
		}
		headDim := arg("headDim")
		MOVQ(headDim, dims)
		v.widenRow("widen", e, src, sc, to, dims, 64*keyRows)
		ADDQ(row, k)
		if e == q8 {
			ADDQ(scaleRow, d)
		}
		ADDQ(Imm(64), dst)
		DECQ(j)
		JNE(LabelRef("key"))
	}()

	rows, off, wr := arg("rows"), arg("off"), GP64()
	MOVQ(w, wr)
	Label("row")
	p, n, x, o := GP64(), GP64(), GP64(), GP64()
	q := arg("q")
	if v.z {
		MOVQ(Mem{Base: off}, o)
		LEAQ(Mem{Base: q, Index: o, Scale: 4}, x)
		MOVQ(buf, p)
		n = arg("headDim")
		for i := range 16 {
			v.zero(zmm[i])
		}
		Label("dims")
		VMOVUPS(at(x, 0), zmm[16])
		for i := range 16 {
			// Position 4*j+i is sum 4*i+j, as fold16 wants it.
			sum := zmm[4*(i%4)+i/4]
			t := zmm[17+i%8]
			VMULPS(at(p, 64*i), zmm[16], t)
			VADDPS(t, sum, sum)
		}
		ADDQ(Imm(64), x)
		ADDQ(U32(64*keyRows), p)
		SUBQ(Imm(16), n)
		JNE(LabelRef("dims"))
		fold16(zmm[16])
		v.broadcast("scale", zmm[1])
		VMULPS(zmm[1], zmm[0], zmm[0])
		VMOVUPS(zmm[0], at(wr, 0))
	} else {
		j := GP64()
		XORQ(j, j)
		Label("four")
		MOVQ(Mem{Base: off}, o)
		LEAQ(Mem{Base: q, Index: o, Scale: 4}, x)
		MOVQ(j, p)
		SHLQ(Imm(4), p)
		ADDQ(buf, p)
		n = arg("headDim")
		for i := range 8 {
			v.zero(ymm[i])
		}
		Label("dims")
		for h := range 2 {
			VMOVUPS(at(x, 32*h), ymm[8+h])
			for i := range 4 {
				t := ymm[10+i]
				VMULPS(at(p, 64*i+32*h), ymm[8+h], t)
				VADDPS(t, ymm[2*i+h], ymm[2*i+h])
			}
		}
		ADDQ(Imm(64), x)
		ADDQ(U32(64*keyRows), p)
		SUBQ(Imm(16), n)
		JNE(LabelRef("dims"))
		v.fold4()
		m, _ := Param("scale").Resolve()
		VBROADCASTSS(m.Addr, reg.X1)
		VMULPS(reg.X1, reg.X0, reg.X0)
		VMOVUPS(reg.X0, Mem{Base: wr, Index: j, Scale: 1})
		ADDQ(Imm(16), j)
		CMPQ(j, Imm(64))
		JLT(LabelRef("four"))
	}
	ADDQ(Imm(8), off)
	ADDQ(U32(4*kvTile), wr)
	DECQ(rows)
	JNE(LabelRef("row"))

	Label("advance")
	ADDQ(Imm(64), w)
	SUBQ(Imm(keyRows), npos)
	JGT(LabelRef("group"))
	ret()
}

// scoresAlone takes 16 keys for a single row straight from memory: nothing would be shared through the buffer.
func (v isa) scoresAlone(e element, k, w, npos reg.GPVirtual) {
	rows := arg("rows")
	CMPQ(rows, Imm(1))
	JNE(LabelRef("shared"))
	CMPQ(npos, Imm(keyRows))
	JLT(LabelRef("shared"))
	s1, _ := e.strides()
	s3, s5, s7, k8, x, o, n := GP64(), GP64(), GP64(), GP64(), GP64(), GP64(), arg("headDim")
	LEAQ(Mem{Base: s1, Index: s1, Scale: 2}, s3)
	LEAQ(Mem{Base: s1, Index: s1, Scale: 4}, s5)
	LEAQ(Mem{Base: s3, Index: s1, Scale: 4}, s7)
	LEAQ(Mem{Base: k, Index: s1, Scale: 8}, k8)
	off, q := arg("off"), arg("q")
	MOVQ(Mem{Base: off}, o)
	LEAQ(Mem{Base: q, Index: o, Scale: 4}, x)
	for i := range 16 {
		v.zero(zmm[i])
	}
	Label("alone")
	VMOVUPS(at(x, 0), zmm[16])
	for i := range 16 {
		base := k
		if i >= 8 {
			base = k8
		}
		m := []Mem{{Base: base}, {Base: base, Index: s1, Scale: 1}, {Base: base, Index: s1, Scale: 2}, {Base: base, Index: s3, Scale: 1},
			{Base: base, Index: s1, Scale: 4}, {Base: base, Index: s5, Scale: 1}, {Base: base, Index: s3, Scale: 2}, {Base: base, Index: s7, Scale: 1}}[i%8]
		sum, t := zmm[4*(i%4)+i/4], zmm[17+i%8]
		if e == f32 {
			VMULPS(m, zmm[16], t)
		} else {
			v.widen(e, m, t)
			VMULPS(zmm[16], t, t)
		}
		VADDPS(t, sum, sum)
	}
	ADDQ(Imm(uint64(16*e.size)), k)
	ADDQ(Imm(uint64(16*e.size)), k8)
	ADDQ(Imm(64), x)
	SUBQ(Imm(16), n)
	JNE(LabelRef("alone"))
	fold16(zmm[16])
	v.broadcast("scale", zmm[1])
	VMULPS(zmm[1], zmm[0], zmm[0])
	VMOVUPS(zmm[0], at(w, 0))
	// k stands at the end of the first of its 16 rows.
	dims := arg("headDim")
	for range e.size {
		SUBQ(dims, k)
	}
	SHLQ(Imm(4), s1)
	ADDQ(s1, k)
	JMP(LabelRef("advance"))
	Label("shared")
}

func (e element) goType() string {
	return map[string]string{"F32": "float32", "F16": "uint16", "Q8": "int8"}[e.name]
}

func (v isa) values(e element) {
	signature := "func(out, w *float32, off, cnt *int, rows int, vals *" + e.goType() + ", stride, npos, headDim int)"
	if e == q8 {
		signature = "func(out, w *float32, off, cnt *int, rows int, vals *int8, d *float32, stride, npos, headDim int)"
	}
	TEXT("values"+e.name+v.name(), 0, signature)
	Pragma("noescape")
	Doc("values"+e.name+v.name()+":", "out[off[r]+i] += float32(w[64*r+p] * vals[p*stride+i]), i < headDim, for p < cnt[r] ascending; cnt[r] <= npos")

	buf := frame(valRows * valUnits * 64)
	// The dimensions are cut into pieces of 8, 4, 2 and 1 groups of 16 (AVX2: 4 and less), whose sums stay in registers.
	// dim is the first dimension of the piece, left how many there are from it on.
	dim, left := GP64(), arg("headDim")
	XORQ(dim, dim)
	units := valUnits
	if !v.z {
		units = valUnits / 2
	}
	for u := units; u > 0; u /= 2 {
		if e == q8 && u == 1 {
			break // heads are whole blocks of 32
		}
		v.valuePiece(e, u, buf, dim, left)
	}
	ret()
}

func (v isa) valuePiece(e element, u int, buf, dim, left reg.GPVirtual) {
	name := func(s string) string { return s + string(rune('0'+u)) }
	Label(name("piece"))
	CMPQ(left, U32(uint32(16*u)))
	JLT(LabelRef(name("done")))

	if e != q8 {
		v.valuesAlone(e, u, name, dim)
	}
	pos := GP64() // first position of the group
	XORQ(pos, pos)
	Label(name("group"))
	func() {
		row, scaleRow := e.strides()
		npos := arg("npos")
		j, dst, src := GP64(), GP64(), GP64()
		SUBQ(pos, npos)
		MOVQ(U32(valRows), j)
		CMPQ(npos, j)
		CMOVQLT(npos, j)
		MOVQ(buf, dst)
		// src is vals + pos*stride + dim.
		vals := arg("vals")
		MOVQ(pos, src)
		IMULQ(row, src)
		ADDQ(vals, src)
		LEAQ(Mem{Base: src, Index: dim, Scale: uint8(e.size)}, src)
		var sc reg.GPVirtual
		if e == q8 {
			d := arg("d")
			sc = GP64()
			MOVQ(pos, sc)
			IMULQ(scaleRow, sc)
			ADDQ(d, sc)
			t := GP64()
			MOVQ(dim, t)
			SHRQ(Imm(3), t)
			ADDQ(t, sc)
		}
		Label(name("value"))
		for g := 0; g < u; g++ {
			if e == q8 && g%2 == 0 {
				VBROADCASTSS(at(sc, g/2*4), v.r(8))
			}
			for i := range v.per() {
				r := v.r(i)
				m := at(src, (16*g+i*v.bytes()/4)*e.size)
				if e == q8 {
					VPMOVSXBD(m, r)
					VCVTDQ2PS(r, r)
					VMULPS(v.r(8), r, r)
				} else {
					v.widen(e, m, r)
				}
				VMOVUPS(r, at(dst, 64*g+i*v.bytes()))
			}
		}
		ADDQ(row, src)
		if e == q8 {
			ADDQ(scaleRow, sc)
		}
		ADDQ(U32(uint32(64*u)), dst)
		DECQ(j)
		JNE(LabelRef(name("value")))
	}()

	r, o, p, out, n := GP64(), GP64(), GP64(), GP64(), GP64()
	w := arg("w")
	LEAQ(Mem{Base: w, Index: pos, Scale: 4}, w)
	XORQ(r, r)
	Label(name("row"))
	cnt, off := arg("cnt"), arg("off")
	MOVQ(Mem{Base: cnt, Index: r, Scale: 8}, n)
	SUBQ(pos, n)
	JLE(LabelRef(name("next")))
	MOVQ(Mem{Base: off, Index: r, Scale: 8}, o)
	ADDQ(dim, o)
	limit := GP64()
	MOVQ(U32(valRows), limit)
	CMPQ(n, limit)
	CMOVQGT(limit, n)
	base := arg("out")
	LEAQ(Mem{Base: base, Index: o, Scale: 4}, out)
	acc := func(i int) reg.VecPhysical { return v.r(i) }
	regs := u * v.per()
	for i := range regs {
		VMOVUPS(at(out, i*v.bytes()), acc(i))
	}
	MOVQ(buf, p)
	wp := GP64()
	MOVQ(w, wp)
	Label(name("position"))
	weight := v.r(8)
	VBROADCASTSS(at(wp, 0), weight)
	for i := range regs {
		t := v.r(9 + i%6)
		VMULPS(at(p, i*v.bytes()), weight, t)
		VADDPS(t, acc(i), acc(i))
	}
	ADDQ(Imm(4), wp)
	ADDQ(U32(uint32(64*u)), p)
	DECQ(n)
	JNE(LabelRef(name("position")))
	for i := range regs {
		VMOVUPS(acc(i), at(out, i*v.bytes()))
	}
	Label(name("next"))
	ADDQ(U32(4*kvTile), w)
	INCQ(r)
	rows := arg("rows")
	CMPQ(r, rows)
	JLT(LabelRef(name("row")))

	ADDQ(Imm(valRows), pos)
	npos := arg("npos")
	CMPQ(pos, npos)
	JLT(LabelRef(name("group")))
	Label(name("advance"))
	ADDQ(U32(uint32(16*u)), dim)
	SUBQ(U32(uint32(16*u)), left)
	JMP(LabelRef(name("piece")))
	Label(name("done"))
}

// valuesAlone takes the values for a single row straight from memory.
func (v isa) valuesAlone(e element, u int, name func(string) string, dim reg.GPVirtual) {
	rows := arg("rows")
	CMPQ(rows, Imm(1))
	JNE(LabelRef(name("shared")))
	cnt, off, n, o := arg("cnt"), arg("off"), GP64(), GP64()
	MOVQ(Mem{Base: cnt}, n)
	TESTQ(n, n)
	JLE(LabelRef(name("advance")))
	MOVQ(Mem{Base: off}, o)
	ADDQ(dim, o)
	out, w, src := arg("out"), arg("w"), arg("vals")
	LEAQ(Mem{Base: out, Index: o, Scale: 4}, out)
	LEAQ(Mem{Base: src, Index: dim, Scale: uint8(e.size)}, src)
	row, _ := e.strides()
	regs := u * v.per()
	for i := range regs {
		VMOVUPS(at(out, i*v.bytes()), v.r(i))
	}
	Label(name("alone"))
	VBROADCASTSS(at(w, 0), v.r(8))
	for i := range regs {
		t, m := v.r(9+i%6), at(src, i*v.bytes()*e.size/4)
		if e == f32 {
			VMULPS(m, v.r(8), t)
		} else {
			v.widen(e, m, t)
			VMULPS(v.r(8), t, t)
		}
		VADDPS(t, v.r(i), v.r(i))
	}
	ADDQ(Imm(4), w)
	ADDQ(row, src)
	DECQ(n)
	JNE(LabelRef(name("alone")))
	for i := range regs {
		VMOVUPS(v.r(i), at(out, i*v.bytes()))
	}
	JMP(LabelRef(name("advance")))
	Label(name("shared"))
}

func (v isa) weigh() {
	v.function("weigh", "func(w, top, sum, out *float32, off, cnt *int, rows, headDim int)",
		"attendState.weighGeneric; reads and writes whole groups of 16 scores up to cnt[r], a cnt[r] of 0 leaves the row alone")
	v.loadExp()
	w, top, sum, off, cnt, rows := arg("w"), arg("top"), arg("sum"), arg("off"), arg("cnt"), arg("rows")
	inf := v.r(14)
	VMOVUPS(table("minusInf", minusInf), inf)
	base, index, left := v.r(7), v.r(8), v.r(9)

	// scores loads the 16 scores at p into the registers from 0 up, -Inf in the places behind the last. left holds what
	// remains of cnt in every element.
	scores := func(p reg.GPVirtual) {
		for i := range v.per() {
			m := at(p, i*v.bytes())
			if v.z {
				VPCMPGTD(index, left, reg.K1)
				VMOVAPS(inf, v.r(0))
				VMOVUPS(m, reg.K1, v.r(0))
				continue
			}
			VMOVUPS(m, v.r(i))
			VPCMPGTD(table("count"+string(rune('0'+i)), counts(8*i)...), left, v.r(10))
			VBLENDVPS(v.r(10), v.r(i), inf, v.r(i))
		}
	}
	if v.z {
		VMOVUPS(table("count0", counts(0)...), index)
	}
	step := table("sixteen", 16)

	Label("row")
	n, p, bits := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: cnt}, n)
	TESTQ(n, n)
	JLE(LabelRef("next"))

	// The new maximum.
	m := v.r(2)
	VMOVUPS(inf, m)
	start := func() {
		VMOVD(n.As32(), reg.X9)
		VPBROADCASTD(reg.X9, left)
		MOVQ(w, p)
	}
	start()
	more := func(label string) {
		ADDQ(Imm(64), p)
		VPSUBD(step, left, left)
		SUBQ(Imm(16), n)
		JGT(LabelRef(label))
		MOVQ(Mem{Base: cnt}, n)
	}
	Label("largest")
	scores(p)
	for i := range v.per() {
		VMAXPS(m, v.r(i), m) // a NaN score is passed over; its exponential is NaN
	}
	more("largest")
	VMOVAPS(m, v.r(0))
	v.foldMax(1)
	VMOVSS(at(top, 0), reg.X1)
	VMAXSS(reg.X1, reg.X0, reg.X0)
	VMOVSS(reg.X0, at(top, 0))
	// -Inf is taken as 0, or -Inf - -Inf would poison finite scores that may still come.
	VMOVD(reg.X0, bits.As32())
	zero := GP64()
	XORQ(zero, zero)
	CMPL(bits.As32(), U32(minusInf))
	CMOVLEQ(zero.As32(), bits.As32())
	VMOVD(bits.As32(), reg.X7)
	VBROADCASTSS(reg.X7, base)
	// How much earlier sums shrink.
	VBROADCASTSS(reg.X1, v.r(0))
	VSUBPS(base, v.r(0), v.r(0))
	v.exp(0, 2)
	c := v.r(6)
	VMOVAPS(v.r(0), c)

	lanes := []reg.VecPhysical{v.r(12), v.r(13)}
	for i := range v.per() {
		v.zero(lanes[i])
	}
	start()
	Label("exponentials")
	scores(p)
	for i := range v.per() {
		VSUBPS(base, v.r(i), v.r(i))
		v.exp(i, 2)
		VMOVUPS(v.r(i), at(p, i*v.bytes()))
		VADDPS(v.r(i), lanes[i], lanes[i])
	}
	more("exponentials")
	for i := range v.per() {
		VMOVAPS(lanes[i], v.r(i))
	}
	v.fold(2)
	VMULSS(at(sum, 0), reg.X6, reg.X1)
	VADDSS(reg.X0, reg.X1, reg.X1)
	VMOVSS(reg.X1, at(sum, 0))

	VMOVD(reg.X6, bits.As32())
	CMPL(bits.As32(), U32(0x3f800000))
	JEQ(LabelRef("next")) // the maximum stayed
	out, o, dims := arg("out"), GP64(), arg("headDim")
	MOVQ(Mem{Base: off}, o)
	LEAQ(Mem{Base: out, Index: o, Scale: 4}, out)
	loop("shrink", dims, func() {
		for i := range v.per() {
			VMULPS(at(out, i*v.bytes()), c, v.r(i))
			VMOVUPS(v.r(i), at(out, i*v.bytes()))
		}
	}, out, 4)

	Label("next")
	ADDQ(U32(4*kvTile), w)
	for _, p := range []reg.GPVirtual{top, sum} {
		ADDQ(Imm(4), p)
	}
	for _, p := range []reg.GPVirtual{off, cnt} {
		ADDQ(Imm(8), p)
	}
	DECQ(rows)
	JNE(LabelRef("row"))
	ret()
}

// counts returns 16 integers from first up.
func counts(first int) []uint32 {
	c := make([]uint32, 16)
	for i := range c {
		c[i] = uint32(first + i)
	}
	return c
}
