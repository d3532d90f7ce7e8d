package engine_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// exactCase is one configuration that may not change a bit of greedy output.
type exactCase struct {
	threads int
	arm     model.Arm
	cache   string // none, minimal, half, all
	policy  string
	lanes   int
	io      string // direct or buffered with a cache, mmap or resident without
	chunk   int
	ahead   moe.Prefetch
	drop0   bool // a drop threshold of 0 given
	disarm  bool // no taps: then there is no dump to compare
}

var exactBase = exactCase{threads: 1, arm: "host", cache: "none", io: "mmap", chunk: 512}

func (c exactCase) String() string {
	type plain exactCase // without this method
	return fmt.Sprintf("%+v", plain(c))
}

// exactResult is everything that must be equal.
type exactResult struct {
	tokens []int32
	logits []byte // of the last step of each turn
	dump   []byte
}

// runExact runs two turns: a prompt and 10 tokens, then a second prompt on the warm cache and 10 more.
func runExact(t *testing.T, m *model.Model, ids []int32, c exactCase) exactResult {
	t.Helper()
	k := m.NExpertUsed
	sc := engine.SourceConfig{IO: c.io}
	if c.cache != "none" {
		minimal := store.WorkingSet(m.Layout, k)
		all := minimal / int64(k) * int64(m.NExpert)
		sc.BudgetBytes = map[string]int64{"minimal": minimal, "half": all / 2, "all": all}[c.cache]
		sc.Policy, sc.Lanes = c.policy, c.lanes
	}
	src, plan, err := engine.OpenSource(m, sc, k)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range plan.Notes {
		t.Log(n)
	}
	cfg := engine.Config{Threads: c.threads, Arm: c.arm, Batch: c.chunk, Source: src, Prefetch: c.ahead}
	if c.drop0 {
		cfg.Drop = moe.Drop{Frac: 0, Renorm: true}
	}
	path := t.TempDir() + "/sel.bin"
	var w *dump.SelWriter
	if !c.disarm {
		if w, err = dump.OpenSel(path, dump.SelMeta{}); err != nil {
			t.Fatal(err)
		}
		cfg.SelDump = w
	}
	s, err := engine.NewSession(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var r exactResult
	r.tokens, r.logits = enginetest.TwoTurns(t, m, s, ids, 40, 10)
	st := s.SourceStats()
	if st.Demanded != st.Hits+st.Misses {
		t.Errorf("%v: %d demanded, %d hits and %d misses", c, st.Demanded, st.Hits, st.Misses)
	}
	if c.ahead == moe.PrefetchNextLayer && (c.cache == "minimal" || c.cache == "half") && (st.PrefetchUsed == 0 || st.PrefetchWasted == 0) {
		t.Errorf("%v: %d prefetched, %d used, %d wasted: the case tests nothing", c, st.Prefetched, st.PrefetchUsed, st.PrefetchWasted)
	}
	if c.cache == "minimal" && st.Evictions == 0 {
		t.Errorf("%v: the smallest cache evicted nothing: the case tests nothing", c)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !c.disarm {
		if r.dump, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// sortedRecords puts the records of a dump (n_sel the same everywhere) in one order, for runs whose
// prompt chunks differ.
func sortedRecords(dump []byte, k int) []byte {
	size := 2 + 6*k
	recs := slices.Collect(slices.Chunk(dump, size))
	slices.SortFunc(recs, func(a, b []byte) int { return cmp.Or(bytes.Compare(a, b)) })
	return bytes.Join(recs, nil)
}

// TestExact: with dropping off, greedy output, logits and selection dump are the same bytes whatever
// the configuration, one axis at a time and in seeded combinations.
func TestExact(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	base := runExact(t, m, ids, exactBase)
	if n := m.NLayer * (2*40 + 1 + 2*10); len(base.dump) != n*(2+6*m.NExpertUsed) {
		t.Fatalf("dump of %d bytes, want %d records", len(base.dump), n)
	}
	check := func(c exactCase) {
		t.Helper()
		got := runExact(t, m, ids, c)
		if !slices.Equal(got.tokens, base.tokens) {
			t.Errorf("%v: tokens %v, want %v", c, got.tokens, base.tokens)
		}
		if !bytes.Equal(got.logits, base.logits) {
			t.Errorf("%v: logits differ", c)
		}
		switch {
		case c.disarm:
		case c.chunk >= 41:
			if !bytes.Equal(got.dump, base.dump) {
				t.Errorf("%v: dump differs", c)
			}
		case !bytes.Equal(sortedRecords(got.dump, m.NExpertUsed), sortedRecords(base.dump, m.NExpertUsed)):
			t.Errorf("%v: sorted dump differs", c)
		}
	}
	with := func(edit func(*exactCase)) exactCase {
		c := exactBase
		edit(&c)
		return c
	}
	cached := func(cache, policy, io string, lanes int) exactCase {
		return with(func(c *exactCase) { c.cache, c.policy, c.io, c.lanes = cache, policy, io, lanes })
	}
	ahead := func(c exactCase, mode moe.Prefetch) exactCase {
		c.ahead = mode
		return c
	}
	for _, c := range []exactCase{
		exactBase, // a second run of the same
		with(func(c *exactCase) { c.threads = 2 }),
		with(func(c *exactCase) { c.threads = 3 }),
		with(func(c *exactCase) { c.arm = "table" }),
		with(func(c *exactCase) { c.chunk = 1 }),
		with(func(c *exactCase) { c.chunk = 7 }),
		with(func(c *exactCase) { c.io = "resident" }),
		with(func(c *exactCase) { c.drop0 = true }),
		with(func(c *exactCase) { c.disarm = true }),
		cached("minimal", "lru", "direct", 4),
		cached("minimal", "lru", "direct", 1),
		cached("minimal", "lru", "buffered", 4),
		cached("minimal", "slru", "direct", 4),
		cached("half", "lru", "direct", 4),
		cached("half", "slru", "buffered", 1),
		cached("all", "lru", "direct", 4),
		ahead(cached("minimal", "lru", "direct", 4), moe.PrefetchNextLayer),
		ahead(cached("half", "slru", "buffered", 1), moe.PrefetchNextLayer),
		ahead(cached("minimal", "slru", "direct", 4), moe.PrefetchLastToken),
		ahead(cached("half", "lru", "direct", 4), moe.PrefetchLastToken),
	} {
		check(c)
	}
	moved := openFile(t, demoFile(t))
	if err := moved.MoveDense(); err != nil {
		t.Fatal(err)
	}
	if got := runExact(t, moved, ids, exactBase); !slices.Equal(got.tokens, base.tokens) || !bytes.Equal(got.logits, base.logits) {
		t.Error("dense weights in memory of our own: output differs")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	for range 40 {
		c := exactCase{threads: 1 + rng.IntN(3), arm: model.Arm(pick("host", "table")), cache: pick("none", "minimal", "half", "all"),
			chunk: []int{1, 7, 512}[rng.IntN(3)], drop0: rng.IntN(2) == 0, disarm: rng.IntN(4) == 0}
		if c.cache == "none" {
			c.io = pick("mmap", "resident")
		} else {
			c.policy, c.io, c.lanes = pick(store.Policies()...), pick("direct", "buffered"), []int{1, 4}[rng.IntN(2)]
			c.ahead = moe.Prefetch(pick(moe.PrefetchNames()...))
		}
		check(c)
	}
}

// TestWarmEqualsCold: a second turn on a warm KV cache continues as if its whole history were computed anew.
func TestWarmEqualsCold(t *testing.T) {
	m := demoModel(t)
	ids := loadReference(t).Validation.IDs
	warm := newSession(t, m, engine.Config{Threads: 2})
	history := slices.Clone(ids[:30])
	history = append(history, greedy(t, m, warm, history, 9)...)
	history = append(history, ids[100:120]...)
	kept := warm.Keep(history)
	if kept != 38 {
		t.Errorf("kept %d tokens, want the 30 of the prompt and 8 that had a forward pass", kept)
	}
	got := greedy(t, m, warm, history[kept:], 12)

	cold := newSession(t, m, engine.Config{Threads: 1})
	if want := greedy(t, m, cold, history, 12); !slices.Equal(got, want) {
		t.Errorf("warm %v, cold %v", got, want)
	}
	// A history that forks inside what is kept goes back to the fork.
	fork := append(slices.Clone(history[:20]), ids[200:210]...)
	if kept := warm.Keep(fork); kept != 20 {
		t.Errorf("kept %d tokens of a fork at 20", kept)
	}
	got = greedy(t, m, warm, fork[20:], 12)
	cold.Reset()
	if want := greedy(t, m, cold, fork, 12); !slices.Equal(got, want) {
		t.Errorf("after a fork: warm %v, cold %v", got, want)
	}
}
