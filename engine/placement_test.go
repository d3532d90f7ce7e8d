package engine_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/engine"
)

// TestPlaceWeights: what is decided, and that the output does not depend on it.
func TestPlaceWeights(t *testing.T) {
	path := demoFile(t)
	ids := loadReference(t).Validation.IDs
	plain := openFile(t, path)
	want := greedy(t, plain, newSession(t, plain, engine.Config{}), ids[:20], 5)
	dense, experts := plain.DenseBytes(), plain.ExpertBytes()
	const mib, gib = int64(1) << 20, int64(1) << 30
	for _, c := range []struct {
		name, mode string
		cache      engine.SourceConfig
		place, why string // why "": an error
		io         string // of the cache's configuration afterwards
	}{
		{"mmap", "mmap", engine.SourceConfig{}, "mmap", "asked for", ""},
		{"warm", "warm", engine.SourceConfig{}, "warm", "asked for", ""},
		{"warm, streamed", "warm", engine.SourceConfig{BudgetBytes: 100 * mib, Available: gib, Reserved: dense}, "warm", "asked for", ""},
		{"anon takes the experts along", "anon", engine.SourceConfig{}, "anon", "asked for", "resident"},
		{"anon leaves them in the mapping", "anon", engine.SourceConfig{IO: "mmap"}, "anon", "asked for", "mmap"},
		{"anon, streamed", "anon", engine.SourceConfig{BudgetBytes: 100 * mib, Available: gib, Reserved: dense}, "anon", "asked for", ""},
		{"auto, small", "auto", engine.SourceConfig{Available: gib, Reserved: dense}, "mmap", "a small model", ""},
		{"auto, streamed", "auto", engine.SourceConfig{BudgetBytes: 100 * mib, Available: 100*mib + dense, Reserved: dense}, "anon", "experts are streamed", ""},
		{"auto, streamed, no room", "auto", engine.SourceConfig{BudgetBytes: 100 * mib, Available: 99 * mib, Reserved: dense}, "mmap", "does not fit 99 MiB", ""},
		{"auto, unknown memory", "auto", engine.SourceConfig{BudgetBytes: 100 * mib}, "mmap", "available memory unknown", ""},
		{"auto, experts mapped", "auto", engine.SourceConfig{IO: "mmap", Available: gib}, "mmap", "the experts are in the mapping", "mmap"},
		{"no such mode", "huge", engine.SourceConfig{}, "", `dense weights "huge": want one of auto, mmap, warm, anon`, ""},
		{"anon without room", "anon", engine.SourceConfig{Available: dense + experts + mib - 1, Reserved: dense + mib}, "", "all weights kept in memory (anon) take ", ""},
		{"anon without room for the dense ones", "anon", engine.SourceConfig{BudgetBytes: 100 * mib, Available: dense - 1, Reserved: dense}, "",
			"dense weights kept in memory (anon) take ", ""},
		{"warm without room", "warm", engine.SourceConfig{IO: "mmap", Available: dense - 1, Reserved: dense}, "", "dense weights kept in memory (warm) take ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := openFile(t, path)
			p, err := engine.PlaceWeights(m, c.mode, &c.cache)
			if c.place == "" {
				if err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("got %v, want %q", err, c.why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Mode != c.place || !strings.Contains(p.Why, c.why) || c.cache.IO != c.io {
				t.Errorf("got %+v, I/O %q", p, c.cache.IO)
			}
			if c.mode == "warm" && (len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "of the mapping read")) {
				t.Errorf("notes %q", p.Notes)
			}
			s := newSession(t, m, engine.Config{Source: openSource(t, m, c.cache)})
			if got := greedy(t, m, s, ids[:20], 5); !slices.Equal(got, want) {
				t.Errorf("tokens %v, want %v", got, want)
			}
		})
	}
}

// TestWarmWithoutLocks: with a low limit of locked memory the mapping is read all the same, and the note says how much
// is locked, and why not more.
func TestWarmWithoutLocks(t *testing.T) {
	if !inChild(t) {
		return
	}
	if unix.Geteuid() == 0 { // the limit is not for root
		if err := unix.Setresuid(65534, 65534, 65534); err != nil {
			t.Skipf("cannot become another user: %v", err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	m := openFile(t, demoFile(t))
	p, err := engine.PlaceWeights(m, "warm", &engine.SourceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.Notes[0], "locked in memory (the limit of locked memory is 1 MiB)") {
		t.Errorf("notes %q", p.Notes)
	}
}
