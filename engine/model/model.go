package model

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"sluice/engine/gguf"
	"sluice/engine/tokenizer"
	"sluice/moe/store"
)

// Model is an opened model: metadata, tokenizer, layers as data, and weights by reference into the file's mapping.
// It is read-only and may serve several engines at once. Close it after the last of them.
type Model struct {
	File *gguf.File
	Hparams
	Tok    *tokenizer.Tokenizer
	Layout *store.Layout // where the routed experts lie

	TokEmbd, Output Matrix // NVocab x NEmbd; without an output matrix of its own Output is TokEmbd
	OutNorm         Vector
	RopeFactor      Vector // of the rotary frequencies, NRot/2
	Layers          []Layer
	Slots           []*Slot // every weight, in the order of the file's layers

	notes []string
	mem   *store.Memory // dense matrices, nil: in the file's mapping
}

// OpenOptions change how a model file is read.
type OpenOptions struct {
	Pre   string // overrides tokenizer.ggml.pre
	Extra []Arch // architectures beside the supported ones
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
	h, a, err := readHparams(f, o.Extra)
	if err != nil {
		return nil, err
	}
	if h.NVocab, err = vocabulary(f); err != nil {
		return nil, err
	}
	if err := checkLayers(f, h); err != nil {
		return nil, err
	}
	m = Declare(a, h)
	m.File = f
	f.Scattered(true) // of the tensors, vectors are read now
	err = m.load()
	f.Scattered(false)
	if err != nil {
		return nil, err
	}
	m.tie()
	if err := m.finish(); err != nil {
		return nil, err
	}
	if m.Tok, err = tokenizer.New(f, tokenizer.Options{Pre: o.Pre}); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if m.Tok.NVocab() > h.NVocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d entries, the embedding only %d rows", f.Name(), m.Tok.NVocab(), h.NVocab)
	}
	return m, nil
}

// Declare is a model of these numbers without weights: layers, and the slots that weights would go to.
func Declare(a *Arch, h *Hparams) *Model {
	m := &Model{Hparams: *h}
	a.Declare(&Decl{H: &m.Hparams, m: m, layer: -1})
	slices.SortStableFunc(m.Slots, func(a, b *Slot) int { return a.Layer - b.Layer })
	for i, s := range m.Slots { // an architecture may have declared what is outside the layers behind them
		s.ID = i
		switch {
		case s.mat != nil:
			s.mat.ID = i
		case s.vec != nil:
			s.vec.ID = i
		default:
			s.exp.ID = i
		}
	}
	return m
}

// Read reads the metadata of a file that has no tensors yet: what gguf synth is about to write.
func Read(f *gguf.File, extra []Arch) (*Hparams, *Arch, error) { return readHparams(f, extra) }

func vocabulary(f *gguf.File) (int, error) {
	const name = "token_embd.weight"
	emb, ok := f.Tensor(name)
	if !ok || len(emb.Dims) != 2 {
		return 0, fmt.Errorf("%s: tensor %q is missing or not a matrix", f.Name(), name)
	}
	if emb.Dims[1] == 0 || emb.Dims[1] > 1<<24 {
		return 0, fmt.Errorf("%s: tensor %q: %d rows, want 1..%d", f.Name(), name, emb.Dims[1], 1<<24)
	}
	return int(emb.Dims[1]), nil
}

// tie lets the embedding serve both ends where there is no output matrix.
func (m *Model) tie() {
	if m.Output.Absent() {
		m.Output = m.TokEmbd
	}
}

// Tied says whether the embedding serves both ends.
func (m *Model) Tied() bool { return m.Output.ID == m.TokEmbd.ID }

// finish checks and settles what follows from the weights.
func (m *Model) finish() error {
	for i, v := range m.RopeFactor.X {
		if !(v > 0) || math.IsInf(float64(v), 1) {
			return fmt.Errorf("%s: tensor %q: element %d is %g, want a positive number", m.File.Name(), "rope_freqs.weight", i, v)
		}
	}
	for i := range m.Ropes {
		m.Ropes[i].FreqFactors = m.RopeFactor.X
		if err := m.Ropes[i].Validate(); err != nil {
			return fmt.Errorf("%s: %w", m.File.Name(), err)
		}
	}
	for i := range m.Layers {
		f := m.Layers[i].Experts()
		if f == nil {
			continue
		}
		f.Router.Rule.Bias = f.Router.BSelect.X
	}
	return nil
}

// Notes are what was decided about the file, a sentence each.
func (m *Model) Notes() []string { return m.notes }

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
// lose them. Routed experts are the expert source's matter. No engine may be open.
func (m *Model) MoveDense() (err error) {
	defer recoverFault(m.File, debug.SetPanicOnFault(true), &err)
	slots := m.matrices()
	extents := make([]store.Extent, len(slots))
	for i, s := range slots {
		extents[i] = m.extent(s)
	}
	mem, err := store.ReadExtents(m.Layout.Files, extents)
	if err != nil {
		return noMemory(err)
	}
	tied := m.Tied()
	for i, s := range slots {
		s.mat.Data = mem.View(i)
	}
	if tied {
		m.Output = m.TokEmbd
	}
	m.mem = mem
	return nil
}

// MemoryNotes say how the copies of MoveDense are held, a sentence each.
func (m *Model) MemoryNotes() []string { return m.mem.Notes() }

// matrices are the slots of the dense matrices that the file has.
func (m *Model) matrices() (slots []*Slot) {
	for _, s := range m.Slots {
		if s.mat != nil && s.Bytes > 0 {
			slots = append(slots, s)
		}
	}
	return slots
}

// extent is where a dense matrix lies in the file.
func (m *Model) extent(s *Slot) store.Extent {
	t, _ := m.File.Tensor(s.Name)
	return store.Extent{File: t.Shard, Off: t.Offset, Len: t.Size}
}

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

// Guard runs f on this goroutine and makes an error of a page of the file's mapping that cannot be read in it.
func (m *Model) Guard(f func() error) (err error) {
	defer recoverFault(m.File, debug.SetPanicOnFault(true), &err)
	return f()
}

// Identity is a hash of the model's tensor table: name, type, dimensions, file, offset and size of each tensor. Files that
// agree in it have the same experts in the same places. The weights are not part of it.
func (m *Model) Identity() [sha256.Size]byte {
	h := sha256.New()
	for _, t := range m.File.Tensors() {
		fmt.Fprintf(h, "%q %d %v %d %d %d\n", t.Name, t.Type, t.Dims, t.Shard, t.Offset, t.Size)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
