//go:build !noasm

package kernels

import "unsafe"

// Products of many activation rows: 32 weight rows of a chunk are decoded once, into a tile that stays in L1, and then
// multiplied by every activation row. The layouts are those of _gen/mul/layout.go; TestLayoutTile compares them by name.

const (
	tileLanes = 32 // weight rows of a tile: two vectors of AVX-512, four of AVX2
	tileRoom  = 64 // activation rows whose sums a call keeps at a time
	tileAhead = 2  // chunks from the one in work to the one that is prefetched
)

// tile is a decoded chunk of 32 weight rows. Index [i][r] has row r.
type tile struct {
	w   [chunk / 4][tileLanes][4]byte    // codes of columns 4i to 4i+3
	sc  [chunk / 16][tileLanes]uint32    // int32 scale of the i-th group; of types of 32: float32 d of block i, and at 8+i its m
	mn  [chunk / 32][tileLanes][2]uint16 // int16 minima, in pairs of groups; AVX2 has scales there when there is a bias
	d   [tileLanes]float32               // super-blocks only
	min [tileLanes]float32               // super-blocks with minima only
}

// token is one activation row, and where its results go.
type token struct {
	q     *int8
	d     *float32
	sums  *int16
	dst   *float32
	scale float32
}

// tileScratch is what a call keeps on its stack.
type tileScratch struct {
	t   tile
	acc [tileRoom][tileLanes]float32
	_   [64]byte // the vectors are used from a multiple of 64 on
}

// mulTiles multiplies all activation rows. The matrix has at least tileLanes rows.
func mulTiles(c *mul) {
	var (
		buf   tileScratch
		toks  [tileRoom]token
		t     = c.w.Type
		nx    = c.x.N
		size  = t.RowBytes(nx)
		bytes = t.RowBytes(chunk)
		base  = unsafe.Pointer(&buf)
	)
	base = unsafe.Add(base, -uintptr(base)&63)
	tl := (*tile)(base)
	acc := (*[tileRoom][tileLanes]float32)(unsafe.Add(base, unsafe.Offsetof(buf.acc)))
	for i0 := 0; i0 < c.n; i0 += tileRoom {
		n := min(tileRoom, c.n-i0)
		c.tokens(toks[:n], i0)
		for ra := c.r0; ra < c.r1; ra += tileLanes {
			// The last tile moves up to end with the matrix, so that a decoder has all its rows.
			first, rows := min(ra, c.w.Rows-tileLanes), min(tileLanes, c.r1-ra)
			skip := ra - first
			clear(acc[:n])
			for k := 0; k < nx; k += chunk {
				at := k / chunk * bytes
				src := unsafe.Pointer(&c.w.Data[first*size+at])
				next := uintptr(src) + uintptr(tileAhead*bytes)
				if k+tileAhead*chunk >= nx { // in the next tile
					next += uintptr(tileLanes*size - size)
				}
				blocks := min(chunk, nx-k) / 32
				if useAVX512 {
					mulTile512(t, tl, src, size, next, skip+rows, &acc[0][0], &toks[0], n, k, blocks)
				} else {
					mulTile256(t, tl, src, size, next, skip+rows, &acc[0][0], &toks[0], n, k, blocks)
				}
			}
			sums, tok := &acc[0][0], (*byte)(unsafe.Pointer(&toks))
			mask := uint32(1<<rows-1) << skip
			switch {
			case useAVX512 && c.scale == nil:
				tilePutAVX512(sums, tok, n, first, mask)
			case useAVX512:
				tileAddAVX512(sums, tok, n, first, mask)
			case c.scale == nil:
				tilePutAVX2(sums, tok, n, first, mask)
			default:
				tileAddAVX2(sums, tok, n, first, mask)
			}
		}
	}
}

// tokens describes activation rows i0 to i0+len(toks). The slices check what the assembly will touch.
func (c *mul) tokens(toks []token, i0 int) {
	nx, perD := c.x.N, c.x.Kind.block()
	for j := range toks {
		i := i0 + j
		at := c.row(i) * nx
		row, t := i, &toks[j]
		if c.scale != nil {
			row, t.scale = int(c.drow[i]), c.scale[i]
		}
		t.q = &c.x.Q[at : at+nx][0]
		t.d = &c.x.D[at/perD : (at+nx)/perD][0]
		t.sums = &c.x.Sums[at/16 : (at+nx)/16][0]
		t.dst = &c.dst[row*c.ld : row*c.ld+c.r1][0]
	}
}
