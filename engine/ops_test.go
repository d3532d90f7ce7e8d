package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// recorded opens a session with a recorder, cached or not.
func recorded(t testing.TB, m *model.Model, cfg engine.Config, budget int64) (*engine.Session, *model.Recorder) {
	t.Helper()
	rec := model.NewRecorder(1<<14, 1<<12)
	cfg.Recorder = rec
	if budget > 0 {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget, IO: "buffered", Observer: rec}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Source = src
	}
	return newSession(t, m, cfg), rec
}

// calls cuts ops into forward passes, each as the sequence of (layer, kind) without repeated passes.
func calls(ops []model.Op) (out [][]string) {
	for i, o := range ops {
		if i == 0 || o.Call != ops[i-1].Call {
			out = append(out, nil)
		}
		name := fmt.Sprintf("%d %s", o.Layer, o.Kind)
		if c := &out[len(out)-1]; !slices.Contains(*c, name) {
			*c = append(*c, name)
		}
	}
	return out
}

// TestOpsDoNotDependOnResidency: a layer has the same ops on either arm, resident, streamed with the smallest cache, and
// with experts dropped; the tokens are those of a session without a recorder.
func TestOpsDoNotDependOnResidency(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	plain := newSession(t, m, engine.Config{Threads: 2})
	want := greedy(t, m, plain, ids[:40], 8)
	minimal := store.WorkingSet(m.Layout, m.NExpertUsed)
	var first [][]string
	for _, c := range []struct {
		name   string
		cfg    engine.Config
		budget int64
	}{
		{"resident", engine.Config{Threads: 2}, 0},
		{"table arm", engine.Config{Threads: 1, Arm: "table"}, 0},
		{"streamed", engine.Config{Threads: 2}, minimal},
		{"dropping", engine.Config{Threads: 2, Drop: moe.Drop{Frac: 1, Renorm: true}, DropInPrefill: true}, minimal},
	} {
		s, rec := recorded(t, m, c.cfg, c.budget)
		got := greedy(t, m, s, ids[:40], 8)
		if c.cfg.Drop.Frac == 0 && !slices.Equal(got, want) {
			t.Errorf("%s: tokens %v, without a recorder %v", c.name, got, want)
		}
		ops, lost := rec.Ops()
		seq := calls(ops)
		if first == nil {
			first = seq
		}
		if lost != 0 || len(seq) != 8 || !slices.EqualFunc(seq, first, slices.Equal) {
			t.Errorf("%s: %d forward passes (%d ops lost), or other ops than resident", c.name, len(seq), lost)
		}
		var end int64
		read, bytes := 0, int64(0)
		for _, o := range ops {
			if o.Start < end || o.End < o.Start || o.Workers < 1 || o.Workers > int32(c.cfg.Threads) {
				t.Fatalf("%s: op %+v after one that ended at %d", c.name, o, end)
			}
			end = o.End
			if o.Kind != model.OpFetch && o.Kind != model.OpEmbed {
				bytes += o.Bytes
			}
			if o.Kind == model.OpFetch {
				read += int(o.Read)
				if (o.Read > 0) != (o.Memory == model.OpFlash) || (c.budget > 0) != (o.Memory != model.OpDRAM) {
					t.Fatalf("%s: %d experts read, memory %s", c.name, o.Read, o.Memory)
				}
			}
		}
		// Without the embedding's rows, which count tokens and not the table.
		emb := int64(47) * int64(kernels.Q8_0.RowBytes(m.NEmbd))
		if got := s.WeightBytes(); bytes > got || bytes < got-2*emb {
			t.Errorf("%s: ops name %d bytes of weights, the session %d", c.name, bytes, got)
		}
		st := s.SourceStats()
		if c.budget > 0 && int64(read) != st.Misses {
			t.Errorf("%s: %d experts read by ops, %d misses", c.name, read, st.Misses)
		}
		reads, _ := rec.Reads()
		demands, _ := rec.Demands()
		var sum, hits, misses, evicted int64
		for _, e := range reads {
			sum += e.Bytes
			if e.Lane < 0 || int(e.Lane) >= engine.DefaultLanes || e.End < e.Start || e.Failed {
				t.Errorf("%s: read %+v", c.name, e)
			}
		}
		for _, d := range demands {
			hits, misses, evicted = hits+int64(d.Hits), misses+int64(d.Misses), evicted+int64(d.Evicted)
		}
		if c.budget > 0 && (int64(len(reads)) != st.Reads || sum != st.BytesRead || hits != st.Hits || misses != st.Misses || evicted != st.Evictions) {
			t.Errorf("%s: %d reads of %d bytes, %d hits, %d misses, %d evicted, want %+v", c.name, len(reads), sum, hits, misses, evicted, st)
		}
	}
}

// A layer call in many passes, with a shared expert, and all logits.
func TestOpsOfPasses(t *testing.T) {
	m := synthModel(t, synth.Config{Arch: "qwen2moe", Type: "q8_0", Geometry: narrow})
	s, rec := recorded(t, m, engine.Config{Threads: 2}, 0)
	n := 0
	if err := s.PrefillAll(background, make([]int32, 40), func(int, []float32) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	ops, _ := rec.Ops()
	seq := calls(ops)
	if len(seq) != 1 || !slices.Contains(seq[0], "0 shared_down") || !slices.Contains(seq[0], "-1 output") {
		t.Errorf("ops %v", seq)
	}
	if o := ops[len(ops)-1]; o.Kind != model.OpOutput || o.Tokens != 40%16 || o.Layer != -1 || o.Decode {
		t.Errorf("last op %+v", o)
	}
}

// A full ring forgets the oldest.
func TestRecorderRing(t *testing.T) {
	m := demoModel(t)
	rec := model.NewRecorder(10, 1)
	s := newSession(t, m, engine.Config{Recorder: rec})
	for range 2 {
		if _, err := s.Decode(background, 1); err != nil {
			t.Fatal(err)
		}
	}
	ops, lost := rec.Ops()
	all := 2 * (3 + 13*m.NLayer)
	if len(ops) != 10 || lost != all-10 || ops[9].Kind != model.OpOutput || ops[8].Kind != model.OpOutNorm || ops[7].Kind != model.OpDown {
		t.Errorf("%d ops, %d lost of %d: %v", len(ops), lost, all, ops)
	}
	if rec.Reset(); true {
		if ops, lost := rec.Ops(); len(ops) != 0 || lost != 0 {
			t.Errorf("after Reset: %d ops, %d lost", len(ops), lost)
		}
	}
}

// TestRecordingAllocatesNothing, streamed through a cache that evicts.
func TestRecordingAllocatesNothing(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	s, rec := recorded(t, m, engine.Config{Threads: 2}, store.WorkingSet(m.Layout, m.NExpertUsed))
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
		t.Errorf("%v allocations a token, want 0", n)
	}
	if reads, _ := rec.Reads(); len(reads) == 0 {
		t.Error("no reads: the test shows nothing")
	}
}

// BenchmarkRecorder decodes the same tokens in two sessions by turns, without and with a recorder, the order turned round
// every time: what disturbs the machine for longer than a token hits both alike. An operation is a token on each side. Cost
// is by the medians, and by the first deciles, which a busy machine disturbs least.
func BenchmarkRecorder(b *testing.B) {
	m := demoModel(b)
	ids := loadReference(b).Validation.IDs
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("model=tinymoe-q4_k_m/threads=%d", threads), func(b *testing.B) {
			sides := [2]*engine.Session{
				newSession(b, m, engine.Config{Threads: threads}),
				newSession(b, m, engine.Config{Threads: threads, Recorder: model.NewRecorder(1<<12, 1)}),
			}
			var took [2][]time.Duration
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for j := range 2 {
					side := (i + j) % 2
					s := sides[side]
					if s.Pos() == s.Ctx() {
						s.Reset()
					}
					start := time.Now()
					if _, err := s.Decode(background, ids[i%len(ids)]); err != nil {
						b.Fatal(err)
					}
					took[side] = append(took[side], time.Since(start))
				}
			}
			for _, q := range []struct {
				name string
				of   int
			}{{"median", 2}, {"decile", 10}} {
				off, on := quantile(took[0], q.of), quantile(took[1], q.of)
				b.ReportMetric(100*(on/off-1), "cost-"+q.name+"-%")
				b.ReportMetric(off, "off-"+q.name+"-ns")
			}
		})
	}
}

// quantile is the value below which one in of lies.
func quantile(d []time.Duration, of int) float64 {
	slices.Sort(d)
	return float64(d[len(d)/of])
}
