package kernels

import (
	"fmt"
	"math"
)

// AttendTile is the number of positions whose partial result a decode block leaves for AttendCombine.
const AttendTile = 256

// attendStride and the shares of shared memory are those of attend.cu.
const attendStride = AttendTile + 8

// Attention describes attention of rows of a pass, each over its sequence's cache up to its own position. AttendDecode
// followed by AttendCombine, and AttendPrefill, write the same bits; the first spreads a row over many blocks and is for
// single rows of sequences, the second reads the cache once for several rows of one and is for prompts. A pass of both is
// both launches, each over its own rows.
type Attention struct {
	Out, Q  Ptr // float32: by row of the pass NHead*HeadDim each
	Cache   Cache
	Rows    Ptr // Row, of the pass
	Scratch Ptr // AttendScratch, for decode

	N    int // rows that are computed; of AttendPrefill: pieces
	List Ptr // of AttendDecode: int32, which rows of the pass those are; 0: the first N. Of AttendPrefill: Piece, each of up to PieceRows

	NHead, NKVHead, HeadDim, Ctx int
}

// AttendScratch is the size in bytes of the partial results of rows tokens: 4*(HeadDim+2) a query head and tile of the
// context.
func AttendScratch(rows, nHead, headDim, ctx int) int64 {
	return int64(rows) * int64(nHead) * int64(ceil(ctx, AttendTile)) * int64(headDim+2) * 4
}

func (a *Attention) check(what string) {
	if a.N < 1 || a.NKVHead < 1 || a.NHead < 1 || a.NHead%a.NKVHead != 0 || !HeadFits(a.HeadDim) || a.Ctx < 1 {
		panic(fmt.Sprintf("kernels: %s: %d rows, %d heads on %d of %d, context %d", what, a.N, a.NHead, a.NKVHead, a.HeadDim, a.Ctx))
	}
	if a.Rows%RowBytes != 0 || a.Cache.Tables%16 != 0 || a.Cache.Keys%16 != 0 || a.Cache.Values%16 != 0 || a.List%PieceBytes != 0 {
		panic(fmt.Sprintf("kernels: %s: rows at %#x, list at %#x, cache %#x", what, uint64(a.Rows), uint64(a.List), a.Cache))
	}
}

// scale is the CPU's: 1/sqrt(HeadDim), rounded once.
func (a *Attention) scale() float32 { return float32(1 / math.Sqrt(float64(a.HeadDim))) }

// lengths is the place of the partials' maxima and sums, behind their values.
func (a *Attention) lengths() Ptr {
	return a.Scratch.At(int64(a.N) * int64(a.NHead) * int64(ceil(a.Ctx, AttendTile)) * int64(a.HeadDim) * 4)
}

// attendBlock is the block of an attention kernel and its dynamic shared memory: attend.cu says what for.
func attendBlock(headDim, rows int) (block [3]uint32, shared uint32) {
	work := max(rows*attendStride, AttendTile/16*min(2, rows)*headDim)
	return [3]uint32{uint32(32 * ceil(2*headDim, 32)), 1, 1}, uint32(4 * (rows*(headDim+attendStride) + work))
}

// decodeHeads is how many query heads a block of AttendDecode takes.
func (a *Attention) decodeHeads() int {
	if share := a.NHead / a.NKVHead; share <= 2 {
		return share
	}
	return 4
}

// prefillShape is how many queries a block of AttendPrefill takes, and how many blocks a piece.
func (a *Attention) prefillShape() (queries, perPiece int) {
	queries = attendQueries(a.HeadDim)
	return queries, PieceRows(a.NHead, a.NKVHead, a.HeadDim) * (a.NHead / a.NKVHead) / queries
}

// DecodeGrid is AttendDecode's grid for n rows in place of N, which is the most; none of no rows.
func (a Attention) DecodeGrid(n int) (g [3]uint32) {
	if n == 0 {
		return g
	}
	heads := a.decodeHeads()
	tiles, groups := ceil(a.Ctx, AttendTile), a.NKVHead*ceil(a.NHead/a.NKVHead, heads)
	if n > limitY {
		panic(fmt.Sprintf("kernels: AttendDecode: %d rows", n))
	}
	g = grid(min(tiles, max(1, ceil(1024, groups*n))), groups)
	g[2] = uint32(n)
	return g
}

// CombineGrid is AttendCombine's, likewise.
func (a Attention) CombineGrid(n int) (g [3]uint32) {
	if n == 0 {
		return g
	}
	return grid(a.NHead, n)
}

// PrefillGrid is AttendPrefill's for n pieces.
func (a Attention) PrefillGrid(n int) (g [3]uint32) {
	if n == 0 {
		return g
	}
	_, per := a.prefillShape()
	return grid(n*per, a.NKVHead)
}

// AttendDecode writes partial results to Scratch. Its grid depends on Ctx and N and not on positions, so that a captured
// launch stays right; beyond a thousand blocks a block takes several stretches, those of its index modulo the grid.
func AttendDecode(a Attention) Launch {
	a.check("AttendDecode")
	heads := a.decodeHeads()
	l := Launch{
		Func: fmt.Sprintf("attend_decode_%d", heads),
		Grid: a.DecodeGrid(a.N),
		Args: []uint64{a.Scratch.Cell(), a.lengths().Cell(), a.Q.Cell(), a.Cache.Keys.Cell(), a.Cache.Values.Cell(), a.Rows.Cell(),
			a.Cache.Tables.Cell(), a.List.Cell(), I32(a.NHead), I32(a.NKVHead), I32(a.HeadDim), I32(a.Ctx), I32(ceil(a.Ctx, AttendTile)),
			F32(a.scale())},
	}
	l.Block, l.Shared = attendBlock(a.HeadDim, heads)
	return l
}

// AttendCombine merges what AttendDecode left into Out.
func AttendCombine(a Attention) Launch {
	a.check("AttendCombine")
	return Launch{
		Func:  "attend_combine",
		Grid:  a.CombineGrid(a.N),
		Block: [3]uint32{256, 1, 1},
		Args: []uint64{a.Out.Cell(), a.Scratch.Cell(), a.lengths().Cell(), a.Rows.Cell(), a.List.Cell(), I32(a.HeadDim), I32(a.Ctx),
			I32(ceil(a.Ctx, AttendTile))},
	}
}

// attendQueries is how many queries a block of AttendPrefill takes.
func attendQueries(headDim int) int {
	if headDim > 128 { // 512 threads: the registers and the shared memory of 8 rows would be too many
		return 4
	}
	return 8
}

// PieceRows is the most rows of a piece of AttendPrefill: as few as fill its blocks.
func PieceRows(nHead, nKVHead, headDim int) int {
	queries, share := attendQueries(headDim), nHead/nKVHead
	rows := 1
	for rows*share%queries != 0 {
		rows++
	}
	return rows
}

// AttendPrefill writes Out by itself; it needs no Scratch.
func AttendPrefill(a Attention) Launch {
	a.check("AttendPrefill")
	if a.List == 0 {
		panic("kernels: AttendPrefill: no pieces")
	}
	queries, per := a.prefillShape()
	l := Launch{
		Func: fmt.Sprintf("attend_prefill_%d", queries),
		Grid: a.PrefillGrid(a.N),
		Args: []uint64{a.Out.Cell(), a.Q.Cell(), a.Cache.Keys.Cell(), a.Cache.Values.Cell(), a.Rows.Cell(), a.Cache.Tables.Cell(),
			a.List.Cell(), I32(per), I32(a.NHead), I32(a.NKVHead), I32(a.HeadDim), I32(a.Ctx), F32(a.scale())},
	}
	l.Block, l.Shared = attendBlock(a.HeadDim, queries)
	return l
}
