//go:build cuda

package cuda_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/synth"
)

var background = context.Background()

// openDevice takes the device, and fails the test if anything is left on it at the end.
func openDevice(t testing.TB, o cuda.Options) engine.Device {
	t.Helper()
	d, err := cuda.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// emulated says whether the device is the emulated one.
func emulated(d engine.Device) bool { return strings.Contains(d.Name(), "emulated") }

// emulatedOnly skips the test on a real device, which pretends nothing.
func emulatedOnly(t testing.TB) {
	t.Helper()
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !emulated(d) {
		t.Skipf("%s is not the emulated device: it pretends nothing", d.Name())
	}
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

func openFile(t testing.TB, path string) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func writeFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// trainedModel opens one of the trained model's files; all but the built-in one come from SLUICE_MODELS.
func trainedModel(t testing.TB, name string) *engine.Model {
	t.Helper()
	if name == demo.Name {
		return parseModel(t, demo.Name, demo.Model())
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
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
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
