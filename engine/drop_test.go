package engine_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// dropRun generates with dropping on, and returns the tokens, the route trace and the counters.
func dropRun(t *testing.T, m *model.Model, ids []int32, cfg engine.Config, sc engine.SourceConfig) ([]int32, []byte, model.DropCount, store.Stats) {
	t.Helper()
	src, _, err := engine.OpenSource(m, sc, m.NExpertUsed)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Source = src
	path := t.TempDir() + "/route.csv"
	meta := dump.TraceMeta{Model: "m", Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed,
		Ahead: cfg.Prefetch != "" && cfg.Prefetch != moe.PrefetchOff}
	for il := range m.NLayer {
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.Layout.ExpertBytes(il), DenseBytes: m.LayerDenseBytes(il)})
	}
	w, err := dump.CreateTrace(path, meta)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Trace = w
	s, err := engine.NewSession(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	toks := greedy(t, m, s, ids[:40], 30)
	st, d := s.SourceStats(), s.Drops()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return toks, data, d, st
}

// TestDropIsDeterministic: the same slots fall whatever lanes, threads, arm and I/O mode, with prefetch too.
func TestDropIsDeterministic(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	budget := store.WorkingSet(m.Layout, m.NExpertUsed) * 3 / 2
	for _, c := range []struct {
		inPrefill bool
		prefetch  moe.Prefetch
	}{{false, "off"}, {true, "off"}, {true, "next-layer"}, {false, "next-layer"}, {false, "last-token"}} {
		base := engine.Config{Threads: 1, Drop: moe.Drop{Frac: 0.9, Renorm: true}, DropInPrefill: c.inPrefill, Prefetch: c.prefetch}
		toks, trace, d, st := dropRun(t, m, ids, base, engine.SourceConfig{BudgetBytes: budget, Lanes: 1, IO: "buffered"})
		if d.Dropped == 0 || d.MassDropped <= 0 || st.Evictions == 0 {
			t.Fatalf("%+v: dropped %+v, stats %+v: the case tests nothing", c, d, st)
		}
		if c.prefetch != "off" && (st.PrefetchUsed == 0 || !bytes.Contains(trace, []byte(",2,"))) {
			t.Errorf("%+v: stats %+v: no prefetch was of use, or the trace has no hit by one", c, st)
		}
		for i := range 6 {
			cfg := base
			cfg.Threads = 1 + i%3
			cfg.Arm = []model.Arm{"host", "table"}[i%2]
			sc := engine.SourceConfig{BudgetBytes: budget, Lanes: []int{1, 4, 2}[i%3], IO: []string{"direct", "buffered"}[i/3]}
			gotToks, gotTrace, gotD, gotSt := dropRun(t, m, ids, cfg, sc)
			if !slices.Equal(gotToks, toks) || !bytes.Equal(gotTrace, trace) || gotD != d || gotSt.Misses != st.Misses || gotSt.PrefetchBytes != st.PrefetchBytes {
				t.Errorf("run %d (%+v, %+v): tokens equal %v, trace equal %v, drops %+v want %+v", i, c, sc, slices.Equal(gotToks, toks), bytes.Equal(gotTrace, trace), gotD, d)
			}
		}
		checkTrace(t, m, trace, base, d, st)
	}
}

// checkTrace holds the trace against the counters and against the policy's rule, row by row.
func checkTrace(t *testing.T, m *model.Model, trace []byte, cfg engine.Config, d model.DropCount, st store.Stats) {
	t.Helper()
	r, err := dump.NewTraceReader(bytes.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	var rows, dropped, readBytes, misses int64
	var row dump.TraceRow
	for r.Next(&row) == nil {
		rows++
		readBytes += row.ExpertBytes
		if row.ExpertBytes > 0 {
			misses++
			if row.ExpertBytes != m.Layout.ExpertBytes(row.Layer) {
				t.Errorf("row %d: %d bytes read, want the expert's %d", rows, row.ExpertBytes, m.Layout.ExpertBytes(row.Layer))
			}
		}
		if !row.Dropped {
			continue
		}
		dropped++
		if row.Residency != dump.Miss || row.ExpertBytes != 0 {
			t.Errorf("row %+v: dropped, but resident or read", row)
		}
		if row.Phase == dump.Prefill && !cfg.DropInPrefill {
			t.Errorf("row %+v: dropped in the prompt", row)
		}
		if row.Weight >= cfg.Drop.Frac/float64(m.NExpertUsed)*1.00001 { // six printed digits
			t.Errorf("row %+v: dropped above the threshold", row)
		}
	}
	if rows != d.Routed || dropped != d.Dropped || misses != st.Misses {
		t.Errorf("trace: %d rows, %d dropped, %d reads; counters: %d, %d, %d", rows, dropped, misses, d.Routed, d.Dropped, st.Misses)
	}
}

// TestDropSettings: thresholds that cannot work are refused, written so that NaN is.
func TestDropSettings(t *testing.T) {
	m := demoModel(t)
	nan := 0.0
	nan /= nan
	for _, c := range []engine.Config{
		{Drop: moe.Drop{Frac: nan}},
		{Drop: moe.Drop{Frac: -0.1}},
		{Drop: moe.Drop{Frac: 1.1}},
		{Drop: moe.Drop{Frac: 0.5}, NExpertUsed: 1}, // the top expert is never dropped
		{NExpertUsed: 17},
		{NExpertUsed: -1},
		{Ctx: 513},
		{Arm: "gpu"},
		{KV: "q8"},
		{Threads: -1},
		{Batch: -5},
		{Prefetch: "next"},
		{Prefetch: "next-layer"}, // no cache
		{Prefetch: "off", PrefetchBytes: 1 << 20},
		{PrefetchBytes: -1},
	} {
		if s, err := engine.NewSession(m, c); err == nil {
			s.Close()
			t.Errorf("%+v: accepted", c)
		}
	}
}
