package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sluice/engine/gguf"
	"sluice/kernels"
)

// tensorSet finds tensors by full name (suffix included), checks shapes and remembers what was
// used, so that a tensor nobody asked for is an error and not silently ignored: it would mean a
// model that is not the one we compute.
type tensorSet struct {
	f     *gguf.File
	used  map[string]bool
	mats  []*gguf.Tensor    // taken by mat
	moved map[string][]byte // tensors whose bytes are in memory of ours; others are in the file's mapping
}

func (s *tensorSet) data(t *gguf.Tensor) []byte {
	if b, ok := s.moved[t.Name]; ok {
		return b
	}
	return t.Data()
}

func (s *tensorSet) has(name string) bool {
	_, ok := s.f.Tensor(name)
	return ok
}

// take returns the tensor when it has exactly these dimensions (ggml order: row length first).
func (s *tensorSet) take(name string, dims ...int) (*gguf.Tensor, error) {
	t, ok := s.f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q is missing (want shape %v)", s.f.Name(), name, dims)
	}
	if !sameDims(t.Dims, dims) {
		return nil, fmt.Errorf("%s: tensor %q: shape %v, want %v", s.f.Name(), name, t.Dims, dims)
	}
	if !t.Type.Supported() {
		return nil, fmt.Errorf("%s: tensor %q: type %s has no kernel (have %s)", s.f.Name(), name, t.Type, supportedTypes())
	}
	s.used[name] = true
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

// mat takes a rows x cols matrix; its bytes stay where they are.
func (s *tensorSet) mat(name string, rows, cols int) (kernels.Mat, error) {
	t, err := s.take(name, cols, rows)
	if err != nil {
		return kernels.Mat{}, err
	}
	s.mats = append(s.mats, t)
	m, err := kernels.NewMat(t.Type, rows, cols, s.data(t))
	if err != nil {
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: %w", s.f.Name(), name, err)
	}
	return m, nil
}

// vec takes a vector and decodes it to float32 on the Go heap (norm weights and biases are small).
func (s *tensorSet) vec(name string, n int) ([]float32, error) {
	t, err := s.take(name, n)
	if err != nil {
		return nil, err
	}
	if n%t.Type.BlockLen() != 0 {
		return nil, fmt.Errorf("%s: tensor %q: length %d is no multiple of %s's block of %d", s.f.Name(), name, n, t.Type, t.Type.BlockLen())
	}
	v := make([]float32, n)
	kernels.Dequantize(t.Type, v, t.Data())
	return v, nil
}

// optVec is vec for a tensor that may be absent (nil).
func (s *tensorSet) optVec(name string, n int) ([]float32, error) {
	if !s.has(name) {
		return nil, nil
	}
	return s.vec(name, n)
}

// leftover reports tensors in the file that the architecture has no place for.
func (s *tensorSet) leftover(archName string) error {
	var names []string
	for _, t := range s.f.Tensors() {
		if !s.used[t.Name] {
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	n := len(names)
	if n > 6 {
		names = append(names[:6], "...")
	}
	return fmt.Errorf("%s: %d tensors have no place in architecture %q: %s", s.f.Name(), n, archName, strings.Join(names, ", "))
}

// layer holds the dense weights of one transformer block and where its experts lie.
type layer struct {
	attnNorm   []float32 // nEmbd
	wq, wk, wv kernels.Mat
	bq, bk, bv []float32 // nil when absent
	qNorm      []float32 // headDim or nHead*headDim, nil when absent
	kNorm      []float32
	wo         kernels.Mat // nEmbd x nHead*headDim
	bo         []float32
	ffnNorm    []float32 // nEmbd

	router kernels.Mat // nExpert x nEmbd
	gate   expertMat   // nFFExpert x nEmbd each
	up     expertMat
	down   expertMat // nEmbd x nFFExpert each

	sharedGate                     []float32 // nEmbd; nil: no shared expert
	sharedG, sharedUp, sharedDownM kernels.Mat

	denseBytes int64 // weight bytes of everything but the routed experts
}

// expertMat is the shape that all experts' matrices of one projection of a layer have.
type expertMat struct {
	typ        kernels.Type
	rows, cols int
}

// weights are all tensors of a model.
type weights struct {
	tokEmbd    kernels.Mat // nVocab x nEmbd
	outNorm    []float32
	output     kernels.Mat // nVocab x nEmbd
	ropeFactor []float32   // nRot/2 or nil
	layers     []layer
	mats       []*gguf.Tensor // the dense matrices
}

// loader gathers first errors so that the list of tensors reads as a list.
type loader struct {
	*tensorSet
	err   error
	dense int64
}

func (l *loader) m(name string, rows, cols int) (m kernels.Mat) {
	if l.err == nil {
		m, l.err = l.mat(name, rows, cols)
		l.dense += int64(len(m.Data))
	}
	return m
}

func (l *loader) v(name string, n int) (v []float32) {
	if l.err == nil {
		v, l.err = l.vec(name, n)
		l.dense += int64(4 * len(v))
	}
	return v
}

func (l *loader) opt(name string, n int) (v []float32) {
	if l.err == nil {
		v, l.err = l.optVec(name, n)
		l.dense += int64(4 * len(v))
	}
	return v
}

// loadWeights binds every tensor of the file, taking the bytes of matrices from moved where they are there. No weight
// bytes are copied except vectors.
func loadWeights(f *gguf.File, h *Hparams, a *arch, moved map[string][]byte) (*weights, *expertIndex, error) {
	l := &loader{tensorSet: &tensorSet{f: f, used: map[string]bool{}, moved: moved}}
	emb, ok := f.Tensor("token_embd.weight")
	if !ok || len(emb.Dims) != 2 {
		return nil, nil, fmt.Errorf("%s: tensor %q is missing or not a matrix", f.Name(), "token_embd.weight")
	}
	if emb.Dims[1] == 0 || emb.Dims[1] > 1<<24 {
		return nil, nil, fmt.Errorf("%s: tensor %q: %d rows, want 1..%d", f.Name(), "token_embd.weight", emb.Dims[1], 1<<24)
	}
	h.NVocab = int(emb.Dims[1])
	w := &weights{}
	w.tokEmbd = l.m("token_embd.weight", h.NVocab, h.NEmbd)
	w.outNorm = l.v("output_norm.weight", h.NEmbd)
	if a.tiedOutput && !l.has("output.weight") {
		w.output = w.tokEmbd
	} else {
		w.output = l.m("output.weight", h.NVocab, h.NEmbd)
	}
	if a.ropeFreqs {
		w.ropeFactor = l.opt("rope_freqs.weight", h.NRot/2)
		for i, v := range w.ropeFactor {
			if !(v > 0) || math.IsInf(float64(v), 1) {
				return nil, nil, fmt.Errorf("%s: tensor %q: element %d is %g, want a positive number", f.Name(), "rope_freqs.weight", i, v)
			}
		}
	}
	if err := checkLayers(f, h); err != nil {
		return nil, nil, err
	}
	ix := newExpertIndex(f, h.NLayer)
	for i := range h.NLayer {
		ly, err := loadLayer(l, ix, h, a, i)
		if err != nil {
			return nil, nil, err
		}
		w.layers = append(w.layers, ly)
	}
	if err := l.leftover(h.Arch); err != nil {
		return nil, nil, err
	}
	w.mats = l.mats
	return w, ix, nil
}

// checkLayers compares block_count with the layers that have tensors.
func checkLayers(f *gguf.File, h *Hparams) error {
	have := 0
	for _, t := range f.Tensors() {
		if rest, ok := strings.CutPrefix(t.Name, "blk."); ok {
			number, _, _ := strings.Cut(rest, ".")
			if n, err := strconv.Atoi(number); err == nil && n >= have && n < maxLayers {
				have = n + 1
			}
		}
	}
	switch {
	case have == 0:
		return fmt.Errorf("%s: model has no layers: no tensor is named blk.*, want those of %d layers (key %q)", f.Name(), h.NLayer, h.Arch+".block_count")
	case have != h.NLayer:
		return fmt.Errorf("%s: key %q: got %d, but the file has tensors of %d layers", f.Name(), h.Arch+".block_count", h.NLayer, have)
	}
	return nil
}

func loadLayer(l *loader, ix *expertIndex, h *Hparams, a *arch, i int) (layer, error) {
	p := fmt.Sprintf("blk.%d.", i)
	nQ, nKV := h.NHead*h.HeadDim, h.NKVHead*h.HeadDim
	var y layer
	l.dense = 0
	y.attnNorm = l.v(p+"attn_norm.weight", h.NEmbd)
	y.wq = l.m(p+"attn_q.weight", nQ, h.NEmbd)
	y.wk = l.m(p+"attn_k.weight", nKV, h.NEmbd)
	y.wv = l.m(p+"attn_v.weight", nKV, h.NEmbd)
	y.wo = l.m(p+"attn_output.weight", h.NEmbd, nQ)
	y.bq = l.opt(p+"attn_q.bias", nQ)
	y.bk = l.opt(p+"attn_k.bias", nKV)
	y.bv = l.opt(p+"attn_v.bias", nKV)
	y.bo = l.opt(p+"attn_output.bias", h.NEmbd)
	switch a.qkNorm {
	case qkNormHead:
		y.qNorm = l.v(p+"attn_q_norm.weight", h.HeadDim)
		y.kNorm = l.v(p+"attn_k_norm.weight", h.HeadDim)
	case qkNormRow:
		y.qNorm = l.v(p+"attn_q_norm.weight", nQ)
		y.kNorm = l.v(p+"attn_k_norm.weight", nKV)
	}
	y.ffnNorm = l.v(p+"ffn_norm.weight", h.NEmbd)
	y.router = l.m(p+"ffn_gate_inp.weight", h.NExpert, h.NEmbd)
	if a.sharedGate {
		y.sharedGate = l.v(p+"ffn_gate_inp_shexp.weight", h.NEmbd)
		y.sharedG = l.m(p+"ffn_gate_shexp.weight", h.NFFShared, h.NEmbd)
		y.sharedUp = l.m(p+"ffn_up_shexp.weight", h.NFFShared, h.NEmbd)
		y.sharedDownM = l.m(p+"ffn_down_shexp.weight", h.NEmbd, h.NFFShared)
	}
	if l.err != nil {
		return y, l.err
	}
	y.denseBytes = l.dense
	var err error
	if y.gate, err = ix.add(l.tensorSet, a, h, i, "gate", h.NFFExpert, h.NEmbd); err != nil {
		return y, err
	}
	if y.up, err = ix.add(l.tensorSet, a, h, i, "up", h.NFFExpert, h.NEmbd); err != nil {
		return y, err
	}
	y.down, err = ix.add(l.tensorSet, a, h, i, "down", h.NEmbd, h.NFFExpert)
	return y, err
}
