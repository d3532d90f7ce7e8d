package replay_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sluice/dump"
	"sluice/dump/replay"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/tokenizer"
	"sluice/moe"
	"sluice/moe/store"
)

// liveRun generates with the built-in model, two turns of prompt and answer, and returns the trace's path and the counters.
func liveRun(t *testing.T, policy string, budget int64, drop moe.Drop, inPrefill bool, prefetch moe.Prefetch) (string, store.Stats, model.DropCount) {
	t.Helper()
	f, err := gguf.Parse(demo.Name, demo.Model())
	must(t, err)
	m, err := model.New(f, model.OpenOptions{})
	must(t, err)
	defer m.Close()
	src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget, Policy: policy, IO: "buffered", Force: true}, m.NExpertUsed)
	must(t, err)
	meta := dump.TraceMeta{Model: demo.Name, Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed}
	var slots []string
	for il := range m.NLayer {
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.Layout.ExpertBytes(il), DenseBytes: m.LayerDenseBytes(il)})
		one := store.Layout{Files: m.Layout.Files, Experts: m.Layout.Experts[il : il+1]}
		slots = append(slots, strconv.FormatInt(store.WorkingSet(&one, 1), 10))
	}
	meta.Ahead = prefetch != moe.PrefetchOff
	meta.Extra = [][2]string{{dump.FactSlotBytes, strings.Join(slots, ",")}, {"cache_bytes", strconv.FormatInt(budget, 10)},
		{"cache_policy", policy}, {"drop_frac", strconv.FormatFloat(drop.Frac, 'g', -1, 64)},
		{dump.FactDropInPrefill, strconv.FormatBool(inPrefill)}}
	if meta.Ahead {
		meta.Extra = append(meta.Extra, [2]string{"prefetch", string(prefetch)}, [2]string{"prefetch_bytes", "0"})
	}
	path := filepath.Join(t.TempDir(), "route.csv")
	w, err := dump.CreateTrace(path, meta)
	must(t, err)
	s, err := engine.NewSession(m, engine.Config{Source: src, Trace: w, Drop: drop, DropInPrefill: inPrefill, Batch: 7, Threads: 2, Prefetch: prefetch})
	must(t, err)
	sampler := engine.DefaultSampler()
	sampler.Temp = 0
	smp, err := engine.NewSampler(sampler, m.NVocab)
	must(t, err)
	for i, prompt := range []string{"In the beginning the cache was empty, and", " so it was filled"} {
		if i > 0 {
			s.NextTurn()
		}
		ids := m.Tok.Encode(prompt, tokenizer.EncodeOptions{})
		_, err := s.Generate(context.Background(), ids, smp, engine.GenerateConfig{MaxTokens: 24, IgnoreEOS: true}, func(int32) error { return nil })
		must(t, err)
	}
	s.Settle()
	st, d := s.SourceStats(), s.Drops()
	must(t, s.Close())
	must(t, w.Close())
	return path, st, d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A live replay of a run's trace has that run's hits, misses and bytes, whatever the budget, the policy and what is read
// ahead; and at another budget those of a run with that budget, since without dropping neither the routing nor what is
// asked for ahead depends on the cache. (What the next layer's router says does where a call's experts do not fit together:
// then it is asked behind the first of them.)
func TestLivePredictsRuns(t *testing.T) {
	budgets := []int64{300 << 10, 1 << 20, 2 << 20, 3 << 20, 4 << 20}
	for _, prefetch := range moe.PrefetchModes() {
		var first string
		runs := make(map[string]store.Stats)
		for _, policy := range store.Policies() {
			for _, b := range budgets {
				path, st, _ := liveRun(t, policy, b, moe.Drop{}, false, prefetch)
				first = path // of the largest budget
				runs[policy+strconv.FormatInt(b, 10)] = st
				r := cacheOf(t, path, []int64{b}, []string{policy})
				c := r.Cells[0]
				if got := c.Decode.Hits + c.Prefill.Hits; got != st.Hits || c.Decode.Lookups+c.Prefill.Lookups != st.Hits+st.Misses || !r.SlotsKnown {
					t.Errorf("%s, %d bytes, %s: predicted %+v, the run had %d hits, %d misses", policy, b, prefetch, c, st.Hits, st.Misses)
				}
				if rec := r.Recorded; rec.Decode.Misses+rec.Prefill.Misses != st.Misses && b >= r.SlotTokenBytes {
					t.Errorf("%s, %d bytes, %s: recorded %+v, the run missed %d", policy, b, prefetch, rec, st.Misses)
				}
				if p := r.Reproduction; p == nil || p.Bytes != st.BytesWanted || r.Reproduced() != nil || p.Bytes == 0 {
					t.Errorf("%s, %d bytes, %s: %v (%s), the run read %d", policy, b, prefetch, p, r.NotReproduced, st.BytesWanted)
				}
			}
		}
		for _, c := range cacheOf(t, first, budgets, nil).Cells {
			if prefetch == moe.PrefetchNextLayer && c.BudgetBytes < 3<<20 {
				continue
			}
			st := runs[c.Policy+strconv.FormatInt(c.BudgetBytes, 10)]
			if got := c.Decode.Lookups + c.Prefill.Lookups - c.Decode.Hits - c.Prefill.Hits; got != st.Misses {
				t.Errorf("%s, %d bytes, %s: %d misses predicted from another run's trace, the run had %d", c.Policy, c.BudgetBytes, prefetch, got, st.Misses)
			}
			if got := c.Decode.BytesRead + c.Prefill.BytesRead + c.Decode.Ahead + c.Prefill.Ahead; got != st.BytesWanted {
				t.Errorf("%s, %d bytes, %s: %d bytes predicted from another run's trace, the run read %d", c.Policy, c.BudgetBytes, prefetch, got, st.BytesWanted)
			}
			if prefetch == moe.PrefetchNextLayer && c.Decode.Ahead == 0 {
				t.Errorf("%+v: nothing was read ahead: the case tests nothing", c)
			}
		}
		if runs["lru"+strconv.Itoa(1<<20)].Misses == runs["lru"+strconv.Itoa(4<<20)].Misses {
			t.Errorf("%s: all budgets miss alike: the case tests nothing", prefetch)
		}
	}
}

func cacheOf(t *testing.T, path string, budgets []int64, policies []string) *replay.CacheReport {
	t.Helper()
	r, err := replay.Cache("route.csv", func() (io.ReadCloser, error) { return os.Open(path) },
		replay.CacheConfig{Budgets: budgets, Policies: policies, Order: replay.OrderLive})
	must(t, err)
	return r
}

// A dynamic replay of a run recorded with dropping reads and drops what the run did, row by row.
func TestDynamicPredictsRuns(t *testing.T) {
	for _, prefetch := range moe.PrefetchModes() {
		for _, inPrefill := range []bool{false, true} {
			for _, frac := range []float64{0, 0.5, 0.9} {
				path, st, d := liveRun(t, "lru", 2<<20, moe.Drop{Frac: frac, Renorm: true}, inPrefill, prefetch)
				f, err := os.Open(path)
				must(t, err)
				r, err := replay.Drop("route.csv", f, replay.DropConfig{})
				must(t, err)
				f.Close()
				if frac > 0 && d.Dropped == 0 {
					t.Fatal("nothing was dropped: the case tests nothing")
				}
				c := r.Dynamic[0].Check
				if c == nil {
					t.Fatalf("threshold %v: not checked: %s", frac, r.Dynamic[0].NoCheck)
				}
				if misses := c.Predicted.Decode.Misses + c.Predicted.Prefill.Misses; misses != st.Misses {
					t.Errorf("threshold %v, in prefill %v, %s: predicted %d misses, the run had %d", frac, inPrefill, prefetch, misses, st.Misses)
				}
				p := r.Dynamic[0].Reproduction
				if p == nil || !p.Exact() || p.Drops != d.Dropped || p.Bytes != st.BytesWanted || r.Reproduced() != nil {
					t.Errorf("threshold %v, in prefill %v, %s: %v (%s), the run dropped %d and read %d", frac, inPrefill, prefetch, p, r.Dynamic[0].NotReproduced, d.Dropped, st.BytesWanted)
				}
			}
		}
	}
}
