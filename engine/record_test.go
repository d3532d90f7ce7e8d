package engine_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe/store"
)

// TestRecordingsOfRows: selection dump and route trace of several sequences have, for each of them, the records that it has
// alone, in all columns but those that others have a say in.
func TestRecordingsOfRows(t *testing.T) {
	m := openFile(t, demoFile(t))
	for _, arm := range []model.Arm{model.ArmHost, model.ArmTable} {
		rng := rand.New(rand.NewPCG(5, 6))
		var plays []*play
		for range 7 {
			plays = append(plays, randomPlay(rng, m.NVocab, 40))
		}
		run := func(seqs int, plays []*play, rng *rand.Rand) map[int][]rowRecord {
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
			together(t, e, plays, rng, 32, seqs)
			if err := errors.Join(e.Close(), sel.Close(), tr.Close()); err != nil {
				t.Fatal(err)
			}
			return readRows(t, dir, seqs > 1)
		}
		got := run(4, plays, rng)
		for i, p := range plays {
			alone := p.clone()
			want := run(1, []*play{alone}, rand.New(rand.NewPCG(1, 1)))[0]
			mine := got[p.seq.Number()]
			sortRows(want)
			sortRows(mine)
			if !slices.Equal(mine, want) {
				t.Errorf("%s: sequence %d: %d records among others, %d alone, or other ones", arm, i, len(mine), len(want))
			}
		}
	}
}

// rowRecord is what dump and trace say of one slot of one row, and of whose it is.
type rowRecord struct {
	layer, step, slot, expert, phase int
	weight                           float32
}

func sortRows(rows []rowRecord) {
	slices.SortStableFunc(rows, func(a, b rowRecord) int {
		if a.step != b.step {
			return a.step - b.step
		}
		if a.layer != b.layer {
			return a.layer - b.layer
		}
		return a.slot - b.slot
	})
}

// readRows reads both recordings, which must agree, by sequence. Each (turn, step, layer, slot) is there once.
func readRows(t *testing.T, dir string, several bool) map[int][]rowRecord {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "route.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := dump.NewTraceReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if r.Seqs() != several {
		t.Fatalf("the trace says whose its rows are: %v", r.Seqs())
	}
	recs := readDump(t, filepath.Join(dir, "sel.bin"))
	out := map[int][]rowRecord{}
	type key struct{ turn, step, layer, slot int }
	seen := map[key]bool{}
	for i := 0; ; i++ {
		var row dump.TraceRow
		if err := r.Next(&row); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		k := key{row.Turn, row.Step, row.Layer, row.Slot}
		if several && seen[k] {
			t.Fatalf("row %d: %+v a second time", i, k)
		}
		seen[k] = true
		rec := recs[i/m4]
		if rec.Layer != row.Layer || int(rec.Expert[row.Slot]) != row.Expert {
			t.Fatalf("row %d: layer %d slot %d expert %d, the dump has layer %d %v", i, row.Layer, row.Slot, row.Expert, rec.Layer, rec.Expert)
		}
		out[row.Seq] = append(out[row.Seq], rowRecord{row.Layer, row.Step, row.Slot, row.Expert, row.Phase, rec.Weight[row.Slot]})
	}
	return out
}

// m4 is the demo model's experts per token.
const m4 = 4

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
