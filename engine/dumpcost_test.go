package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/model"
)

// BenchmarkDumpCost prints what an armed selection dump costs a decode step, in percent. Two sessions take turns of a few
// tokens each, in alternating order, so that whatever else the machine does hits both alike; compared are the tenths of
// the turns that were disturbed least. On one thread, since a second that is kept away costs more than any dump.
func BenchmarkDumpCost(b *testing.B) {
	const turn = 8 // tokens
	m := demoModel(b)
	ids := loadReference(b).Validation.IDs
	for _, arm := range []model.Arm{"host", "table"} {
		b.Run(fmt.Sprintf("model=tinymoe-q4_k_m/arm=%s/threads=1", arm), func(b *testing.B) {
			w, err := dump.OpenSel(b.TempDir()+"/sel.bin", dump.SelMeta{})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			cfg := engine.Config{Arm: arm}
			off := newSession(b, m, cfg)
			cfg.SelDump = w
			sides := []*engine.Session{off, newSession(b, m, cfg)}
			var took [2][]float64 // ns a token
			for round := 0; b.Loop(); round++ {
				for k := range sides {
					i := (k + round) % 2
					s := sides[i]
					if s.Pos()+turn > s.Ctx() {
						s.Reset()
					}
					start := time.Now()
					for t := range turn {
						if _, err := s.Decode(background, ids[(round*turn+t)%len(ids)]); err != nil {
							b.Fatal(err)
						}
					}
					took[i] = append(took[i], float64(time.Since(start).Nanoseconds())/turn)
				}
			}
			var least [2]float64
			for i := range took {
				slices.Sort(took[i])
				least[i] = took[i][len(took[i])/10]
			}
			b.ReportMetric(least[0], "off-ns/tok")
			b.ReportMetric(least[1], "on-ns/tok")
			b.ReportMetric((least[1]/least[0]-1)*100, "cost-%")
		})
	}
}
