package engine_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/moe/store"
)

// TestRecordingsOfRows: selection dump and route trace of several sequences have, for each of them, the records that it has
// alone, in all columns but those that others have a say in.
func TestRecordingsOfRows(t *testing.T) {
	m := openFile(t, demoFile(t))
	for _, arm := range []model.Arm{model.ArmHost, model.ArmTable} {
		rng := rand.New(rand.NewPCG(5, 6))
		var plays []*enginetest.Play
		n := 7
		if testing.Short() {
			n = 4
		}
		for range n {
			plays = append(plays, enginetest.RandomPlay(rng, m.NVocab, 40))
		}
		run := func(seqs int, plays []*enginetest.Play, rng *rand.Rand) map[int][]enginetest.RowRecord {
			dir := t.TempDir()
			sel, err := dump.OpenSel(filepath.Join(dir, "sel.bin"), dump.SelMeta{Rows: seqs > 1})
			if err != nil {
				t.Fatal(err)
			}
			tr, err := dump.CreateTrace(filepath.Join(dir, "route.csv"), dump.TraceMeta{Model: "m", Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed, Seqs: seqs > 1})
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.Open(m, engine.Config{Ctx: 512, Seqs: seqs, Batch: 32, Threads: 2, Arm: arm, SelDump: sel, Trace: tr,
				Source: openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"})})
			if err != nil {
				t.Fatal(err)
			}
			enginetest.Together(t, e, plays, rng, 32, seqs)
			if err := errors.Join(e.Close(), sel.Close(), tr.Close()); err != nil {
				t.Fatal(err)
			}
			return enginetest.ReadRows(t, dir, seqs > 1)
		}
		got := run(4, plays, rng)
		for i, p := range plays {
			alone := p.Clone()
			want := run(1, []*enginetest.Play{alone}, rand.New(rand.NewPCG(1, 1)))[0]
			mine := got[p.Seq.Number()]
			enginetest.SortRows(want)
			enginetest.SortRows(mine)
			if !slices.Equal(mine, want) {
				t.Errorf("%s: sequence %d: %d records among others, %d alone, or other ones", arm, i, len(mine), len(want))
			}
		}
	}
}

// TestRecordingsMustFit: recordings that do not say whose rows are do not go with several sequences, nor the other way round.
func TestRecordingsMustFit(t *testing.T) {
	m := demoModel(t)
	for _, rows := range []bool{false, true} {
		sel, err := dump.OpenSel(filepath.Join(t.TempDir(), "sel.bin"), dump.SelMeta{Rows: rows})
		if err != nil {
			t.Fatal(err)
		}
		defer sel.Close()
		seqs := 2
		if rows {
			seqs = 1
		}
		var setting *model.SettingError
		if _, err := engine.Open(m, engine.Config{Seqs: seqs, SelDump: sel}); !errors.As(err, &setting) {
			t.Errorf("rows %v, %d sequences: %v", rows, seqs, err)
		}
	}
}
