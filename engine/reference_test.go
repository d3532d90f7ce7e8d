package engine_test

import (
	"math"
	"os"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/tokenizer"
)

func loadReference(t testing.TB) *enginetest.Reference {
	return enginetest.LoadReference(t, "testdata/tinymoe-reference.json")
}

var trainedFiles = []string{"tinymoe-f16.gguf", "tinymoe-q8_0.gguf", "tinymoe-q5_k_m.gguf", "tinymoe-q4_k_m.gguf", "tinymoe-q4_0.gguf"}

// TestGreedyEqualsReference: on float16 weights the tokens are llama.cpp's, one for one; on quantised
// files, whose activations every implementation rounds in its own way, the paths fork at near ties only.
func TestGreedyEqualsReference(t *testing.T) {
	ref := loadReference(t)
	for _, name := range trainedFiles {
		t.Run("file="+name, func(t *testing.T) {
			m := trainedModel(t, name)
			s := newSession(t, m, engine.Config{Threads: 2})
			exact := newSession(t, m, engine.Config{Threads: 2, ExactActs: true})
			for _, p := range ref.Files[name].Prompts {
				p.Follow(t, m, s, exact, len(p.Greedy), name == "tinymoe-f16.gguf")
			}
		})
	}
}

func TestPerplexityEqualsReference(t *testing.T) {
	if testing.Short() {
		t.Skip("scores 8176 tokens five times: not in short mode")
	}
	ref := loadReference(t)
	text, err := os.ReadFile("testdata/tinymoe-validation.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range trainedFiles {
		t.Run("file="+name, func(t *testing.T) {
			m := trainedModel(t, name)
			ids := m.Tok.Encode(string(text), tokenizer.EncodeOptions{})
			if !slices.Equal(ids, ref.Validation.IDs) {
				t.Fatal("tokens of the text differ from the reference")
			}
			s := newSession(t, m, engine.Config{Threads: 2})
			p, err := s.MeasurePerplexity(background, ids, 512, engine.EvalPrefill, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, limit := ref.Files[name].Perplexity.LlamaCPP, 0.003
			if name == "tinymoe-f16.gguf" {
				limit = 0.001
			}
			off := p.Value()/want - 1
			t.Logf("perplexity %.5f, llama.cpp %.5f, off by %+.4f %%", p.Value(), want, 100*off)
			if math.Abs(off) > limit || p.Predictions != 8176 {
				t.Errorf("perplexity %.5f over %d predictions, want %.5f within %g %% over 8176", p.Value(), p.Predictions, want, 100*limit)
			}
		})
	}
}

// TestDecodePerplexityEqualsPrefill: a token a step scores the very same bits as whole chunks.
func TestDecodePerplexityEqualsPrefill(t *testing.T) {
	m := demoModel(t)
	ids := loadReference(t).Validation.IDs[:2*96+50]
	var got [2]engine.Perplexity
	for i, mode := range []engine.EvalMode{engine.EvalPrefill, engine.EvalDecode} {
		var err error
		s := newSession(t, m, engine.Config{Threads: 2})
		if got[i], err = s.MeasurePerplexity(background, ids, 96, mode, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got[0] != got[1] || got[0].Predictions != 190 || got[0].Chunks != 2 {
		t.Errorf("prefill %+v, decode %+v: want the same, over 2 chunks and 190 predictions", got[0], got[1])
	}
}

// TestRoutingEqualsReference compares every selection of one prompt with a float32 evaluation by
// PyTorch, with activations kept in float32 here too, so that only rounding order differs.
func TestRoutingEqualsReference(t *testing.T) {
	ref := enginetest.LoadLayers(t, "testdata/tinymoe-layers.json")
	for _, c := range []struct {
		exact          bool
		margin, weight float64
	}{
		{exact: true, margin: 1e-4, weight: 1e-3},
		// Activations in 8 bits move router probabilities by about a percent and, over the layers, some
		// selections; the reference has none of that.
		{exact: false, margin: 3e-2, weight: 6e-2},
	} {
		for _, name := range trainedFiles {
			mode := "q8"
			if c.exact {
				mode = "f32"
			}
			t.Run("acts="+mode+"/file="+name, func(t *testing.T) {
				m := trainedModel(t, name)
				path := t.TempDir() + "/sel.bin"
				w, err := dump.OpenSel(path, dump.SelMeta{})
				if err != nil {
					t.Fatal(err)
				}
				s := newSession(t, m, engine.Config{Threads: 2, ExactActs: c.exact, KV: "f32", SelDump: w})
				want := ref.Files[name]
				var worstLogProb float64
				err = s.PrefillAll(background, ref.IDs, func(i int, logits []float32) error {
					for _, top := range want.LogitsTop5[i] {
						worstLogProb = max(worstLogProb, math.Abs(logProb(logits, top.ID)-top.LogProb))
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				want.Compare(t, readDump(t, path), c.margin, c.weight)
				t.Logf("top-5 log-probabilities off by at most %.5f", worstLogProb)
				if c.exact && worstLogProb > 0.01 {
					t.Errorf("top-5 log-probabilities off by %.5f, want at most 0.01", worstLogProb)
				}
			})
		}
	}
}
