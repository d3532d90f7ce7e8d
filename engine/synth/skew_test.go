package synth_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/synth"
)

// quarterShare runs random tokens through a model and returns, by layer, the share of the choices that goes to its busiest
// quarter of experts.
func quarterShare(t *testing.T, c synth.Config) []float64 {
	t.Helper()
	data, err := synth.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse("skewed", data)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(f, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := filepath.Join(t.TempDir(), "sel")
	w, err := dump.OpenSel(path, dump.SelMeta{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := engine.NewSession(m, engine.Config{Threads: 2, SelDump: w})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	ids := make([]int32, 200)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.NVocab))
	}
	if _, err := s.Prefill(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	counts := make([][]int, m.NLayer)
	for i := range counts {
		counts[i] = make([]int, m.NExpert)
	}
	for r := dump.NewSelReader(file); ; {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range rec.Expert {
			counts[rec.Layer][e]++
		}
	}
	var shares []float64
	for _, n := range counts {
		slices.Sort(n)
		busy, all := 0, 0
		for i, v := range n {
			all += v
			if i >= len(n)*3/4 {
				busy += v
			}
		}
		shares = append(shares, float64(busy)/float64(all))
	}
	return shares
}

// TestRouterSkew: the more skew, the more of the choices goes to few experts, in every layer and in every format of the
// embeddings; and nothing but the routers and the embeddings changes.
func TestRouterSkew(t *testing.T) {
	g := synth.Geometry{Layers: 6, Experts: 32, Used: 4}
	for _, typ := range []string{"q8_0", "q4_k_m"} {
		var last []float64
		for _, skew := range []float64{0, 1, 2} {
			c := synth.Config{Type: typ, Seed: 3, Geometry: g, RouterSkew: skew}
			got := quarterShare(t, c)
			for l := range last {
				if got[l] <= last[l] {
					t.Errorf("%s, skew %g: layer %d: %.2f of the choices to the busiest quarter, with less skew %.2f", typ, skew, l, got[l], last[l])
				}
			}
			if skew == 1 && slices.Min(got) < 0.55 || skew == 2 && slices.Min(got) < 0.8 {
				t.Errorf("%s, skew %g: shares %.2f", typ, skew, got)
			}
			last = got
		}
	}
}

func TestRouterSkewBytes(t *testing.T) {
	build := func(c synth.Config) *gguf.File {
		data, err := synth.Build(c)
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse("m", data)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	c := synth.Config{Type: "q8_0", Seed: 3, RouterSkew: 1}
	a, b := build(c), build(c)
	c.RouterSkew = 0
	plain := build(c)
	for i, x := range a.Tensors() {
		if !bytes.Equal(x.Data(), b.Tensors()[i].Data()) {
			t.Errorf("%s: two builds differ", x.Name)
		}
		shifted := x.Name == "token_embd.weight" || filepath.Ext(x.Name) == ".weight" && bytes.Contains([]byte(x.Name), []byte("ffn_gate_inp."))
		if same := bytes.Equal(x.Data(), plain.Tensors()[i].Data()); same == shifted {
			t.Errorf("%s: the same bytes with and without skew: %v", x.Name, same)
		}
	}
	for _, skew := range []float64{-1, 8.5} {
		if _, err := synth.Describe(synth.Config{Type: "q8_0", RouterSkew: skew}); err == nil {
			t.Errorf("skew %g: no error", skew)
		}
	}
}
