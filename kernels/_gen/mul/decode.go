package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// decoder is the state of a routine that decodes 16 weight rows into one half of a tile, or (narrow, AVX2) 8 into a quarter.
//
// Columns are transposed four dwords at a time: four vectors take 16 bytes of every fourth row in each lane, and two
// rounds of unpacking leave dword i of row r in place r. That is 3 inserts and 2 shuffles an output vector, against 4
// shuffles for a transposition of whole vectors. Transposing comes before unpacking, so that a nibble costs half of it.
//
// The narrow form differs in what its products want: codes of 8 bits keep their sign, and a bias is taken off through
// pairs of scales in the place of the minima.
type decoder struct {
	narrow   bool
	t, s, s3 reg.Register
	p        []reg.Register // every fourth row
	next     []reg.Register // the same of what is decoded next, to prefetch
	fetched  int            // lines prefetched so far
	size     int            // bytes of a row that one turn decodes

	keep []reg.VecVirtual // where codes go instead of into the tile; nil: they do not
}

func decoders(narrow bool) func() {
	return func() {
		d := decoder{narrow: narrow}
		d.super("Q4K", 144, q4K)
		d.super("Q5K", 176, q5K)
		d.super("Q6K", 210, q6K)
		d.super("Q3K", 110, q3K)
		d.super("Q2K", 84, q2K)
		d.super("IQ4XS", 136, iq4XS)
		d.small("Q80", 34, q80Codes)
		d.small("Q40", 18, nibbles(2, nil))
		d.small("Q41", 20, nibbles(4, nil))
		d.small("Q50", 22, q5Codes(2))
		d.small("Q51", 24, q5Codes(4))
		d.small("IQ4NL", 18, nibbles(2, iq4Codes))
		d.small("MXFP4", 17, nibbles(1, e2m1Codes))
	}
}

// The values of quant_iq4.go and quant_mxfp4.go.
var (
	iq4Codes  = []byte{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}
	e2m1Codes = []byte{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}
)

// rows is how many weight rows a routine decodes.
func (d *decoder) rows() int {
	if d.narrow {
		return 8
	}
	return 16
}

// vec makes a register that holds a dword of every row.
func (d *decoder) vec() reg.VecVirtual {
	if d.narrow {
		return YMM()
	}
	return ZMM()
}

func (d decoder) begin(name, signature, doc string) *decoder {
	suffix, part := "AVX512", "half"
	if d.narrow {
		suffix, part = "AVX2", "quarter"
	}
	TEXT("decode"+name+suffix, NOSPLIT, signature)
	Pragma("noescape")
	Doc(fmt.Sprintf("decode%s%s writes a %s of a tile from %s of each of %d rows, and prefetches as much of the rows from next.", name, suffix, part, doc, d.rows()))
	d.t = Load(Param("tile"), GP64())
	d.s = Load(Param("stride"), GP64())
	d.s3 = GP64()
	LEAQ(Mem{Base: d.s, Index: d.s, Scale: 2}, d.s3)
	d.p = []reg.Register{Load(Param("w"), GP64())}
	d.next = []reg.Register{Load(Param("next"), GP64())}
	for i := 1; i < d.rows()/4; i++ {
		d.p, d.next = append(d.p, GP64()), append(d.next, GP64())
		LEAQ(Mem{Base: d.p[i-1], Index: d.s, Scale: 4}, d.p[i])
		LEAQ(Mem{Base: d.next[i-1], Index: d.s, Scale: 4}, d.next[i])
	}
	return &d
}

// prefetch fetches into L2 the bytes of the rows that are wanted next: n lines now, of size bytes a row altogether. (Into
// L1 it is half as fast from memory: fewer misses can be outstanding there.) Lines are spread over the routine, a burst of
// them would hold up its own loads. The last bytes of a row come with the first of what follows.
func (d *decoder) prefetch(n, size int) {
	if d.next == nil {
		return
	}
	lines := (size + 63) / 64
	for ; n > 0 && d.fetched < d.rows()*lines; n-- {
		PREFETCHT1((&decoder{p: d.next, s: d.s, s3: d.s3}).row(d.fetched/lines, d.fetched%lines*64))
		d.fetched++
	}
}

// super writes the routine of a type of 256.
func (d decoder) super(name string, size int, body func(d *decoder)) {
	r := d.begin(name, "func(tile, w *byte, stride int, next uintptr)", "one super-block")
	r.size = size
	body(r)
	r.prefetch(1000, size)
	VZEROUPPER()
	RET()
}

// row is the memory disp bytes into row r.
func (d *decoder) row(r, disp int) Mem {
	m := Mem{Base: d.p[r/4], Disp: disp}
	switch r % 4 {
	case 1:
		return m.Idx(d.s, 1)
	case 2:
		return m.Idx(d.s, 2)
	case 3:
		return m.Idx(d.s3, 1)
	}
	return m
}

// lanes returns 16 bytes of all rows: vector i has those of rows i, 4+i, 8+i, 12+i.
func (d *decoder) lanes(disp int) []reg.VecVirtual {
	v := each(4, d.vec)
	for i := range v {
		if d.narrow {
			VBROADCASTI128(d.row(i, disp), v[i])
			VINSERTI128(Imm(1), d.row(4+i, disp), v[i], v[i])
			continue
		}
		// Inserts of half the width cost half. Physical, because avo does not know that a write of the lower half clears the
		// upper.
		for h, x := range []reg.VecPhysical{reg.Z30, reg.Z31} {
			VMOVDQU32(d.row(8*h+i, disp), x.AsX())
			VINSERTI32X4(U8(1), d.row(8*h+4+i, disp), x.AsY(), x.AsY())
		}
		VINSERTI64X4(U8(1), reg.Y31, reg.Z30, v[i])
	}
	return v
}

// columns returns dwords 0 to 3 at disp of all rows, nil for those not wanted.
func (d *decoder) columns(disp int, want ...int) []reg.VecVirtual {
	d.prefetch(8, d.size)
	return d.transpose(d.lanes(disp), want...)
}

func (d *decoder) transpose(a []reg.VecVirtual, want ...int) []reg.VecVirtual {
	if len(want) == 0 {
		want = []int{0, 1, 2, 3}
	}
	out := make([]reg.VecVirtual, 4)
	var lo, hi []reg.VecVirtual
	for _, i := range want {
		if i < 2 && lo == nil {
			lo = each(2, d.vec)
			VPUNPCKLDQ(a[1], a[0], lo[0])
			VPUNPCKLDQ(a[3], a[2], lo[1])
		}
		if i >= 2 && hi == nil {
			hi = each(2, d.vec)
			VPUNPCKHDQ(a[1], a[0], hi[0])
			VPUNPCKHDQ(a[3], a[2], hi[1])
		}
		pair := lo
		if i >= 2 {
			pair = hi
		}
		out[i] = d.vec()
		if i%2 == 0 {
			VPUNPCKLQDQ(pair[1], pair[0], out[i])
		} else {
			VPUNPCKHQDQ(pair[1], pair[0], out[i])
		}
	}
	return out
}

// dwords returns the dword at disp of all rows.
func (d *decoder) dwords(disp int) reg.VecVirtual {
	v := d.zero()
	for i := range d.p {
		x := XMM()
		VMOVD(d.row(4*i, disp), x)
		for r := 1; r < 4; r++ {
			VPINSRD(Imm(uint64(r)), d.row(4*i+r, disp), x, x)
		}
		if d.narrow {
			VINSERTI128(Imm(uint64(i)), x, v, v)
		} else {
			VINSERTI32X4(Imm(uint64(i)), x, v, v)
		}
	}
	return v
}

func (d *decoder) zero() reg.VecVirtual {
	z := d.vec()
	if d.narrow {
		VPXOR(z, z, z)
	} else {
		VPXORD(z, z, z)
	}
	return z
}

// store writes a dword of every row to the tile.
func (d *decoder) store(v reg.VecVirtual, disp int) {
	if d.narrow {
		VMOVDQU(v, at(d.t, disp))
	} else {
		VMOVDQU32(v, at(d.t, disp))
	}
}

// code stores the codes of columns col to col+3.
func (d *decoder) code(v reg.VecVirtual, col int) {
	if d.keep != nil {
		d.keep[col/4] = v
		return
	}
	d.store(v, tileW+col/4*step)
}

// splat is a constant in every dword.
func (d *decoder) splat(v uint32) reg.VecVirtual {
	z := d.vec()
	VPBROADCASTD(table32(v), z)
	return z
}

// table16 is 16 constant bytes in every lane.
func (d *decoder) table16(name string, b []byte) reg.VecVirtual {
	z := d.vec()
	if d.narrow {
		VBROADCASTI128(table(name, b), z)
	} else {
		VBROADCASTI32X4(table(name, b), z)
	}
	return z
}

// byteIndex moves byte j of every dword to its bottom, the rest zero; pairIndex bytes j and j+1 to its two words;
// spreadIndex copies byte j to all four.
func (d *decoder) byteIndex(j byte) reg.VecVirtual {
	b := cycle(16, 0x80)
	for i := 0; i < 16; i += 4 {
		b[i] = byte(i) + j
	}
	return d.table16(fmt.Sprintf("byte%d", j), b)
}

func (d *decoder) pairIndex(j byte) reg.VecVirtual {
	b := cycle(16, 0x80)
	for i := 0; i < 16; i += 4 {
		b[i], b[i+2] = byte(i)+j, byte(i)+j+1
	}
	return d.table16(fmt.Sprintf("pair%d", j), b)
}

func (d *decoder) spreadIndex(j byte) reg.VecVirtual {
	b := make([]byte, 16)
	for i := range b {
		b[i] = byte(i/4*4) + j
	}
	return d.table16(fmt.Sprintf("spread%d", j), b)
}

// scales stores four 8-bit scales a row as int32, less bias.
func (d *decoder) scales(v reg.VecVirtual, group int, bias reg.VecVirtual) {
	x := each(4, d.vec)
	for j := range x {
		VPSHUFB(d.byteIndex(byte(j)), v, x[j])
		if bias != nil {
			VPSUBD(bias, x[j], x[j])
		}
		d.store(x[j], tileSc+(group+j)*step)
	}
	if bias != nil {
		d.scalePairs(x, group)
	}
}

// scalePairs stores scales as pairs in the place of minima, for the narrow products of biased codes.
func (d *decoder) scalePairs(x []reg.VecVirtual, group int) {
	if !d.narrow {
		return
	}
	for j := 0; j < len(x); j += 2 {
		VPSLLD(Imm(16), x[j+1], x[j+1])
		VPBLENDW(Imm(0xaa), x[j+1], x[j], x[j])
		d.store(x[j], tileMin+(group+j)/2*step)
	}
}

// minima stores four 8-bit minima a row as pairs of int16.
func (d *decoder) minima(v reg.VecVirtual, group int) {
	for j := range 2 {
		x := d.vec()
		VPSHUFB(d.pairIndex(byte(2*j)), v, x)
		d.store(x, tileMin+(group/2+j)*step)
	}
}

// half stores the float16 in the low or high word of every dword as float32.
func (d *decoder) half(v reg.VecVirtual, high bool, disp int) { d.store(d.widened(v, high), disp) }

func (d *decoder) widened(v reg.VecVirtual, high bool) reg.VecVirtual {
	x := d.vec()
	switch {
	case high:
		VPSRLD(Imm(16), v, x)
	case d.narrow:
		VPAND(d.splat(0xffff), v, x)
	default:
		VMOVDQA32(v, x)
	}
	if d.narrow {
		VPACKUSDW(x, x, x)
		VPERMQ(Imm(0x08), x, x)
		VCVTPH2PS(x.AsX(), x)
	} else {
		VPMOVDW(x, x.AsY())
		VCVTPH2PS(x.AsY(), x)
	}
	return x
}

// shift returns v shifted right by n bits, left when negative.
func (d *decoder) shift(v reg.VecVirtual, n int) reg.VecVirtual {
	x := d.vec()
	switch {
	case n > 0:
		VPSRLD(Imm(uint64(n)), v, x)
	case n < 0:
		VPSLLD(Imm(uint64(-n)), v, x)
	default:
		return v
	}
	return x
}

func (d *decoder) and(a, mask reg.VecVirtual) reg.VecVirtual {
	x := d.vec()
	if d.narrow {
		VPAND(mask, a, x)
	} else {
		VPANDD(mask, a, x)
	}
	return x
}

// merge returns (a & mask) | b.
func (d *decoder) merge(a, mask, b reg.VecVirtual) reg.VecVirtual {
	x := d.vec()
	if d.narrow {
		VPAND(mask, a, x)
		VPOR(b, x, x)
		return x
	}
	VMOVDQA32(a, x)
	VPTERNLOGD(U8(0xea), b, mask, x)
	return x
}

// header4K reads d, dmin and the packed scales that Q4_K and Q5_K share (scales4K in quant_k.go).
func (d *decoder) header4K() {
	h := d.columns(0)
	d.half(h[0], false, tileD)
	d.half(h[0], true, tileM)
	m6, m4, m2 := d.splat(0x3f3f3f3f), d.splat(0x0f0f0f0f), d.splat(0x30303030)
	d.scales(d.and(h[1], m6), 0, nil)
	d.scales(d.merge(d.shift(h[1], 2), m2, d.and(h[3], m4)), 4, nil)
	d.minima(d.and(h[2], m6), 0)
	d.minima(d.merge(d.shift(h[2], 2), m2, d.and(d.shift(h[3], 4), m4)), 4)
}

func q4K(d *decoder) {
	d.header4K()
	m4 := d.splat(0x0f0f0f0f)
	for c := range 8 {
		for i, v := range d.columns(16 + 16*c) {
			col := c/2*64 + c%2*16 + 4*i
			d.code(d.and(v, m4), col)
			d.code(d.and(d.shift(v, 4), m4), col+32)
		}
	}
}

func q5K(d *decoder) {
	d.header4K()
	m4, m1 := d.splat(0x0f0f0f0f), d.splat(0x10101010)
	for c := range 2 {
		high := d.columns(16 + 16*c)
		for j := range 4 {
			for i, v := range d.columns(48 + 32*j + 16*c) {
				col := 64*j + 16*c + 4*i
				d.code(d.merge(d.shift(high[i], 2*j-4), m1, d.and(v, m4)), col)
				d.code(d.merge(d.shift(high[i], 2*j+1-4), m1, d.and(d.shift(v, 4), m4)), col+32)
			}
		}
	}
}

func q6K(d *decoder) {
	// 16 signed scales, then d.
	for c, v := range d.columns(192) {
		x := each(4, d.vec)
		for j := range x {
			VPSRAD(Imm(24), d.shift(v, 8*j-24), x[j])
			d.store(x[j], tileSc+(4*c+j)*step)
		}
		d.scalePairs(x, 4*c)
	}
	d.half(d.columns(194, 3)[3], true, tileD)
	m4, m2 := d.splat(0x0f0f0f0f), d.splat(0x30303030)
	for h := range 2 {
		for c := range 2 {
			high := d.columns(128 + 32*h + 16*c)
			for part := range 2 {
				for i, v := range d.columns(64*h + 32*part + 16*c) {
					col := 128*h + 32*part + 16*c + 4*i
					d.code(d.merge(d.shift(high[i], 2*part-4), m2, d.and(v, m4)), col)
					d.code(d.merge(d.shift(high[i], 2*part), m2, d.and(d.shift(v, 4), m4)), col+64)
				}
			}
		}
	}
}

func q3K(d *decoder) {
	// The 12 bytes of scales and d end the block: 16 bytes from 94 on do not pass it.
	a := d.lanes(94)
	for _, v := range a {
		VPSRLDQ(Imm(2), v, v)
	}
	h := d.transpose(a)
	d.half(h[3], false, tileD)
	m4, m2, bias := d.splat(0x0f0f0f0f), d.splat(0x30303030), d.splat(32)
	for g := range 4 {
		low := d.and(d.shift(h[g%2], g/2*4), m4)
		d.scales(d.merge(d.shift(h[2], 2*g-4), m2, low), 4*g, bias)
	}
	low2, low1 := d.splat(0x03030303), d.splat(0x04040404)
	for c := range 2 {
		high := d.columns(16 * c)
		for h := range 2 {
			for i, v := range d.columns(32 + 32*h + 16*c) {
				for p := range 4 {
					col := 128*h + 32*p + 16*c + 4*i
					d.code(d.merge(d.shift(high[i], 4*h+p-2), low1, d.and(d.shift(v, 2*p), low2)), col)
				}
			}
		}
	}
}

func q2K(d *decoder) {
	h := d.columns(68, 3)
	d.half(h[3], false, tileD)
	d.half(h[3], true, tileM)
	m4, m2 := d.splat(0x0f0f0f0f), d.splat(0x03030303)
	for g, v := range d.columns(0) {
		d.scales(d.and(v, m4), 4*g, nil)
		d.minima(d.and(d.shift(v, 4), m4), 4*g)
	}
	for c := range 2 {
		for h := range 2 {
			for i, v := range d.columns(16 + 32*h + 16*c) {
				for p := range 4 {
					d.code(d.and(d.shift(v, 2*p), m2), 128*h+32*p+16*c+4*i)
				}
			}
		}
	}
}

func iq4XS(d *decoder) {
	h := d.columns(0, 0, 1)
	d.half(h[0], false, tileD)
	low, high, bias := d.splat(0x0f), d.splat(0x30), d.splat(32)
	for j := range 8 {
		x := d.merge(d.shift(h[0], 12+2*j), high, d.and(d.shift(h[1], 4*j), low))
		VPSUBD(bias, x, x)
		for c := range 2 {
			d.store(x, tileSc+(2*j+c)*step)
		}
	}
	m4, codes := d.splat(0x0f0f0f0f), d.values(iq4Codes)
	for j := range 8 {
		for i, v := range d.columns(8 + 16*j) {
			for p := range 2 {
				x := d.and(d.shift(v, 4*p), m4)
				VPSHUFB(x, codes, x)
				d.code(x, 32*j+16*p+4*i)
			}
		}
	}
}
