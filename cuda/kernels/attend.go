package kernels

import (
	"fmt"
	"math"
)

// AttendTile is the number of positions whose partial result a decode block leaves for AttendCombine.
const AttendTile = 256

// attendStride and the shares of shared memory are those of attend.cu.
const attendStride = AttendTile + 8

// Attention describes attention of Rows tokens at positions step[StepPos] on, each over the cache up to its own position.
// AttendDecode followed by AttendCombine, and AttendPrefill, write the same bits; the first spreads a token over many
// blocks and is for a few rows, the second reads the cache once for several rows and is for prompts.
type Attention struct {
	Out, Q         Ptr // float32: Rows x NHead*HeadDim each
	KCache, VCache Ptr // f16 [Ctx][NKVHead*HeadDim] of the layer
	Step           Ptr
	Scratch        Ptr // AttendScratch, for decode

	Rows, NHead, NKVHead, HeadDim, Ctx int
}

// AttendScratch is the size in bytes of the partial results of rows tokens: 4*(HeadDim+2) a query head and tile of the
// context.
func AttendScratch(rows, nHead, headDim, ctx int) int64 {
	return int64(rows) * int64(nHead) * int64(ceil(ctx, AttendTile)) * int64(headDim+2) * 4
}

func (a *Attention) check(what string) {
	if a.Rows < 1 || a.NKVHead < 1 || a.NHead < 1 || a.NHead%a.NKVHead != 0 || !HeadFits(a.HeadDim) || a.Ctx < 1 {
		panic(fmt.Sprintf("kernels: %s: %d rows, %d heads on %d of %d, context %d", what, a.Rows, a.NHead, a.NKVHead, a.HeadDim, a.Ctx))
	}
}

// scale is the CPU's: 1/sqrt(HeadDim), rounded once.
func (a *Attention) scale() float32 { return float32(1 / math.Sqrt(float64(a.HeadDim))) }

// lengths is the place of the partials' maxima and sums, behind their values.
func (a *Attention) lengths() Ptr {
	return a.Scratch.At(int64(a.Rows) * int64(a.NHead) * int64(ceil(a.Ctx, AttendTile)) * int64(a.HeadDim) * 4)
}

// attendBlock is the block of an attention kernel and its dynamic shared memory: attend.cu says what for.
func attendBlock(headDim, rows int) (block [3]uint32, shared uint32) {
	work := max(rows*attendStride, AttendTile/16*min(2, rows)*headDim)
	return [3]uint32{uint32(32 * ceil(2*headDim, 32)), 1, 1}, uint32(4 * (rows*(headDim+attendStride) + work))
}

// AttendDecode writes partial results to Scratch. Its grid depends on Ctx and not on the position, so that a captured launch
// stays right; beyond a thousand blocks a block takes several tiles, those of its index modulo the grid.
func AttendDecode(a Attention) Launch {
	a.check("AttendDecode")
	share := a.NHead / a.NKVHead
	heads := 4 // query heads a block takes
	if share <= 2 {
		heads = share
	}
	tiles, groups := ceil(a.Ctx, AttendTile), a.NKVHead*ceil(share, heads)
	l := Launch{
		Func: fmt.Sprintf("attend_decode_%d", heads),
		Grid: grid(min(tiles, max(1, ceil(1024, groups*a.Rows))), groups),
		Args: []uint64{a.Scratch.Cell(), a.lengths().Cell(), a.Q.Cell(), a.KCache.Cell(), a.VCache.Cell(), a.Step.Cell(),
			I32(a.NHead), I32(a.NKVHead), I32(a.HeadDim), I32(a.Ctx), I32(tiles), F32(a.scale())},
	}
	if a.Rows > limitY {
		panic(fmt.Sprintf("kernels: AttendDecode: %d rows", a.Rows))
	}
	l.Grid[2] = uint32(a.Rows)
	l.Block, l.Shared = attendBlock(a.HeadDim, heads)
	return l
}

// AttendCombine merges what AttendDecode left into Out.
func AttendCombine(a Attention) Launch {
	a.check("AttendCombine")
	return Launch{
		Func:  "attend_combine",
		Grid:  grid(a.NHead, a.Rows),
		Block: [3]uint32{256, 1, 1},
		Args: []uint64{a.Out.Cell(), a.Scratch.Cell(), a.lengths().Cell(), a.Step.Cell(), I32(a.HeadDim), I32(a.Ctx),
			I32(ceil(a.Ctx, AttendTile))},
	}
}

// AttendPrefill writes Out by itself; it needs no Scratch.
func AttendPrefill(a Attention) Launch {
	a.check("AttendPrefill")
	rows := 8
	if a.HeadDim > 128 { // 512 threads: the registers and the shared memory of 8 rows would be too many
		rows = 4
	}
	l := Launch{
		Func: fmt.Sprintf("attend_prefill_%d", rows),
		Grid: grid(ceil(a.Rows*(a.NHead/a.NKVHead), rows), a.NKVHead),
		Args: []uint64{a.Out.Cell(), a.Q.Cell(), a.KCache.Cell(), a.VCache.Cell(), a.Step.Cell(), I32(a.Rows),
			I32(a.NHead), I32(a.NKVHead), I32(a.HeadDim), I32(a.Ctx), F32(a.scale())},
	}
	l.Block, l.Shared = attendBlock(a.HeadDim, rows)
	return l
}
