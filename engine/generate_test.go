package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe/store"
)

// countdown is a context that is cancelled at its n-th look: cancellation at a chosen layer of a chosen
// forward pass, which no clock could hit.
type countdown struct {
	context.Context
	n int
}

func (c *countdown) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

func generateModel(t *testing.T) *model.Model {
	return openFile(t, writeFile(t, "m.gguf", buildSynth(t, synth.Config{Type: "f16", Seed: 12, Geometry: narrow})))
}

// TestStopAtEndToken: an end-of-generation token ends the text, is its last token, and is not shown;
// asked to ignore it, generation goes on.
func TestStopAtEndToken(t *testing.T) {
	data := buildSynth(t, synth.Config{Type: "f16", Seed: 12, Geometry: narrow})
	m := parseModel(t, "m.gguf", data)
	prompt := randomIDs(m, 1, 9)
	free := greedy(t, m, newSession(t, m, engine.Config{}), prompt, 12)
	at := 5
	for slices.Index(free, free[at]) < at { // its first appearance
		at++
	}
	r := setKey("tokenizer.ggml.eos_token_id", uint32(free[at]))
	m = parseModel(t, "m.gguf", r.apply(t, data))
	if !m.Tok.IsEOG(free[at]) {
		t.Fatalf("token %d does not end a text", free[at])
	}
	for _, ignore := range []bool{false, true} {
		s := newSession(t, m, engine.Config{})
		var shown []int32
		g, err := s.Generate(background, prompt, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 12, IgnoreEOS: ignore},
			func(id int32) error { shown = append(shown, id); return nil })
		if err != nil {
			t.Fatal(err)
		}
		want, wantShown, stop := free[:at+1], free[:at], engine.StopEOS
		if ignore {
			want, wantShown, stop = free, free, engine.StopLength
		}
		if !slices.Equal(g.Tokens, want) || !slices.Equal(shown, wantShown) || g.Stop != stop {
			t.Errorf("ignore %v: %v shown %v stop %s, want %v shown %v stop %s", ignore, g.Tokens, shown, g.Stop, want, wantShown, stop)
		}
		if s.Pos() != len(prompt)+len(want)-1 || g.Decode.Tokens != len(want)-1 || g.Prefill.Tokens != len(prompt) {
			t.Errorf("ignore %v: position %d, clocks %+v %+v", ignore, s.Pos(), g.Prefill, g.Decode)
		}
	}
}

// TestGenerateLength: exactly as many tokens as asked for.
func TestGenerateLength(t *testing.T) {
	m := generateModel(t)
	for _, n := range []int{0, 1, 2, 7} {
		s := newSession(t, m, engine.Config{})
		g, err := s.Generate(background, []int32{1, 2, 3}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: n, IgnoreEOS: true}, nil)
		if err != nil || len(g.Tokens) != n || g.Stop != engine.StopLength || g.Decode.Tokens != max(0, n-1) {
			t.Errorf("%d tokens wanted: %+v, %v", n, g, err)
		}
	}
}

// TestContextFull: generation stops by name at the last position; a prompt that does not fit is refused
// and one that just fits still gives its one token.
func TestContextFull(t *testing.T) {
	m := generateModel(t)
	const ctx = 40
	long := greedy(t, m, newSession(t, m, engine.Config{Ctx: 100}), randomIDs(m, 1, 30), 30)
	for _, c := range []struct{ prompt, max, want int }{
		{30, -1, 11}, {30, 30, 11}, {40, -1, 1}, {39, -1, 2}, {30, 11, 11}, {30, 10, 10},
	} {
		s := newSession(t, m, engine.Config{Ctx: ctx, Batch: 7})
		ids := randomIDs(m, 1, c.prompt)
		g, err := s.Generate(background, ids, greedySampler(t, m), engine.GenerateConfig{MaxTokens: c.max, IgnoreEOS: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		stop := engine.StopContext
		if c.max >= 0 && c.max <= ctx-c.prompt+1 {
			stop = engine.StopLength
		}
		if len(g.Tokens) != c.want || g.Stop != stop {
			t.Errorf("prompt of %d, %d wanted: %d tokens, stop %s, want %d, %s", c.prompt, c.max, len(g.Tokens), g.Stop, c.want, stop)
		}
		if c.prompt == 30 && !slices.Equal(g.Tokens, long[:c.want]) {
			t.Errorf("tokens %v, want those of a larger context %v", g.Tokens, long[:c.want])
		}
	}
	s := newSession(t, m, engine.Config{Ctx: ctx})
	_, err := s.Generate(background, randomIDs(m, 1, 41), greedySampler(t, m), engine.GenerateConfig{MaxTokens: 5}, nil)
	if !errors.Is(err, engine.ErrContextFull) || !strings.Contains(err.Error(), "41 tokens at position 0 exceed the context of 40") {
		t.Errorf("a prompt too long: %v", err)
	}
	if s.Pos() != 0 {
		t.Errorf("position %d after a refused prompt", s.Pos())
	}
}

// TestEmitError: an error of the receiver ends the run and comes back as it is.
func TestEmitError(t *testing.T) {
	m := generateModel(t)
	s := newSession(t, m, engine.Config{})
	closed := errors.New("pipe closed")
	g, err := s.Generate(background, []int32{1, 2, 3}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 9, IgnoreEOS: true}, func(int32) error { return closed })
	if err != closed || len(g.Tokens) != 1 {
		t.Errorf("%v, %+v", err, g)
	}
}

// TestCancel: cancelled at any layer of any forward pass of prompt or text, a session stands at a
// verified length, and what follows is what a cold session computes.
func TestCancel(t *testing.T) {
	m := generateModel(t)
	prompt := randomIDs(m, 2, 20)
	const chunk, want = 6, 8 // 4 chunks of the prompt, then single tokens
	cold := greedy(t, m, newSession(t, m, engine.Config{Batch: chunk}), prompt, want)
	passes := (len(prompt)+chunk-1)/chunk + want - 1
	for _, src := range sources {
		for n := range passes * m.NLayer {
			source, _, err := engine.OpenSource(m, src.config(m), m.NExpertUsed)
			if err != nil {
				t.Fatal(err)
			}
			s, err := engine.NewSession(m, engine.Config{Batch: chunk, Source: source})
			if err != nil {
				t.Fatal(err)
			}
			g, err := s.Generate(&countdown{background, n}, prompt, greedySampler(t, m), engine.GenerateConfig{MaxTokens: want, IgnoreEOS: true}, nil)
			if err != nil || g.Stop != engine.StopCancel {
				t.Fatalf("%s, look %d: stop %q, %v", src.name, n, g.Stop, err)
			}
			pass := n / m.NLayer
			pos := min(pass*chunk, len(prompt))
			if pass > 3 {
				pos += pass - 4
			}
			if s.Pos() != pos {
				t.Fatalf("%s, look %d: position %d, want %d", src.name, n, s.Pos(), pos)
			}
			if len(g.Tokens) > 0 && !slices.Equal(g.Tokens, cold[:len(g.Tokens)]) {
				t.Fatalf("%s, look %d: tokens %v, want the first of %v", src.name, n, g.Tokens, cold)
			}
			// The same conversation goes on from what is kept.
			history := append(slices.Clone(prompt), g.Tokens...)
			kept := s.Keep(history)
			if kept != min(pos, len(history)-1) {
				t.Fatalf("%s, look %d: %d tokens kept, want %d", src.name, n, kept, min(pos, len(history)-1))
			}
			rest := greedy(t, m, s, history[kept:], want-len(g.Tokens))
			if got := append(slices.Clone(g.Tokens), rest...); !slices.Equal(got, cold) {
				t.Fatalf("%s, look %d: tokens %v after the cancel, a cold run gives %v", src.name, n, got, cold)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCancelThenOther: after a cancel, another prompt that shares a prefix is computed as if cold: logits equal bit by bit.
func TestCancelThenOther(t *testing.T) {
	m := generateModel(t)
	first := randomIDs(m, 2, 30)
	other := append(slices.Clone(first[:17]), randomIDs(m, 3, 12)...)
	coldLogits, err := newSession(t, m, engine.Config{Batch: 5}).Prefill(background, other)
	if err != nil {
		t.Fatal(err)
	}
	want := appendBits(nil, coldLogits)
	for n := range 6 * m.NLayer {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{IO: "buffered", BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed)}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(t, m, engine.Config{Batch: 5, Source: src})
		if _, err := s.Prefill(&countdown{background, n}, first); !errors.Is(err, context.Canceled) {
			t.Fatalf("look %d: %v, want context.Canceled", n, err)
		}
		kept := s.Keep(other)
		logits, err := s.Prefill(background, other[kept:])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(appendBits(nil, logits), want) {
			t.Errorf("look %d, %d tokens kept: logits differ from a cold run's", n, kept)
		}
	}
}

// TestCancelledBefore: a context that is over before the run computes nothing.
func TestCancelledBefore(t *testing.T) {
	m := generateModel(t)
	ctx, cancel := context.WithCancel(background)
	cancel()
	s := newSession(t, m, engine.Config{})
	g, err := s.Generate(ctx, []int32{1, 2}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 4}, nil)
	if err != nil || g.Stop != engine.StopCancel || len(g.Tokens) != 0 || s.Pos() != 0 {
		t.Errorf("%+v, %v, position %d", g, err, s.Pos())
	}
}

// TestCancelFromEmit: the receiver's own cancel ends the text after the token it was given.
func TestCancelFromEmit(t *testing.T) {
	m := generateModel(t)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	s := newSession(t, m, engine.Config{})
	n := 0
	g, err := s.Generate(ctx, []int32{1, 2}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 20, IgnoreEOS: true}, func(int32) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	})
	if err != nil || g.Stop != engine.StopCancel || len(g.Tokens) != 3 || s.Pos() != 4 {
		t.Errorf("%+v, %v, position %d", g, err, s.Pos())
	}
}
