//go:build cuda

package cuda_test

import (
	"os"
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
)

func loadReference(t testing.TB) *enginetest.Reference {
	return enginetest.LoadReference(t, "../engine/testdata/tinymoe-reference.json")
}

// long says whether the longer tests run.
func long() bool { return os.Getenv("SLUICE_LONG") == "1" }

var trainedFiles = []string{"tinymoe-f16.gguf", demo.Name, "tinymoe-q8_0.gguf", "tinymoe-q5_k_m.gguf", "tinymoe-q4_0.gguf"}

// TestCUDAGreedyEqualsReference: on float16 weights the tokens are the reference's, one for one; on quantised files the
// paths fork at near ties only: the device quantises activations in blocks of 32 everywhere, where the processor takes 256
// for the K types.
func TestCUDAGreedyEqualsReference(t *testing.T) {
	ref := loadReference(t)
	for _, name := range trainedFiles {
		t.Run("file="+name, func(t *testing.T) {
			m := trainedModel(t, name)
			d := openDevice(t, cuda.Options{})
			s := newSession(t, m, engine.Config{Device: d, Ctx: 512, Batch: 64})
			exact := newSession(t, m, engine.Config{Threads: 2, ExactActs: true, Ctx: 512})
			prompts := ref.Files[name].Prompts
			if !long() {
				prompts = prompts[:min(2, len(prompts))]
			}
			for _, p := range prompts {
				n := len(p.Greedy)
				if !long() {
					n = 24
				}
				p.Follow(t, m, s, exact, n, name == "tinymoe-f16.gguf")
			}
		})
	}
}

// TestCUDARoutingEqualsReference compares every selection of one prompt with a float32 evaluation by PyTorch: ids are
// equal where the margin at the k-th place exceeds the rounding, which on float16 weights is that of the key/value cache
// and on quantised ones that of activations to 8 bits.
func TestCUDARoutingEqualsReference(t *testing.T) {
	ref := enginetest.LoadLayers(t, "../engine/testdata/tinymoe-layers.json")
	for _, name := range trainedFiles {
		if !long() && name != "tinymoe-f16.gguf" && name != demo.Name {
			continue
		}
		t.Run("file="+name, func(t *testing.T) {
			margin, bound := 3e-2, 6e-2
			if name == "tinymoe-f16.gguf" {
				margin, bound = 2e-3, 2e-3
			}
			m := trainedModel(t, name)
			dir := t.TempDir()
			w, _ := armTaps(t, m, dir)
			s := newSession(t, m, engine.Config{Device: openDevice(t, cuda.Options{}), Ctx: 512, Batch: 512, SelDump: w})
			if _, err := s.Prefill(background, ref.IDs); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			ref.Files[name].Compare(t, enginetest.ReadDump(t, dir+"/sel.bin"), margin, bound)
		})
	}
}
