package kernels

import (
	"encoding/binary"
	"fmt"
	"math"

	"sluice/moe"
)

// TileCols is the most entries of one expert in a tile.
const TileCols = 8

// Table is where the work of a layer call lies on the device: moe.Table, and what the kernels need beside it. NewTable
// lays the arrays out from one address; they are overwritten by every call. An entry is one row's pass through one
// expert; entries stand by expert ascending, within one expert by row ascending, and there are Offsets[NExpert] of them.
//
// The address of each array:
type Table struct {
	NExpert, K, MaxT int // K: slots of a row

	Offsets  Ptr // int32 [NExpert+1]: expert e has the entries Offsets[e] to Offsets[e+1]-1
	Token    Ptr // int32 [MaxT*K]: row of the entry
	Weight   Ptr // float32 [MaxT*K]: weight of the entry as applied
	ExpertOf Ptr // int32 [MaxT*K]: expert of the entry; -1 from the last entry to rows*K
	EntryOf  Ptr // int32 [MaxT*K]: by row, the entries of its kept slots, experts ascending; -1 after the last
	Tiles    Ptr // int32 [MaxTiles][3]: expert, first entry, entries (1 to TileCols); an expert's tiles stand together
	NTiles   Ptr // int32
	Dropped  Ptr // uint8 [MaxT*K]: the slot was dropped
	Sums     Ptr // SumsBytes, the call's record, see Sums; zeroed once, at creation
	Before   Ptr // the record of the call before, whose totals go on; 0: Sums
	Err      Ptr // RouteErrorBytes, for Route; zeroed before each step
	Bits     Ptr // scratch of DropTable for calls whose bits do not fit in shared memory; 0 if MaxT needs none
}

// NewTable lays a table out at base, a multiple of 256 that has TableBytes behind it. Sums and Err have to be zeroed.
func NewTable(base Ptr, nExpert, k, maxT int) Table {
	t, _ := layoutTable(base, nExpert, k, maxT)
	return t
}

// TableBytes returns the device memory of a table for calls of up to maxT rows.
func TableBytes(nExpert, k, maxT int) int64 {
	_, n := layoutTable(0, nExpert, k, maxT)
	return n
}

func layoutTable(base Ptr, nExpert, k, maxT int) (Table, int64) {
	if nExpert < 1 || nExpert > moe.MaxExperts || k < 1 || k > nExpert || maxT < 1 || maxT > math.MaxInt32/moe.MaxExperts || base%256 != 0 {
		panic(fmt.Sprintf("kernels: table for %d experts, %d used, %d rows at %#x", nExpert, k, maxT, uint64(base)))
	}
	t := Table{NExpert: nExpert, K: k, MaxT: maxT}
	slots, at := int64(maxT)*int64(k), int64(0)
	place := func(p *Ptr, bytes int64) {
		*p = base.At(at)
		at = (at + bytes + 255) &^ 255
	}
	place(&t.Offsets, 4*int64(nExpert+1))
	place(&t.NTiles, 4)
	place(&t.Token, 4*slots)
	place(&t.Weight, 4*slots)
	place(&t.ExpertOf, 4*slots)
	place(&t.EntryOf, 4*slots)
	place(&t.Tiles, 12*int64(t.MaxTiles()))
	place(&t.Dropped, slots)
	place(&t.Sums, SumsBytes)
	place(&t.Err, RouteErrorBytes)
	if t.bitsShared(maxT) == 0 {
		place(&t.Bits, 4*int64(nExpert)*int64(bitWords(maxT)))
	}
	return t, at
}

// MaxTiles is the most tiles that a call can have: every expert with entries may have a tile that is not full.
func (t Table) MaxTiles() int { return t.TilesOf(t.MaxT) }

// TilesOf is the most tiles that a call of rows rows can have, the grid of a launch over tiles.
func (t Table) TilesOf(rows int) int {
	slots := rows * t.K
	return (slots + (TileCols-1)*min(t.NExpert, slots)) / TileCols
}

// bitWords is the words of one expert's bits, one a row.
func bitWords(rows int) int { return (rows + 31) / 32 }

// bitsShared is the shared memory for the bits of a call, 0 if they do not fit beside the 4 bytes an expert.
func (t Table) bitsShared(rows int) int {
	if b := 4 * t.NExpert * bitWords(rows); b+4*t.NExpert <= sharedLimit {
		return b
	}
	return 0
}

// tableThreads is the largest block of DropTable: every thread may have 128 registers.
const tableThreads = 512

// DropTable describes the policy of moe.Drop and the building of the table over rows rows (1 to MaxT): ids (int32) and
// weights (float32) as Route left them, rows x K. resident (uint8 x NExpert, 0 for a miss, the state before the call) may
// be 0: everything is resident. d is nil where dropping does not apply to the call. of (Row) says which rows are exempt, as
// moe.Call.Exempt does; 0: none.
func (t Table) DropTable(ids, weights, resident Ptr, d *moe.Drop, of Ptr, rows int) Launch {
	checkRows("DropTable", rows, of)
	if rows < 1 || rows > t.MaxT {
		panic(fmt.Sprintf("kernels: table of %d rows, room for %d", rows, t.MaxT))
	}
	threshold, renorm := float32(math.Inf(-1)), 0 // which no weight is below
	if d != nil {
		threshold = d.Threshold(t.K)
		if d.Renorm {
			renorm = 1
		}
	}
	before := t.Before
	if before == 0 {
		before = t.Sums
	}
	shared, bits := t.bitsShared(rows), Ptr(0)
	if shared == 0 {
		bits = t.Bits
	}
	return Launch{
		Func:   "table_build",
		Grid:   grid(1, 1),
		Block:  [3]uint32{uint32(min(tableThreads, (max(t.NExpert, rows*t.K)+31)&^31)), 1, 1},
		Shared: uint32(4*t.NExpert + shared),
		Args: []uint64{ids.Cell(), weights.Cell(), resident.Cell(), F32(threshold), I32(renorm), of.Cell(), I32(rows), I32(t.NExpert), I32(t.K),
			t.Offsets.Cell(), t.Token.Cell(), t.Weight.Cell(), t.ExpertOf.Cell(), t.EntryOf.Cell(), t.Tiles.Cell(), t.NTiles.Cell(),
			t.Dropped.Cell(), before.At(totalAt).Cell(), t.Sums.Cell(), bits.Cell()},
	}
}

// SumsBytes is the size of Table.Sums: three Sums.
const (
	SumsBytes = 3 * oneSums
	oneSums   = 32
	totalAt   = oneSums // place of the totals
)

// Sums are the results of moe.Call beside the table: int64 Routed, int64 Dropped, float64 Mass, float64 MassDropped,
// little endian.
type Sums struct {
	Routed, Dropped   int64
	Mass, MassDropped float64
}

// DecodeSums reads Table.Sums: the last call, and the calls since the memory was zeroed, added up one call after the
// other, with and without it.
func DecodeSums(b []byte) (call, total, before Sums) {
	for i, s := range []*Sums{&call, &total, &before} {
		u := func(j int) uint64 { return binary.LittleEndian.Uint64(b[oneSums*i+8*j:]) }
		*s = Sums{int64(u(0)), int64(u(1)), math.Float64frombits(u(2)), math.Float64frombits(u(3))}
	}
	return call, total, before
}

// RestoreSums makes the totals of the record in b those without its call.
func RestoreSums(b []byte) { copy(b[totalAt:], b[2*oneSums:][:oneSums]) }
