package synth

import (
	"fmt"
	"io"

	"sluice/engine/gguf"
)

// writer returns the file's metadata and tensors, ready to be written once.
func (m *plan) writer() *gguf.Writer {
	w := gguf.NewWriter(3)
	m.addGeneral(w)
	m.addArch(w)
	addVocab(w, m.g.Vocab)
	deal := newDealer(m.seed, m.tensors)
	for i := range m.tensors {
		t := &m.tensors[i]
		dims := make([]uint64, len(t.dims))
		for j, d := range t.dims {
			dims[j] = uint64(d)
		}
		w.AddTensor(t.name, t.typ, dims, func(out io.Writer) error { return deal.write(out, t) })
	}
	return w
}

func (m *plan) addGeneral(w *gguf.Writer) {
	w.Add("general.architecture", m.arch.Name)
	name := fmt.Sprintf("synthetic %s %s seed %d", m.preset, m.mix.name, m.seed)
	if m.skew > 0 {
		name += fmt.Sprintf(" router skew %g", m.skew)
	}
	w.Add("general.name", name)
	w.Add("general.quantization_version", uint32(2))
	w.Add("general.file_type", m.mix.fileType)
	w.Add("general.alignment", uint32(32))
}

// addArch writes the keys that llama.cpp reads for the architecture, with the constants of the published models.
func (m *plan) addArch(w *gguf.Writer) {
	g, arch := m.g, m.arch
	put := func(key string, v any) { w.Add(arch.Name+"."+key, v) }
	size := func(key string, v int) { put(key, uint32(v)) }
	size("block_count", g.Layers)
	size("context_length", g.Context)
	size("embedding_length", g.Embd)
	size("attention.head_count", g.Heads)
	size("attention.head_count_kv", g.KVHeads)
	size("attention.key_length", g.HeadDim)
	size("attention.value_length", g.HeadDim)
	put("attention.layer_norm_rms_epsilon", arch.Eps)
	put("rope.freq_base", arch.RopeBase)
	size("expert_count", g.Experts)
	size("expert_used_count", g.Used)
	arch.Keys(&g, put)
}

func addVocab(w *gguf.Writer, size int) {
	v := newVocab(size)
	end := uint32(size - 1)
	w.Add("tokenizer.ggml.model", "gpt2")
	w.Add("tokenizer.ggml.pre", "qwen2")
	w.Add("tokenizer.ggml.tokens", v.tokens)
	w.Add("tokenizer.ggml.token_type", v.kinds)
	w.Add("tokenizer.ggml.merges", v.merges)
	w.Add("tokenizer.ggml.bos_token_id", end)
	w.Add("tokenizer.ggml.eos_token_id", end)
	w.Add("tokenizer.ggml.padding_token_id", end)
	w.Add("tokenizer.ggml.add_bos_token", false)
}
