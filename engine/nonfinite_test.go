package engine_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// spoil sets one weight of a float16 or float32 tensor.
func spoil(name string, at int, v float32) *rewrite {
	r := editTensor(name, func(s *tensorSpec) {
		w := floats(s)
		w[at] = v
		s.put(w)
	})
	return &r
}

// TestBrokenRouter: a NaN among the router's weights is an error that names layer, position, expert
// and value, on both arms, and neither a crash nor a choice.
func TestBrokenRouter(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 4, Geometry: narrow})
	for _, layer := range []int{0, 1} {
		for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			r := spoil(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", layer), 5*narrow.Embd+3, v)
			m := parseModel(t, "m.gguf", r.apply(t, data))
			for _, arm := range []model.Arm{"host", "table"} {
				s := newSession(t, m, engine.Config{Arm: arm, Batch: 3})
				_, err := s.Prefill(background, []int32{1, 2, 3, 4, 5})
				var bad *moe.LogitError
				if !errors.As(err, &bad) {
					t.Fatalf("layer %d, %v, arm %s: %v, want a LogitError", layer, v, arm, err)
				}
				// An infinite weight makes a logit +Inf or -Inf by the activation's sign; -Inf is a logit like any other.
				if math.IsNaN(float64(v)) && (bad.Position != 0 || !math.IsNaN(float64(bad.Value))) || bad.Layer != layer || bad.Expert != 5 {
					t.Errorf("layer %d, %v, arm %s: %+v", layer, v, arm, bad)
				}
				if s.Pos()%3 != 0 {
					t.Errorf("position %d after the error, want the end of a whole chunk", s.Pos())
				}
			}
		}
	}
}

// brokenRun opens the file, runs tokens through the given source and returns the error, which must be there.
func brokenRun(t *testing.T, path string, sc func(*model.Model) engine.SourceConfig) error {
	t.Helper()
	m := openFile(t, path)
	src, _, err := engine.OpenSource(m, sc(m), m.NExpertUsed)
	if err != nil {
		return err
	}
	s := newSession(t, m, engine.Config{Source: src, Threads: 2})
	_, err = s.Generate(background, randomIDs(m, 6, 40), greedySampler(t, m), engine.GenerateConfig{MaxTokens: 5, IgnoreEOS: true}, nil)
	if err == nil {
		t.Error("no error")
		return errors.New("no error")
	}
	return err
}

// firstUse is the position of the first of ids that goes to an expert of a layer.
func firstUse(t *testing.T, m *model.Model, ids []int32, layer int, expert int32) int {
	t.Helper()
	path := t.TempDir() + "/sel.bin"
	w, err := dump.OpenSel(path, dump.SelMeta{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t, m, engine.Config{SelDump: w})
	if _, err := s.Prefill(background, ids); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i, r := range readDump(t, path)[layer*len(ids) : (layer+1)*len(ids)] {
		if slices.Contains(r.Expert, expert) {
			return i
		}
	}
	t.Fatalf("expert %d of layer %d is never used: the case tests nothing", expert, layer)
	return 0
}

// TestBrokenExpert: a weight that is not finite anywhere in an expert ends the run with an error that
// names the layer and the first token that went there, whatever the source.
func TestBrokenExpert(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 4, Geometry: narrow})
	good := parseModel(t, "m.gguf", data)
	ids := randomIDs(good, 6, 40)
	for _, layer := range []int{0, 1} {
		want := fmt.Sprintf("engine: layer %d: the expert output is not finite (token at position %d)", layer, firstUse(t, good, ids, layer, 3))
		for _, proj := range []string{"gate", "up", "down"} {
			for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
				r := spoil(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, proj), 3*narrow.Embd*narrow.FF+17, v)
				path := writeFile(t, "m.gguf", r.apply(t, data))
				for _, src := range sources {
					if err := brokenRun(t, path, src.config); err.Error() != want {
						t.Errorf("layer %d %s %v from %s: got %v, want %s", layer, proj, v, src.name, err, want)
					}
				}
			}
		}
	}
}

// TestBrokenAttention names the layer and the first token.
func TestBrokenAttention(t *testing.T) {
	data := buildSynth(t, synth.Config{Arch: "qwen2moe", Type: "f16", Seed: 4, Geometry: narrow})
	for _, name := range []string{"attn_norm.weight", "attn_q.weight", "attn_k.bias", "attn_v.weight", "attn_output.weight", "ffn_down_shexp.weight"} {
		m := parseModel(t, "m.gguf", spoil("blk.1."+name, 5, float32(math.NaN())).apply(t, data))
		where := "attention"
		if name == "ffn_down_shexp.weight" {
			where = "expert"
		}
		_, err := newSession(t, m, engine.Config{}).Prefill(background, []int32{1, 2, 7, 3})
		if want := "engine: layer 1: the " + where + " output is not finite (token at position 0)"; err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

// TestBrokenEmbedding names the token's position.
func TestBrokenEmbedding(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 4, Geometry: narrow})
	r := spoil("token_embd.weight", 7*narrow.Embd, float32(math.NaN()))
	m := parseModel(t, "m.gguf", r.apply(t, data))
	_, err := newSession(t, m, engine.Config{}).Prefill(background, []int32{1, 2, 7, 3})
	if want := "engine: layer 0: the token's embedding is not finite (token at position 2)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestStreamedExpertCorrupted: bytes that go bad on the disk after the model was opened are seen.
func TestStreamedExpertCorrupted(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 4, Geometry: narrow})
	for _, io := range []string{"direct", "buffered"} {
		path := writeFile(t, "m.gguf", data)
		m := openFile(t, path)
		x := m.Layout.Experts[1][2].Down
		src, _, err := engine.OpenSource(m, engine.SourceConfig{IO: io, BudgetBytes: store.WorkingSet(m.Layout, 2)}, 2)
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(t, m, engine.Config{Source: src})
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint16(nil, 0x7e00), x.Off+4); err != nil { // a float16 NaN
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = s.Generate(background, randomIDs(m, 6, 40), greedySampler(t, m), engine.GenerateConfig{MaxTokens: 5, IgnoreEOS: true}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "engine: layer 1: the expert output is not finite") {
			t.Errorf("%s: %v, want an error that says what is not finite", io, err)
		}
	}
}

// TestShortenedFile: a file that loses its end while experts are streamed from it is an error that names
// the file, and the session can be closed.
func TestShortenedFile(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 4, Geometry: narrow})
	f, err := gguf.Parse("m.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Tensors()[len(f.Tensors())-1]
	if last.Name != "blk.1.ffn_down_exps.weight" {
		t.Fatalf("the last tensor is %s: the cut would reach weights that are mapped", last.Name)
	}
	for _, io := range []string{"direct", "buffered"} {
		for _, left := range []int64{0, 4096} { // experts' bytes left
			path := writeFile(t, "m.gguf", data)
			m := openFile(t, path)
			src, _, err := engine.OpenSource(m, engine.SourceConfig{IO: io, BudgetBytes: store.WorkingSet(m.Layout, 2)}, 2)
			if err != nil {
				t.Fatal(err)
			}
			s := newSession(t, m, engine.Config{Source: src})
			if err := os.Truncate(path, last.Offset+left); err != nil {
				t.Fatal(err)
			}
			_, err = s.Prefill(background, randomIDs(m, 6, 40))
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "engine: layer 1: expert ") {
				t.Errorf("%s, %d bytes left: %v, want an error that names layer, expert and file", io, left, err)
			} else {
				t.Log(err)
			}
			if s.Pos() != 0 {
				t.Errorf("position %d, want 0", s.Pos())
			}
		}
	}
}
