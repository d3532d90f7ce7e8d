package synth

import (
	"fmt"
	"math"

	"sluice/kernels"
)

// tensor is one tensor of the file to be written.
type tensor struct {
	name   string
	typ    kernels.Type
	dims   []int     // ggml's order: dims[0] is the row length
	spread float64   // standard deviation of the weights; 0: all ones
	mean   float64   // of the weights
	rows   []float32 // added to the weights of each row, F32 only; nil: nothing
	// Where the weights come from. The parts of a merged expert tensor are dealt one by one under its own name and the
	// expert's number, and so are the same experts' single tensors.
	source string
	first  int // number of the first part
	parts  int // how many parts of equal size, at least 1
}

func (t *tensor) elements() int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

func (t *tensor) bytes() int64 {
	return int64(t.typ.RowBytes(t.dims[0])) * int64(t.elements()/t.dims[0])
}

const biasSpread = 0.1

// plan lists the model's tensors in file order. Names and shapes are those that llama.cpp's loader asks of each
// architecture.
func plan(arch string, g Geometry, m mix, perExpert bool) []tensor {
	var list []tensor
	add := func(name string, typ kernels.Type, spread float64, dims ...int) {
		list = append(list, tensor{name: name, typ: typ, dims: dims, spread: spread, source: name, parts: 1})
	}
	matrix := func(name string, typ kernels.Type, dims ...int) {
		add(name, typ, 1/math.Sqrt(float64(dims[0])), dims...)
	}
	ones := func(name string, n int) { add(name, kernels.F32, 0, n) }
	experts := func(layer int, proj string, typ kernels.Type, row, rows int) {
		merged := fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, proj)
		spread := 1 / math.Sqrt(float64(row))
		if !perExpert {
			list = append(list, tensor{name: merged, typ: typ, dims: []int{row, rows, g.Experts}, spread: spread, source: merged, parts: g.Experts})
			return
		}
		for e := range g.Experts {
			name := fmt.Sprintf("blk.%d.ffn_%s.%d.weight", layer, proj, e)
			list = append(list, tensor{name: name, typ: typ, dims: []int{row, rows}, spread: spread, source: merged, first: e, parts: 1})
		}
	}

	q, kv := g.Heads*g.HeadDim, g.KVHeads*g.HeadDim
	add("token_embd.weight", m.base, 1, g.Embd, g.Vocab)
	ones("output_norm.weight", g.Embd)
	matrix("output.weight", m.output, g.Embd, g.Vocab)
	for i := range g.Layers {
		blk := fmt.Sprintf("blk.%d.", i)
		ones(blk+"attn_norm.weight", g.Embd)
		matrix(blk+"attn_q.weight", m.base, g.Embd, q)
		matrix(blk+"attn_k.weight", m.base, g.Embd, kv)
		matrix(blk+"attn_v.weight", m.base, g.Embd, kv)
		matrix(blk+"attn_output.weight", m.base, q, g.Embd)
		switch arch {
		case "qwen3moe": // one norm for every head
			ones(blk+"attn_q_norm.weight", g.HeadDim)
			ones(blk+"attn_k_norm.weight", g.HeadDim)
		case "olmoe": // over the whole row
			ones(blk+"attn_q_norm.weight", q)
			ones(blk+"attn_k_norm.weight", kv)
		case "qwen2moe":
			add(blk+"attn_q.bias", kernels.F32, biasSpread, q)
			add(blk+"attn_k.bias", kernels.F32, biasSpread, kv)
			add(blk+"attn_v.bias", kernels.F32, biasSpread, kv)
		}
		ones(blk+"ffn_norm.weight", g.Embd)
		matrix(blk+"ffn_gate_inp.weight", kernels.F32, g.Embd, g.Experts)
		experts(i, "gate", m.base, g.Embd, g.FF)
		experts(i, "up", m.base, g.Embd, g.FF)
		experts(i, "down", m.down(i), g.FF, g.Embd)
		if arch == "qwen2moe" {
			matrix(blk+"ffn_gate_inp_shexp.weight", kernels.F32, g.Embd)
			matrix(blk+"ffn_gate_shexp.weight", m.base, g.Embd, g.SharedFF)
			matrix(blk+"ffn_up_shexp.weight", m.base, g.Embd, g.SharedFF)
			matrix(blk+"ffn_down_shexp.weight", m.down(i), g.SharedFF, g.Embd)
		}
	}
	return list
}

// checkRows says which tensor's rows do not divide into its type's blocks.
func checkRows(list []tensor) error {
	for i := range list {
		t := &list[i]
		if n := t.typ.BlockLen(); t.dims[0]%n != 0 {
			return fmt.Errorf("synth: tensor %q: row length %d is no multiple of %s's block of %d", t.name, t.dims[0], t.typ, n)
		}
	}
	return nil
}
