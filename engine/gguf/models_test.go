package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"sluice/kernels"
)

// TestTrainedModels opens the trained models and counts their tensors by type, as their description lists them.
func TestTrainedModels(t *testing.T) {
	dir := os.Getenv("SLUICE_MODELS")
	if dir == "" {
		t.Skip("SLUICE_MODELS (folder with tinymoe-*.gguf) is not set")
	}
	type counts map[kernels.Type]int
	for file, want := range map[string]counts{
		"tinymoe-f16.gguf":    {kernels.F32: 26, kernels.F16: 37},
		"tinymoe-q8_0.gguf":   {kernels.F32: 26, kernels.Q8_0: 37},
		"tinymoe-q4_k_m.gguf": {kernels.F32: 26, kernels.Q4_K: 19, kernels.Q5_K: 5, kernels.Q6_K: 3, kernels.Q8_0: 10},
		"tinymoe-q5_k_m.gguf": {kernels.F32: 26, kernels.Q5_K: 24, kernels.Q6_K: 3, kernels.Q8_0: 10},
		"tinymoe-q4_0.gguf":   {kernels.F32: 26, kernels.Q4_0: 26, kernels.Q6_K: 1, kernels.Q8_0: 10},
	} {
		t.Run(file, func(t *testing.T) {
			f, err := Open(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got := counts{}
			for _, ts := range f.Tensors() {
				got[ts.Type]++
			}
			for typ, n := range want {
				if got[typ] != n {
					t.Errorf("%s: %d tensors, want %d", typ, got[typ], n)
				}
			}
			if len(got) != len(want) {
				t.Errorf("types %v, want %v", got, want)
			}
			if arch, err := f.NeedString("general.architecture"); arch != "qwen3moe" {
				t.Errorf("architecture %q, %v", arch, err)
			}
			if n, err := f.NeedUint("qwen3moe.expert_count"); n != 16 {
				t.Errorf("expert_count %d, %v", n, err)
			}
			if toks, err := f.Strings("tokenizer.ggml.tokens"); len(toks) != 2048 || toks[2045] != "<|endoftext|>" {
				t.Errorf("%d tokens, %v", len(toks), err)
			}
			if e, ok := f.Tensor("blk.0.ffn_gate_exps.weight"); !ok || len(e.Dims) != 3 || e.Dims[2] != 16 || e.Rows() != 256*16 {
				t.Errorf("expert tensor %+v", e)
			}
			if again := rewrite(t, f); !bytes.Equal(again, f.Shards()[0].Data) {
				t.Error("a copy through the Writer differs from the file")
			}
			if err := f.Verify(nil); err != nil {
				t.Error(err)
			}
		})
	}
}
