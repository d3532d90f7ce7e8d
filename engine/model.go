package engine

import (
	"errors"
	"fmt"
	"runtime/debug"

	"sluice/engine/gguf"
	"sluice/engine/tokenizer"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// Model is an opened model: metadata, tokenizer and weights by reference into the file's mapping.
// It is read-only and may serve several sessions at once. Close it after the last of them.
type Model struct {
	File *gguf.File
	Hparams
	Tok    *tokenizer.Tokenizer
	Layout *store.Layout // where the routed experts lie

	arch *arch
	w    *weights
	mem  *store.Memory // dense matrices, nil: in the file's mapping
}

// OpenOptions change how a model file is read.
type OpenOptions struct {
	Pre string // overrides tokenizer.ggml.pre
}

// Open maps the GGUF file (any shard of a split set) and binds its tensors. Errors name the file
// and the key or tensor, what it holds and what was wanted.
func Open(path string, o OpenOptions) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, noMemory(err)
	}
	m, err := New(f, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

// New binds a parsed file. The model owns f afterwards: Close closes it.
func New(f *gguf.File, o OpenOptions) (m *Model, err error) {
	defer recoverFault(f, debug.SetPanicOnFault(true), &err)
	h, a, err := readHparams(f)
	if err != nil {
		return nil, err
	}
	f.Scattered(true) // of the tensors, vectors are read now
	w, ix, err := loadWeights(f, h, a, nil)
	f.Scattered(false)
	if err != nil {
		return nil, err
	}
	h.Rope.FreqFactors = w.ropeFactor
	if err := h.Rope.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	tok, err := tokenizer.New(f, tokenizer.Options{Pre: o.Pre})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if tok.NVocab() > h.NVocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d entries, the embedding only %d rows", f.Name(), tok.NVocab(), h.NVocab)
	}
	return &Model{File: f, Hparams: *h, Tok: tok, Layout: &ix.layout, arch: a, w: w}, nil
}

// recoverFault is for a deferred call in whatever reads a file's mapping: it makes an error of a page that
// cannot be read, and lets other panics pass. old is the goroutine's setting before.
func recoverFault(f *gguf.File, old bool, err *error) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		e := f.Fault(r)
		if e == nil {
			panic(r)
		}
		*err = e
	}
}

// Close unmaps the file. Sessions of the model must be closed before.
func (m *Model) Close() error {
	err := m.File.Close()
	if m.mem != nil {
		err = errors.Join(err, m.mem.Close())
	}
	return err
}

// MoveDense copies the dense matrices into memory of our own, in large pages where the system gives
// them: decode then is not slowed by the page walks of a file mapping, and the page cache cannot
// lose them. Routed experts are the expert source's matter. No session may be open.
func (m *Model) MoveDense() (err error) {
	defer recoverFault(m.File, debug.SetPanicOnFault(true), &err)
	extents := make([]store.Extent, len(m.w.mats))
	for i, t := range m.w.mats {
		extents[i] = store.Extent{File: t.Shard, Off: t.Offset, Len: t.Size}
	}
	mem, err := store.ReadExtents(m.Layout.Files, extents)
	if err != nil {
		return noMemory(err)
	}
	moved := map[string][]byte{}
	for i, t := range m.w.mats {
		moved[t.Name] = mem.View(i)
	}
	m.File.Scattered(true)
	w, _, err := loadWeights(m.File, &m.Hparams, m.arch, moved)
	m.File.Scattered(false)
	if err != nil {
		return errors.Join(err, mem.Close())
	}
	m.w, m.mem = w, mem
	return nil
}

// router is the routing rule of every MoE layer, with k experts a token.
func (m *Model) router(k int) *moe.Router {
	return &moe.Router{NExpert: m.NExpert, NUsed: k, Gating: m.arch.gating, Norm: m.NormWeight, Scale: m.WeightScale}
}

// DenseBytes is the number of weight bytes outside the routed experts.
func (m *Model) DenseBytes() int64 {
	n := int64(len(m.w.tokEmbd.Data)) + int64(4*len(m.w.outNorm))
	if !sameMemory(m.w.output, m.w.tokEmbd) {
		n += int64(len(m.w.output.Data))
	}
	for i := range m.w.layers {
		n += m.w.layers[i].denseBytes
	}
	return n
}

// LayerDenseBytes is DenseBytes of one layer.
func (m *Model) LayerDenseBytes(il int) int64 { return m.w.layers[il].denseBytes }

// ExpertBytes is the number of weight bytes in all routed experts.
func (m *Model) ExpertBytes() int64 {
	var n int64
	for il := range m.Layout.Experts {
		n += m.Layout.ExpertBytes(il) * int64(len(m.Layout.Experts[il]))
	}
	return n
}

// SlotBytes is what one expert takes of an expert cache's budget, by layer; 0: a layer without experts.
func (m *Model) SlotBytes() []int64 {
	slots := make([]int64, len(m.Layout.Experts))
	for il := range slots {
		one := store.Layout{Files: m.Layout.Files, Experts: m.Layout.Experts[il : il+1]}
		slots[il] = store.WorkingSet(&one, 1)
	}
	return slots
}

func sameMemory(a, b kernels.Mat) bool {
	return len(a.Data) > 0 && len(b.Data) > 0 && &a.Data[0] == &b.Data[0]
}
