package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice/engine/gguf"
	"sluice/kernels"
	"sluice/moe/store"
)

// loader binds slots to a file's tensors and remembers which it has taken, so that a tensor nobody asked for is an error
// and not silently ignored: it would mean a model that is not the one we compute.
type loader struct {
	f      *gguf.File
	m      *Model
	used   map[string]bool
	layout *store.Layout
}

// load binds every tensor of the file. No weight bytes are copied except vectors.
func (m *Model) load() error {
	l := &loader{f: m.File, m: m, used: map[string]bool{}, layout: newLayout(m.File, m.NLayer)}
	for _, s := range m.Slots {
		if err := l.bind(s); err != nil {
			return err
		}
	}
	m.Layout = l.layout
	return l.leftover()
}

func (l *loader) bind(s *Slot) error {
	_, have := l.f.Tensor(s.Name)
	if !have && s.Optional {
		return nil
	}
	switch {
	case s.exp != nil:
		return l.experts(s)
	case s.vec != nil:
		return l.vector(s)
	}
	return l.matrix(s)
}

// take returns the tensor when it has exactly these dimensions.
func (l *loader) take(name string, dims ...int) (*gguf.Tensor, error) {
	t, ok := l.f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q is missing (want shape %v)", l.f.Name(), name, dims)
	}
	if !sameDims(t.Dims, dims) {
		return nil, fmt.Errorf("%s: tensor %q: shape %v, want %v", l.f.Name(), name, t.Dims, dims)
	}
	if !t.Type.Supported() {
		return nil, fmt.Errorf("%s: tensor %q: type %s has no kernel (have %s)", l.f.Name(), name, t.Type, supportedTypes())
	}
	l.used[name] = true
	return t, nil
}

// sameDims compares shapes; trailing ones do not matter (writers may or may not store them).
func sameDims(got []uint64, want []int) bool {
	for i := range max(len(got), len(want)) {
		g, w := uint64(1), 1
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != uint64(w) {
			return false
		}
	}
	return true
}

func supportedTypes() string {
	var names []string
	for t := kernels.Type(0); t < 64; t++ {
		if t.BlockLen() != 0 && t.Supported() {
			names = append(names, t.String())
		}
	}
	return strings.Join(names, ", ")
}

// matrix binds a dense matrix; its bytes stay where they are.
func (l *loader) matrix(s *Slot) (err error) {
	t, err := l.take(s.Name, s.Dims...)
	if err != nil {
		return err
	}
	if s.mat.Mat, err = kernels.NewMat(t.Type, s.Dims[1], s.Dims[0], t.Data()); err != nil {
		return fmt.Errorf("%s: tensor %q: %w", l.f.Name(), s.Name, err)
	}
	s.Bytes = t.Size
	return nil
}

// vector decodes a vector to float32 on the Go heap (norm weights and biases are small).
func (l *loader) vector(s *Slot) error {
	t, err := l.take(s.Name, s.Dims...)
	if err != nil {
		return err
	}
	row, n := s.Dims[0], 1
	for _, d := range s.Dims {
		n *= d
	}
	if row%t.Type.BlockLen() != 0 {
		return fmt.Errorf("%s: tensor %q: length %d is no multiple of %s's block of %d", l.f.Name(), s.Name, row, t.Type, t.Type.BlockLen())
	}
	s.vec.X = make([]float32, n)
	kernels.Dequantize(t.Type, s.vec.X, t.Data())
	s.Bytes = 4 * int64(n)
	return nil
}

// experts records where the experts' matrices of one projection lie: in one merged tensor or, where files of the
// architecture may be so old, in one tensor per expert.
func (l *loader) experts(s *Slot) error {
	cols, rows, n := s.Dims[0], s.Dims[1], s.Dims[2]
	if l.layout.Experts[s.Layer] == nil {
		l.layout.Experts[s.Layer] = make([]store.ExpertExtents, n)
	}
	_, merged := l.f.Tensor(s.Name)
	if s.Single != nil && !merged {
		if _, single := l.f.Tensor(s.Single(0)); single {
			return l.singleExperts(s, rows, cols)
		}
	}
	t, err := l.take(s.Name, s.Dims...)
	if err != nil {
		return err
	}
	if err := l.wholeBlocks(t, cols); err != nil {
		return err
	}
	size := t.Size / int64(n)
	for e := range n {
		l.place(s, e, store.Extent{File: t.Shard, Off: t.Offset + int64(e)*size, Len: size})
	}
	s.exp.Type, s.Bytes = t.Type, size
	return nil
}

func (l *loader) singleExperts(s *Slot, rows, cols int) error {
	for e := range s.Dims[2] {
		t, err := l.take(s.Single(e), cols, rows)
		if err != nil {
			return err
		}
		if e == 0 {
			s.exp.Type, s.Bytes = t.Type, t.Size
		}
		if t.Type != s.exp.Type {
			return fmt.Errorf("%s: tensor %q: type %s, want %s as expert 0 has: mixed types in one layer are not supported", l.f.Name(), t.Name, t.Type, s.exp.Type)
		}
		if err := l.wholeBlocks(t, cols); err != nil {
			return err
		}
		l.place(s, e, store.Extent{File: t.Shard, Off: t.Offset, Len: t.Size})
	}
	return nil
}

func (l *loader) wholeBlocks(t *gguf.Tensor, cols int) error {
	if cols%t.Type.BlockLen() == 0 {
		return nil
	}
	return fmt.Errorf("%s: tensor %q: rows of %d are no multiple of %s's block of %d", l.f.Name(), t.Name, cols, t.Type, t.Type.BlockLen())
}

func (l *loader) place(s *Slot, e int, x store.Extent) {
	ex := &l.layout.Experts[s.Layer][e]
	switch s.Proj {
	case ProjGate:
		ex.Gate = x
	case ProjUp:
		ex.Up = x
	case ProjDown:
		ex.Down = x
	}
}

// newLayout describes the files; the extents come with the slots.
func newLayout(f *gguf.File, nLayer int) *store.Layout {
	layout := &store.Layout{Experts: make([][]store.ExpertExtents, nLayer)}
	for _, s := range f.Shards() {
		mf := store.File{Name: f.Name(), Path: s.Path, Map: s.Data}
		if s.Path != "" {
			mf.Name = s.Path
		}
		if s.File != nil { // a nil *os.File in an interface would not be nil
			mf.ReaderAt = s.File
		}
		layout.Files = append(layout.Files, mf)
	}
	return layout
}

// leftover refuses tensors that nobody asked for. Those of layers behind the forward path are set aside, and said.
func (l *loader) leftover() error {
	var names []string
	var aside int64
	for _, t := range l.f.Tensors() {
		switch il, ok := blockOf(t.Name); {
		case l.used[t.Name]:
		case ok && il >= l.m.NLayer && il < l.m.NLayer+l.m.NNextN:
			aside += t.Size
		default:
			names = append(names, t.Name)
		}
	}
	if l.m.NNextN > 0 {
		l.m.notes = append(l.m.notes, fmt.Sprintf("%d of %d layers predict further tokens ahead (nextn): not part of the forward path, not loaded (%d MiB)",
			l.m.NNextN, l.m.NLayer+l.m.NNextN, aside>>20))
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	n := len(names)
	if n > 6 {
		names = append(names[:6], "...")
	}
	return fmt.Errorf("%s: %d tensors have no place in architecture %q: %s", l.f.Name(), n, l.m.Arch, strings.Join(names, ", "))
}

// blockOf is the number in a tensor's name "blk.N.".
func blockOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	return n, err == nil && n >= 0
}

// checkLayers compares block_count with the layers that have tensors.
func checkLayers(f *gguf.File, h *Hparams) error {
	have, want := 0, h.NLayer+h.NNextN
	for _, t := range f.Tensors() {
		if n, ok := blockOf(t.Name); ok && n >= have && n < maxLayers {
			have = n + 1
		}
	}
	switch {
	case have == 0:
		return fmt.Errorf("%s: model has no layers: no tensor is named blk.*, want those of %d layers (key %q)", f.Name(), want, h.Arch+".block_count")
	case have != want:
		return fmt.Errorf("%s: key %q: got %d, but the file has tensors of %d layers", f.Name(), h.Arch+".block_count", want, have)
	}
	return nil
}
