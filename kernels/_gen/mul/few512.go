package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// few is the state of a routine that multiplies 16 weight rows by so few activation rows that a tile would not pay: what is
// decoded, 64 columns of the 16 rows or a block of 32, stays in registers and goes over all activation
// rows at once. It saves the tile's stores, a third of what a tile costs (a vector takes the store port twice).
// Decoders and their transposition are those of the tile.
type few struct {
	decoder
	frame reg.Register // aligned to 64 bytes
	k     reg.Register // first column of the present block
}

// The frame of a type of 256.
const (
	fewScale = 0                 // [4] vectors of four 8-bit scales a row
	fewMin   = fewScale + 4*half // [4] the same of minima
	fewHead  = fewMin + 4*half   // d and dmin
	fewHigh  = fewHead + 2*half  // [8] vectors of high bits
	fewPart  = fewHigh + 8*half  // [fewMost] vectors of sums
	fewFrame = fewPart + fewMost*half
)

func few512() {
	fewSuper("Q4K", 144, q4KFew)
	fewSuper("Q5K", 176, q5KFew)
	fewSuper("Q6K", 210, q6KFew)
	fewSuper("Q3K", 110, q3KFew)
	fewSuper("Q2K", 84, q2KFew)
	fewSuper("IQ4XS", 136, iq4XSFew)
	fewSmall("Q80", 34, 128, q80Codes)
	fewSmall("Q40", 18, 8, nibbles(2, nil))
	fewSmall("Q41", 20, 0, nibbles(4, nil))
	fewSmall("Q50", 22, 16, q5Codes(2))
	fewSmall("Q51", 24, 0, q5Codes(4))
	fewSmall("IQ4NL", 18, 128, nibbles(2, iq4Codes))
	fewSmall("MXFP4", 17, 12, nibbles(1, e2m1Codes))
}

// begin writes a routine's head and clears the sums.
func (f *few) begin(name string, frame int) {
	TEXT("few"+name+"AVX512", 0, "func(acc *float32, w *byte, stride int, tok *byte, n, blocks int, ahead uintptr)")
	Pragma("noescape")
	Doc("few"+name+"AVX512 stores to acc[i*32+r] the product of weight row r < 16, stride bytes apart, with activation row i < n of as many blocks,",
		"and prefetches as many bytes of weights from ahead on.")
	if frame > 0 {
		f.frame = GP64()
		LEAQ(AllocLocal(frame+64), f.frame)
		ADDQ(Imm(63), f.frame)
		ANDQ(I32(-64), f.frame)
	}
	f.s, f.s3, f.k = Load(Param("stride"), GP64()), GP64(), GP64()
	LEAQ(Mem{Base: f.s, Index: f.s, Scale: 2}, f.s3)
	f.p = []reg.Register{Load(Param("w"), GP64())}
	for l := 1; l < 4; l++ {
		f.p = append(f.p, GP64())
		LEAQ(Mem{Base: f.p[l-1], Index: f.s, Scale: 4}, f.p[l])
	}
	XORQ(f.k, f.k)
	zero, a, i := f.zero(), Load(Param("acc"), GP64()), Load(Param("n"), GP64())
	Label("clear")
	VMOVUPS(zero, at(a, 0))
	ADDQ(U32(step), a)
	DECQ(i)
	JNE(LabelRef("clear"))
	Label("block")
}

// prefetch fetches what is wanted next, of a block's bytes the i-th of n parts: in a burst the lines would hold up the
// routine's own loads.
func (f *few) prefetch(size, i, n int) {
	ahead := Load(Param("ahead"), GP64())
	for line := 0; line < fewRows*size; line += 64 {
		if line*n/(fewRows*size) == i {
			PREFETCHT1(at(ahead, line))
		}
	}
	if i == n-1 {
		ADDQ(U32(uint32(fewRows*size)), ahead)
		Store(ahead, Param("ahead"))
	}
}

// rows writes a loop over activation rows. body gets the row's entry and a pointer that starts at p and moves by by.
func (f *few) rows(label string, p reg.Register, by int, body func(tok, p reg.Register)) {
	tok, n, q := Load(Param("tok"), GP64()), Load(Param("n"), GP64()), GP64()
	MOVQ(p, q)
	Label(label)
	body(tok, q)
	ADDQ(U32(uint32(by)), q)
	ADDQ(U32(tokSize), tok)
	DECQ(n)
	JNE(LabelRef(label))
}

// of is the present block's part of one of an activation row's arrays, which has a byte in 1<<shift columns.
func (f *few) of(tok reg.Register, array int, shift uint64) reg.GPVirtual {
	p := GP64()
	MOVQ(f.k, p)
	if shift > 0 {
		SHRQ(Imm(shift), p)
	}
	ADDQ(at(tok, array), p)
	return p
}

// end goes on to the next block.
func (f *few) end(size, cols int) {
	for _, p := range f.p {
		ADDQ(U32(uint32(size)), p)
	}
	ADDQ(U32(uint32(cols)), f.k)
	blocks := Load(Param("blocks"), GP64())
	DECQ(blocks)
	Store(blocks, Param("blocks"))
	JNE(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// super is how 16 rows of a super-block are read.
type super struct {
	group int                        // columns that share a scale
	bias  uint64                     // of codes, as a power of two; 0: there are minima instead
	more  uint64                     // scales and codes together are 1<<more times what they stand for
	head  func()                     // puts scales, minima, d and dmin into the frame
	codes func(u int) [2]int         // keeps 64 codes of the u-th unit: 32 columns each from those on that it returns
	scale func(i int) reg.VecVirtual // int32 scales of group i
	low   func(i int) reg.VecVirtual // pairs of int16: minima, or scales where there is a bias, of columns 32i and 32i+16 on
}

// fewSuper writes the routine of a type of 256.
func fewSuper(name string, size int, setup func(f *few) super) {
	f := &few{decoder: decoder{keep: make([]reg.VecVirtual, 16)}}
	s := setup(f)
	f.begin(name, fewFrame)
	s.head()
	for u := range 4 {
		f.prefetch(size, u, 4)
		cols := s.codes(u)
		per := s.group / 4
		scales := make([]reg.VecVirtual, 16/per)
		for i := range scales {
			scales[i] = s.scale((cols[i*per/8] + i*per%8*4) / s.group)
		}
		f.rows(fmt.Sprintf("unit%d", u), f.frame, half, func(tok, part reg.Register) {
			q := f.of(tok, tokQ, 0)
			sum := sumRegs[:len(scales)]
			for i, x := range sum {
				VPXORD(x, x, x)
				for j := i * per; j < i*per+per; j++ {
					VPDPBUSD_BCST(at(q, cols[j/8]+j%8*4), f.keep[j], x)
				}
				VPMULLD(scales[i], x, x)
				if i > 0 {
					VPADDD(x, sum[0], sum[0])
				}
			}
			if u > 0 {
				VPADDD(at(part, fewPart), sum[0], sum[0])
			}
			VMOVDQU32(sum[0], at(part, fewPart))
		})
	}
	// The float step.
	d, m, low := f.vec(), f.vec(), make([]reg.VecVirtual, 8)
	VMOVUPS(at(f.frame, fewHead), d)
	if s.bias == 0 {
		VMOVUPS(at(f.frame, fewHead+half), m)
	}
	for i := range low {
		low[i] = s.low(i)
	}
	acc := Load(Param("acc"), GP64())
	f.rows("finish", f.frame, half, func(tok, part reg.Register) {
		isum, msum, v := f.vec(), sumRegs[0], f.vec()
		sums := f.of(tok, tokSums, 3)
		VPXORD(msum, msum, msum)
		for i, l := range low {
			VPDPWSSD_BCST(at(sums, 4*i), l, msum)
		}
		VMOVDQU32(at(part, fewPart), isum)
		if s.more > 0 {
			VPSRAD(Imm(s.more), isum, isum)
		}
		if s.bias > 0 {
			VPSLLD(Imm(s.bias), msum, msum)
			VPSUBD(msum, isum, isum)
		}
		dx := f.of(tok, tokD, 6)
		VCVTDQ2PS(isum, isum)
		VMULPS_BCST(at(dx, 0), d, v)
		VMULPS(isum, v, v)
		if s.bias == 0 {
			w := f.vec()
			VCVTDQ2PS(msum, msum)
			VMULPS_BCST(at(dx, 0), m, w)
			VMULPS(msum, w, w)
			VSUBPS(w, v, v)
		}
		VADDPS(at(acc, 0), v, v)
		VMOVUPS(v, at(acc, 0))
		ADDQ(U32(step), acc)
	})
	f.end(size, 256)
}

// put stores a vector in the frame, get loads one.
func (f *few) put(v reg.VecVirtual, disp int) { VMOVDQU32(v, at(f.frame, disp)) }

func (f *few) get(disp int) reg.VecVirtual {
	v := f.vec()
	VMOVDQU32(at(f.frame, disp), v)
	return v
}

// shuffled moves bytes of the vector at disp in the frame by an index that is the same for every dword, 0x80 for zero.
func (f *few) shuffled(disp int, b ...byte) reg.VecVirtual {
	name, lane := "bytes", cycle(16, b...)
	for i := range lane {
		if i < 4 {
			name += fmt.Sprintf("%02x", b[i])
		}
		if lane[i] < 0x80 {
			lane[i] += byte(i / 4 * 4)
		}
	}
	index, v := f.table16(name, lane), f.vec()
	VPSHUFB(index, f.get(disp), v)
	return v
}

// few4K is what Q4_K and Q5_K share (scales4K in quant_k.go).
func (f *few) few4K() super {
	return super{
		group: 32,
		head: func() {
			h := f.columns(0)
			f.put(f.widened(h[0], false), fewHead)
			f.put(f.widened(h[0], true), fewHead+half)
			m6, m4, m2 := f.splat(0x3f3f3f3f), f.splat(0x0f0f0f0f), f.splat(0x30303030)
			f.put(f.and(h[1], m6), fewScale)
			f.put(f.merge(f.shift(h[1], 2), m2, f.and(h[3], m4)), fewScale+half)
			f.put(f.and(h[2], m6), fewMin)
			f.put(f.merge(f.shift(h[2], 2), m2, f.and(f.shift(h[3], 4), m4)), fewMin+half)
		},
		scale: func(i int) reg.VecVirtual { return f.shuffled(fewScale+i/4*half, byte(i%4), 0x80, 0x80, 0x80) },
		low:   func(i int) reg.VecVirtual { return f.shuffled(fewMin+i/4*half, byte(i%4), 0x80, byte(i%4), 0x80) },
	}
}

// high puts 32 bytes of high bits into the frame.
func (f *few) high(disp int) {
	for c := range 2 {
		for i, v := range f.columns(disp + 16*c) {
			f.put(v, fewHigh+(4*c+i)*half)
		}
	}
}

// nibbles keeps the low nibbles of 32 bytes, then the high ones, with bits from the frame above them: those under the mask,
// after a shift right by lo and hi (left when negative). The masks leave bits that are wanted or go below bit 4 of a byte,
// where the nibble takes their place.
func (f *few) nibbles(disp int, lo, hi int, loMask, hiMask uint32) {
	m4, masks := f.splat(0x0f0f0f0f), []reg.VecVirtual{f.splat(loMask)}
	if hiMask != loMask {
		masks = append(masks, f.splat(hiMask))
	}
	for c := range 2 {
		for i, v := range f.columns(disp + 16*c) {
			b, x := f.get(fewHigh+(4*c+i)*half), [2]reg.VecVirtual{}
			for j, n := range []int{lo, hi} {
				if j < len(masks) {
					x[1] = f.and(b, masks[j])
				}
				x[j] = f.shift(x[1], n)
			}
			for j, x := range x {
				VPTERNLOGD(U8(0xb8), f.shift(v, 4*j), m4, x) // m4 ? v : x
				f.keep[8*j+4*c+i] = x
			}
		}
	}
}

// q4KFew leaves the high nibbles where they are, sixteen times their value, and multiplies the scales of the low ones by as
// much: sums stay below 16*15*63*127*256 < 2^29.
func q4KFew(f *few) super {
	s := f.few4K()
	once := s.scale
	s.more = 4
	s.scale = func(i int) reg.VecVirtual {
		v := once(i)
		if i%2 == 0 {
			VPSLLD(Imm(s.more), v, v)
		}
		return v
	}
	s.codes = func(u int) [2]int {
		low, high := f.splat(0x0f0f0f0f), f.splat(0xf0f0f0f0)
		for c := range 2 {
			for i, v := range f.columns(16 + 32*u + 16*c) {
				f.keep[4*c+i], f.keep[8+4*c+i] = f.and(v, low), f.and(v, high)
			}
		}
		return [2]int{64 * u, 64*u + 32}
	}
	return s
}

func q5KFew(f *few) super {
	s := f.few4K()
	s.codes = func(u int) [2]int {
		if u == 0 {
			f.high(16)
		}
		j := 2 * (u % 2) // bits j and j+1, or 4 above
		m := uint32(0x11111111) << j
		f.nibbles(48+32*u, 2*u-4, 2*u-3, m, m<<1)
		return [2]int{64 * u, 64*u + 32}
	}
	return s
}

// fewSigned is what Q6_K and Q3_K share: 16 signed scales.
func (f *few) fewSigned(bias uint64) super {
	return super{
		group: 16,
		bias:  bias,
		scale: func(i int) reg.VecVirtual {
			v := f.shuffled(fewScale+i/4*half, 0x80, 0x80, 0x80, byte(i%4))
			VPSRAD(Imm(24), v, v)
			return v
		},
		low: func(i int) reg.VecVirtual {
			v := f.shuffled(fewScale+i/2*half, 0x80, byte(i%2*2), 0x80, byte(i%2*2+1))
			VPSRAW(Imm(8), v, v)
			return v
		},
	}
}

func q6KFew(f *few) super {
	s := f.fewSigned(5)
	s.head = func() {
		for i, v := range f.columns(192) {
			f.put(v, fewScale+i*half)
		}
		f.put(f.widened(f.columns(194, 3)[3], true), fewHead)
	}
	s.codes = func(u int) [2]int {
		h, part := u/2, u%2
		if part == 0 {
			f.high(128 + 32*h)
		}
		m := uint32(0x33333333) << (2 * part)
		f.nibbles(64*h+32*part, 2*part-4, 2*part, m, m)
		return [2]int{128*h + 32*part, 128*h + 32*part + 64}
	}
	return s
}

// pairs keeps two times two bits of 32 bytes, from bit at on.
func (f *few) pairs(disp, at int) {
	m2 := f.splat(0x03030303)
	for c := range 2 {
		for i, v := range f.columns(disp + 16*c) {
			for p := range 2 {
				f.keep[8*p+4*c+i] = f.and(f.shift(v, at+2*p), m2)
			}
		}
	}
}

func q3KFew(f *few) super {
	s := f.fewSigned(2)
	s.head = func() {
		// The 12 bytes of scales and d end the block: 16 bytes from 94 on do not pass it.
		a := f.lanes(94)
		for _, v := range a {
			VPSRLDQ(Imm(2), v, v)
		}
		h := f.transpose(a)
		f.put(f.widened(h[3], false), fewHead)
		m4, m2 := f.splat(0x0f0f0f0f), f.splat(0x30303030)
		for g := range 4 {
			v := f.merge(f.shift(h[2], 2*g-4), m2, f.and(f.shift(h[g%2], g/2*4), m4))
			VPSUBB(f.splat(0x20202020), v, v)
			f.put(v, fewScale+g*half)
		}
	}
	s.codes = func(u int) [2]int {
		if u == 0 {
			f.high(0)
		}
		f.pairs(32+32*(u/2), u%2*4)
		m := f.splat(0x04040404)
		for j := range f.keep {
			x := f.shift(f.get(fewHigh+j%8*half), 2*u+j/8-2)
			VPTERNLOGD(U8(0xea), f.keep[j], m, x) // x & m | codes
			f.keep[j] = x
		}
		return [2]int{64 * u, 64*u + 32}
	}
	return s
}

func q2KFew(f *few) super {
	return super{
		group: 16,
		head: func() {
			h := f.columns(68, 3)[3]
			f.put(f.widened(h, false), fewHead)
			f.put(f.widened(h, true), fewHead+half)
			m4 := f.splat(0x0f0f0f0f)
			for g, v := range f.columns(0) {
				f.put(f.and(v, m4), fewScale+g*half)
				f.put(f.and(f.shift(v, 4), m4), fewMin+g*half)
			}
		},
		scale: func(i int) reg.VecVirtual { return f.shuffled(fewScale+i/4*half, byte(i%4), 0x80, 0x80, 0x80) },
		low: func(i int) reg.VecVirtual {
			return f.shuffled(fewMin+i/2*half, byte(i%2*2), 0x80, byte(i%2*2+1), 0x80)
		},
		codes: func(u int) [2]int {
			f.pairs(16+32*(u/2), u%2*4)
			return [2]int{64 * u, 64*u + 32}
		},
	}
}

func iq4XSFew(f *few) super {
	scale := func(i int) reg.VecVirtual {
		v := f.merge(f.shift(f.get(fewScale), 12+2*i), f.splat(0x30), f.and(f.shift(f.get(fewScale+half), 4*i), f.splat(0x0f)))
		VPSUBD(f.splat(32), v, v)
		return v
	}
	return super{
		group: 32,
		bias:  7,
		head: func() {
			h := f.columns(0, 0, 1)
			f.put(f.widened(h[0], false), fewHead)
			f.put(h[0], fewScale)
			f.put(h[1], fewScale+half)
		},
		scale: scale,
		low: func(i int) reg.VecVirtual {
			v := scale(i)
			VPSHUFB(f.table16("twice", []byte{0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13}), v, v)
			return v
		},
		codes: func(u int) [2]int {
			m4, codes := f.splat(0x0f0f0f0f), f.values(iq4Codes)
			for j := range 2 {
				for i, v := range f.columns(8 + 32*u + 16*j) {
					for p := range 2 {
						x := f.and(f.shift(v, 4*p), m4)
						VPSHUFB(x, codes, x)
						f.keep[8*j+4*p+i] = x
					}
				}
			}
			return [2]int{64 * u, 64*u + 32}
		},
	}
}

// fewSmall writes the routine of a type of 32.
func fewSmall(name string, size, bias int, codes func(d *decoder)) {
	f := &few{decoder: decoder{keep: make([]reg.VecVirtual, 8)}}
	f.begin(name, 0)
	f.prefetch(size, 0, 1)
	d, m := f.scales32(name)
	codes(&f.decoder)
	f.rows("row", Load(Param("acc"), GP64()), step, func(tok, acc reg.Register) {
		q, sums, dx := f.of(tok, tokQ, 0), f.of(tok, tokSums, 3), f.of(tok, tokD, 3)
		isum, x, y := sumRegs[0], GP32(), GP32()
		MOVWLSX(at(sums, 0), x)
		MOVWLSX(at(sums, 2), y)
		ADDL(y, x)
		xs := f.vec()
		if bias > 0 {
			IMUL3L(I32(-bias), x, x)
			VPBROADCASTD(x, isum)
		} else {
			VPBROADCASTD(x, xs)
			VCVTDQ2PS(xs, xs)
			VPXORD(isum, isum, isum)
		}
		for i, c := range f.keep {
			VPDPBUSD_BCST(at(q, 4*i), c, isum)
		}
		v := f.vec()
		VCVTDQ2PS(isum, isum)
		VMULPS_BCST(at(dx, 0), d, v)
		VMULPS(isum, v, v)
		if bias == 0 {
			w := f.vec()
			VMULPS_BCST(at(dx, 0), m, w)
			VMULPS(xs, w, w)
			VADDPS(w, v, v)
		}
		VADDPS(at(acc, 0), v, v)
		VMOVUPS(v, at(acc, 0))
	})
	f.end(size, 32)
}
