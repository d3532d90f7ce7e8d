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
	"sluice/engine/tokenizer"
	"sluice/moe"
)

// liveRun generates with the built-in model, two turns of prompt and answer, and returns the trace's path and the counters.
func liveRun(t *testing.T, policy string, budget int64, drop moe.Drop, inPrefill bool) (string, moe.Stats, engine.DropCount) {
	t.Helper()
	f, err := gguf.Parse(demo.Name, demo.Model())
	must(t, err)
	m, err := engine.New(f, engine.OpenOptions{})
	must(t, err)
	defer m.Close()
	src, _, err := m.OpenSource(engine.SourceConfig{BudgetBytes: budget, Policy: policy, IO: "buffered", Force: true}, m.NExpertUsed)
	must(t, err)
	meta := dump.TraceMeta{Model: demo.Name, Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed}
	var slots []string
	for il := range m.NLayer {
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.Layout.ExpertBytes(il), DenseBytes: m.LayerDenseBytes(il)})
		one := moe.Layout{Files: m.Layout.Files, Experts: m.Layout.Experts[il : il+1]}
		slots = append(slots, strconv.FormatInt(moe.WorkingSet(&one, 1), 10))
	}
	meta.Extra = [][2]string{{replay.SlotBytesKey, strings.Join(slots, ",")}, {"cache_bytes", strconv.FormatInt(budget, 10)},
		{"cache_policy", policy}, {"drop_frac", strconv.FormatFloat(drop.Frac, 'g', -1, 64)}}
	path := filepath.Join(t.TempDir(), "route.csv")
	w, err := dump.CreateTrace(path, meta)
	must(t, err)
	s, err := m.NewSession(engine.SessionConfig{Source: src, Trace: w, Drop: drop, DropInPrefill: inPrefill, Batch: 7, Threads: 2})
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

// A live replay of a run's trace has that run's hits and misses, whatever the budget and the policy; and at another
// budget those of a run with that budget, since without dropping the routing does not depend on the cache.
func TestLivePredictsRuns(t *testing.T) {
	budgets := []int64{300 << 10, 1 << 20, 2 << 20, 4 << 20}
	var first string
	misses := make(map[string]int64)
	for _, policy := range moe.Policies() {
		for _, b := range budgets {
			path, st, _ := liveRun(t, policy, b, moe.Drop{}, false)
			if first == "" {
				first = path
			}
			misses[policy+strconv.FormatInt(b, 10)] = st.Misses
			r := cacheOf(t, path, []int64{b}, []string{policy})
			c := r.Cells[0]
			if got := c.Decode.Hits + c.Prefill.Hits; got != st.Hits || c.Decode.Lookups+c.Prefill.Lookups != st.Hits+st.Misses || !r.SlotsKnown {
				t.Errorf("%s, %d bytes: predicted %+v, the run had %d hits, %d misses", policy, b, c, st.Hits, st.Misses)
			}
			if rec := r.Recorded; rec.Decode.Misses+rec.Prefill.Misses != st.Misses && b >= r.SlotTokenBytes {
				t.Errorf("%s, %d bytes: recorded %+v, the run missed %d", policy, b, rec, st.Misses)
			}
		}
	}
	r := cacheOf(t, first, budgets, nil)
	for _, c := range r.Cells {
		if got, want := c.Decode.Lookups+c.Prefill.Lookups-c.Decode.Hits-c.Prefill.Hits, misses[c.Policy+strconv.FormatInt(c.BudgetBytes, 10)]; got != want {
			t.Errorf("%s, %d bytes: %d misses predicted from another run's trace, the run had %d", c.Policy, c.BudgetBytes, got, want)
		}
	}
	if misses["lru"+strconv.Itoa(1<<20)] == misses["lru"+strconv.Itoa(4<<20)] {
		t.Errorf("all budgets miss alike: the case tests nothing")
	}
}

func cacheOf(t *testing.T, path string, budgets []int64, policies []string) *replay.CacheReport {
	t.Helper()
	r, err := replay.Cache("route.csv", func() (io.ReadCloser, error) { return os.Open(path) },
		replay.CacheConfig{Budgets: budgets, Policies: policies, Order: replay.OrderLive})
	must(t, err)
	return r
}

// A dynamic replay of a run recorded with dropping reads and drops what the run did, but for weights that six printed
// digits put on the wrong side of the threshold.
func TestDynamicPredictsRuns(t *testing.T) {
	for _, inPrefill := range []bool{false, true} {
		for _, frac := range []float64{0, 0.5, 0.9} {
			path, st, d := liveRun(t, "lru", 2<<20, moe.Drop{Frac: frac, Renorm: true}, inPrefill)
			f, err := os.Open(path)
			must(t, err)
			r, err := replay.Drop("route.csv", f, replay.DropConfig{InPrefill: inPrefill})
			must(t, err)
			f.Close()
			if frac > 0 && d.Dropped == 0 {
				t.Fatal("nothing was dropped: the case tests nothing")
			}
			near := int64(0)
			for _, p := range []replay.DropPhase{r.Decode, r.Prefill} {
				for _, x := range p.Fracs {
					near += x.Near
				}
			}
			c := r.Dynamic[0].Check
			if c == nil {
				t.Fatalf("threshold %v: not checked: %s", frac, r.Dynamic[0].NoCheck)
			}
			misses := c.Predicted.Decode.Misses + c.Predicted.Prefill.Misses
			dropped := c.Predicted.Decode.Dropped + c.Predicted.Prefill.Dropped
			if near == 0 && (misses != st.Misses || dropped != d.Dropped) {
				t.Errorf("threshold %v, in prefill %v: predicted %d misses, %d dropped, the run had %d, %d", frac, inPrefill, misses, dropped, st.Misses, d.Dropped)
			}
		}
	}
}
