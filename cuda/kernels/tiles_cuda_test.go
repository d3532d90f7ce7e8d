//go:build cuda

package kernels_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
)

// tilePool is a layer's keys and values of several sequences, whose tiles lie anywhere. What no sequence has is NaN, and a
// number that no position needs leads out of the pool.
type tilePool struct {
	width  int // values of a position
	head   int // values of a head
	k, v   []uint16
	tables []int32
	free   []int
}

const nowhere = 1 << 28

// newTilePool has some tiles.
func newTilePool(r *rand.Rand, nKV, headDim, tiles int) *tilePool {
	p := &tilePool{width: nKV * headDim, head: headDim, free: r.Perm(tiles)}
	p.k = slices.Repeat([]uint16{0x7fff}, tiles*dev.KVTile*p.width)
	p.v = slices.Clone(p.k)
	return p
}

// add makes room for n positions of a sequence of up to ctx, and returns where its table begins.
func (p *tilePool) add(ctx, n int) (table int) {
	table = len(p.tables)
	for i := range dev.TableLen(ctx) {
		at := nowhere
		if i*dev.KVTile < n {
			at, p.free = p.free[0], p.free[1:]
		}
		p.tables = append(p.tables, int32(at))
	}
	return table
}

// at is where a position's values of a head lie.
func (p *tilePool) at(table, pos, head int) int {
	tile := int(p.tables[table+pos/dev.KVTile])
	return tile*dev.KVTile*p.width + (head*dev.KVTile+pos%dev.KVTile)*p.head
}

// set writes a sequence's positions from 0 on, k and v [position][width].
func (p *tilePool) set(table int, k, v []uint16) {
	for pos := range len(k) / p.width {
		for h := range p.width / p.head {
			from, to := pos*p.width+h*p.head, p.at(table, pos, h)
			copy(p.k[to:to+p.head], k[from:])
			copy(p.v[to:to+p.head], v[from:])
		}
	}
}

// upload puts all of it on the device.
func (p *tilePool) upload(t testing.TB) dev.Cache {
	return dev.Cache{Keys: upload(t, p.k), Values: upload(t, p.v), Tables: upload(t, p.tables)}
}

// putRows is rows as the device reads them.
func putRows(rows []dev.Row) []byte {
	b := make([]byte, dev.RowBytes*len(rows))
	for i, r := range rows {
		dev.PutRow(b[dev.RowBytes*i:], r)
	}
	return b
}

// piecesOf cuts n rows from first on.
func piecesOf(first, n, most int) (b []byte) {
	for ; n > 0; first, n = first+most, n-most {
		b = append(b, make([]byte, dev.PieceBytes)...)
		dev.PutPiece(b[len(b)-dev.PieceBytes:], dev.Piece{First: first, Rows: min(n, most)})
	}
	return b
}
