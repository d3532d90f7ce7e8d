//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"

	dev "sluice/cuda/kernels"
	"sluice/engine/model"
)

// pool is the numbers of the tiles that keys and values lie in. Every layer has an array of as many tiles, taken when the
// engine is opened; a number is the place in all of them, for every layer sees all positions. Each sequence has a table of
// its tiles on the device, of which the pool keeps a copy that is sent with the rows of a pass.
type pool struct {
	free   []int32 // numbers nobody has, the next to be taken last
	perSeq int     // tiles that one sequence can hold
	length int     // of a table
	tables []byte  // of the pinned memory: int32 [Seqs][length]
	dirty  int     // what differs from the device's begins here; len(tables): nothing
	bytes  int64   // of a tile, over all layers
	idle   []*state
}

// newPool has room for as many sequences as its engine can have open. tables has tableBytes.
func newPool(c *model.Config, tables []byte) *pool {
	h := &c.Model.Hparams
	p := &pool{perSeq: tilesFor(c.Ctx), length: dev.TableLen(c.Ctx), tables: tables, dirty: len(tables)}
	p.bytes = 2 * int64(h.NLayer) * dev.TileBytes(h.NKVHead, h.HeadDim)
	for i := range p.perSeq * c.Seqs {
		p.free = append(p.free, int32(p.perSeq*c.Seqs-1-i))
	}
	for i := range c.Seqs {
		p.idle = append(p.idle, &state{p: p, table: (c.Seqs - 1 - i) * p.length, tiles: make([]int32, 0, p.perSeq)})
	}
	return p
}

// tilesFor is how many tiles so many positions take.
func tilesFor(positions int) int { return (positions + dev.KVTile - 1) / dev.KVTile }

// tableBytes is the memory of the tables of an engine's sequences.
func tableBytes(c *model.Config) int64 { return 4 * int64(c.Seqs) * int64(dev.TableLen(c.Ctx)) }

// state is one sequence's: model.State.
type state struct {
	p     *pool
	n     int     // positions
	table int     // where its table begins, in numbers
	tiles []int32 // its numbers
	marks []*snapshot
}

// NewState implements model.Backend.
func (w *walk) NewState() (model.State, error) {
	p := w.pool
	last := len(p.idle) - 1
	if last < 0 {
		return nil, fmt.Errorf("cuda: %d sequences are open, there is room for no more", w.c.Seqs)
	}
	s := p.idle[last]
	p.idle = p.idle[:last]
	return s, nil
}

// Close implements model.State. The memory serves another sequence next, which no snapshot of this one may touch: one of
// no positions neither.
func (s *state) Close() {
	s.shorten(0)
	for _, x := range s.marks {
		x.gone = true
	}
	s.marks = s.marks[:0]
	s.p.idle = append(s.p.idle, s)
}

// Len implements model.State.
func (s *state) Len() int { return s.n }

// Bytes implements model.State.
func (s *state) Bytes() int64 { return int64(len(s.tiles)) * s.p.bytes }

// grow takes the tiles of n more positions.
func (s *state) grow(n int) error {
	p := s.p
	for want := tilesFor(s.n + n); len(s.tiles) < want; {
		last := len(p.free) - 1
		if last < 0 || len(s.tiles) == p.perSeq {
			return fmt.Errorf("cuda: position %d: the sequence has %d tiles of %d positions, and there are no more",
				len(s.tiles)*dev.KVTile, len(s.tiles), dev.KVTile)
		}
		at := 4 * (s.table + len(s.tiles))
		s.tiles, p.free = append(s.tiles, p.free[last]), p.free[:last]
		binary.LittleEndian.PutUint32(p.tables[at:], uint32(s.tiles[len(s.tiles)-1]))
		p.dirty = min(p.dirty, at)
	}
	return nil
}

// Truncate implements model.State: positions that are left are all there.
func (s *state) Truncate(n int) int {
	if n = max(0, n); n < s.n {
		s.shorten(n)
	}
	return s.n
}

// shorten makes the state n positions long. What stands in its table behind them is read by nobody.
func (s *state) shorten(n int) {
	keep := tilesFor(n)
	for i := len(s.tiles) - 1; i >= keep; i-- {
		s.p.free = append(s.p.free, s.tiles[i])
	}
	s.tiles, s.n = s.tiles[:min(keep, len(s.tiles))], n
	s.marks = slices.DeleteFunc(s.marks, func(x *snapshot) bool {
		x.gone = x.n > n
		return x.gone
	})
}

// snapshot is a length: all positions below it are in the state, until it is shorter.
type snapshot struct {
	s    *state
	n    int
	gone bool
}

// Len implements model.Snapshot.
func (x *snapshot) Len() int { return x.n }

// Bytes implements model.Snapshot.
func (*snapshot) Bytes() int64 { return 0 }

// Snapshot implements model.State.
func (s *state) Snapshot() model.Snapshot {
	x := &snapshot{s: s, n: s.n}
	s.marks = append(s.marks, x)
	return x
}

// Restore implements model.State.
func (s *state) Restore(snap model.Snapshot) error {
	x, ok := snap.(*snapshot)
	if !ok || x.s != s || x.gone {
		return model.ErrSnapshot
	}
	s.shorten(x.n)
	return nil
}
