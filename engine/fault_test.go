package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/moe/store"
)

// inChild runs the test again as a process of its own, and reports whether this one is it. A fault that is not caught
// ends a process.
func inChild(t *testing.T) bool {
	t.Helper()
	const key = "ENGINE_TEST_CHILD"
	if os.Getenv(key) == t.Name() {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), key+"="+t.Name())
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// TestShortenedWhileMapped cuts the file under sessions that read it through the mapping, in the caller and in team
// workers, and wants errors and a process that lives; with the file whole again they go on as if nothing had been.
func TestShortenedWhileMapped(t *testing.T) {
	if !inChild(t) {
		return
	}
	data := demo.Model()
	path := writeFile(t, demo.Name, data)
	ids := loadReference(t).Validation.IDs
	for _, threads := range []int{1, 3} {
		m := openFile(t, path)
		want := greedy(t, m, newSession(t, m, engine.Config{Threads: threads}), ids[:20], 10)
		s := newSession(t, m, engine.Config{Threads: threads})
		first := greedy(t, m, s, ids[:20], 5)
		for _, size := range []int64{int64(len(data)) / 2, 0} {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			_, err := s.Decode(background, first[4])
			var fault *gguf.FaultError
			if !errors.As(err, &fault) || fault.File != path || fault.Size != size || fault.Mapped != int64(len(data)) || fault.Offset < size {
				t.Errorf("%d threads, file of %d bytes: error %v", threads, size, err)
			}
			want := fmt.Sprintf("the file had %d bytes when it was opened and has %d now", len(data), size)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
			if _, err := s.Prefill(background, ids[:10]); !errors.As(err, &fault) {
				t.Errorf("prompt: %v", err)
			}
			if err := s.PrefillAll(background, ids[:10], nil); !errors.As(err, &fault) {
				t.Errorf("prompt with all logits: %v", err)
			}
			if err := m.MoveDense(); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("moving the dense weights: %v", err)
			}
			if _, err := model.New(m.File, model.OpenOptions{}); size == 0 && !errors.As(err, &fault) {
				t.Errorf("binding the weights again: %v", err)
			}
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if s.Pos() != 24 {
			t.Errorf("%d tokens are in the context, want the 24 from before the fault", s.Pos())
		}
		if got := greedy(t, m, s, first[4:], 5); !slices.Equal(got, want[5:]) {
			t.Errorf("%d threads: after the file is whole: %v, want %v", threads, got, want[5:])
		}
	}
}

// TestShortenedWhileStreaming cuts a file whose experts are read into a cache: the error names file and offset.
func TestShortenedWhileStreaming(t *testing.T) {
	path := demoFile(t)
	ids := loadReference(t).Validation.IDs
	for _, io := range []string{"direct", "buffered"} {
		m := openFile(t, path)
		if err := m.MoveDense(); err != nil {
			t.Fatal(err)
		}
		s := newSession(t, m, engine.Config{Threads: 2, Source: openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: io})})
		greedy(t, m, s, ids[:20], 5)
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
		_, err := s.Prefill(background, ids[20:60])
		if err == nil || !strings.Contains(err.Error(), "read "+path+" at offset ") || !strings.Contains(err.Error(), "unexpected EOF") {
			t.Errorf("%s: error %v", io, err)
		}
		if err := os.WriteFile(path, demo.Model(), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Prefill(background, ids[20:60]); err != nil {
			t.Errorf("%s: after the file is whole: %v", io, err)
		}
	}
}

func openSource(t testing.TB, m *model.Model, c engine.SourceConfig) store.Source {
	t.Helper()
	src, _, err := engine.OpenSource(m, c, m.NExpertUsed)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestReplacedFile renames another model over the file of running sessions: they keep the one that they opened.
func TestReplacedFile(t *testing.T) {
	path := demoFile(t)
	ids := loadReference(t).Validation.IDs
	m := openFile(t, path)
	want := greedy(t, m, newSession(t, m, engine.Config{}), ids[:20], 10)
	budget := store.WorkingSet(m.Layout, m.NExpertUsed)
	mapped := newSession(t, m, engine.Config{})
	cached := newSession(t, m, engine.Config{Source: openSource(t, m, engine.SourceConfig{BudgetBytes: budget})})
	other := path + ".new"
	if err := os.WriteFile(other, make([]byte, len(demo.Model())), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*engine.Session{mapped, cached} {
		if got := greedy(t, m, s, ids[:20], 10); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	// What is opened by its name from now on would be another file.
	if _, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget}, m.NExpertUsed); err == nil || !strings.Contains(err.Error(), "replaced by another file") {
		t.Errorf("a source opened later: %v", err)
	}
	if err := m.MoveDense(); err == nil || !strings.Contains(err.Error(), "replaced by another file") {
		t.Errorf("dense weights moved later: %v", err)
	}
}

// stuckSource holds the experts back until the test lets them go.
type stuckSource struct {
	store.Source
	waits chan struct{} // one token per Next that waits
	free  chan struct{} // closed: Next no longer waits
}

func (s *stuckSource) Ready() bool { return false }

func (s *stuckSource) Next(ctx context.Context) (int, store.Expert, error) {
	s.waits <- struct{}{}
	select {
	case <-s.free:
		return s.Source.Next(ctx)
	case <-ctx.Done():
		return -1, store.Expert{}, ctx.Err()
	}
}

// TestCancelWhileWaiting cancels a pass that waits for an expert: it ends at once, and the session goes on afterwards.
func TestCancelWhileWaiting(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	want := greedy(t, m, newSession(t, m, engine.Config{}), ids[:20], 5)
	src := &stuckSource{Source: openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed)}),
		waits: make(chan struct{}, 1<<16), free: make(chan struct{})}
	s := newSession(t, m, engine.Config{Threads: 2, Source: src})
	ctx, cancel := context.WithCancel(background)
	done := make(chan error)
	go func() {
		_, err := s.Prefill(ctx, ids[:20])
		done <- err
	}()
	<-src.waits
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the pass goes on")
	}
	close(src.free)
	if got := greedy(t, m, s, ids[:20], 5); !slices.Equal(got, want) {
		t.Errorf("after a cancelled pass: %v, want %v", got, want)
	}
}

// TestTwoSessionsOneFile: two models on one file, each with a cache of its own, at the same time.
func TestTwoSessionsOneFile(t *testing.T) {
	path := demoFile(t)
	ids := loadReference(t).Validation.IDs
	var tokens [2][]int32
	done := make(chan error, 2)
	for i := range 2 {
		m := openFile(t, path)
		src := openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed)})
		s := newSession(t, m, engine.Config{Threads: 2, Source: src})
		smp := greedySampler(t, m)
		go func() {
			g, err := s.Generate(background, ids[:40], smp, engine.GenerateConfig{MaxTokens: 20, IgnoreEOS: true}, nil)
			tokens[i] = g.Tokens
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tokens[0], tokens[1]) {
		t.Errorf("%v and %v", tokens[0], tokens[1])
	}
}

// TestNoAddressSpace opens a model with an address space that it does not fit.
func TestNoAddressSpace(t *testing.T) {
	if !inChild(t) {
		return
	}
	path := demoFile(t)
	if err := os.Truncate(path, 1<<40); err != nil { // sparse: only its length counts
		t.Skipf("no sparse files of a TiB here: %v", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 8 << 30, Max: 8 << 30}); err != nil {
		t.Fatal(err)
	}
	_, err := model.Open(path, model.OpenOptions{})
	if err == nil || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "limit of address space: 8192 MiB, ") {
		t.Errorf("error %v", err)
	}
}
