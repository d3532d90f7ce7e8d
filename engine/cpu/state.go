package cpu

import (
	"fmt"
	"slices"

	"sluice/engine/model"
	"sluice/kernels"
)

// pool is the memory that states take theirs from, for all sequences of an engine. Keys and values lie in tiles of
// kernels.KVTile positions: per layer one array, in which a tile's number is its place. Layers that see equally far need the
// same tiles at the same time, so they form a class and a state has one table of numbers for all of them. Memory is taken
// at creation, but the system backs it with pages only as positions are written.
type pool struct {
	classes []tileClass
	layers  []tiles      // by layer; class -1: no keys and values
	recur   []recurrence // of layers with a recurrence
	open    int          // states
	seqs    int          // at most
	lastK   int          // experts of a row that states note by layer; 0: nobody asks
	spare   []*state     // closed ones, whose tables are used again
}

// tileClass is the tiles of layers with one window.
type tileClass struct {
	window int     // 0: all positions
	perSeq int     // tiles that one sequence can hold at a time
	free   []int32 // numbers nobody has, the next to be taken last
	bytes  int64   // of one tile number, over the layers of the class
}

// tiles are a layer's keys and values. Of the pairs of arrays one is set; latent attention keeps a single row a position,
// which is in the keys.
type tiles struct {
	class    int
	heads    int
	keyLen   int
	valLen   int // 0: latent
	keyStep  int // values from tile to tile
	valStep  int
	k16, v16 []uint16
	k32, v32 []float32
	k8, v8   kernels.Q8
}

// recurrence is how much a layer's recurrent state takes: those values are written over by every row.
type recurrence struct{ layer, values int }

func newPool(c *model.Config) *pool {
	p := &pool{seqs: c.Seqs, layers: make([]tiles, len(c.Model.Layers))}
	for i := range c.Model.Layers {
		t := &p.layers[i]
		t.class = -1
		switch a := c.Model.Layers[i].Mixer.(type) {
		case *model.Attention:
			p.addTiles(t, c, a.Window, a.KVHeads, a.KeyLen, a.ValueLen)
		case *model.Latent:
			p.addTiles(t, c, 0, 1, a.Rank+a.RotLen, 0)
		case *model.DeltaNet:
			p.recur = append(p.recur, recurrence{i, int(a.StateValues())})
		}
	}
	return p
}

func (p *pool) addTiles(t *tiles, c *model.Config, window, heads, keyLen, valLen int) {
	const size = kernels.KVTile
	if window >= c.Ctx {
		window = 0
	}
	t.class = slices.IndexFunc(p.classes, func(k tileClass) bool { return k.window == window })
	if t.class < 0 {
		k := tileClass{window: window, perSeq: (c.Ctx + size - 1) / size}
		if window > 0 { // as many as window-1 positions and those of a pass can touch
			k.perSeq = min(k.perSeq, (window-1+c.Batch+size-2)/size+1)
		}
		for i := range k.perSeq * c.Seqs {
			k.free = append(k.free, int32(k.perSeq*c.Seqs-1-i))
		}
		t.class = len(p.classes)
		p.classes = append(p.classes, k)
	}
	k := &p.classes[t.class]
	t.heads, t.keyLen, t.valLen = heads, keyLen, valLen
	t.keyStep, t.valStep = heads*size*keyLen, heads*size*valLen
	nK, nV := t.keyStep*k.count(c), t.valStep*k.count(c)
	switch c.KV {
	case model.KVF32:
		t.k32, t.v32 = make([]float32, nK), make([]float32, nV)
	case model.KVQ8:
		t.k8 = kernels.Q8{Q: make([]int8, nK), D: make([]float32, nK/32)}
		t.v8 = kernels.Q8{Q: make([]int8, nV), D: make([]float32, nV/32)}
	default:
		t.k16, t.v16 = make([]uint16, nK), make([]uint16, nV)
	}
	k.bytes += c.KV.Bytes(int64(t.keyStep)) + c.KV.Bytes(int64(t.valStep))
}

// count is how many tiles a class has.
func (k *tileClass) count(c *model.Config) int { return k.perSeq * c.Seqs }

// state is one sequence's.
type state struct {
	p      *pool
	n      int         // positions
	tables []tileTable // by class
	recur  [][]float32 // as pool.recur
	last   [][]int32   // by layer: experts of the last row, in slot order, for who predicts from them; nil: nobody
	marks  []*mark     // of snapshots that can still be restored
}

// tileTable are the tiles that a state has, of those before first it has none.
type tileTable struct {
	first int
	at    []int32 // numbers
}

// take returns an empty state.
func (p *pool) take() (model.State, error) {
	if p.open == p.seqs {
		return nil, fmt.Errorf("engine: %d sequences are open, there is room for no more", p.seqs)
	}
	p.open++
	if n := len(p.spare); n > 0 {
		s := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return s, nil
	}
	s := &state{p: p, tables: make([]tileTable, len(p.classes))}
	for i := range s.tables {
		s.tables[i].at = make([]int32, 0, p.classes[i].perSeq)
	}
	for _, r := range p.recur {
		s.recur = append(s.recur, make([]float32, r.values))
	}
	if p.lastK > 0 {
		s.last = make([][]int32, len(p.layers))
		for i := range s.last {
			s.last[i] = make([]int32, 0, p.lastK)
		}
	}
	return s, nil
}

// Close implements model.State.
func (s *state) Close() {
	s.reset()
	for _, m := range s.marks { // of no positions, which nothing shortens
		m.gone = true
	}
	s.marks = nil
	for i := range s.last {
		s.last[i] = s.last[i][:0]
	}
	s.p.open--
	s.p.spare = append(s.p.spare, s)
}

// Len implements model.State.
func (s *state) Len() int { return s.n }

// grow takes the tiles of n more positions, and gives back those that none of them sees.
func (s *state) grow(n int) error {
	for i := range s.tables {
		if w := s.p.classes[i].window; w > 0 {
			s.drop(i, max(0, s.n-w+1)/kernels.KVTile)
		}
		if err := s.fill(i, (s.n+n-1)/kernels.KVTile+1); err != nil {
			return err
		}
	}
	return nil
}

// advance makes the positions that a pass has written part of the sequence.
func (s *state) advance(n int) { s.n += n }

// drop gives back a class's tiles below first.
func (s *state) drop(class, first int) {
	k, t := &s.p.classes[class], &s.tables[class]
	n := min(first-t.first, len(t.at))
	if n <= 0 {
		return
	}
	for i := n - 1; i >= 0; i-- {
		k.free = append(k.free, t.at[i])
	}
	t.at = t.at[:copy(t.at, t.at[n:])]
	t.first += n
}

// cut gives back a class's tiles from end on.
func (s *state) cut(class, end int) {
	k, t := &s.p.classes[class], &s.tables[class]
	for len(t.at) > 0 && t.first+len(t.at) > end {
		last := len(t.at) - 1
		t.at, k.free = t.at[:last], append(k.free, t.at[last])
	}
}

func (s *state) reset() {
	for i := range s.tables {
		s.cut(i, 0)
		s.tables[i].first = 0
	}
	for _, r := range s.recur {
		clear(r)
	}
	s.n = 0
	s.forget()
}

// Truncate implements model.State.
func (s *state) Truncate(n int) (kept int) {
	if n = max(0, n); n >= s.n {
		return s.n
	}
	back := n > 0 && len(s.recur) == 0
	for i := range s.tables {
		w := s.p.classes[i].window
		back = back && (w == 0 || s.tables[i].first*kernels.KVTile <= max(0, n-w+1))
	}
	if !back {
		s.reset()
		return 0
	}
	s.shorten(n)
	return n
}

// shorten makes the state n positions long.
func (s *state) shorten(n int) {
	for i := range s.tables {
		s.cut(i, (n+kernels.KVTile-1)/kernels.KVTile)
	}
	s.n = n
	s.forget()
}

// forget invalidates the snapshots of what is no more.
func (s *state) forget() {
	s.marks = slices.DeleteFunc(s.marks, func(m *mark) bool {
		m.gone = m.n > s.n
		return m.gone
	})
}

// mark is what a state knows of a snapshot.
type mark struct {
	n    int
	gone bool // the state was shorter meanwhile
}

// snapshot is what a state could not go back to: recurrences, and the tiles of windows. Keys and values of positions that
// are all kept stay in the state.
type snapshot struct {
	*mark
	s     *state
	first []int // by class with a window: number of the first tile
	tiles []byte
	recur [][]float32
	bytes int64
}

// Len implements model.Snapshot.
func (x *snapshot) Len() int { return x.n }

// Bytes implements model.Snapshot.
func (x *snapshot) Bytes() int64 { return x.bytes }

// Snapshot implements model.State.
func (s *state) Snapshot() model.Snapshot {
	x := &snapshot{mark: &mark{n: s.n}, s: s}
	for i := range s.tables {
		k, t := &s.p.classes[i], &s.tables[i]
		if k.window == 0 {
			x.first = append(x.first, 0)
			continue
		}
		s.drop(i, max(0, s.n-k.window+1)/kernels.KVTile)
		x.first = append(x.first, t.first)
		for _, at := range t.at {
			s.p.eachTile(i, at, func(b []byte) { x.tiles = append(x.tiles, b...) })
		}
	}
	for _, r := range s.recur {
		x.recur = append(x.recur, slices.Clone(r))
		x.bytes += 4 * int64(len(r))
	}
	x.bytes += int64(len(x.tiles))
	s.marks = append(s.marks, x.mark)
	return x
}

// Restore implements model.State.
func (s *state) Restore(snap model.Snapshot) error {
	x, ok := snap.(*snapshot)
	if !ok || x.s != s || x.gone {
		return model.ErrSnapshot
	}
	s.shorten(x.n)
	rest := x.tiles
	for i := range s.tables {
		t := &s.tables[i]
		if s.p.classes[i].window == 0 {
			continue
		}
		s.cut(i, 0)
		t.first = x.first[i]
		if err := s.fill(i, (x.n+kernels.KVTile-1)/kernels.KVTile); err != nil {
			return err
		}
		for _, at := range t.at {
			s.p.eachTile(i, at, func(b []byte) { rest = rest[copy(b, rest):] })
		}
	}
	for i, r := range x.recur {
		copy(s.recur[i], r)
	}
	return nil
}

// fill takes a class's tiles up to end.
func (s *state) fill(class, end int) error {
	k, t := &s.p.classes[class], &s.tables[class]
	for t.first+len(t.at) < end {
		if len(k.free) == 0 || len(t.at) == cap(t.at) {
			return fmt.Errorf("engine: position %d: the sequence has %d tiles of %d positions, and there are no more", (t.first+len(t.at))*kernels.KVTile, len(t.at), kernels.KVTile)
		}
		last := len(k.free) - 1
		t.at, k.free = append(t.at, k.free[last]), k.free[:last]
	}
	return nil
}

// Bytes implements model.State.
func (s *state) Bytes() (n int64) {
	for i := range s.tables {
		n += int64(len(s.tables[i].at)) * s.p.classes[i].bytes
	}
	for _, r := range s.recur {
		n += 4 * int64(len(r))
	}
	return n
}

// head is one head's keys and values in a layer.
func (s *state) head(il, head int) kernels.TiledKV {
	t := &s.p.layers[il]
	table := &s.tables[t.class]
	return kernels.TiledKV{K16: t.k16, V16: t.v16, K32: t.k32, V32: t.v32, K8: t.k8, V8: t.v8,
		Tiles: table.at, First: table.first, Step: t.keyStep, Base: head * kernels.KVTile * t.keyLen}
}

// put stores one position's keys and values, a row of each a head. Its tile must be there.
func (s *state) put(il, pos int, k, v []float32) {
	t := &s.p.layers[il]
	table := &s.tables[t.class]
	tile, row := int(table.at[pos/kernels.KVTile-table.first]), pos%kernels.KVTile
	for head := range t.heads {
		t.set(t.k16, t.k32, t.k8, tile*t.keyStep+(head*kernels.KVTile+row)*t.keyLen, k[head*t.keyLen:(head+1)*t.keyLen])
		if t.valLen > 0 {
			t.set(t.v16, t.v32, t.v8, tile*t.valStep+(head*kernels.KVTile+row)*t.valLen, v[head*t.valLen:(head+1)*t.valLen])
		}
	}
}

// set stores x at element o of the array that there is.
func (t *tiles) set(x16 []uint16, x32 []float32, x8 kernels.Q8, o int, x []float32) {
	switch {
	case x16 != nil:
		kernels.RowToF16(x16[o:o+len(x)], x)
	case x32 != nil:
		copy(x32[o:o+len(x)], x)
	default:
		x8.Set(o, x)
	}
}
