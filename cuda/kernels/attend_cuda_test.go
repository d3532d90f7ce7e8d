//go:build cuda

package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// attendCache is a sequence's keys and values of a layer, in both forms, and the launches' description.
type attendCache struct {
	a     dev.Attention
	k, v  []uint16 // [ctx][nKV*headDim]
	pool  *tilePool
	table int
}

// newAttendCache holds random keys and values of those magnitudes at positions 0 to n-1 and NaN behind them.
func newAttendCache(t *testing.T, r *rand.Rand, nHead, nKV, headDim, ctx, n int, keys, values float32) *attendCache {
	c := &attendCache{k: slices.Repeat([]uint16{0x7fff}, ctx*nKV*headDim)}
	c.v = slices.Clone(c.k)
	kernels.RowToF16(c.k[:n*nKV*headDim], denseNormals(r, n*nKV*headDim, keys))
	kernels.RowToF16(c.v[:n*nKV*headDim], denseNormals(r, n*nKV*headDim, values))
	c.pool = newTilePool(r, nKV, headDim, dev.TableLen(ctx)+5)
	c.pool.add(1, 1)
	c.table = c.pool.add(ctx, ctx)
	c.pool.set(c.table, c.k, c.v)
	c.a = dev.Attention{Cache: c.pool.upload(t), NHead: nHead, NKVHead: nKV, HeadDim: headDim, Ctx: ctx}
	return c
}

// store brings k and v to the device again.
func (c *attendCache) store(t *testing.T) {
	t.Helper()
	c.pool.set(c.table, c.k, c.v)
	store(t, c.a.Cache.Keys, c.pool.k)
	store(t, c.a.Cache.Values, c.pool.v)
}

// decode and prefill return the result of the queries q at positions pos on.
func (c *attendCache) decode(t *testing.T, q []float32, pos, rows int) []float32 {
	t.Helper()
	a := c.at(t, q, pos, rows)
	a.Scratch = alloc(t, dev.AttendScratch(rows, a.NHead, a.HeadDim, a.Ctx))
	run(t, dev.AttendDecode(a), dev.AttendCombine(a))
	return download[float32](t, a.Out, len(q))
}

func (c *attendCache) prefill(t *testing.T, q []float32, pos, rows int) []float32 {
	t.Helper()
	a := c.at(t, q, pos, rows)
	pieces := piecesOf(0, rows, dev.PieceRows(a.NHead, a.NKVHead, a.HeadDim))
	a.List, a.N = upload(t, pieces), len(pieces)/dev.PieceBytes
	run(t, dev.AttendPrefill(a))
	return download[float32](t, a.Out, len(q))
}

func (c *attendCache) at(t *testing.T, q []float32, pos, rows int) dev.Attention {
	a := c.a
	a.Q, a.Out, a.N = upload(t, q), alloc(t, int64(4*len(q))), rows
	a.Rows = upload(t, c.rows(pos, rows))
	return a
}

func (c *attendCache) rows(pos, n int) []byte {
	var rows []dev.Row
	for i := range n {
		rows = append(rows, dev.Row{Pos: pos + i, Table: c.table})
	}
	return putRows(rows)
}

// check compares row i of got, the result of q at position pos+i, with softmax in float64 and with the CPU's attention.
func (c *attendCache) check(t *testing.T, what string, got, q []float32, pos, row int) {
	t.Helper()
	a, hd := c.a, c.a.HeadDim
	share, stride, n := a.NHead/a.NKVHead, a.NKVHead*a.HeadDim, pos+row+1
	scale := float32(1 / math.Sqrt(float64(hd)))
	for head := range a.NHead {
		at := (row*a.NHead + head) * hd
		kv := head / share * hd
		want, bound := attendReference(q[at:][:hd], c.k[kv:], c.v[kv:], hd, stride, n, scale)
		cpu := make([]float32, hd)
		kernels.AttendF16(cpu, q[at:][:hd], c.k[kv:], c.v[kv:], hd, stride, n, scale)
		for i, v := range got[at:][:hd] {
			if !(math.Abs(float64(v)-want[i]) <= bound[i]) {
				t.Fatalf("%s: row %d head %d value %d is %v, want %v within %v", what, row, head, i, v, want[i], bound[i])
			}
			if !(math.Abs(float64(v)-float64(cpu[i])) <= 2*bound[i]) {
				t.Fatalf("%s: row %d head %d value %d is %v, the CPU's %v, want it within %v", what, row, head, i, v, cpu[i], 2*bound[i])
			}
		}
	}
}

// attendReference is attention of one head in float64. bound is what kernels.AttendF16 documents: each of n terms, the dot
// product of a score, and a constant for exponentials and quotient. The tiles here add fewer terms in a row than that, and
// merging them takes 6 roundings a tile of 256.
func attendReference(q []float32, k, v []uint16, headDim, stride, n int, scale float32) (out, bound []float64) {
	score := make([]float64, n)
	m, largest := math.Inf(-1), 0.0
	for p := range score {
		var s, abs float64
		for i := range headDim {
			x := float64(q[i]) * float64(kernels.F16ToF32(k[p*stride+i])) * float64(scale)
			s += x
			abs += math.Abs(x)
		}
		score[p], m, largest = s, max(m, s), max(largest, abs)
	}
	var sum float64
	for p := range score {
		score[p] = math.Exp(score[p] - m)
		sum += score[p]
	}
	out, bound = make([]float64, headDim), make([]float64, headDim)
	for i := range headDim {
		var abs float64
		for p := range score {
			x := score[p] / sum * float64(kernels.F16ToF32(v[p*stride+i]))
			out[i] += x
			abs += math.Abs(x)
		}
		bound[i] = (float64(n)+float64(headDim)*largest+16)*eps32*abs + 0x1p-140
	}
	return out, bound
}

func TestCUDAAttend(t *testing.T) {
	const ctx = 600
	for ci, c := range []struct{ nHead, nKV, headDim int }{
		{1, 1, 8}, {3, 3, 32}, {4, 2, 64}, {6, 2, 48}, {8, 2, 32}, {7, 1, 72}, {16, 2, 128}, {4, 1, 80}, {8, 2, 256}, {12, 1, 200}, {2, 2, 96},
	} {
		r := denseRand(uint64(ci))
		for pi, pos := range []int{0, 1, 15, 31, 254, 255, 256, 257, 511, 512, ctx - 1} {
			if c.headDim > 100 && pi%3 == 1 && !long() {
				continue
			}
			// Flat scores, then some that a few positions take all of.
			keys := []float32{0.1, 1, 5}[(pi+ci)%3]
			cache := newAttendCache(t, r, c.nHead, c.nKV, c.headDim, ctx, pos+1, keys, 1)
			q := denseNormals(r, c.nHead*c.headDim, 1)
			what := fmt.Sprintf("%+v pos=%d", c, pos)
			got := cache.decode(t, q, pos, 1)
			cache.check(t, what, got, q, pos, 0)
			wantFloats(t, what+": prefill of one row", cache.prefill(t, q, pos, 1), got)
		}
	}
}

// A row's bits do not depend on the rows that are computed with it, nor on the kernel, nor on the chunk.
func TestCUDAAttendRows(t *testing.T) {
	for ci, c := range []struct{ nHead, nKV, headDim, ctx, pos, rows int }{
		{2, 1, 32, 873, 0, 873}, // a prompt of odd length, to the end of the context
		{3, 3, 16, 520, 250, 13},
		{5, 1, 64, 300, 251, 11},
		{8, 1, 40, 300, 0, 5},
		{2, 1, 256, 260, 253, 7},
		{16, 2, 128, 264, 255, 2},
	} {
		r := denseRand(uint64(ci))
		n := c.pos + c.rows
		row := c.nHead * c.headDim
		cache := newAttendCache(t, r, c.nHead, c.nKV, c.headDim, c.ctx, n, 1, 1)
		q := denseNormals(r, c.rows*row, 1)
		what := fmt.Sprintf("%+v", c)
		all := cache.prefill(t, q, c.pos, c.rows)
		for _, i := range []int{0, 1, c.rows / 2, c.rows - 1} {
			cache.check(t, what, all, q, c.pos, i)
		}
		for i := 0; i < c.rows; i += max(1, c.rows/40) {
			wantFloats(t, fmt.Sprint(what, ": row ", i, " alone"), cache.decode(t, q[i*row:][:row], c.pos+i, 1), all[i*row:][:row])
		}
		if c.rows < 100 || long() {
			wantFloats(t, what+": decode of all rows", cache.decode(t, q, c.pos, c.rows), all)
		}
		for i, size := 0, 1; i < c.rows; i, size = i+size, size*2+1 {
			m := min(size, c.rows-i)
			wantFloats(t, fmt.Sprint(what, ": ", m, " rows from ", i), cache.prefill(t, q[i*row:][:m*row], c.pos+i, m), all[i*row:][:m*row])
		}
	}
}

// The grid does not matter: a long context's, or one whose blocks take several tiles each.
func TestCUDAAttendGrid(t *testing.T) {
	const nHead, nKV, headDim, pos = 4, 1, 16, 1300
	r := denseRand(3)
	cache := newAttendCache(t, r, nHead, nKV, headDim, pos+1, pos+1, 1, 1)
	q := denseNormals(r, nHead*headDim, 1)
	want := cache.decode(t, q, pos, 1)
	cache.check(t, "short context", want, q, pos, 0)

	for _, blocks := range []uint32{1, 2, 4} {
		a := cache.at(t, q, pos, 1)
		a.Scratch = alloc(t, dev.AttendScratch(1, nHead, headDim, a.Ctx))
		l := dev.AttendDecode(a)
		l.Grid[0] = blocks
		run(t, l, dev.AttendCombine(a))
		wantFloats(t, fmt.Sprint(blocks, " blocks"), download[float32](t, a.Out, len(q)), want)
	}

	// A launch for a long context at a position that moves on, as a graph has it. Its cache has the other's head.
	const ctx = 9000
	long := newAttendCache(t, r, nHead, nKV, headDim, ctx, 0, 1, 1)
	copy(long.k, cache.k)
	copy(long.v, cache.v)
	long.store(t)
	a := long.at(t, q, 0, 1)
	a.Scratch = alloc(t, dev.AttendScratch(1, nHead, headDim, ctx))
	ls := []dev.Launch{dev.AttendDecode(a), dev.AttendCombine(a)}
	for _, p := range []int{0, 255, 256, pos} {
		store(t, a.Rows, long.rows(p, 1))
		run(t, ls...)
		wantFloats(t, fmt.Sprint("context of ", ctx, " at ", p), download[float32](t, a.Out, len(q)), cache.decode(t, q, p, 1))
	}
}

// More tiles than attend_combine takes at a time.
func TestCUDAAttendManyTiles(t *testing.T) {
	const ctx, headDim = 256*258 + 3, 8
	r := denseRand(4)
	cache := newAttendCache(t, r, 1, 1, headDim, ctx, ctx, 1, 1)
	q := denseNormals(r, headDim, 3)
	got := cache.decode(t, q, ctx-1, 1)
	cache.check(t, "many tiles", got, q, ctx-1, 0)
	wantFloats(t, "prefill", cache.prefill(t, q, ctx-1, 1), got)
}

func TestCUDAAttendExtremes(t *testing.T) {
	const headDim, nan, inf, negInf = 8, 0x7e00, 0x7c00, 0xfc00
	for _, n := range []int{1, 31, 256, 257, 700} {
		for _, at := range []int{0, n / 2, n - 1} {
			r := denseRand(uint64(n))
			cache := newAttendCache(t, r, 1, 1, headDim, n, n, 0, 1) // all scores 0
			for p := range n {
				cache.v[p*headDim] = kernels.F32ToF16(float32(p))
			}
			q := make([]float32, headDim)
			q[0] = 1e30
			both := func(key uint16) []float32 {
				cache.k[at*headDim] = key
				cache.store(t)
				got := cache.decode(t, q, n-1, 1)
				wantFloats(t, fmt.Sprintf("n=%d key %#x at %d: prefill", n, key, at), cache.prefill(t, q, n-1, 1), got)
				return got
			}
			if got := both(0x3c00); got[0] != float32(at) { // takes all the weight
				t.Errorf("n=%d: largest score at %d gives %v", n, at, got)
			}
			for _, bad := range []uint16{nan, inf} {
				if got := both(bad); got[0] == got[0] || got[7] == got[7] {
					t.Errorf("n=%d key %#x at %d: %v, want NaN", n, bad, at, got)
				}
			}
			got := both(negInf) // no weight, unless nothing else is there
			if n == 1 {
				if got[0] == got[0] {
					t.Errorf("only -Inf: %v, want NaN", got)
				}
			} else if mean := (float64(n*(n-1)/2) - float64(at)) / float64(n-1); math.Abs(float64(got[0])-mean) > 1e-3*mean {
				t.Errorf("n=%d score -Inf at %d: %v, want %v", n, at, got[0], mean)
			}
			cache.v[at*headDim+1] = nan
			if got := both(0); got[1] == got[1] || got[0] != got[0] {
				t.Errorf("n=%d NaN in value 1 of %d: %v, want NaN there alone", n, at, got)
			}
		}
	}

	// A tile of -Inf before finite scores.
	cache := newAttendCache(t, denseRand(1), 1, 1, headDim, 260, 260, 0, 0)
	for p := range 260 {
		cache.k[p*headDim], cache.v[p*headDim] = negInf, 0xbc00
		if p >= 256 {
			cache.k[p*headDim], cache.v[p*headDim] = 0xfbff, 0x4500 // -65504, 5
		}
	}
	cache.store(t)
	q := make([]float32, headDim)
	q[0] = 1
	if got := cache.decode(t, q, 259, 1); got[0] != 5 {
		t.Errorf("finite scores after a tile of -Inf: %v, want 5", got[0])
	}
	wantFloats(t, "a tile of -Inf: prefill", cache.prefill(t, q, 259, 1), cache.decode(t, q, 259, 1))
}

// Scores whose terms are large and cancel, and values that do.
func TestCUDAAttendCancels(t *testing.T) {
	const nHead, nKV, headDim, n = 2, 1, 64, 300
	r := denseRand(5)
	cache := newAttendCache(t, r, nHead, nKV, headDim, n, n, 30, 1)
	for p := range n {
		for i := 0; i < headDim; i += 2 { // with equal queries, each pair's scores all but cancel
			cache.k[p*headDim+i+1] = cache.k[p*headDim+i] ^ 0x8000
			cache.v[p*headDim+i+1] = kernels.F32ToF16([]float32{1000, -1000}[p%2])
		}
	}
	cache.store(t)
	q := denseNormals(r, nHead*headDim, 4)
	for i := 0; i < len(q); i += 2 {
		q[i+1] = q[i] * (1 + 0x1p-12)
	}
	got := cache.decode(t, q, n-1, 1)
	cache.check(t, "cancelling", got, q, n-1, 0)
	wantFloats(t, "prefill", cache.prefill(t, q, n-1, 1), got)
}

// Rows of several sequences in one pass, chunks by AttendPrefill and single ones by AttendDecode, have the bits that each
// has alone.
func TestCUDAAttendMixes(t *testing.T) {
	r := denseRand(6)
	for mi, m := range []struct{ nHead, nKV, headDim int }{{4, 2, 32}, {8, 1, 16}, {3, 3, 64}, {5, 1, 24}, {4, 2, 136}} {
		for _, seqs := range []int{1, 2, 3, 8, 17} {
			if mi > 1 && seqs > 3 && !long() {
				continue
			}
			const ctx = 700
			width := m.nHead * m.headDim
			pool := newTilePool(r, m.nKV, m.headDim, seqs*dev.TableLen(ctx))
			var rows []dev.Row
			var q []float32
			var want []float32 // by row, alone
			var single []int32
			var pieces []byte
			for range seqs {
				n := 1
				if r.IntN(3) == 0 {
					n = 1 + r.IntN(30)
				}
				pos := []int{0, 1, 63, 64, 255, 256, r.IntN(ctx - 30)}[r.IntN(7)]
				c := newAttendCache(t, r, m.nHead, m.nKV, m.headDim, ctx, pos+n, 1, 1)
				table := pool.add(ctx, pos+n)
				pool.set(table, c.k[:(pos+n)*m.nKV*m.headDim], c.v)
				own := denseNormals(r, n*width, 1)
				if n == 1 || r.IntN(4) == 0 { // a chunk's rows one by one do as well
					for i := range n {
						single = append(single, int32(len(rows)+i))
					}
				} else {
					pieces = append(pieces, piecesOf(len(rows), n, dev.PieceRows(m.nHead, m.nKV, m.headDim))...)
				}
				for i := range n {
					rows = append(rows, dev.Row{Pos: pos + i, Table: table, Token: -1})
					want = append(want, c.decode(t, own[i*width:][:width], pos+i, 1)...)
				}
				q = append(q, own...)
			}
			a := dev.Attention{Out: alloc(t, int64(4*len(q))), Q: upload(t, q), Cache: pool.upload(t), Rows: upload(t, putRows(rows)),
				NHead: m.nHead, NKVHead: m.nKV, HeadDim: m.headDim, Ctx: ctx}
			var ls []dev.Launch
			if len(pieces) > 0 {
				p := a
				p.List, p.N = upload(t, pieces), len(pieces)/dev.PieceBytes
				ls = append(ls, dev.AttendPrefill(p))
			}
			if len(single) > 0 {
				a.List, a.N = upload(t, single), len(single)
				a.Scratch = alloc(t, dev.AttendScratch(a.N, a.NHead, a.HeadDim, ctx))
				ls = append(ls, dev.AttendDecode(a), dev.AttendCombine(a))
			}
			run(t, ls...)
			wantFloats(t, fmt.Sprintf("%+v, %d sequences, %d rows, %d of them single", m, seqs, len(rows), len(single)), download[float32](t, a.Out, len(q)), want)

			// Decoded rows that are all of the pass need no list, and a launch that is made for more does for fewer.
			b := a
			b.List, b.N, b.Out = 0, len(rows), alloc(t, int64(4*len(q)))
			b.Scratch = alloc(t, dev.AttendScratch(b.N, b.NHead, b.HeadDim, ctx))
			run(t, dev.AttendDecode(b), dev.AttendCombine(b))
			wantFloats(t, fmt.Sprintf("%+v, %d sequences: all rows as single ones", m, seqs), download[float32](t, b.Out, len(q)), want)
			store(t, b.Out, make([]float32, len(q)))
			ls = []dev.Launch{dev.AttendDecode(b), dev.AttendCombine(b)}
			ls[0].Grid, ls[1].Grid = b.DecodeGrid(1), b.CombineGrid(1)
			run(t, ls...)
			wantFloats(t, fmt.Sprintf("%+v, %d sequences: the first row", m, seqs), download[float32](t, b.Out, width), want[:width])
		}
	}
}
