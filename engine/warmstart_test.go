package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// TestWarmStart: a loaded cache is deterministic: two runs from one state have the same tokens, drops and reads, and go
// on like the run that was not interrupted, whatever the policy and with experts read ahead.
func TestWarmStart(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	for _, policy := range store.Policies() {
		for _, prefetch := range []moe.Prefetch{moe.PrefetchOff, moe.PrefetchNextLayer} {
			t.Run("policy="+policy+"/prefetch="+string(prefetch), func(t *testing.T) { warmStart(t, m, ids, policy, prefetch) })
		}
	}
}

func warmStart(t *testing.T, m *model.Model, ids []int32, policy string, prefetch moe.Prefetch) {
	path := filepath.Join(t.TempDir(), "state")
	open := func(budget int64) *engine.Session {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget, Policy: policy, IO: "buffered"}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		return newSession(t, m, engine.Config{Source: src, Threads: 2, Drop: moe.Drop{Frac: 0.75, Renorm: true}, Prefetch: prefetch})
	}
	feed := func(s *engine.Session, ids []int32) (logits [][]float32) {
		for _, id := range ids {
			l, err := s.Decode(background, id)
			if err != nil {
				t.Fatal(err)
			}
			logits = append(logits, append([]float32(nil), l...))
		}
		s.Settle()
		return logits
	}
	whole := open(4 << 20)
	feed(whole, ids[:60])
	n, err := whole.SaveCache(path)
	if err != nil || n != whole.SourceStats().Entries {
		t.Fatalf("saved %d, %v of %+v", n, err, whole.SourceStats())
	}
	was, wasDrops := whole.SourceStats(), whole.Drops()
	whole.Reset()
	want := feed(whole, ids[60:120])
	st, d := whole.SourceStats(), whole.Drops()
	read, wanted, dropped := st.BytesRead-was.BytesRead, st.BytesWanted-was.BytesWanted, d.Dropped-wasDrops.Dropped

	for range 2 {
		s := open(4 << 20)
		got, err := s.LoadCache(background, path)
		if err != nil || got.Experts != n || got.Left != 0 || got.Bytes <= 0 {
			t.Fatalf("loaded %+v, %v, saved %d", got, err, n)
		}
		if logits := feed(s, ids[60:120]); !reflect.DeepEqual(logits, want) {
			t.Error("logits differ from the run that went on")
		}
		if st := s.SourceStats(); st.BytesRead != read || st.BytesWanted != wanted || s.Drops().Dropped != dropped || dropped == 0 {
			t.Errorf("%d bytes (%d wanted) and %d drops, the run that went on had %d (%d) and %d", st.BytesRead, st.BytesWanted, s.Drops().Dropped, read, wanted, dropped)
		}
	}
	cold := open(4 << 20)
	feed(cold, ids[60:120])
	if cold.Drops().Dropped == dropped && cold.SourceStats().BytesRead == read {
		t.Error("a cold start has the same drops and reads: the test shows nothing")
	}
	less := open(3 << 20)
	if got, err := less.LoadCache(background, path); err != nil || got.Left == 0 || got.Experts+got.Left != n {
		t.Errorf("into a smaller cache: %+v, %v", got, err)
	}
}

func TestWarmStartRefuses(t *testing.T) {
	m := openFile(t, demoFile(t))
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	s := cachedSession(t, m, 4<<20, engine.Config{})
	if _, err := s.Decode(background, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SaveCache(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, append(data[:len(data)-9:len(data)-9], data[len(data)-8:]...), 0o644); err != nil {
		t.Fatal(err)
	}
	other := synthModel(t, synth.Config{Type: "q8_0", Seed: 1})
	cancelled, cancel := context.WithCancel(background)
	cancel()
	for _, c := range []struct {
		name, path, text string
		m                *model.Model
		ctx              context.Context
		want             error
	}{
		{"another model", path, path, other, background, engine.ErrStateModel},
		{"corrupt", bad, bad, m, background, engine.ErrStateCorrupt},
		{"no file", filepath.Join(dir, "none"), "none", m, background, os.ErrNotExist},
		{"cancelled", path, path, m, cancelled, context.Canceled},
	} {
		s := cachedSession(t, c.m, store.WorkingSet(c.m.Layout, c.m.NExpertUsed), engine.Config{})
		if _, err := s.LoadCache(c.ctx, c.path); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := s.LoadCache(background, path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a cache in use: %v", err)
	}
	plain := newSession(t, m, engine.Config{})
	if _, err := plain.SaveCache(path); err == nil {
		t.Error("saved without a cache")
	}
	if _, err := plain.LoadCache(background, path); err == nil {
		t.Error("loaded without a cache")
	}
}

// TestIdentity: the weights' values are not part of it, their places are.
func TestIdentity(t *testing.T) {
	a, b := synthModel(t, synth.Config{Type: "q8_0", Seed: 1}), synthModel(t, synth.Config{Type: "q8_0", Seed: 2})
	c := synthModel(t, synth.Config{Type: "q4_0", Seed: 1})
	if a.Identity() != b.Identity() || a.Identity() == c.Identity() {
		t.Errorf("identities %x %x %x", a.Identity(), b.Identity(), c.Identity())
	}
}
