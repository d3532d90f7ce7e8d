package kernels

// Rounding to the super-blocks of 256, into a block and then into the layouts that quant_k.go reads. There is no search
// for better scales: a quantiser for publishing models does that, this one feeds synthetic models and tests.

// affine fills u, sc and mn for codes 0..top with a min (both per n elements, in units of d and dmin, codes 0..scTop), and
// writes d and dmin to dm. The min is at most 0, as its code has no sign.
func (b *block) affine(dm []byte, x []float32, n int, top, scTop float32) {
	var scale, low [16]float32
	var maxScale, maxLow float32
	finite := true
	for g := range chunk / n {
		lo, hi, ok := span(x[g*n : g*n+n])
		lo = min(lo, 0)
		scale[g], low[g] = (hi-lo)/top, -lo
		maxScale, maxLow = max(maxScale, scale[g]), max(maxLow, low[g])
		finite = finite && ok
	}
	d := putHalf(dm, maxScale/scTop, finite)
	dmin := putHalf(dm[2:], maxLow/scTop, finite)
	for e, v := range x {
		g := e / n
		sc, mn := nearest(scale[g], d, 0, scTop), nearest(low[g], dmin, 0, scTop)
		b.sc[e/16], b.mn[e/16] = int32(sc), int32(mn)
		b.u[e] = byte(nearest(v+float32(dmin*mn), d*sc, 0, top))
	}
}

// symmetric fills u and sc for codes -half..half-1 with a signed scale per 16 (in units of d, codes -scHalf..scHalf-1),
// and writes d. The value of largest magnitude takes the end with the extra code.
func (b *block) symmetric(dst []byte, x []float32, half, scHalf float32) {
	var scale [16]float32
	for g := range scale {
		p, _ := peak(x[g*16 : g*16+16])
		scale[g] = p / -half
	}
	_, finite := peak(x)
	p, _ := peak(scale[:])
	d := putHalf(dst, p/-scHalf, finite)
	for e, v := range x {
		sc := nearest(scale[e/16], d, -scHalf, scHalf-1)
		b.sc[e/16] = int32(sc)
		b.u[e] = byte(nearest(v, d*sc, -half, half-1) + half)
	}
}

func encodeQ2K(dst []byte, x []float32) {
	var b block
	b.affine(dst[80:], x, 16, 3, 15)
	for g := range 16 {
		dst[g] = byte(b.sc[g] | b.mn[g]<<4)
	}
	clear(dst[16:80])
	for e, c := range b.u {
		dst[16+e/128*32+e%32] |= c << (e % 128 / 32 * 2)
	}
}

func encodeQ3K(dst []byte, x []float32) {
	var b block
	b.symmetric(dst[108:], x, 4, 32)
	clear(dst[:108])
	for g := range 16 {
		c := byte(b.sc[g] + 32)
		dst[96+g%8] |= c & 15 << (g / 8 * 4)
		dst[104+g%4] |= c >> 4 << (g / 4 * 2)
	}
	for e, c := range b.u {
		dst[e%32] |= c >> 2 << (e / 32)
		dst[32+e/128*32+e%32] |= c & 3 << (e % 128 / 32 * 2)
	}
}

func encodeQ4K(dst []byte, x []float32) {
	var b block
	b.affine(dst, x, 32, 15, 63)
	b.putScales4K(dst[4:16])
	b.putNibbles4K(dst[16:])
}

func encodeQ5K(dst []byte, x []float32) {
	var b block
	b.affine(dst, x, 32, 31, 63)
	b.putScales4K(dst[4:16])
	b.putNibbles4K(dst[48:])
	clear(dst[16:48])
	for e, c := range b.u {
		dst[16+e%32] |= c >> 4 << (e / 32)
	}
}

func (b *block) putScales4K(dst []byte) {
	clear(dst)
	for j := range 4 {
		dst[j] = byte(b.sc[2*j] | b.sc[2*j+8]>>4<<6)
		dst[j+4] = byte(b.mn[2*j] | b.mn[2*j+8]>>4<<6)
		dst[j+8] = byte(b.sc[2*j+8]&15 | b.mn[2*j+8]<<4)
	}
}

func (b *block) putNibbles4K(dst []byte) {
	clear(dst[:128])
	for e, c := range b.u {
		dst[e/64*32+e%32] |= c & 15 << (e % 64 / 32 * 4)
	}
}

func encodeQ6K(dst []byte, x []float32) {
	var b block
	b.symmetric(dst[208:], x, 32, 128)
	clear(dst[:192])
	for g := range 16 {
		dst[192+g] = byte(b.sc[g])
	}
	for e, c := range b.u {
		dst[e/128*64+e%64] |= c & 15 << (e % 128 / 64 * 4)
		dst[128+e/128*32+e%32] |= c >> 4 << (e % 128 / 32 * 2)
	}
}
