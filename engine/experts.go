package engine

import (
	"fmt"

	"sluice/engine/gguf"
	"sluice/moe/store"
)

// expertIndex collects where each expert's three matrices lie, in the form package moe reads.
type expertIndex struct {
	f      *gguf.File
	layout store.Layout
}

func newExpertIndex(f *gguf.File, nLayer int) *expertIndex {
	ix := &expertIndex{f: f}
	ix.layout.Experts = make([][]store.ExpertExtents, nLayer)
	for _, s := range f.Shards() {
		mf := store.File{Name: f.Name(), Path: s.Path, Map: s.Data}
		if s.Path != "" {
			mf.Name = s.Path
		}
		if s.File != nil { // a nil *os.File in an interface would not be nil
			mf.ReaderAt = s.File
		}
		ix.layout.Files = append(ix.layout.Files, mf)
	}
	return ix
}

// add records one projection ("gate", "up" or "down") of a layer, from the merged tensor
// blk.N.ffn_X_exps.weight of shape [cols, rows, nExpert] or, where the architecture knows the old
// layout, from one tensor per expert.
func (ix *expertIndex) add(s *tensorSet, a *arch, h *Hparams, il int, proj string, rows, cols int) (expertMat, error) {
	merged := fmt.Sprintf("blk.%d.ffn_%s_exps.weight", il, proj)
	single := func(e int) string { return fmt.Sprintf("blk.%d.ffn_%s.%d.weight", il, proj, e) }
	if ix.layout.Experts[il] == nil {
		ix.layout.Experts[il] = make([]store.ExpertExtents, h.NExpert)
	}
	if a.perExpert && !s.has(merged) && s.has(single(0)) {
		return ix.addSingle(s, il, proj, rows, cols, single)
	}
	t, err := s.take(merged, cols, rows, h.NExpert)
	if err != nil {
		return expertMat{}, err
	}
	if cols%t.Type.BlockLen() != 0 {
		return expertMat{}, fmt.Errorf("%s: tensor %q: rows of %d are no multiple of %s's block of %d", s.f.Name(), merged, cols, t.Type, t.Type.BlockLen())
	}
	size := t.Size / int64(h.NExpert)
	for e := range h.NExpert {
		ix.set(il, e, proj, store.Extent{File: t.Shard, Off: t.Offset + int64(e)*size, Len: size})
	}
	return expertMat{typ: t.Type, rows: rows, cols: cols}, nil
}

func (ix *expertIndex) addSingle(s *tensorSet, il int, proj string, rows, cols int, name func(int) string) (expertMat, error) {
	em := expertMat{rows: rows, cols: cols}
	for e := range ix.layout.Experts[il] {
		t, err := s.take(name(e), cols, rows)
		if err != nil {
			return em, err
		}
		if e == 0 {
			em.typ = t.Type
		}
		if t.Type != em.typ {
			return em, fmt.Errorf("%s: tensor %q: type %s, want %s as expert 0 has: mixed types in one layer are not supported", s.f.Name(), t.Name, t.Type, em.typ)
		}
		if cols%t.Type.BlockLen() != 0 {
			return em, fmt.Errorf("%s: tensor %q: rows of %d are no multiple of %s's block of %d", s.f.Name(), t.Name, cols, t.Type, t.Type.BlockLen())
		}
		ix.set(il, e, proj, store.Extent{File: t.Shard, Off: t.Offset, Len: t.Size})
	}
	return em, nil
}

func (ix *expertIndex) set(il, e int, proj string, x store.Extent) {
	ex := &ix.layout.Experts[il][e]
	switch proj {
	case "gate":
		ex.Gate = x
	case "up":
		ex.Up = x
	case "down":
		ex.Down = x
	}
}
