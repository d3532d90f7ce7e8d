package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// TestRows: what a sequence gets, and what its routers choose, does not depend on the sequences that share its passes.
func TestRows(t *testing.T) {
	names := []string{"demo", "qwen2moe", "llama"}
	models := []*model.Model{openFile(t, demoFile(t))}
	for _, arch := range names[1:] {
		models = append(models, openFile(t, writeFile(t, arch+".gguf", buildSynth(t, synth.Config{Arch: arch, Type: "q4_k_m", Seed: 3,
			Geometry: synth.Geometry{Layers: 3, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 8, Used: 2, FF: 256, Vocab: 320, Context: 1024}}))))
	}
	rng := rand.New(rand.NewPCG(7, 13))
	for _, n := range []int{2, 3, 8, 17} {
		for at, m := range models {
			name := names[at]
			if testing.Short() && (name != "demo" || n != 3) {
				continue
			}
			for i, arm := range []model.Arm{model.ArmHost, model.ArmTable} {
				streamed := (i+n)%2 == 0
				threads := 1 + rng.IntN(3)
				kv := []model.KV{"f16", "f32", "q8_0"}[rng.IntN(3)]
				if m.HeadDim%32 != 0 && kv == model.KVQ8 {
					kv = model.KVF16
				}
				isa := []string{"avx2", "generic", "avx512"}[(i+at+n)%3] // alone on the best that the processor has
				if testing.Short() && isa == "generic" {
					isa = "avx512" // under the race detector the reference takes a minute
				}
				t.Run(fmt.Sprintf("seqs=%d/model=%s/arm=%s/streamed=%v/threads=%d/kv=%s/isa=%s", n, name, arm, streamed, threads, kv, isa), func(t *testing.T) {
					restore, err := kernels.SetISA(isa)
					if err != nil {
						t.Skipf("not on this processor: %v", err)
					}
					config := func(seqs int, tap enginetest.BySeq) engine.Config {
						c := engine.Config{Ctx: 512, Seqs: seqs, Batch: 40, Threads: threads, Arm: arm, KV: kv, Taps: []moe.Tap{tap}}
						if streamed {
							c.Source = openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"})
							c.Prefetch = moe.PrefetchModes()[n%3]
						}
						return c
					}
					var plays []*enginetest.Play
					for range n + n/2 {
						plays = append(plays, enginetest.RandomPlay(rng, m.NVocab, 90))
					}
					tap := enginetest.BySeq{}
					e, err := engine.Open(m, config(n, tap))
					if err != nil {
						t.Fatal(err)
					}
					enginetest.Together(t, e, plays, rng, 40, n)
					restore()
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
					for i, p := range plays {
						alone := p.Clone()
						own := enginetest.BySeq{}
						one, err := engine.Open(m, config(1, own))
						if err != nil {
							t.Fatal(err)
						}
						enginetest.Together(t, one, []*enginetest.Play{alone}, rand.New(rand.NewPCG(1, 1)), 40, 1)
						if err := one.Close(); err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(alone.Got, p.Got) {
							t.Errorf("sequence %d: drew %v among others, %v alone", i, p.Got, alone.Got)
						}
						if !slices.Equal(own.Sorted(0), tap.Sorted(p.Seq.Number())) {
							t.Errorf("sequence %d: its routers chose otherwise among others", i)
						}
					}
				})
			}
		}
	}
}

// TestRowsAllocateNothing: a step of eight sequences takes no memory.
func TestRowsAllocateNothing(t *testing.T) {
	m := openFile(t, demoFile(t))
	for _, streamed := range []bool{false, true} {
		c := engine.Config{Ctx: 256, Seqs: 8, Threads: 2}
		if streamed {
			c.Source = openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"})
			c.Prefetch = moe.PrefetchLastToken
			c.Drop = moe.Drop{Frac: 0.5, Renorm: true}
		}
		e, err := engine.Open(m, c)
		if err != nil {
			t.Fatal(err)
		}
		work := make([]engine.Work, 8)
		ids := make([]int32, len(work))
		for i := range work {
			s, err := e.NewSeq()
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = int32(40 + i)
			work[i] = engine.Work{Seq: s, IDs: ids[i : i+1], Decode: true, Head: model.HeadNext}
		}
		step := func() {
			if err := e.Pass(background, work); err != nil {
				t.Fatal(err)
			}
			for i := range work {
				if ids[i], err = e.Next(i); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 70 {
			step()
		}
		if n := testing.AllocsPerRun(50, step); n != 0 {
			t.Errorf("streamed %v: %v allocations a step, want 0", streamed, n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRowsDropAlike: with dropping, neighbours matter, but the same schedule twice gives the same drops.
func TestRowsDropAlike(t *testing.T) {
	m := openFile(t, demoFile(t))
	run := func() (model.DropCount, []int32) {
		e, err := engine.Open(m, engine.Config{Ctx: 512, Seqs: 5, Batch: 40, Threads: 2, Drop: moe.Drop{Frac: 0.9, Renorm: true},
			Source: openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"})})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		rng := rand.New(rand.NewPCG(3, 9))
		var plays []*enginetest.Play
		for range 9 {
			plays = append(plays, enginetest.RandomPlay(rng, m.NVocab, 60))
		}
		enginetest.Together(t, e, plays, rng, 40, 5)
		var all []int32
		for _, p := range plays {
			all = append(all, p.Got...)
		}
		return e.Drops(), all
	}
	drops, tokens := run()
	again, same := run()
	if drops != again || !slices.Equal(tokens, same) {
		t.Errorf("%+v and %+v, tokens equal: %v", drops, again, slices.Equal(tokens, same))
	}
	if drops.Dropped == 0 {
		t.Error("nothing was dropped: the test shows nothing")
	}
}

// TestSeqLimits: what an engine refuses of its sequences.
func TestSeqLimits(t *testing.T) {
	m := demoModel(t)
	e, err := engine.Open(m, engine.Config{Ctx: 8, Seqs: 2, Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	a, err := e.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.NewSeq(); err == nil {
		t.Error("a third sequence was begun")
	}
	for name, work := range map[string][]engine.Work{
		"no work":            nil,
		"no tokens":          {{Seq: a}},
		"two drawn tokens":   {{Seq: a, IDs: []int32{1, 2}, Decode: true}},
		"too many rows":      {{Seq: a, IDs: []int32{1, 2, 3}}, {Seq: b, IDs: []int32{1, 2}}},
		"a sequence twice":   {{Seq: a, IDs: []int32{1}}, {Seq: a, IDs: []int32{1}}},
		"beyond the context": {{Seq: a, IDs: make([]int32, 9)}},
		"no such token":      {{Seq: a, IDs: []int32{int32(m.NVocab)}}},
	} {
		if err := e.Pass(background, work); err == nil {
			t.Errorf("%s: no error", name)
		}
		if a.Pos() != 0 || b.Pos() != 0 {
			t.Fatalf("%s: positions %d and %d", name, a.Pos(), b.Pos())
		}
	}
	b.Close()
	if c, err := e.NewSeq(); err != nil || c.Number() != 2 {
		t.Errorf("a sequence behind one that has left: %v, %v", c, err)
	}
}
