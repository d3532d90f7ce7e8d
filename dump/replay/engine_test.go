package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/dump/replay"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// engineRun is one run of an engine for several sequences.
type engineRun struct {
	m             *model.Model
	seqs, batch   int
	passes        int
	arm           model.Arm
	policy        string
	budget        int64
	drop          moe.Drop
	inPrefill     bool
	prefetch      moe.Prefetch
	prefetchBytes int64
	seed          uint64
}

func (r *engineRun) String() string {
	return fmt.Sprintf("%s: %d sequences, batch %d, %s arm, %s of %d bytes, drop %+v (in prefill %v), prefetch %s of %d, seed %d",
		r.m.File.Name(), r.seqs, r.batch, r.arm, r.policy, r.budget, r.drop, r.inPrefill, r.prefetch, r.prefetchBytes, r.seed)
}

// guest is a sequence of such a run: it has so much of a prompt left, then so many tokens to draw.
type guest struct {
	seq          *engine.Seq
	prompt, draw int
	next         int32
}

// run lets sequences join, take prompts in chunks beside others that decode, go back, take further turns and leave, and
// returns the run's own counters. mixed: passes with rows of both phases.
func (r *engineRun) run(t *testing.T, path string) (st store.Stats, d model.DropCount, mixed int) {
	t.Helper()
	m := r.m
	src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: r.budget, Policy: r.policy, IO: "buffered", Force: true}, m.NExpertUsed)
	must(t, err)
	facts := dump.RunFacts{CacheBytes: r.budget, CachePolicy: r.policy, SlotBytes: m.SlotBytes(), DropFrac: r.drop.Frac, DropRenorm: r.drop.Renorm, DropInPrefill: r.inPrefill}
	if r.prefetch != moe.PrefetchOff {
		facts.Prefetch, facts.PrefetchBytes = string(r.prefetch), r.prefetchBytes
	}
	meta := dump.TraceMeta{Model: "m", Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed, Extra: facts.Preamble(),
		Ahead: r.prefetch != moe.PrefetchOff, Seqs: true}
	for il := range m.NLayer {
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.Layout.ExpertBytes(il), DenseBytes: m.LayerDenseBytes(il)})
	}
	w, err := dump.CreateTrace(path, meta)
	must(t, err)
	e, err := engine.Open(m, engine.Config{Ctx: 256, Seqs: r.seqs, Batch: r.batch, Threads: 2, Arm: r.arm, Source: src, Trace: w,
		Drop: r.drop, DropInPrefill: r.inPrefill, Prefetch: r.prefetch, PrefetchBytes: r.prefetchBytes})
	must(t, err)
	rng := rand.New(rand.NewPCG(r.seed, 1))
	var guests []*guest
	for range r.passes {
		for len(guests) == 0 || len(guests) < r.seqs && rng.IntN(3) == 0 {
			seq, err := e.NewSeq()
			must(t, err)
			guests = append(guests, &guest{seq: seq, prompt: 1 + rng.IntN(30), draw: 1 + rng.IntN(12)})
		}
		rng.Shuffle(len(guests), func(i, j int) { guests[i], guests[j] = guests[j], guests[i] })
		var work []engine.Work
		var phases [2]bool
		left := r.batch
		for _, g := range guests[:1+rng.IntN(len(guests))] {
			wk := engine.Work{Seq: g.seq, IDs: []int32{g.next}, Decode: true, Head: model.HeadNext}
			if n := min(g.prompt, left, 1+rng.IntN(9)); n > 0 {
				wk = engine.Work{Seq: g.seq, IDs: make([]int32, n)}
				for i := range wk.IDs {
					wk.IDs[i] = int32(rng.IntN(m.NVocab))
				}
				if g.prompt == n {
					wk.Head = model.HeadNext
				}
			}
			phases[map[bool]int{true: dump.Decode}[wk.Decode]] = true
			work = append(work, wk)
			if left -= len(wk.IDs); left == 0 {
				break
			}
		}
		must(t, e.Pass(context.Background(), work))
		if phases[0] && phases[1] {
			mixed++
		}
		for i, wk := range work {
			g := guests[i]
			if wk.Decode {
				g.draw--
			} else {
				g.prompt -= len(wk.IDs)
			}
			if wk.Head == model.HeadNext {
				g.next, err = e.Next(i)
				must(t, err)
			}
			if g.draw == 0 && rng.IntN(2) == 0 { // another turn, behind what there is or behind a part of it
				if rng.IntN(2) == 0 {
					g.seq.Truncate(rng.IntN(g.seq.Pos() + 1))
				}
				g.seq.NextTurn()
				g.prompt, g.draw = 1+rng.IntN(20), 1+rng.IntN(12)
			}
		}
		guests = slices.DeleteFunc(guests, func(g *guest) bool {
			if g.draw > 0 && g.seq.Pos() < 200 {
				return false
			}
			g.seq.Close()
			return true
		})
	}
	e.Settle()
	st, d = e.SourceStats(), e.Drops()
	must(t, errors.Join(e.Close(), w.Close()))
	return st, d, mixed
}

// TestEngineRunsOfSeveralSequences: what an engine reads and drops for sequences that share its passes is what the replays of
// its trace read and drop, whatever the policy, the budget, the threshold and what is read ahead.
func TestEngineRunsOfSeveralSequences(t *testing.T) {
	models := []*model.Model{enginetest.ParseModel(t, demo.Name, demo.Model())}
	for _, arch := range []string{"qwen2moe", "llama"} {
		models = append(models, enginetest.SynthModel(t, synth.Config{Arch: arch, Type: "q4_k_m", Seed: 3, RouterSkew: 1,
			Geometry: synth.Geometry{Layers: 4, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 12, Used: 3, FF: 256, Vocab: 320, Context: 1024}}))
	}
	rng := rand.New(rand.NewPCG(31, 32))
	var mixed int
	var dropped, read [3]int64 // by prefetch
	runs := 36
	if testing.Short() {
		runs = 12
	}
	for i := range runs {
		r := engineRun{m: models[i/3%len(models)], seqs: 2 + rng.IntN(6), batch: 8 + rng.IntN(25), passes: 40, arm: []model.Arm{model.ArmHost, model.ArmTable}[rng.IntN(2)],
			policy: store.Policies()[i%len(store.Policies())], drop: moe.Drop{Frac: []float64{0, 0.5, 0.9, 1}[rng.IntN(4)], Renorm: rng.IntN(2) == 0},
			inPrefill: rng.IntN(3) == 0, prefetch: moe.PrefetchModes()[(i+i/3)%3], seed: uint64(i)}
		set := store.WorkingSet(r.m.Layout, r.m.NExpertUsed)
		r.budget = []int64{set / 3, set, 2 * set, 3 * set}[rng.IntN(4)]
		if r.prefetch != moe.PrefetchOff && rng.IntN(3) == 0 {
			r.prefetchBytes = set / int64(1+rng.IntN(20))
		}
		path := filepath.Join(t.TempDir(), "route.csv")
		st, d, both := r.run(t, path)
		f, err := os.Open(path)
		must(t, err)
		rep, err := replay.Drop("route.csv", f, replay.DropConfig{})
		must(t, err)
		must(t, f.Close())
		if p := rep.Dynamic[0].Reproduction; p == nil || !p.Exact() || p.Drops != d.Dropped || p.Bytes != st.BytesWanted || rep.Reproduced() != nil {
			t.Errorf("%v: %v (%s), the run dropped %d and read %d", &r, p, rep.Dynamic[0].NotReproduced, d.Dropped, st.BytesWanted)
		}
		live := cacheOf(t, path, []int64{r.budget}, []string{r.policy})
		if p := live.Reproduction; p == nil || !p.Exact() || p.Bytes != st.BytesWanted {
			t.Errorf("%v: live: %v (%s), the run read %d", &r, p, live.NotReproduced, st.BytesWanted)
		}
		if c := live.Cells[0]; c.Decode.Hits+c.Prefill.Hits != st.Hits || c.Decode.Lookups+c.Prefill.Lookups != st.Hits+st.Misses {
			t.Errorf("%v: live: %+v, the run had %d hits and %d misses", &r, c, st.Hits, st.Misses)
		}
		mixed += both
		at := slices.Index(moe.PrefetchModes(), r.prefetch)
		dropped[at], read[at] = dropped[at]+d.Dropped, read[at]+live.Cells[0].Decode.Ahead+live.Cells[0].Prefill.Ahead
	}
	if mixed < 10*runs || slices.Min(dropped[:]) < int64(20*runs) || read[0] != 0 || slices.Min(read[1:]) < 1<<20 {
		t.Errorf("%d passes of both phases, %d drops and %d bytes ahead by prefetch: the draw hardly exercises them", mixed, dropped, read)
	}
}
