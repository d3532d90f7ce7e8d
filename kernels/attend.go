package kernels

import (
	"math"
	"strconv"
)

const (
	// KVTile is the number of positions after which the online softmax folds its partial result. Tiles are anchored at
	// position 0, so the sums of a position do not depend on how a prompt was cut into chunks.
	KVTile = 64

	// MaxHeadDim is the largest head that AttendF16 and AttendF32 take; their buffers lie on the stack.
	MaxHeadDim = 512

	// attendHeads is how many query heads share one pass over a tile: a key or value row is converted once for all of
	// them. More heads than this take further passes, and no head's result depends on the grouping.
	attendHeads = 8
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
// Dot, positions ascending. Scores of any finite size are safe. A NaN score, a +Inf score or nothing but -Inf scores make
// the head NaN. The error of one output is at most about (n + headDim*S + 16) * 2^-24 * sum(w[p]*|v[p]|), where S is the
// largest scale*sum|q*k|.
func AttendF32(out, q []float32, k, v []float32, headDim, stride, n int, scale float32) {
	checkAttend(len(out), len(q), len(k), len(v), headDim, stride, n)
	group := attendHeads * headDim
	for len(q) > group {
		attendF32(out[:group], q[:group], k, v, headDim, stride, n, scale)
		out, q = out[group:], q[group:]
	}
	attendF32(out, q, k, v, headDim, stride, n, scale)
}

// AttendF16 is AttendF32 with keys and values in IEEE half precision. Each is widened exactly, so the two give the same
// bits on the same values.
func AttendF16(out, q []float32, k, v []uint16, headDim, stride, n int, scale float32) {
	checkAttend(len(out), len(q), len(k), len(v), headDim, stride, n)
	group := attendHeads * headDim
	for len(q) > group {
		attendF16(out[:group], q[:group], k, v, headDim, stride, n, scale)
		out, q = out[group:], q[group:]
	}
	attendF16(out, q, k, v, headDim, stride, n, scale)
}

// attendF32 and attendF16 differ in where a row comes from. They are two functions, not one over an interface or a type
// parameter, because the row buffer must stay on the stack and the row load must not be an indirect call.
func attendF32(out, q []float32, k, v []float32, headDim, stride, n int, scale float32) {
	var s attendState
	s.start(out)
	for p0 := 0; p0 < n; p0 += KVTile {
		tile := min(KVTile, n-p0)
		for p := range tile {
			s.score(p, q, k[(p0+p)*stride:][:headDim], headDim, scale)
		}
		s.weigh(out, headDim, tile)
		for p := range tile {
			s.add(p, out, v[(p0+p)*stride:][:headDim], headDim)
		}
	}
	s.finish(out, headDim, n)
}

func attendF16(out, q []float32, k, v []uint16, headDim, stride, n int, scale float32) {
	var s attendState
	var buf [MaxHeadDim]float32
	row := buf[:headDim]
	s.start(out)
	for p0 := 0; p0 < n; p0 += KVTile {
		tile := min(KVTile, n-p0)
		for p := range tile {
			widenF16(row, k[(p0+p)*stride:][:headDim])
			s.score(p, q, row, headDim, scale)
		}
		s.weigh(out, headDim, tile)
		for p := range tile {
			widenF16(row, v[(p0+p)*stride:][:headDim])
			s.add(p, out, row, headDim)
		}
	}
	s.finish(out, headDim, n)
}

// attendState is the running softmax of up to attendHeads heads; their weighted sums of values build up in out.
type attendState struct {
	w   [attendHeads][KVTile]float32 // scores of the tile, then their exponentials
	max [attendHeads]float32         // largest score so far
	sum [attendHeads]float32         // sum of exponentials so far, relative to max
}

func (s *attendState) start(out []float32) {
	clear(out)
	for h := range s.max {
		s.max[h] = float32(math.Inf(-1))
	}
}

// score sets the tile's p-th score of each head in q.
func (s *attendState) score(p int, q, key []float32, headDim int, scale float32) {
	for h := 0; len(q) > 0; h++ {
		s.w[h][p] = Dot(q[:headDim], key) * scale
		q = q[headDim:]
	}
}

// weigh turns the tile's scores into exponentials relative to the new maximum and rescales what came before.
func (s *attendState) weigh(out []float32, headDim, tile int) {
	for h := 0; len(out) > 0; h++ {
		w := s.w[h][:tile]
		m := max32(s.max[h], maxOf(w))
		base := m
		if math.IsInf(float64(m), -1) {
			base = 0 // -Inf - -Inf would poison finite scores that may still come
		}
		var sum float32
		for p, x := range w {
			e := Exp(x - base)
			w[p] = e
			sum += e
		}
		if c := Exp(s.max[h] - base); c != 1 { // 1: the maximum stayed
			for i := range headDim {
				out[i] *= c
			}
			s.sum[h] *= c
		}
		s.sum[h] += sum
		s.max[h] = m
		out = out[headDim:]
	}
}

// add adds the p-th value row of the tile to each head's sum.
func (s *attendState) add(p int, out, val []float32, headDim int) {
	for h := 0; len(out) > 0; h++ {
		Axpy(out[:headDim], s.w[h][p], val)
		out = out[headDim:]
	}
}

func (s *attendState) finish(out []float32, headDim, n int) {
	if n == 0 {
		return
	}
	for h := 0; len(out) > 0; h++ {
		inv := 1 / s.sum[h]
		for i := range headDim {
			out[i] *= inv
		}
		out = out[headDim:]
	}
}

// max32 returns b if it is larger, else a; unlike the builtin it lets no NaN through, which the exponentials carry anyway.
func max32(a, b float32) float32 {
	if b > a {
		return b
	}
	return a
}

func widenF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = F16ToF32(h)
	}
}

func checkAttend(nOut, nQ, nK, nV, headDim, stride, n int) {
	switch {
	case headDim < 1 || headDim > MaxHeadDim:
		panicAttend("head of " + strconv.Itoa(headDim) + " values, want 1.." + strconv.Itoa(MaxHeadDim))
	case stride < headDim:
		panicAttend("stride " + strconv.Itoa(stride) + " below the head of " + strconv.Itoa(headDim))
	case nOut != nQ || nQ%headDim != 0:
		panicAttend(strconv.Itoa(nQ) + " query and " + strconv.Itoa(nOut) + " output values, want the same whole number of heads of " +
			strconv.Itoa(headDim))
	case n < 0:
		panicAttend(strconv.Itoa(n) + " positions")
	case n > 0 && ((n-1)*stride+headDim > nK || (n-1)*stride+headDim > nV):
		panicAttend(strconv.Itoa(n) + " positions at stride " + strconv.Itoa(stride) + " in " + strconv.Itoa(nK) + " key and " +
			strconv.Itoa(nV) + " value elements")
	}
}

//go:noinline
func panicAttend(msg string) { panic("kernels: Attend: " + msg) }
