package roofline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sluice/engine/gguf"
)

// FromGGUF reads a mixture of experts off a model file: its geometry, and its weights as counted over the tensors.
// It goes by tensor names and shapes, not by architecture, so it takes files that the engine cannot run. kvBytes is the
// size of a key or value element.
//
// The input embedding counts as one row a token; where there is no output.weight the same tensor is the output head too
// and is read whole. Trailing layers that only predict further tokens (nextn_predict_layers) take no part in decode and
// are left out.
func FromGGUF(f *gguf.File, kvBytes float64) (Model, *Weights, error) {
	k := &keys{f: f}
	arch := k.text("general.architecture")
	k.prefix = arch + "."
	m := Model{Name: k.optional("general.name"), KVBytesPerElem: kvBytes}
	m.Layers = k.count("block_count", -1) - k.count("nextn_predict_layers", 0)
	m.Hidden = k.count("embedding_length", -1)
	heads := k.perLayer("attention.head_count", m.Layers)
	kvHeads := k.perLayer("attention.head_count_kv", m.Layers)
	w := &Weights{Experts: k.count("expert_count", -1), Used: k.count("expert_used_count", -1)}
	if k.err != nil {
		return m, nil, k.err
	}
	if heads == nil {
		return m, nil, fmt.Errorf("roofline: %s: key %q is missing", f.Name(), k.prefix+"attention.head_count")
	}
	if kvHeads == nil {
		kvHeads = heads
	}
	m.QHeads, m.KVHeads = heads[0], kvHeads[0]
	if m.QHeads < 1 {
		return m, nil, fmt.Errorf("roofline: %s: key %q: got %d heads, want 1 or more", f.Name(), k.prefix+"attention.head_count", m.QHeads)
	}
	m.HeadDim = k.count("attention.key_length", m.Hidden/m.QHeads)
	vDim := k.count("attention.value_length", m.HeadDim)
	if k.err != nil {
		return m, nil, k.err
	}
	c := &Counted{}
	for _, h := range kvHeads {
		c.KVPerToken += float64(h) * float64(m.HeadDim+vDim)
	}
	ff, err := countTensors(f, m.Layers, w)
	if err != nil {
		return m, nil, err
	}
	if err := w.check(); err != nil {
		return m, nil, fmt.Errorf("%w (%s)", err, f.Name())
	}
	c.ActiveParams, c.TotalParams = w.ActiveParams(), w.TotalParams()
	m.FFNDim, m.Counted = w.Used*ff, c
	m.BytesPerElem = (w.ActiveBytes() - w.TokenBytes) / c.ActiveParams
	if err := m.Check(); err != nil {
		return m, nil, fmt.Errorf("%w (%s)", err, f.Name())
	}
	return m, w, nil
}

// expertTensor matches the routed experts of a layer: merged (shape cols, rows, experts) or one tensor per expert.
var (
	layerTensor  = regexp.MustCompile(`^blk\.([0-9]{1,9})\.(.+)$`)
	expertMerged = regexp.MustCompile(`^ffn_(gate|up|down|gate_up)_exps\.weight$`)
	expertSingle = regexp.MustCompile(`^ffn_(gate|up|down)\.[0-9]+\.weight$`)
)

// countTensors fills w and returns the width of an expert.
func countTensors(f *gguf.File, layers int, w *Weights) (ff int, err error) {
	experts := map[int]*ExpertLayer{}
	_, hasOutput := f.Tensor("output.weight")
	for _, t := range f.Tensors() {
		elems := 1.0
		for _, d := range t.Dims {
			elems *= float64(d)
		}
		isMatrix := len(t.Dims) > 1 && t.Dims[1] > 1
		if t.Name == "token_embd.weight" {
			w.TokenBytes += float64(t.Size) / float64(max(1, t.Rows()))
			if hasOutput {
				continue
			}
		}
		if name := layerTensor.FindStringSubmatch(t.Name); name != nil {
			il, err := strconv.Atoi(name[1])
			if err != nil {
				return 0, fmt.Errorf("roofline: %s: tensor %q: %w", f.Name(), t.Name, err)
			}
			if il >= layers {
				continue
			}
			merged, single := expertMerged.MatchString(name[2]), expertSingle.MatchString(name[2])
			if merged && (len(t.Dims) != 3 || t.Dims[2] != uint64(w.Experts)) {
				return 0, fmt.Errorf("roofline: %s: tensor %q: shape %v, want %d experts in the third place", f.Name(), t.Name, t.Dims, w.Experts)
			}
			if merged || single {
				l := experts[il]
				if l == nil {
					l = &ExpertLayer{Layer: il}
					experts[il] = l
				}
				l.Bytes += float64(t.Size) / float64(w.Experts)
				l.Params += elems / float64(w.Experts)
				if strings.HasPrefix(name[2], "ffn_down") {
					ff = int(t.Dims[0])
				}
				continue
			}
		}
		w.DenseBytes += float64(t.Size)
		if isMatrix {
			w.DenseParams += elems
		}
	}
	for il := range layers {
		if l := experts[il]; l != nil {
			w.Layers = append(w.Layers, *l)
		}
	}
	if len(w.Layers) == 0 {
		return 0, fmt.Errorf("roofline: %s: no tensor of routed experts (blk.N.ffn_*_exps.weight)", f.Name())
	}
	return ff, nil
}

// keys reads metadata with a sticky error.
type keys struct {
	f      *gguf.File
	prefix string
	err    error
}

func (k *keys) text(key string) string {
	s, err := k.f.NeedString(key)
	if k.err == nil {
		k.err = err
	}
	return s
}

func (k *keys) optional(key string) string {
	s, err := k.f.String(key, "")
	if k.err == nil {
		k.err = err
	}
	return s
}

// count reads a whole number; def below 0 makes the key mandatory.
func (k *keys) count(key string, def int) int {
	if k.err != nil {
		return 0
	}
	full := k.prefix + key
	var v uint64
	if def < 0 {
		v, k.err = k.f.NeedUint(full)
	} else {
		v, k.err = k.f.Uint(full, uint64(def))
	}
	if k.err == nil && v > maxSize {
		k.err = fmt.Errorf("roofline: %s: key %q: got %d, want at most %d", k.f.Name(), full, v, maxSize)
	}
	return int(v)
}

// perLayer reads one number a layer; nil when absent.
func (k *keys) perLayer(key string, layers int) []int {
	if k.err != nil {
		return nil
	}
	const maxLayers = 1 << 16
	if layers < 1 || layers > maxLayers {
		k.err = fmt.Errorf("roofline: %s: %d layers, want 1..%d", k.f.Name(), layers, maxLayers)
		return nil
	}
	vs, err := k.f.UintOrArray(k.prefix+key, layers)
	if err != nil {
		k.err = err
		return nil
	}
	var out []int
	for _, v := range vs {
		if v > maxSize {
			k.err = fmt.Errorf("roofline: %s: key %q: got %d, want at most %d", k.f.Name(), k.prefix+key, v, maxSize)
			return nil
		}
		out = append(out, int(v))
	}
	return out
}
