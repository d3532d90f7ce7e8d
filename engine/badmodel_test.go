package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
)

// openError opens a model in memory and returns the error, which must be there.
func openError(t *testing.T, data []byte) error {
	t.Helper()
	f, err := gguf.Parse("m.gguf", data)
	if err != nil {
		return err
	}
	m, err := model.New(f, model.OpenOptions{})
	if err == nil {
		m.Close()
		t.Error("the model was taken")
		return errors.New("no error")
	}
	f.Close()
	return err
}

// at is the place in the file that errors about metadata give.
var at = regexp.MustCompile(`at 0x[0-9a-f]+: `)

// badModel is an edit of a good model and the whole error that it must give, but for the place in the file.
type badModel struct {
	name string
	r    rewrite
	want string
}

func setKey(key string, v any) rewrite { return rewrite{set: map[string]any{key: v}} }
func noKey(key string) rewrite         { return rewrite{remove: []string{key}} }

// editTensor changes one tensor.
func editTensor(name string, edit func(*tensorSpec)) rewrite {
	return rewrite{tensor: func(s *tensorSpec) bool {
		if s.name == name {
			edit(s)
		}
		return true
	}}
}

func noTensor(name string) rewrite {
	return rewrite{tensor: func(s *tensorSpec) bool { return s.name != name }}
}

// reshape gives a tensor other dimensions, with zeros for data.
func reshape(name string, dims ...uint64) rewrite {
	return editTensor(name, func(s *tensorSpec) {
		rows := uint64(1)
		for _, d := range dims[1:] {
			rows *= d
		}
		s.dims, s.data = dims, make([]byte, uint64(s.typ.RowBytes(int(dims[0])))*rows)
	})
}

// retype gives a tensor another type, with zeros for data.
func retype(name string, typ kernels.Type) rewrite {
	return editTensor(name, func(s *tensorSpec) {
		n := uint64(1)
		for _, d := range s.dims {
			n *= d
		}
		s.typ, s.data = typ, make([]byte, int(n)/typ.BlockLen()*typ.BlockBytes())
	})
}

// addTensor adds a float32 vector of 8 zeros.
func addTensor(names ...string) rewrite {
	var r rewrite
	for _, name := range names {
		r.add = append(r.add, tensorSpec{name, kernels.F32, []uint64{8}, make([]byte, 32)})
	}
	return r
}

// TestBadModels: every model that is not the one its metadata describes is refused when it is opened,
// by an error that names the key or tensor, what it holds and what was wanted.
func TestBadModels(t *testing.T) {
	g := synth.Geometry{Layers: 2, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 4, Used: 2, FF: 256}
	good := map[string][]byte{}
	for _, arch := range synth.Archs() {
		geo := g
		if arch == "olmoe" {
			geo.KVHeads = 0
		}
		good[arch] = buildSynth(t, synth.Config{Arch: arch, Type: "q8_0", Geometry: geo})
	}
	good["per-expert"] = buildSynth(t, synth.Config{Arch: "llama", Type: "q8_0", Geometry: g, PerExpert: true})
	nan := float32(math.NaN())
	for origin, cases := range map[string][]badModel{
		"qwen3moe": {
			{"no architecture", noKey("general.architecture"), `gguf: m.gguf: key "general.architecture" is missing`},
			{"architecture of another type", setKey("general.architecture", uint32(7)), `gguf: m.gguf: key "general.architecture": type u32, want str`},
			{"unknown architecture", setKey("general.architecture", "jamba"), `m.gguf: architecture "jamba" is not supported (have qwen3moe, qwen2moe, olmoe, llama)`},
			{"no block_count", noKey("qwen3moe.block_count"), `gguf: m.gguf: key "qwen3moe.block_count" is missing`},
			{"no layers", setKey("qwen3moe.block_count", uint32(0)), `m.gguf: key "qwen3moe.block_count": got 0, want 1..4096`},
			{"negative layers", setKey("qwen3moe.block_count", int32(-1)), `gguf: m.gguf: key "qwen3moe.block_count": -1, want 0 or more`},
			{"fractional layers", setKey("qwen3moe.block_count", float32(2)), `gguf: m.gguf: key "qwen3moe.block_count": type f32, want an integer`},
			{"too many layers", setKey("qwen3moe.block_count", uint32(513)), `m.gguf: key "qwen3moe.block_count": got 513, but the file has tensors of 2 layers`},
			{"absurd layers", setKey("qwen3moe.block_count", uint64(1)<<63), `m.gguf: key "qwen3moe.block_count": got 9223372036854775808, want 1..4096`},
			{"too few layers", setKey("qwen3moe.block_count", uint32(1)), `m.gguf: key "qwen3moe.block_count": got 1, but the file has tensors of 2 layers`},
			{"metadata only", rewrite{tensor: func(s *tensorSpec) bool { return !strings.HasPrefix(s.name, "blk.") }},
				`m.gguf: model has no layers: no tensor is named blk.*, want those of 2 layers (key "qwen3moe.block_count")`},
			{"predicting layer not in the file", setKey("qwen3moe.nextn_predict_layers", uint32(1)),
				`m.gguf: key "qwen3moe.nextn_predict_layers": got 1, but architecture "qwen3moe" is computed here without it (want 0 or absent)`},
			{"no context_length", noKey("qwen3moe.context_length"), `gguf: m.gguf: key "qwen3moe.context_length" is missing`},
			{"no embedding_length", noKey("qwen3moe.embedding_length"), `gguf: m.gguf: key "qwen3moe.embedding_length" is missing`},
			{"no head_count", noKey("qwen3moe.attention.head_count"), `m.gguf: key "qwen3moe.attention.head_count" is missing`},
			{"no heads", setKey("qwen3moe.attention.head_count", uint32(0)), `m.gguf: key "qwen3moe.attention.head_count": got 0, want 1..4096`},
			{"heads by layer", setKey("qwen3moe.attention.head_count", []uint32{4, 2}),
				`m.gguf: key "qwen3moe.attention.head_count": layer 1 has 2, layer 0 has 4: head counts that differ by layer are not supported`},
			{"heads of other layers", setKey("qwen3moe.attention.head_count", []uint32{4, 4, 4}),
				`gguf: m.gguf: key "qwen3moe.attention.head_count": 3 elements, want 2`},
			{"heads do not divide", setKey("qwen3moe.attention.head_count_kv", uint32(3)), `m.gguf: 4 query heads do not divide over 3 key/value heads`},
			{"more kv heads", setKey("qwen3moe.attention.head_count_kv", uint32(8)), `m.gguf: 4 query heads do not divide over 8 key/value heads`},
			{"other value length", setKey("qwen3moe.attention.value_length", uint32(32)), `m.gguf: key length 64 and value length 32 differ: not supported for qwen3moe`},
			{"huge head", setKey("qwen3moe.attention.key_length", uint32(1024)), `m.gguf: key "qwen3moe.attention.key_length": got 1024, want 1..512`},
			{"wrong head", rewrite{set: map[string]any{"qwen3moe.attention.key_length": uint32(32), "qwen3moe.attention.value_length": uint32(32)}},
				`m.gguf: tensor "blk.0.attn_q.weight": shape [256 256], want [256 128]`},
			{"no eps", noKey("qwen3moe.attention.layer_norm_rms_epsilon"), `gguf: m.gguf: key "qwen3moe.attention.layer_norm_rms_epsilon" is missing`},
			{"negative eps", setKey("qwen3moe.attention.layer_norm_rms_epsilon", float32(-1)), `m.gguf: key "qwen3moe.attention.layer_norm_rms_epsilon": got -1, want 0 or more`},
			{"NaN eps", setKey("qwen3moe.attention.layer_norm_rms_epsilon", nan), `m.gguf: key "qwen3moe.attention.layer_norm_rms_epsilon": got NaN, want a finite float32`},
			{"no expert_count", noKey("qwen3moe.expert_count"), `gguf: m.gguf: key "qwen3moe.expert_count" is missing`},
			{"no experts", setKey("qwen3moe.expert_count", uint32(0)), `m.gguf: key "qwen3moe.expert_count": got 0, want 1..4096`},
			{"no expert_used_count", noKey("qwen3moe.expert_used_count"), `gguf: m.gguf: key "qwen3moe.expert_used_count" is missing`},
			{"none used", setKey("qwen3moe.expert_used_count", uint32(0)), `m.gguf: key "qwen3moe.expert_used_count": got 0, want 1..4096`},
			{"more used than there are", setKey("qwen3moe.expert_used_count", uint32(5)), `m.gguf: key "qwen3moe.expert_used_count": got 5, want 1..4 (expert_count)`},
			{"fewer experts", setKey("qwen3moe.expert_count", uint32(3)), `m.gguf: tensor "blk.0.ffn_gate_inp.weight": shape [256 4], want [256 3]`},
			{"no expert width", rewrite{remove: []string{"qwen3moe.expert_feed_forward_length", "qwen3moe.feed_forward_length"}},
				`m.gguf: expert width unknown: neither "qwen3moe.expert_feed_forward_length" nor "qwen3moe.feed_forward_length" is set`},
			{"scale NaN", setKey("qwen3moe.expert_weights_scale", nan), `m.gguf: key "qwen3moe.expert_weights_scale": got NaN, want a finite float32`},
			{"scale too large", setKey("qwen3moe.expert_weights_scale", 1e300), `m.gguf: key "qwen3moe.expert_weights_scale": got 1e+300, want a finite float32`},
			{"norm of another type", setKey("qwen3moe.expert_weights_norm", uint32(1)), `gguf: m.gguf: key "qwen3moe.expert_weights_norm": type u32, want bool`},
			{"sigmoid gating", setKey("qwen3moe.expert_gating_func", uint32(2)),
				`m.gguf: key "qwen3moe.expert_gating_func": got 2, but architecture "qwen3moe" is computed here without it (want 1 or absent)`},
			{"expert groups", setKey("qwen3moe.expert_group_count", uint32(2)),
				`m.gguf: key "qwen3moe.expert_group_count": got 2, but architecture "qwen3moe" is computed here without it (want 0 or absent)`},
			{"shared expert", setKey("qwen3moe.expert_shared_feed_forward_length", uint32(64)),
				`m.gguf: key "qwen3moe.expert_shared_feed_forward_length": got 64, but architecture "qwen3moe" is computed here without shared experts`},
			{"sliding window", setKey("qwen3moe.attention.sliding_window", uint32(4096)),
				`m.gguf: key "qwen3moe.attention.sliding_window": got 4096, but architecture "qwen3moe" is computed here without it (want 0 or absent)`},
			{"sliding window by layer", setKey("qwen3moe.attention.sliding_window", []uint32{0, 4096}), `gguf: m.gguf: key "qwen3moe.attention.sliding_window": type arr[u32,2], want an integer`},
			{"soft cap", setKey("qwen3moe.final_logit_softcapping", float32(30)),
				`m.gguf: key "qwen3moe.final_logit_softcapping": got 30, but architecture "qwen3moe" is computed here without it (want 0 or absent)`},
			{"not causal", setKey("qwen3moe.attention.causal", false), `m.gguf: key "qwen3moe.attention.causal": got false, but only causal attention is computed here`},
			{"rope type", setKey("qwen3moe.rope.scaling.type", "longrope"), `m.gguf: key "qwen3moe.rope.scaling.type": got "longrope", want none, linear or yarn`},
			{"rope factor", setKey("qwen3moe.rope.scaling.factor", float32(-2)), `m.gguf: key "qwen3moe.rope.scaling.factor": got -2, want above 0`},
			{"rope base", setKey("qwen3moe.rope.freq_base", float32(0)), `m.gguf: key "qwen3moe.rope.freq_base": got 0, want above 0`},
			{"rope base infinite", setKey("qwen3moe.rope.freq_base", float32(math.Inf(1))), `m.gguf: key "qwen3moe.rope.freq_base": got +Inf, want a finite float32`},
			{"rope odd", setKey("qwen3moe.rope.dimension_count", uint32(63)), `m.gguf: key "qwen3moe.rope.dimension_count": got 63, want an even number up to the head's 64`},
			{"rope wider than the head", setKey("qwen3moe.rope.dimension_count", uint32(66)), `m.gguf: key "qwen3moe.rope.dimension_count": got 66, want an even number up to the head's 64`},
			{"yarn magnitude", rewrite{set: map[string]any{"qwen3moe.rope.scaling.type": "yarn", "qwen3moe.rope.scaling.factor": float32(4), "qwen3moe.rope.scaling.yarn_attn_factor": float32(1.5)}},
				`m.gguf: key "qwen3moe.rope.scaling.yarn_attn_factor": got 1.5, want 1 or the 1.1386 of scaling factor 4`},
			{"yarn log multiplier", rewrite{set: map[string]any{"qwen3moe.rope.scaling.type": "yarn", "qwen3moe.rope.scaling.yarn_log_multiplier": float32(0.1)}},
				`m.gguf: key "qwen3moe.rope.scaling.yarn_log_multiplier": got 0.10000000149011612, but architecture "qwen3moe" is computed here without it (want 0 or absent)`},

			{"no embeddings", noTensor("token_embd.weight"), `m.gguf: tensor "token_embd.weight" is missing or not a matrix`},
			{"embeddings a vector", reshape("token_embd.weight", 256), `m.gguf: tensor "token_embd.weight" is missing or not a matrix`},
			{"fewer embeddings than tokens", rewrite{tensor: func(s *tensorSpec) bool {
				if s.name == "token_embd.weight" || s.name == "output.weight" {
					s.data, s.dims[1] = s.data[:len(s.data)/320*319], 319
				}
				return true
			}}, `m.gguf: the tokenizer has 320 entries, the embedding only 319 rows`},
			{"output of another size", reshape("output.weight", 256, 319), `m.gguf: tensor "output.weight": shape [256 319], want [256 320]`},
			{"no output norm", noTensor("output_norm.weight"), `m.gguf: tensor "output_norm.weight" is missing (want shape [256])`},
			{"no q norm", noTensor("blk.1.attn_q_norm.weight"), `m.gguf: tensor "blk.1.attn_q_norm.weight" is missing (want shape [64])`},
			{"no router", noTensor("blk.1.ffn_gate_inp.weight"), `m.gguf: tensor "blk.1.ffn_gate_inp.weight" is missing (want shape [256 4])`},
			{"no up projections", noTensor("blk.1.ffn_up_exps.weight"), `m.gguf: tensor "blk.1.ffn_up_exps.weight" is missing (want shape [256 256 4])`},
			{"experts in tensor-parallel parts", reshape("blk.0.ffn_gate_exps.weight", 256, 1024, 1), `m.gguf: tensor "blk.0.ffn_gate_exps.weight": shape [256 1024 1], want [256 256 4]`},
			{"down projection turned", reshape("blk.0.ffn_down_exps.weight", 512, 128, 4), `m.gguf: tensor "blk.0.ffn_down_exps.weight": shape [512 128 4], want [256 256 4]`},
			{"experts of one missing", reshape("blk.1.ffn_down_exps.weight", 256, 256, 3), `m.gguf: tensor "blk.1.ffn_down_exps.weight": shape [256 256 3], want [256 256 4]`},
			{"unsupported type", retype("blk.0.ffn_up_exps.weight", kernels.IQ2_XXS),
				`m.gguf: tensor "blk.0.ffn_up_exps.weight": type IQ2_XXS has no kernel (have F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4)`},
			{"integer norm", retype("blk.0.attn_norm.weight", kernels.I32),
				`m.gguf: tensor "blk.0.attn_norm.weight": type I32 has no kernel (have F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4)`},
			{"tensors routed by a name without its suffix", addTensor("blk.0.ffn_gate_exps.bias", "blk.0.ffn_gate_inp.bias", "blk.1.attn_sinks"),
				`m.gguf: 3 tensors have no place in architecture "qwen3moe": blk.0.ffn_gate_exps.bias, blk.0.ffn_gate_inp.bias, blk.1.attn_sinks`},
			{"many unknown tensors", addTensor("a", "b", "c", "d", "e", "f", "g", "h"), `m.gguf: 8 tensors have no place in architecture "qwen3moe": a, b, c, d, e, f, ...`},
			{"rope factors", addTensor("rope_freqs.weight"), `m.gguf: 1 tensors have no place in architecture "qwen3moe": rope_freqs.weight`},
			{"old layout where there is none", addTensor("blk.0.ffn_gate.0.weight"), `m.gguf: 1 tensors have no place in architecture "qwen3moe": blk.0.ffn_gate.0.weight`},
		},
		"qwen2moe": {
			{"no output", noTensor("output.weight"), `m.gguf: tensor "output.weight" is missing (want shape [256 320])`},
			{"no shared gate", noTensor("blk.0.ffn_gate_inp_shexp.weight"), `m.gguf: tensor "blk.0.ffn_gate_inp_shexp.weight" is missing (want shape [256])`},
			{"shared expert of another size", setKey("qwen2moe.expert_shared_feed_forward_length", uint32(512)), `m.gguf: tensor "blk.0.ffn_gate_shexp.weight": shape [256 1024], want [256 512]`},
			{"wrong bias", reshape("blk.1.attn_k.bias", 64), `m.gguf: tensor "blk.1.attn_k.bias": shape [64], want [128]`},
			{"q norm", addTensor("blk.0.attn_q_norm.weight"), `m.gguf: 1 tensors have no place in architecture "qwen2moe": blk.0.attn_q_norm.weight`},
		},
		"olmoe": {
			{"q norm of a head", reshape("blk.0.attn_q_norm.weight", 64), `m.gguf: tensor "blk.0.attn_q_norm.weight": shape [64], want [256]`},
			{"clamped", setKey("olmoe.attention.clamp_kqv", float32(8)), `m.gguf: key "olmoe.attention.clamp_kqv": got 8, but architecture "olmoe" is computed here without it (want 0 or absent)`},
		},
		"llama": {
			{"dense", rewrite{remove: []string{"llama.expert_count", "llama.expert_used_count"}}, `gguf: m.gguf: key "llama.expert_count" is missing`},
			{"wrong rope factors", addTensor("rope_freqs.weight"), `m.gguf: tensor "rope_freqs.weight": shape [8], want [32]`},
			{"zero rope factors", rewrite{add: []tensorSpec{{"rope_freqs.weight", kernels.F32, []uint64{32}, make([]byte, 128)}}},
				`m.gguf: tensor "rope_freqs.weight": element 0 is 0, want a positive number`},
			{"both layouts", addTensor("blk.0.ffn_gate.0.weight"), `m.gguf: 1 tensors have no place in architecture "llama": blk.0.ffn_gate.0.weight`},
		},
		"per-expert": {
			{"one expert missing", noTensor("blk.1.ffn_up.2.weight"), `m.gguf: tensor "blk.1.ffn_up.2.weight" is missing (want shape [256 256])`},
			{"first expert missing", noTensor("blk.1.ffn_up.0.weight"), `m.gguf: tensor "blk.1.ffn_up_exps.weight" is missing (want shape [256 256 4])`},
			{"one expert too many", setKey("llama.expert_count", uint32(3)), `m.gguf: tensor "blk.0.ffn_gate_inp.weight": shape [256 4], want [256 3]`},
			{"one expert of another size", reshape("blk.0.ffn_gate.3.weight", 256, 128), `m.gguf: tensor "blk.0.ffn_gate.3.weight": shape [256 128], want [256 256]`},
			{"one expert of another type", retype("blk.0.ffn_down.1.weight", kernels.F16),
				`m.gguf: tensor "blk.0.ffn_down.1.weight": type F16, want Q8_0 as expert 0 has: mixed types in one layer are not supported`},
		},
	} {
		for _, c := range cases {
			t.Run(origin+"/"+c.name, func(t *testing.T) {
				data := c.r.apply(t, good[origin])
				got := at.ReplaceAllString(openError(t, data).Error(), "")
				if got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			})
		}
	}
	for origin, data := range good {
		same := new(rewrite).apply(t, data)
		if !bytes.Equal(same, data) {
			t.Errorf("%s: a file rewritten without a change differs: the cases above may fail for another reason", origin)
		}
		m := parseModel(t, "m.gguf", same)
		if m.WeightScale != 1 {
			t.Errorf("%s: no expert_weights_scale is read as %v, want 1", origin, m.WeightScale)
		}
	}
}

// TestNeutralKeys: keys that say what is computed anyway are taken, whatever their type.
func TestNeutralKeys(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Geometry: narrow})
	for key, v := range map[string]any{
		"attention.sliding_window": uint32(0), "expert_group_count": uint32(0), "nextn_predict_layers": uint32(0),
		"expert_gating_func": uint32(1), "attention.causal": true, "attention.clamp_kqv": float32(0),
		"expert_shared_feed_forward_length": uint32(0), "block_count": uint64(2), "attention.head_count": []int32{4, 4},
		"rope.scaling.factor": float32(0), "rope.scaling.yarn_attn_factor": float32(7), // without yarn it has no meaning
		"attention.layer_norm_rms_epsilon": float32(0),
	} {
		parseModel(t, "m.gguf", keysEdit("qwen3moe", map[string]any{key: v})(t, data))
	}
}

// TestCutFile: a file that ends inside its tensor data is refused when it is opened, wherever the cut.
func TestCutFile(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Geometry: narrow})
	f, err := gguf.Parse("m.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range f.Tensors() {
		for _, cut := range []int64{x.Offset + 1, x.Offset + x.Size/2, x.Offset + x.Size - 1} {
			path := writeFile(t, "cut.gguf", data[:cut])
			_, err := model.Open(path, model.OpenOptions{})
			want := fmt.Sprintf("end %#x past file size %#x", x.Offset+x.Size, cut)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q: ", x.Name)) || !strings.Contains(err.Error(), path) {
				t.Errorf("cut in %s at %#x: %v, want the file, the tensor and %q", x.Name, cut, err, want)
			}
			os.Remove(path)
		}
	}
}
