package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// chosen is what a router chose for one row.
type chosen struct {
	layer, step int
	phase       moe.Phase
	experts     string // ids and bits of weights
}

// bySeq is a tap that sorts selections by sequence.
type bySeq map[int32][]chosen

func (b bySeq) Computed(*moe.Observed) error { return nil }

func (b bySeq) Routed(o *moe.Observed) error {
	for t, r := range o.Rows {
		c := chosen{layer: o.Layer, step: int(r.Step), phase: r.Phase}
		for j := range o.K {
			c.experts += fmt.Sprintf("%d:%08x ", o.Expert[t*o.K+j], math.Float32bits(o.Weight[t*o.K+j]))
		}
		b[r.Seq] = append(b[r.Seq], c)
	}
	return nil
}

// sorted is a sequence's selections in the order of positions, whatever chunks its prompts came in.
func (b bySeq) sorted(seq int) []chosen {
	all := slices.Clone(b[int32(seq)])
	slices.SortStableFunc(all, func(x, y chosen) int {
		if x.step != y.step {
			return x.step - y.step
		}
		return x.layer - y.layer
	})
	return all
}

// play is what happens to one sequence: turns of a prompt and of tokens that are drawn behind it, each begun by cutting the
// sequence to so many tokens.
type play struct {
	turns []playTurn
	at    int     // turn
	done  int     // of its prompt
	drawn int     // of its tokens
	next  int32   // drawn, not yet appended
	got   []int32 // all that were drawn
	seq   *engine.Seq
}

type playTurn struct {
	cut    int // -1: go on where it is
	prompt []int32
	draw   int
}

// randomPlay makes a play of one to three turns over a vocabulary.
func randomPlay(rng *rand.Rand, vocab, most int) *play {
	p := &play{}
	n := 0
	for t := range 1 + rng.IntN(3) {
		turn := playTurn{cut: -1, draw: 1 + rng.IntN(8)}
		if t > 0 && rng.IntN(2) == 0 {
			turn.cut = rng.IntN(n + 1)
			n = turn.cut
		}
		for range 1 + rng.IntN(most) {
			turn.prompt = append(turn.prompt, int32(rng.IntN(vocab)))
		}
		n += len(turn.prompt) + turn.draw - 1
		p.turns = append(p.turns, turn)
	}
	return p
}

func (p *play) clone() *play { return &play{turns: p.turns} }

// over says whether the sequence has left.
func (p *play) over() bool { return p.at == len(p.turns) }

// work is the sequence's next: at most so many rows of its prompt, or the token that was drawn.
func (p *play) work(rows int) engine.Work {
	t := &p.turns[p.at]
	if p.done == 0 && p.drawn == 0 {
		if t.cut >= 0 {
			p.seq.Truncate(t.cut)
		}
		if p.at > 0 {
			p.seq.NextTurn()
		}
	}
	if p.done < len(t.prompt) {
		n := min(rows, len(t.prompt)-p.done)
		w := engine.Work{Seq: p.seq, IDs: t.prompt[p.done : p.done+n]}
		if p.done += n; p.done == len(t.prompt) {
			w.Head = model.HeadLogits
		}
		return w
	}
	return engine.Work{Seq: p.seq, IDs: []int32{p.next}, Decode: true, Head: model.HeadNext}
}

// took takes the result of the work that was the i-th of a pass.
func (p *play) took(t *testing.T, e *engine.Engine, i int, w engine.Work) {
	t.Helper()
	switch w.Head {
	case model.HeadNone:
		return
	case model.HeadLogits:
		p.next = int32(kernels.ArgMax(e.Logits(i)))
	default:
		next, err := e.Next(i)
		if err != nil {
			t.Fatal(err)
		}
		p.next = next
	}
	p.got = append(p.got, p.next)
	if p.drawn++; p.drawn == p.turns[p.at].draw {
		p.at, p.done, p.drawn = p.at+1, 0, 0
	}
}

// together plays all on one engine, in passes whose sequences and rows the seed chooses.
func together(t *testing.T, e *engine.Engine, plays []*play, rng *rand.Rand, batch, seqs int) {
	t.Helper()
	waiting := slices.Clone(plays)
	var running []*play
	for len(waiting)+len(running) > 0 {
		for len(waiting) > 0 && len(running) < seqs && (len(running) == 0 || rng.IntN(3) > 0) {
			p := waiting[0]
			waiting = waiting[1:]
			var err error
			if p.seq, err = e.NewSeq(); err != nil {
				t.Fatal(err)
			}
			running = append(running, p)
		}
		rng.Shuffle(len(running), func(i, j int) { running[i], running[j] = running[j], running[i] })
		var work []engine.Work
		left := batch
		for _, p := range running[:1+rng.IntN(len(running))] {
			w := p.work(min(left, 1+rng.IntN(24)))
			work = append(work, w)
			if left -= len(w.IDs); left == 0 {
				break
			}
		}
		if err := e.Pass(background, work); err != nil {
			t.Fatal(err)
		}
		for i, p := range running[:len(work)] {
			p.took(t, e, i, work[i])
		}
		running = slices.DeleteFunc(running, func(p *play) bool {
			if p.over() {
				p.seq.Close()
			}
			return p.over()
		})
	}
}

// TestRows: what a sequence gets, and what its routers choose, does not depend on the sequences that share its passes.
func TestRows(t *testing.T) {
	models := map[string]*model.Model{"demo": openFile(t, demoFile(t))}
	for _, arch := range []string{"qwen2moe", "llama"} {
		models[arch] = openFile(t, writeFile(t, arch+".gguf", buildSynth(t, synth.Config{Arch: arch, Type: "q4_k_m", Seed: 3,
			Geometry: synth.Geometry{Layers: 3, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 8, Used: 2, FF: 256, Vocab: 320, Context: 1024}})))
	}
	rng := rand.New(rand.NewPCG(7, 13))
	for _, n := range []int{2, 3, 8, 17} {
		for name, m := range models {
			if testing.Short() && name != "demo" {
				continue
			}
			for i, arm := range []model.Arm{model.ArmHost, model.ArmTable} {
				streamed := (i+n)%2 == 0
				threads := 1 + rng.IntN(3)
				kv := []model.KV{"f16", "f32", "q8_0"}[rng.IntN(3)]
				if m.HeadDim%32 != 0 && kv == model.KVQ8 {
					kv = model.KVF16
				}
				t.Run(fmt.Sprintf("seqs=%d/model=%s/arm=%s/streamed=%v/threads=%d/kv=%s", n, name, arm, streamed, threads, kv), func(t *testing.T) {
					config := func(seqs int, tap bySeq) engine.Config {
						c := engine.Config{Ctx: 512, Seqs: seqs, Batch: 40, Threads: threads, Arm: arm, KV: kv, Taps: []moe.Tap{tap}}
						if streamed {
							c.Source = openSource(t, m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"})
							c.Prefetch = moe.PrefetchModes()[n%3]
						}
						return c
					}
					var plays []*play
					for range n + n/2 {
						plays = append(plays, randomPlay(rng, m.NVocab, 90))
					}
					tap := bySeq{}
					e, err := engine.Open(m, config(n, tap))
					if err != nil {
						t.Fatal(err)
					}
					together(t, e, plays, rng, 40, n)
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
					for i, p := range plays {
						alone := p.clone()
						own := bySeq{}
						one, err := engine.Open(m, config(1, own))
						if err != nil {
							t.Fatal(err)
						}
						together(t, one, []*play{alone}, rand.New(rand.NewPCG(1, 1)), 40, 1)
						if err := one.Close(); err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(alone.got, p.got) {
							t.Errorf("sequence %d: drew %v among others, %v alone", i, p.got, alone.got)
						}
						if !slices.Equal(own.sorted(0), tap.sorted(p.seq.Number())) {
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
		var plays []*play
		for range 9 {
			plays = append(plays, randomPlay(rng, m.NVocab, 60))
		}
		together(t, e, plays, rng, 40, 5)
		var all []int32
		for _, p := range plays {
			all = append(all, p.got...)
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
