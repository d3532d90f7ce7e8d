package engine_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/synth"
)

var background = context.Background()

// demoModel opens the built-in model from memory.
func demoModel(t testing.TB) *engine.Model {
	t.Helper()
	return parseModel(t, demo.Name, demo.Model())
}

func parseModel(t testing.TB, name string, data []byte) *engine.Model {
	t.Helper()
	f, err := gguf.Parse(name, data)
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.New(f, engine.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// demoFile writes the built-in model to a file, for what needs one.
func demoFile(t testing.TB) string {
	t.Helper()
	return writeFile(t, demo.Name, demo.Model())
}

func writeFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t testing.TB, path string) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// trainedModel opens one of the trained model's files; all but the built-in one come from SLUICE_MODELS.
func trainedModel(t testing.TB, name string) *engine.Model {
	t.Helper()
	if name == demo.Name {
		return demoModel(t)
	}
	dir := os.Getenv("SLUICE_MODELS")
	if dir == "" {
		t.Skipf("SLUICE_MODELS is not set: no folder with %s", name)
	}
	return openFile(t, filepath.Join(dir, name))
}

func synthModel(t testing.TB, c synth.Config) *engine.Model {
	t.Helper()
	data, err := synth.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return parseModel(t, "synthetic.gguf", data)
}

func newSession(t testing.TB, m *engine.Model, c engine.SessionConfig) *engine.Session {
	t.Helper()
	s, err := m.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func greedySampler(t testing.TB, m *engine.Model) *engine.Sampler {
	t.Helper()
	smp, err := engine.NewSampler(engine.SamplerConfig{TopP: 1, RepeatPenalty: 1}, m.NVocab)
	if err != nil {
		t.Fatal(err)
	}
	return smp
}

// greedy generates n tokens past end-of-generation tokens.
func greedy(t testing.TB, m *engine.Model, s *engine.Session, prompt []int32, n int) []int32 {
	t.Helper()
	g, err := s.Generate(background, prompt, greedySampler(t, m), engine.GenerateConfig{MaxTokens: n, IgnoreEOS: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g.Tokens
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// logProb is the log-probability of one token.
func logProb(logits []float32, id int32) float64 {
	top := math.Inf(-1)
	for _, l := range logits {
		top = max(top, float64(l))
	}
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}

// readDump reads a whole selection dump.
func readDump(t testing.TB, path string) []dump.SelRecord {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []dump.SelRecord
	for r := dump.NewSelReader(f); ; {
		rec, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		rec.Expert, rec.Weight = slices.Clone(rec.Expert), slices.Clone(rec.Weight)
		out = append(out, rec)
	}
}
