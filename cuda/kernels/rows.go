package kernels

import (
	"encoding/binary"
	"fmt"

	"sluice/kernels"
)

// KVTile is how many positions a tile of keys and values holds.
const KVTile = kernels.KVTile

// Row is what kernels read of a row of a pass, RowBytes of device memory that PutRow writes, so that a captured graph needs
// no new arguments as its rows move on.
type Row struct {
	Pos    int  // in its sequence
	Table  int  // of its sequence, in tile numbers from where the tables of a launch begin; a multiple of TablePad
	Token  int  // id
	Exempt bool // nothing may be dropped in it
}

// RowBytes is the size of a Row on the device, where it lies at a multiple of it.
const RowBytes = 16

// RowToken is where in it the token id is.
const RowToken = 8

// PutRow writes a row.
func PutRow(dst []byte, r Row) {
	flags := uint32(0)
	if r.Exempt {
		flags = 1
	}
	for i, v := range [RowBytes / 4]uint32{uint32(int32(r.Pos)), uint32(int32(r.Table)), uint32(int32(r.Token)), flags} {
		binary.LittleEndian.PutUint32(dst[4*i:], v)
	}
}

// TablePad is what the length of a table is a multiple of: attention reads so many numbers at once, at a multiple of 16
// bytes.
const TablePad = AttendTile / KVTile

// TableLen is how many tile numbers (int32) the table of a sequence of up to ctx positions has. Those of tiles that the
// sequence has not begun are read and not used.
func TableLen(ctx int) int { return ceil(ceil(ctx, KVTile), TablePad) * TablePad }

// Cache is where a layer's keys and values lie: two pools of tiles (TileBytes each), and the tables by which rows find
// theirs. Layers that see equally far need the same tiles of a sequence, and can share the tables.
type Cache struct {
	Keys, Values Ptr // f16 [tile][NKVHead][KVTile][HeadDim]
	Tables       Ptr // int32; Row.Table is counted from here
}

// TileBytes is the size of one tile of keys, and of one of values.
func TileBytes(nKVHead, headDim int) int64 { return 2 * KVTile * int64(nKVHead) * int64(headDim) }

// Piece is rows of a pass that are of one sequence, at ascending positions: PieceBytes of device memory that PutPiece
// writes.
type Piece struct{ First, Rows int }

// PieceBytes is the size of a Piece on the device.
const PieceBytes = 8

// PutPiece writes a piece.
func PutPiece(dst []byte, p Piece) {
	binary.LittleEndian.PutUint32(dst, uint32(p.First))
	binary.LittleEndian.PutUint32(dst[4:], uint32(p.Rows))
}

func checkRows(what string, rows int, at Ptr) {
	if rows < 1 || at%RowBytes != 0 {
		panic(fmt.Sprintf("kernels: %s: %d rows at %#x", what, rows, uint64(at)))
	}
}
