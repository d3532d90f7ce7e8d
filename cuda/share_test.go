//go:build cuda

package cuda_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/model"
)

// TestCUDASharedDevice: sessions on one device, each on a goroutine of its own, share its weights and its slots, and get
// the tokens that each gets alone. Another model has to wait until they are closed.
func TestCUDASharedDevice(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "f16")
	for _, slots := range []int64{0, 4} {
		d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
		prompts := [][]int32{randomIDs(m, 1, 20), randomIDs(m, 2, 9), randomIDs(m, 3, 14)}
		var want, got [3][]int32
		open := func(i int) *engine.Session {
			return newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 6 + i, Arm: []model.Arm{"table", "host", "table"}[i]})
		}
		for i, p := range prompts {
			s := open(i)
			want[i] = greedy(t, m, s, p, 12)
		}
		var wg sync.WaitGroup
		for i, p := range prompts {
			s, smp := open(i), greedySampler(t, m)
			wg.Go(func() {
				g, err := s.Generate(background, p, smp, engine.GenerateConfig{MaxTokens: 12, IgnoreEOS: true}, nil)
				if err != nil {
					t.Error(err)
				}
				got[i] = g.Tokens
			})
		}
		wg.Wait()
		for i := range prompts {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%d slots, session %d: %v, alone %v", slots, i, got[i], want[i])
			}
		}
		other := narrowModel(t, "olmoe", "f16")
		if _, err := engine.NewSession(other, engine.Config{Device: d}); err == nil || !strings.Contains(err.Error(), "is in use on this device") {
			t.Errorf("a second model: %v", err)
		}
	}
}

// TestCUDAOtherModel: a device takes the next model once the sessions of the last are closed.
func TestCUDAOtherModel(t *testing.T) {
	d := openDevice(t, cuda.Options{})
	for _, arch := range []string{"qwen3moe", "olmoe", "qwen3moe"} {
		m := narrowModel(t, arch, "q8_0")
		s, err := engine.NewSession(m, engine.Config{Device: d, Ctx: 64})
		if err != nil {
			t.Fatal(err)
		}
		ids := randomIDs(m, 1, 10)
		got := greedy(t, m, s, ids, 4)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if want := greedy(t, m, newSession(t, m, engine.Config{ExactActs: true, Ctx: 64}), ids, 4); !slices.Equal(got, want) {
			t.Logf("%s: %v, the processor %v (quantised: near ties may fall apart)", arch, got, want)
		}
	}
}

// TestCUDAContinues: a conversation that goes back, and one whose context is full, as on the processor.
func TestCUDAContinues(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "f16")
	d := openDevice(t, cuda.Options{})
	s := newSession(t, m, engine.Config{Device: d, Ctx: 40, Batch: 16})
	c := newSession(t, m, engine.Config{Ctx: 40, Batch: 16})
	ids := randomIDs(m, 8, 30)
	for _, part := range [][]int32{ids, append(slices.Clone(ids[:11]), ids[20:]...)} {
		rest := part[s.Keep(part):]
		if n := c.Keep(part); n != len(part)-len(rest) {
			t.Fatalf("kept %d and %d", len(part)-len(rest), n)
		}
		a, b := greedy(t, m, s, rest, 100), greedy(t, m, c, rest, 100)
		if !slices.Equal(a, b) || s.Pos() != 40 {
			t.Errorf("%v, the processor %v, position %d", a, b, s.Pos())
		}
	}
	if _, err := s.Decode(background, -1); err == nil {
		t.Error("token -1: no error")
	}
	s.Reset()
	if _, err := s.Decode(background, int32(m.NVocab)); err == nil || !strings.Contains(err.Error(), "want 0..") {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
	// Sampling copies logits, and draws what the processor's would.
	c.Reset()
	for _, id := range ids[:6] {
		a, err := s.Decode(background, id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Decode(background, id)
		if err != nil {
			t.Fatal(err)
		}
		for i := range a {
			if diff := a[i] - b[i]; diff > 0.05 || diff < -0.05 {
				t.Fatalf("logit %d: %v, the processor %v", i, a[i], b[i])
			}
		}
	}
}
