package kernels

import (
	"fmt"
	"math"

	"sluice/kernels"
)

// Matrix numbers the three matrices of an expert in the device's table of addresses, uint64 [nExpert][3] for one layer; an
// address of 0 stands for an expert that is not on the device.
type Matrix int

// The order of an expert's addresses.
const (
	Gate Matrix = iota
	Up
	Down
)

// Form says how a launch over experts cuts the work; the results have the same bits.
type Form int

// ByEntry is made for decoding: each entry reads its expert's weights, in a launch whose shape depends on the number of
// rows alone. ByTile is made for prompts: up to TileCols entries of an expert share what is read.
const (
	ByEntry Form = iota
	ByTile
)

// FormOf is the form for calls of rows rows: ByTile from where an expert that is in use has two entries or more, if rows
// choose evenly. Below that most tiles hold one entry, for which ByTile computes TileCols columns; and what entries of one
// expert read again is still in the second level of cache, since their blocks run side by side.
func (t Table) FormOf(rows int) Form {
	unused := math.Pow(1-float64(t.K)/float64(t.NExpert), float64(rows)) // share of the experts that nobody chooses
	if float64(rows*t.K) >= 2*float64(t.NExpert)*(1-unused) {
		return ByTile
	}
	return ByEntry
}

// ExpertGateUp computes for each entry of the table, from the row act[token] of its row in the call,
//
//	hidden[entry] = silu(gate . act) * (up . act)
//
// with the matrices (width x k, both of type t) that ptrs names for its expert. hidden is float32, MaxT*K rows of width.
// act are Q8_1 rows if Quantised(t), else float32 rows. rows is the most rows that the call may have. An entry whose expert
// has no address becomes NaN. What was said of Product holds here.
func (t Table) ExpertGateUp(typ kernels.Type, hidden, ptrs, act Ptr, width, k, rows int, form Form) Launch {
	args := []uint64{hidden.Cell(), ptrs.Cell(), act.Cell(), t.Token.Cell()}
	warp := [...]int{ByEntry: 1, ByTile: 2}[form]
	return t.expert("expert_gate_up", typ, args, act, width, k, rows, rows, warp, form)
}

// ExpertDown computes y[entry] = down . act[entry] for each entry of the table, unweighted: y is float32, MaxT*K rows of
// width; act has a row of k an entry, what Quantize makes of the hidden rows if Quantised(typ), else the hidden rows. The
// rest is as in ExpertGateUp.
func (t Table) ExpertDown(typ kernels.Type, y, ptrs, act Ptr, width, k, rows int, form Form) Launch {
	return t.expertProduct(typ, y, ptrs, Down, act, 0, width, k, rows, rows*t.K, form)
}

// ExpertProduct computes y[entry] = matrix . act[token] for each entry: with Gate and then Up, and SiluMul, it does in
// three launches what ExpertGateUp does for matrices of one type.
func (t Table) ExpertProduct(typ kernels.Type, y, ptrs Ptr, m Matrix, act Ptr, width, k, rows int, form Form) Launch {
	return t.expertProduct(typ, y, ptrs, m, act, t.Token, width, k, rows, rows, form)
}

func (t Table) expertProduct(typ kernels.Type, y, ptrs Ptr, m Matrix, act, token Ptr, width, k, rows, acts int, form Form) Launch {
	args := []uint64{y.Cell(), ptrs.Cell(), I32(int(m)), act.Cell(), token.Cell()}
	warp := [...]int{ByEntry: 2, ByTile: 4}[form]
	return t.expert("expert_product", typ, args, act, width, k, rows, acts, warp, form)
}

// expert completes a launch whose arguments go on with the table; acts is the rows of activations, warp the rows of
// weights (of a matrix) that a warp takes.
func (t Table) expert(name string, typ kernels.Type, args []uint64, act Ptr, width, k, rows, acts, warp int, form Form) Launch {
	checkMat(name, typ, width, k)
	if rows < 1 || rows > t.MaxT || act%16 != 0 {
		panic(fmt.Sprintf("kernels: %s: %d rows, table for %d, activations at %#x", name, rows, t.MaxT, uint64(act)))
	}
	suf, y, many := "_entries", rows*t.K, t.Entries()
	if form == ByTile {
		suf, y, many = "_tiles", t.TilesOf(rows), t.NTiles
	}
	return Launch{
		Func:  name + "_" + suffix(typ) + suf,
		Grid:  grid(dotBlocks(typ, width, warp), y),
		Block: [3]uint32{dotThreads, 1, 1},
		Args: append(args, t.ExpertOf.Cell(), t.Tiles.Cell(), many.Cell(), I32(width), I32(k),
			I32(actStride16(typ, k, acts))),
	}
}

// Entries returns the address of the number of entries (int32), for Quantize of the hidden rows.
func (t Table) Entries() Ptr { return t.Offsets.At(4 * int64(t.NExpert)) }
