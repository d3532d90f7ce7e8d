package ops

import (
	"strings"

	"sluice/engine/model"
	"sluice/kernels"
)

// Code is an op's code in tt-metal's terms. Experts are one SparseMatmul: a product with those of a batch of matrices that
// a mask selects.
func Code(k model.OpKind, decode bool) string {
	switch k {
	case model.OpEmbed:
		return "EmbeddingsDeviceOperation"
	case model.OpAttnNorm, model.OpMoENorm, model.OpOutNorm:
		return "LayerNormDeviceOperation"
	case model.OpQKV, model.OpAttnOut, model.OpRouter, model.OpSharedGateUp, model.OpSharedDown, model.OpOutput:
		return "MatmulDeviceOperation"
	case model.OpRotary:
		return "RotaryEmbeddingLlamaDeviceOperation"
	case model.OpAttend:
		if decode {
			return "ScaledDotProductAttentionDecode"
		}
		return "SDPAOperation"
	case model.OpAttnActs, model.OpHidden, model.OpSharedHidden:
		return "TypecastDeviceOperation"
	case model.OpRoute:
		return "TopKDeviceOperation"
	case model.OpFetch:
		return "CopyDeviceOperation"
	case model.OpGateUp, model.OpDown:
		return "SparseMatmulDeviceOperation"
	}
	return k.String()
}

// isProduct says whether an op multiplies with matrices.
func isProduct(k model.OpKind) bool { return strings.Contains(Code(k, true), "Matmul") }

// label is the layer key that an op stands under, without the block: the tensor whose product the op belongs to, or with
// post the glue behind it.
func label(k model.OpKind) (key string, post bool) {
	switch k {
	case model.OpEmbed:
		return "token_embd", false
	case model.OpAttnNorm, model.OpQKV:
		return "attn_qkv", false
	case model.OpRotary, model.OpAttend:
		return "attn_qkv", true
	case model.OpAttnActs, model.OpAttnOut:
		return "attn_output", false
	case model.OpMoENorm, model.OpRouter:
		return "ffn_gate_inp", false
	case model.OpRoute, model.OpFetch:
		return "ffn_gate_inp", true
	case model.OpGateUp, model.OpHidden, model.OpDown:
		return "ffn_exps", false
	case model.OpSharedGateUp, model.OpSharedHidden, model.OpSharedDown:
		return "ffn_shexp", false
	}
	return "output", false
}

// Fidelity maps the weights' type to one of the three math fidelities that the readers know: HiFi4 for float32, HiFi2 for
// half floats and codes of 8 bits, LoFi for fewer. Several types: the best.
func Fidelity(types []kernels.Type) string {
	best := "LoFi"
	for _, t := range types {
		switch t {
		case kernels.F32, kernels.F64:
			return "HiFi4"
		case kernels.F16, kernels.BF16, kernels.Q8_0, kernels.Q8_1, kernels.Q8_K, kernels.I8:
			best = "HiFi2"
		}
	}
	return best
}

// datatype is a weight type's name: tt-metal's where it has one, else the file's.
func datatype(t kernels.Type) string {
	switch t {
	case kernels.F32:
		return "FLOAT32"
	case kernels.F16:
		return "FLOAT16"
	case kernels.BF16:
		return "BFLOAT16"
	}
	return t.String()
}

// widest is the type with the most bytes per element.
func widest(types []kernels.Type) kernels.Type {
	size := func(t kernels.Type) float64 { return float64(t.BlockBytes()) / float64(max(1, t.BlockLen())) }
	best := types[0]
	for _, t := range types[1:] {
		if size(t) > size(best) {
			best = t
		}
	}
	return best
}

// actType is a form of activations as a datatype.
func actType(k kernels.ActKind) string {
	switch k {
	case kernels.ActQ8_0:
		return "Q8_0"
	case kernels.ActQ8_K:
		return "Q8_K"
	}
	return "FLOAT32"
}
