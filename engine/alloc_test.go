package engine_test

import (
	"fmt"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// TestDecodeAllocatesNothing, on either arm, resident or through a cache that evicts, reading ahead or not, with taps
// armed or not.
func TestDecodeAllocatesNothing(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	for _, arm := range []model.Arm{"host", "table"} {
		for _, cached := range []moe.Prefetch{"", moe.PrefetchOff, moe.PrefetchNextLayer, moe.PrefetchLastToken} {
			for _, armed := range []bool{false, true} {
				name := fmt.Sprintf("arm=%s/prefetch=%s/armed=%v", arm, cached, armed)
				cfg := engine.Config{Threads: 2, Arm: arm}
				if cached != "" {
					src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"}, m.NExpertUsed)
					if err != nil {
						t.Fatal(err)
					}
					cfg.Source, cfg.Prefetch = src, cached
					cfg.Drop = moe.Drop{Frac: 0.5, Renorm: true}
				}
				if armed {
					cfg.SelDump, cfg.Trace = armTaps(t, m, t.TempDir())
				}
				s := newSession(t, m, cfg)
				i := 0
				step := func() {
					if _, err := s.Decode(background, ids[i]); err != nil {
						t.Fatal(err)
					}
					i++
				}
				for range 20 {
					step()
				}
				if n := testing.AllocsPerRun(50, step); n != 0 {
					t.Errorf("%s: %v allocations a token, want 0", name, n)
				}
			}
		}
	}
}

// BenchmarkDecode times one token of the demo model: by arm, and with the selection dump armed.
func BenchmarkDecode(b *testing.B) {
	m := demoModel(b)
	ids := loadReference(b).Validation.IDs
	for _, arm := range []model.Arm{"host", "table"} {
		for _, tap := range []string{"off", "sel"} {
			b.Run(fmt.Sprintf("model=tinymoe-q4_k_m/arm=%s/dump=%s/threads=2", arm, tap), func(b *testing.B) {
				cfg := engine.Config{Threads: 2, Arm: arm}
				if tap == "sel" {
					w, err := dump.OpenSel(b.TempDir()+"/sel.bin", dump.SelMeta{})
					if err != nil {
						b.Fatal(err)
					}
					defer w.Close()
					cfg.SelDump = w
				}
				s := newSession(b, m, cfg)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if s.Pos() == s.Ctx() {
						s.Reset()
					}
					if _, err := s.Decode(background, ids[i%len(ids)]); err != nil {
						b.Fatal(err)
					}
					i++
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}
