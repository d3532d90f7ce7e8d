package kernels

import (
	"math"
	"strconv"
)

const (
	// KVTile is the number of positions after which the online softmax folds its partial result. Tiles are anchored at
	// position 0, so the sums of a position do not depend on how a prompt was cut into chunks.
	KVTile = 64

	// MaxHeadDim is the largest head that the attention functions take; their buffers lie on the stack.
	MaxHeadDim = 512

	// attendRows is how many rows (a query head of one token) share one pass over the keys and values, which are widened
	// once a pass. More rows take further passes, and no row's result depends on the grouping.
	attendRows = 32
)

// AttendF32 computes attention of one token: out[h] = sum over p < n of softmax_p(scale * q[h].k[p]) * v[p].
//
// q and out hold g heads of headDim values, g = len(q)/headDim, all of which read the one KV head in k and v; out must not
// overlap q. Row p of k and of v starts at p*stride and has headDim values (1 to MaxHeadDim, any number); stride may be
// larger, and the last row need not be padded. n = 0 writes zeros. Slices that are too short panic. It allocates nothing
// and keeps no reference; concurrent calls need distinct out only.
//
// The softmax is online (Milakov and Gimelshein, "Online normalizer calculation for softmax", algorithm 3): per tile of
// KVTile positions the running maximum is updated and earlier sums are scaled by Exp(old-new). Order is fixed: scores by
// Dot, a tile's exponentials summed in the lanes of Dot, weighted values by ascending position. Scores of any finite size
// are safe. A NaN score, a +Inf score or nothing but -Inf scores make the head NaN. The error of one output is at most
// about (n + headDim*S + 16) * 2^-24 * sum(w[p]*|v[p]|), where S is the largest scale*sum|q*k|.
func AttendF32(out, q []float32, k, v []float32, headDim, stride, n int, scale float32) {
	attendOne(out, q, &keyValues{k32: k, v32: v, stride: stride}, headDim, n, scale)
}

// AttendF16 is AttendF32 with keys and values in IEEE half precision. Each is widened exactly, so the two give the same
// bits on the same values.
func AttendF16(out, q []float32, k, v []uint16, headDim, stride, n int, scale float32) {
	attendOne(out, q, &keyValues{k16: k, v16: v, stride: stride}, headDim, n, scale)
}

// AttendQ8 is AttendF32 with keys and values of 8 bits: each is code times scale, rounded to float32, and the result has
// the bits of AttendF32 on those values. headDim and stride must be multiples of 32.
func AttendQ8(out, q []float32, k, v Q8, headDim, stride, n int, scale float32) {
	attendOne(out, q, &keyValues{k8: k, v8: v, stride: stride}, headDim, n, scale)
}

// TiledKV is one head's keys and values in tiles of KVTile positions, which lie anywhere in the arrays of a pool. Tile t
// holds positions t*KVTile to t*KVTile+KVTile-1, one row of headDim elements after the other, from element
// Base + Tiles[t-First]*Step on. One pair of arrays is set: IEEE half precision, float32, or the 8 bits of AttendQ8, where
// headDim, Base and Step must be multiples of 32.
type TiledKV struct {
	K16, V16 []uint16
	K32, V32 []float32
	K8, V8   Q8

	Tiles      []int32 // a tile's place in the pool
	Step, Base int     // elements from place to place, and up to this head's rows in the first
	First      int     // the tile number of Tiles[0]
}

// AttendTiles is attention of nTok neighbouring tokens over keys and values in tiles. Their rows of out and q lie
// qStride apart, each with groupHeads heads; between the heads of neighbouring tokens nothing is written. Tokens and heads
// share the passes over the tiles, so a prompt should come in blocks: of any size, as a pass takes 32 heads. Token i sees
// the positions from max(0, pos0+i+1-window) to pos0+i, all from 0 on if window is 0; a tile that no token sees need not be
// there, the part of the last one behind pos0+nTok-1 may hold anything.
//
// Without a window the bits are those of AttendF32, AttendF16 or AttendQ8 on the same values. With one a token passes over
// the tiles wholly below its window as if they were not there; in the tile in which the window begins the positions below
// it have the score -Inf, so their weight of 0 is part of the sums and their values must be finite. Tiles are anchored at
// position 0, so a token's bits depend on its own query and on the positions that share a tile with its window: not on the
// other tokens of the call, the places of the tiles, or tiles that are gone. kv is not changed and not kept; a call
// allocates nothing, concurrent calls need distinct out only. Arguments that do not fit each other panic.
func AttendTiles(out, q []float32, nTok, qStride int, kv *TiledKV, headDim, pos0, groupHeads, window int, scale float32) {
	if kv.Tiles == nil && nTok > 0 {
		panicAttend("no tiles")
	}
	in := keyValues{k32: kv.K32, v32: kv.V32, k16: kv.K16, v16: kv.V16, k8: kv.K8, v8: kv.V8,
		stride: headDim, tiles: kv.Tiles, step: kv.Step, base: kv.Base, first: kv.First}
	attendBlock(out, q, nTok, qStride, &in, headDim, pos0, groupHeads, window, scale)
}

// Q8 is a run of values as int8 codes with a float32 scale per 32: value i is float32(D[i/32] * float32(Q[i])).
type Q8 struct {
	Q []int8
	D []float32 // len(Q)/32
}

// Slice is the run of values from..to, both multiples of 32. It shares a's memory.
func (a Q8) Slice(from, to int) Q8 { return Q8{Q: a.Q[from:to], D: a.D[from/32 : to/32]} }

// Set quantises x to the values from i on, by the rule of SetRow for ActQ8_0. i and len(x) must be multiples of 32. It
// allocates nothing.
func (a Q8) Set(i int, x []float32) {
	if i%32 != 0 || len(x)%32 != 0 {
		panicAttend(strconv.Itoa(len(x)) + " values set at " + strconv.Itoa(i) + ", want whole blocks of 32")
	}
	quantise(a.Q[i:i+len(x)], a.D[i/32:(i+len(x))/32], nil, x, 32)
}

// keyValues is one KV head in whichever form it is kept; the other fields are nil. Tile t begins at element
// base + tiles[t-first]*step, or, where tiles is nil, at t*KVTile*stride: one run without gaps.
type keyValues struct {
	k32, v32          []float32
	k16, v16          []uint16
	k8, v8            Q8
	stride            int // from row to row
	tiles             []int32
	step, base, first int
}

// size returns the number of elements of the keys and of the values.
func (kv *keyValues) size() (k, v int) {
	switch {
	case kv.k32 != nil:
		return len(kv.k32), len(kv.v32)
	case kv.k16 != nil:
		return len(kv.k16), len(kv.v16)
	}
	return min(len(kv.k8.Q), 32*len(kv.k8.D)), min(len(kv.v8.Q), 32*len(kv.v8.D))
}

// at is where tile t begins.
func (kv *keyValues) at(t int) int {
	if kv.tiles == nil {
		return t * KVTile * kv.stride
	}
	return kv.base + int(kv.tiles[t-kv.first])*kv.step
}

// key and val write the row that starts at element i to dst.
func (kv *keyValues) key(dst []float32, i int) { widenRow(dst, i, kv.k32, kv.k16, &kv.k8) }
func (kv *keyValues) val(dst []float32, i int) { widenRow(dst, i, kv.v32, kv.v16, &kv.v8) }

func widenRow(dst []float32, i int, x32 []float32, x16 []uint16, x8 *Q8) {
	switch {
	case x32 != nil:
		copy(dst, x32[i:])
	case x16 != nil:
		widenF16(dst, x16[i:i+len(dst)])
	default:
		for j := range dst {
			dst[j] = x8.D[(i+j)/32] * float32(x8.Q[i+j])
		}
	}
}

func attendOne(out, q []float32, kv *keyValues, headDim, n int, scale float32) {
	checkAttend(out, q, 1, len(q), kv, headDim)
	checkRun(kv, headDim, n)
	if len(q)%headDim != 0 {
		panicAttend(strconv.Itoa(len(q)) + " query values, want whole heads of " + strconv.Itoa(headDim))
	}
	if n == 0 {
		clear(out)
		return
	}
	var s attendState
	s.block(out, q, 1, 0, kv, headDim, n-1, len(q)/headDim, 0, scale)
}

func attendBlock(out, q []float32, nTok, qStride int, kv *keyValues, headDim, pos0, groupHeads, window int, scale float32) {
	if nTok <= 0 || groupHeads <= 0 {
		return
	}
	if pos0 < 0 || window < 0 || nTok > 1 && qStride < groupHeads*headDim {
		panicAttend("tokens from " + strconv.Itoa(pos0) + " on, window " + strconv.Itoa(window) + ", " + strconv.Itoa(groupHeads) +
			" heads of " + strconv.Itoa(headDim) + " at stride " + strconv.Itoa(qStride))
	}
	checkAttend(out, q, 0, (nTok-1)*qStride+groupHeads*headDim, kv, headDim)
	if kv.tiles == nil {
		checkRun(kv, headDim, pos0+nTok)
	} else {
		checkTiles(kv, headDim, seesFrom(pos0+1, window)/KVTile, pos0+nTok)
	}
	var s attendState
	s.block(out, q, nTok, qStride, kv, headDim, pos0, groupHeads, window, scale)
}

// seesFrom is the first position that a token sees which sees positions up to end-1.
func seesFrom(end, window int) int {
	if window == 0 {
		return 0
	}
	return max(0, end-window)
}

// attendState is one pass: the running softmax of up to attendRows rows, whose weighted sums of values build up in out.
type attendState struct {
	w    [attendRows][KVTile]float32 // scores of the tile, then their exponentials
	max  [attendRows]float32         // largest score so far
	sum  [attendRows]float32         // sum of exponentials so far, relative to max
	off  [attendRows]int             // where the row's head starts in q and out
	from [attendRows]int             // first position that the row sees, ascending
	sees [attendRows]int             // the position after the last that it sees, ascending
	cnt  [attendRows]int             // positions of the tile before sees; 0 for a row that sees none of the tile
	n    int                         // rows
}

// block cuts heads and tokens into passes.
func (s *attendState) block(out, q []float32, nTok, qStride int, kv *keyValues, headDim, pos0, groupHeads, window int, scale float32) {
	for h0 := 0; h0 < groupHeads; h0 += attendRows {
		heads := min(attendRows, groupHeads-h0)
		for t0 := 0; t0 < nTok; t0 += attendRows / heads {
			s.n = 0
			for t := t0; t < min(t0+attendRows/heads, nTok); t++ {
				for h := h0; h < h0+heads; h++ {
					s.off[s.n], s.from[s.n], s.sees[s.n] = t*qStride+h*headDim, seesFrom(pos0+t+1, window), pos0+t+1
					s.n++
				}
			}
			s.pass(out, q, kv, headDim, scale)
		}
	}
}

func (s *attendState) pass(out, q []float32, kv *keyValues, headDim int, factor float32) {
	for r := range s.n {
		s.max[r], s.sum[r] = float32(math.Inf(-1)), 0
		clear(out[s.off[r]:][:headDim])
	}
	last := s.sees[s.n-1]
	for p0 := s.from[0] / KVTile * KVTile; p0 < last; p0 += KVTile {
		for r := range s.n {
			s.cnt[r] = max(0, min(KVTile, s.sees[r]-p0))
			if s.from[r] >= p0+KVTile {
				s.cnt[r] = 0 // as if the pass began later: which rows share it must not matter
			}
		}
		s.tile(out, q, kv, headDim, p0, min(KVTile, last-p0), factor)
	}
	for r := range s.n {
		row := out[s.off[r]:][:headDim]
		scale(row, row, 1/s.sum[r])
	}
}

// tileGeneric takes positions p0 to p0+tile.
func (s *attendState) tileGeneric(out, q []float32, kv *keyValues, headDim, p0, tile int, factor float32) {
	var buf [MaxHeadDim]float32
	row, at := buf[:headDim], kv.at(p0/KVTile)
	for p := range tile {
		kv.key(row, at+p*kv.stride)
		for r := range s.n {
			if p < s.cnt[r] {
				s.w[r][p] = Dot(q[s.off[r]:][:headDim], row) * factor
			}
		}
	}
	s.mask(p0)
	s.weighGeneric(out, headDim)
	for p := range tile {
		kv.val(row, at+p*kv.stride)
		for r := range s.n {
			if p < s.cnt[r] {
				axpy(out[s.off[r]:][:headDim], s.w[r][p], row)
			}
		}
	}
}

// mask takes the weight from the positions of the tile at p0 that lie below a row's window.
func (s *attendState) mask(p0 int) {
	if s.from[s.n-1] <= p0 {
		return
	}
	for r := range s.n {
		for p := range min(s.from[r]-p0, s.cnt[r]) {
			s.w[r][p] = float32(math.Inf(-1))
		}
	}
}

// weighGeneric turns the tile's scores into exponentials relative to the new maximum and rescales what came before.
func (s *attendState) weighGeneric(out []float32, headDim int) {
	for r := range s.n {
		w := s.w[r][:s.cnt[r]]
		if len(w) == 0 {
			continue
		}
		m := max32(s.max[r], maxOfGeneric(w))
		base := m
		if math.IsInf(float64(m), -1) {
			base = 0 // -Inf - -Inf would poison finite scores that may still come
		}
		var lanes [dotLanes]float32
		for p, x := range w {
			e := Exp(x - base)
			w[p] = e
			lanes[p%dotLanes] += e
		}
		c := Exp(s.max[r] - base)
		if c != 1 { // 1: the maximum stayed
			row := out[s.off[r]:][:headDim]
			scaleGeneric(row, row, c)
		}
		s.sum[r] = float32(s.sum[r]*c) + fold(&lanes)
		s.max[r] = m
	}
}

// max32 returns b if it is larger, else a; unlike the builtin it lets no NaN through, which the exponentials carry anyway.
func max32(a, b float32) float32 {
	if b > a {
		return b
	}
	return a
}

// checkAttend wants the same number of values in out and q when exact is 1, and at least need in both.
func checkAttend(out, q []float32, exact, need int, kv *keyValues, headDim int) {
	switch {
	case headDim < 1 || headDim > MaxHeadDim:
		panicAttend("head of " + strconv.Itoa(headDim) + " values, want 1.." + strconv.Itoa(MaxHeadDim))
	case kv.stride < headDim:
		panicAttend("stride " + strconv.Itoa(kv.stride) + " below the head of " + strconv.Itoa(headDim))
	case kv.k8.Q != nil && (headDim|kv.stride|kv.base|kv.step)%32 != 0:
		panicAttend("head of " + strconv.Itoa(headDim) + " at stride " + strconv.Itoa(kv.stride) + " of 8 bits, tiles at " + strconv.Itoa(kv.base) +
			" and every " + strconv.Itoa(kv.step) + ", want multiples of 32")
	case exact == 1 && len(out) != len(q) || len(out) < need || len(q) < need:
		panicAttend(strconv.Itoa(len(q)) + " query and " + strconv.Itoa(len(out)) + " output values, want " + strconv.Itoa(need))
	}
}

// checkRun wants n positions in one run.
func checkRun(kv *keyValues, headDim, n int) {
	nK, nV := kv.size()
	switch {
	case n < 0:
		panicAttend(strconv.Itoa(n) + " positions")
	case n > 0 && (n-1)*kv.stride+headDim > min(nK, nV):
		panicAttend(strconv.Itoa(n) + " positions at stride " + strconv.Itoa(kv.stride) + " in " + strconv.Itoa(nK) + " key and " +
			strconv.Itoa(nV) + " value elements")
	}
}

// checkTiles wants the tiles from t on that hold the positions before end.
func checkTiles(kv *keyValues, headDim, t, end int) {
	nK, nV := kv.size()
	if n := (end + KVTile - 1) / KVTile; kv.first < 0 || t < kv.first || n > kv.first+len(kv.tiles) {
		panicAttend(strconv.Itoa(len(kv.tiles)) + " tiles from " + strconv.Itoa(kv.first) + " on, want " + strconv.Itoa(t) + " to " + strconv.Itoa(n-1))
	}
	for ; t*KVTile < end; t++ {
		at, size := kv.at(t), min(KVTile, end-t*KVTile)*headDim
		if at < 0 || at > min(nK, nV)-size {
			panicAttend("tile " + strconv.Itoa(t) + " at element " + strconv.Itoa(at) + ", want " + strconv.Itoa(size) + " of " +
				strconv.Itoa(nK) + " key and " + strconv.Itoa(nV) + " value elements")
		}
	}
}

//go:noinline
func panicAttend(msg string) { panic("kernels: Attend: " + msg) }
