package engine_test

import (
	"slices"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
)

// TestWindows: a model whose layers see windows of different reach gives the same logits in chunks of any size, cut and
// computed again, or restored from a snapshot; and the windows hold no more tiles than they reach.
func TestWindows(t *testing.T) {
	m := openFile(t, demoFile(t))
	for i := range m.Layers {
		m.Layers[i].Mixer.(*model.Attention).Window = []int{0, 30, 64, 1, 0}[i%5]
	}
	ids := loadReference(t).Validation.IDs[:260]
	run := func(batch, threads int) (*engine.Session, []float32) {
		s := newSession(t, m, engine.Config{Ctx: 400, Batch: batch, Threads: threads})
		logits, err := s.Prefill(background, ids)
		if err != nil {
			t.Fatal(err)
		}
		return s, slices.Clone(logits)
	}
	_, want := run(1, 1)
	for _, batch := range []int{7, 40, 64, 400} {
		if _, got := run(batch, 2); !slices.Equal(got, want) {
			t.Errorf("chunks of %d: other logits than one by one", batch)
		}
	}
	full := openFile(t, demoFile(t))
	all := newSession(t, full, engine.Config{Ctx: 400})
	logits, err := all.Prefill(background, ids)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(logits, want) {
		t.Error("the windows change nothing: the test shows nothing")
	}

	s, _ := run(40, 2)
	if got, without := s.Seq().Bytes(), all.Seq().Bytes(); got >= without {
		t.Errorf("%d bytes with windows, %d without", got, without)
	}
	fork := append(slices.Clone(ids[:100]), 7, 8, 9)
	if kept := s.Keep(fork); kept != 0 && kept != 100 {
		t.Fatalf("%d tokens kept of 100", kept)
	}
	got, err := s.Prefill(background, fork[s.Pos():])
	if err != nil {
		t.Fatal(err)
	}
	fresh := newSession(t, m, engine.Config{Ctx: 400})
	if want, err = fresh.Prefill(background, fork); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("cut and computed again: other logits than a fresh run")
	}

	snap := s.Seq().Snapshot()
	if _, err := s.Prefill(background, ids[:200]); err != nil {
		t.Fatal(err)
	}
	if err := s.Seq().Restore(snap); err != nil {
		t.Fatal(err)
	}
	if got, err = s.Prefill(background, ids[50:90]); err != nil {
		t.Fatal(err)
	}
	if want, err = fresh.Prefill(background, ids[50:90]); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("restored: other logits than a run that never went on")
	}
}
