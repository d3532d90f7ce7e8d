//go:build cuda

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/dump"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// rowsCase is a way to compute rows of several sequences.
type rowsCase struct {
	arm       model.Arm
	slots     int // experts that the device holds; 0: all
	host      int // experts a layer that the host's cache holds; 0: no cache
	noGraph   bool
	drop      float64
	inPrefill bool
}

func (c rowsCase) String() string {
	return fmt.Sprintf("arm=%s/slots=%d/host=%d/graph=%v/drop=%v", c.arm, c.slots, c.host, !c.noGraph, c.drop)
}

// open opens an engine of so many sequences on a device of its own, which is closed with done.
func (c rowsCase) open(t *testing.T, m *model.Model, cfg engine.Config) (e *engine.Engine, done func()) {
	t.Helper()
	d, err := cuda.New(cuda.Options{NoGraph: c.noGraph, CacheBytes: expertBytes(m) * int64(c.slots)})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Device, cfg.Arm, cfg.Drop, cfg.DropInPrefill = d, c.arm, moe.Drop{Frac: c.drop, Renorm: true}, c.inPrefill
	if c.host > 0 {
		sc := engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, c.host), Policy: "lru", Lanes: 2, IO: "buffered", Force: true}
		if cfg.Source, _, err = engine.OpenSource(m, sc, m.NExpertUsed); err != nil {
			t.Fatal(err)
		}
	}
	if e, err = engine.Open(m, cfg); err != nil {
		t.Fatal(err)
	}
	return e, func() {
		t.Helper()
		if err := errors.Join(e.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// plays makes some, and the same ones again.
func plays(rng *rand.Rand, m *model.Model, n, most int) (some, again []*enginetest.Play) {
	for range n {
		p := enginetest.RandomPlay(rng, m.NVocab, most)
		some, again = append(some, p), append(again, p.Clone())
	}
	return some, again
}

// TestCUDARows: what a sequence gets, and what its routers choose, does not depend on the sequences that share its passes.
func TestCUDARows(t *testing.T) {
	cases := []rowsCase{
		{arm: "table"},
		{arm: "host"},
		{arm: "table", slots: 3},
		{arm: "host", slots: 3},
		{arm: "table", slots: 18, host: 3},
		{arm: "table", noGraph: true},
		{arm: "host", slots: 18},
		{arm: "table", slots: 18},
	}
	rng := rand.New(rand.NewPCG(7, 13))
	for i, n := range []int{2, 3, 8, 17} {
		arch, typ := []string{"qwen3moe", "qwen2moe"}[i%2], []string{"f16", "q4_0"}[i/2]
		m := openFile(t, writeFile(t, "m.gguf", build(t, narrowConfig(arch, typ))))
		for j, c := range cases {
			if !long() && !slices.Contains([][]int{{0, 1, 2}, {0, 3, 4}, {0, 5, 6}, {0, 4, 7}}[i], j) {
				continue
			}
			t.Run(fmt.Sprintf("seqs=%d/%v", n, c), func(t *testing.T) {
				run := func(seqs int, plays []*enginetest.Play, rng *rand.Rand) enginetest.BySeq {
					tap := enginetest.BySeq{}
					e, done := c.open(t, m, engine.Config{Ctx: 320, Seqs: seqs, Batch: 40, Taps: []moe.Tap{tap}})
					enginetest.Together(t, e, plays, rng, 40, seqs)
					if st, _ := e.DeviceStats(); st.Resident != (c.slots == 0) || c.slots == 0 && c.host == 0 && c.arm == "table" && st.Graph == c.noGraph {
						t.Errorf("%d sequences: %+v: the case tests nothing", seqs, st)
					}
					done()
					return tap
				}
				some, again := plays(rng, m, n+2, 120/(3+n)+10)
				got := run(n, some, rng)
				want := run(1, again, rand.New(rand.NewPCG(1, 1)))
				for i, p := range some {
					alone := again[i]
					if !slices.Equal(alone.Got, p.Got) {
						t.Errorf("sequence %d: drew %v among others, %v alone", i, p.Got, alone.Got)
					}
					if !slices.Equal(want.Sorted(alone.Seq.Number()), got.Sorted(p.Seq.Number())) {
						t.Errorf("sequence %d: its routers chose otherwise among others", i)
					}
				}
			})
		}
	}
}

// record plays on an engine of so many sequences that records, and returns dump and trace, what was dropped and where
// they are.
func (c rowsCase) record(t *testing.T, m *model.Model, seqs int, plays []*enginetest.Play, rng *rand.Rand) (dir string, drops model.DropCount) {
	t.Helper()
	dir = t.TempDir()
	sel, err := dump.OpenSel(filepath.Join(dir, "sel.bin"), dump.SelMeta{Rows: seqs > 1})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := dump.CreateTrace(filepath.Join(dir, "route.csv"), dump.TraceMeta{Model: "m", Arch: m.Arch, NLayer: m.NLayer, NExpert: m.NExpert, NUsed: m.NExpertUsed, Seqs: seqs > 1})
	if err != nil {
		t.Fatal(err)
	}
	e, done := c.open(t, m, engine.Config{Ctx: 320, Seqs: seqs, Batch: 32, SelDump: sel, Trace: tr})
	enginetest.Together(t, e, plays, rng, 32, seqs)
	drops = e.Drops()
	done()
	if err := errors.Join(sel.Close(), tr.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, drops
}

// TestCUDARecordingsOfRows: dump and trace of several sequences have, for each of them, the records that it has alone.
func TestCUDARecordingsOfRows(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", narrowData(t)))
	for _, c := range []rowsCase{{arm: "table"}, {arm: "host", slots: 3}, {arm: "table", slots: 18, host: 3}} {
		rng := rand.New(rand.NewPCG(5, 6))
		some, again := plays(rng, m, 4, 25)
		dir, _ := c.record(t, m, 3, some, rng)
		got := enginetest.ReadRows(t, dir, true)
		for i, p := range some {
			dir, _ := c.record(t, m, 1, again[i:i+1], rand.New(rand.NewPCG(1, 1)))
			want, mine := enginetest.ReadRows(t, dir, false)[0], got[p.Seq.Number()]
			enginetest.SortRows(want)
			enginetest.SortRows(mine)
			if !slices.Equal(mine, want) {
				t.Errorf("%v: sequence %d: %d records among others, %d alone, or other ones", c, i, len(mine), len(want))
			}
		}
	}
}

// TestCUDARowsDrop: with experts dropped, prompt rows exempt among decoded ones, the arms and every size of the device's
// cache agree in every byte of dump and trace, and in what was dropped, if the schedule is the same.
func TestCUDARowsDrop(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", narrowData(t)))
	for _, inPrefill := range []bool{false, true} {
		var base model.DropCount
		var sel, trace []byte
		var tokens [][]int32
		for i, c := range []rowsCase{{arm: "host", slots: 3}, {arm: "table", slots: 3}, {arm: "table", slots: 18}, {arm: "host", slots: 18}, {arm: "table"}} {
			if inPrefill && i > 1 && !long() {
				continue
			}
			c.host, c.drop, c.inPrefill = 4, 0.9, inPrefill
			rng := rand.New(rand.NewPCG(3, 9))
			some, _ := plays(rng, m, 7, 40)
			dir, drops := c.record(t, m, 4, some, rng)
			s, tr := readFile(t, dir+"/sel.bin"), readFile(t, dir+"/route.csv")
			var got [][]int32
			for _, p := range some {
				got = append(got, p.Got)
			}
			if i == 0 {
				if base, sel, trace, tokens = drops, s, tr, got; base.Dropped == 0 {
					t.Fatal("nothing was dropped: the test shows nothing")
				}
				continue
			}
			want := trace
			if c.slots != 3 { // what the device has is not read
				tr, want = withoutBytes(tr), withoutBytes(trace)
			}
			if drops != base || !bytes.Equal(s, sel) || !slices.EqualFunc(got, tokens, slices.Equal) {
				t.Errorf("%v, in prefill %v: %+v, want %+v; or dump or tokens differ", c, inPrefill, drops, base)
			}
			if !bytes.Equal(tr, want) {
				t.Errorf("%v, in prefill %v: the trace differs: %s", c, inPrefill, firstDifference(tr, want))
			}
		}
	}
}

// stepper decodes rows of several sequences, each with the token that it chose last.
type stepper struct {
	e    *engine.Engine
	seqs []*engine.Seq
	ids  []int32
	work []engine.Work
}

func newStepper(t *testing.T, e *engine.Engine, n int) *stepper {
	s := &stepper{e: e, ids: make([]int32, n), work: make([]engine.Work, 0, n)}
	for i := range n {
		q, err := e.NewSeq()
		if err != nil {
			t.Fatal(err)
		}
		s.seqs, s.ids[i] = append(s.seqs, q), int32(i)
	}
	return s
}

// step decodes a token of each of the sequences.
func (s *stepper) step(t *testing.T, which []int, head model.Head) {
	s.work = s.work[:0]
	for _, i := range which {
		s.work = append(s.work, engine.Work{Seq: s.seqs[i], IDs: s.ids[i : i+1], Decode: true, Head: head})
	}
	if err := s.e.Pass(background, s.work); err != nil {
		t.Fatal(err)
	}
	for j, i := range which {
		if head == model.HeadLogits {
			l := s.e.Logits(j)
			s.ids[i] = int32(slices.Index(l, slices.Max(l)))
			continue
		}
		var err error
		if s.ids[i], err = s.e.Next(j); err != nil {
			t.Fatal(err)
		}
	}
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestCUDARowsCost: a step of several sequences takes no memory of the Go heap, waits once, brings 4 bytes a sequence back
// and sends nothing, but for a new tile every 64 steps; as a graph it is one launch.
func TestCUDARowsCost(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "q8_0")
	for _, n := range []int{1, 8} {
		e, done := rowsCase{arm: "table"}.open(t, m, engine.Config{Ctx: 128, Seqs: 8, Batch: 8})
		s, all := newStepper(t, e, n), upTo(n)
		for range 3 {
			s.step(t, all, model.HeadNext)
		}
		d := e.Config().Device
		const steps = 8
		got := spent(t, d, func() {
			for range steps {
				s.step(t, all, model.HeadNext)
			}
		})
		got.GraphKernels = 0
		if want := (driver.Counters{Syncs: steps, CopiesOut: steps, BytesOut: int64(4 * n * steps), GraphLaunches: steps}); got != want {
			t.Errorf("%d sequences: %+v, want %+v", n, got, want)
		}
		if a := testing.AllocsPerRun(20, func() { s.step(t, all, model.HeadNext) }); a != 0 {
			t.Errorf("%d sequences: %v allocations a step, want 0", n, a)
		}
		// Logits of all of them are copied behind.
		got = spent(t, d, func() { s.step(t, all, model.HeadLogits) })
		if want := int64(4*n + 4*n*m.NVocab); got.BytesOut != want || got.Syncs != 1 || got.GraphLaunches != 1 {
			t.Errorf("%d sequences with logits: %+v, want %d bytes", n, got, want)
		}
		done()
	}
}

// TestCUDAManyRows: more sequences than there are programs kept for and than logits are computed for at a time, in steps of
// as many as the seed says; some want an id, some logits, some nothing.
func TestCUDAManyRows(t *testing.T) {
	g := narrow
	g.Layers, g.Vocab = 1, 300
	m := synthModel(t, synth.Config{Arch: "qwen3moe", Type: "q8_0", Seed: 5, Geometry: g})
	const seqs, steps = 70, 60
	rng := rand.New(rand.NewPCG(8, 8))
	e, done := rowsCase{arm: "table"}.open(t, m, engine.Config{Ctx: 64, Seqs: seqs, Batch: 80})
	s := newStepper(t, e, seqs)
	order := upTo(seqs)
	var want [seqs][]int32
	for i := range steps {
		n := 1 + rng.IntN(seqs)
		if i%30 == 0 {
			n = seqs
		}
		rng.Shuffle(seqs, func(i, j int) { order[i], order[j] = order[j], order[i] })
		which := order[:n]
		which = slices.DeleteFunc(slices.Clone(which), func(i int) bool { return s.seqs[i].Pos() == 64 })
		head := []model.Head{model.HeadNext, model.HeadLogits}[rng.IntN(2)]
		if len(which) > 0 {
			s.step(t, which, head)
		}
		for _, i := range which {
			want[i] = append(want[i], s.ids[i])
		}
		if i%10 == 5 { // rows of which nobody wants to know go on with a token of their own
			q := order[0]
			if s.seqs[q].Pos() < 64 {
				if err := e.Pass(background, []engine.Work{{Seq: s.seqs[q], IDs: []int32{7}}}); err != nil {
					t.Fatal(err)
				}
				s.seqs[q].Truncate(s.seqs[q].Pos() - 1)
			}
		}
	}
	done()
	one, done := rowsCase{arm: "table"}.open(t, m, engine.Config{Ctx: 64, Batch: 1})
	defer done()
	for i, tokens := range want {
		q, err := one.NewSeq()
		if err != nil {
			t.Fatal(err)
		}
		id := int32(i)
		for j, next := range tokens {
			if err := one.Pass(background, []engine.Work{{Seq: q, IDs: []int32{id}, Decode: true, Head: model.HeadNext}}); err != nil {
				t.Fatal(err)
			}
			if id, err = one.Next(0); err != nil || id != next {
				t.Fatalf("sequence %d: token %d is %d, %v; among others %d", i, j, id, err, next)
			}
		}
		q.Close()
	}
}

// TestCUDAStates: what a sequence's memory can do: tiles as it grows, back when it is shorter, snapshots as long as what
// they stand on is there; a bound on how many there are.
func TestCUDAStates(t *testing.T) {
	m := narrowModel(t, "qwen3moe", "f16")
	e, done := rowsCase{arm: "table"}.open(t, m, engine.Config{Ctx: 130, Seqs: 2, Batch: 40})
	defer done()
	tile := int64(m.NLayer) * 2 * 2 * 64 * int64(m.NKVHead*m.HeadDim)
	a, err := e.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.NewSeq(); err == nil || !strings.Contains(err.Error(), "2 sequences are open") {
		t.Errorf("a third sequence: %v", err)
	}
	ids := randomIDs(m, 3, 130)
	fill := func(s *engine.Seq, ids []int32) (logits []float32) {
		t.Helper()
		for len(ids) > 0 {
			n := min(40, len(ids))
			if err := e.Pass(background, []engine.Work{{Seq: s, IDs: ids[:n], Head: model.HeadLogits}}); err != nil {
				t.Fatal(err)
			}
			ids = ids[n:]
		}
		return slices.Clone(e.Logits(0))
	}
	want := func(s *engine.Seq, pos int, bytes int64) {
		t.Helper()
		if s.Pos() != pos || s.Bytes() != bytes {
			t.Errorf("position %d with %d bytes, want %d with %d", s.Pos(), s.Bytes(), pos, bytes)
		}
	}
	want(a, 0, 0)
	empty := b.Snapshot()
	last := fill(a, ids[:64])
	want(a, 64, tile)
	fork := a.Snapshot()
	whole := fill(a, ids[64:130])
	want(a, 130, 3*tile)
	if err := e.Pass(background, []engine.Work{{Seq: a, IDs: ids[:1]}}); !errors.Is(err, engine.ErrContextFull) {
		t.Errorf("past the context: %v", err)
	}
	if err := a.Restore(fork); err != nil {
		t.Fatal(err)
	}
	want(a, 64, tile)
	fill(b, ids[20:127]) // takes tiles that the other had
	want(b, 107, 2*tile)
	if got := fill(a, ids[64:130]); !slices.Equal(got, whole) {
		t.Error("after going back to a snapshot: other logits")
	}
	if kept := a.Truncate(63); kept != 63 {
		t.Errorf("%d positions kept of 63", kept)
	}
	if got := fill(a, ids[63:64]); !slices.Equal(got, last) {
		t.Error("after cutting: other logits")
	}
	if err := a.Restore(fork); !errors.Is(err, model.ErrSnapshot) {
		t.Errorf("a snapshot of what was cut: %v", err)
	}
	other := b.Snapshot()
	if err := a.Restore(other); !errors.Is(err, model.ErrSnapshot) {
		t.Errorf("another's snapshot: %v", err)
	}
	b.Close()
	c, err := e.NewSeq()
	if err != nil {
		t.Fatal(err)
	}
	want(c, 0, 0)
	if err := c.Restore(empty); !errors.Is(err, model.ErrSnapshot) {
		t.Errorf("a snapshot of one that has left: %v", err)
	}
	if got := fill(c, ids); !slices.Equal(got, whole) {
		t.Error("a sequence behind one that has left: other logits")
	}
}

// TestCUDARowsErrors: a pass of several sequences that fails leaves all of them as they were, and names the row's position.
func TestCUDARowsErrors(t *testing.T) {
	nan := float32(math.NaN())
	m := spoiled(t, "qwen3moe", "token_embd.weight", 5*64+3, nan) // of token 5
	for _, place := range places {
		d := openDevice(t, cuda.Options{CacheBytes: int64(place.slots) * expertBytes(m)})
		var texts []string
		for _, cfg := range []engine.Config{{}, {Device: d, Arm: place.arm}} {
			cfg.Ctx, cfg.Seqs, cfg.Batch = 64, 3, 16
			e, err := engine.Open(m, cfg)
			if err != nil {
				t.Fatal(err)
			}
			s := newStepper(t, e, 3)
			pass := func(work ...engine.Work) error { return e.Pass(background, work) }
			if err := pass(engine.Work{Seq: s.seqs[0], IDs: []int32{1, 2, 3}}, engine.Work{Seq: s.seqs[1], IDs: []int32{4}, Head: model.HeadNext}); err != nil {
				t.Fatal(err)
			}
			for _, work := range [][]engine.Work{
				{{Seq: s.seqs[2], IDs: []int32{9, 8}}, {Seq: s.seqs[0], IDs: []int32{6, 7, 5, 1}, Head: model.HeadNext}},
				{{Seq: s.seqs[2], IDs: []int32{9}, Decode: true, Head: model.HeadNext}, {Seq: s.seqs[0], IDs: []int32{5}, Decode: true, Head: model.HeadNext}},
				{{Seq: s.seqs[1], IDs: []int32{2, 1}}, {Seq: s.seqs[0], IDs: []int32{1, int32(m.NVocab)}}},
			} {
				err := pass(work...)
				texts = append(texts, strings.Replace(fmt.Sprint(err), "engine: ", "cuda: ", 1))
				if s.seqs[0].Pos() != 3 || s.seqs[1].Pos() != 1 || s.seqs[2].Pos() != 0 {
					t.Errorf("%s: positions %d, %d and %d", place.name, s.seqs[0].Pos(), s.seqs[1].Pos(), s.seqs[2].Pos())
				}
			}
			// They go on, one of them with a token that is wrong in another's place.
			s.ids = []int32{1, 2, 3}
			for range 3 {
				s.step(t, []int{1, 0, 2}, model.HeadNext)
				for i, id := range s.ids {
					if id == 5 {
						s.ids[i] = 6
					}
				}
				texts = append(texts, fmt.Sprint(s.ids))
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		for i, want := range texts[:len(texts)/2] {
			got := texts[len(texts)/2+i]
			if i < 3 && (got != want || got == "<nil>") {
				t.Errorf("%s: %s, want %s", place.name, got, want)
			}
		}
	}
}

// TestCUDARowsInterrupted: a source that fails in a pass of several sequences ends it; they go on as if it had not been.
func TestCUDARowsInterrupted(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "f16")
	fails := errors.New("the disk is gone")
	for _, arm := range []model.Arm{"table", "host"} {
		run := func(at int) (tokens []int32) {
			d := openDevice(t, cuda.Options{CacheBytes: 3 * expertBytes(m)})
			src, _, err := engine.OpenSource(m, engine.SourceConfig{}, m.NExpertUsed)
			if err != nil {
				t.Fatal(err)
			}
			b := &brokenSource{Source: src, at: func() error { return fails }}
			e, err := engine.Open(m, engine.Config{Device: d, Ctx: 64, Seqs: 3, Batch: 16, Arm: arm, Source: b})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			s := newStepper(t, e, 3)
			chunk := []engine.Work{{Seq: s.seqs[1], IDs: []int32{3, 1, 4, 1, 5}}, {Seq: s.seqs[0], IDs: []int32{2}, Head: model.HeadNext}}
			for i := range 5 {
				if at > 0 {
					b.left = at
					work := chunk
					if i > 0 {
						work = []engine.Work{{Seq: s.seqs[2], IDs: s.ids[2:3], Decode: true, Head: model.HeadNext}, {Seq: s.seqs[1], IDs: s.ids[1:2], Decode: true, Head: model.HeadNext}}
					}
					if err := e.Pass(background, work); b.left <= 0 && !errors.Is(err, fails) {
						t.Errorf("%s arm, a source that failed: %v", arm, err)
					} else if err == nil {
						for _, w := range work { // as if it had not been
							w.Seq.Truncate(w.Seq.Pos() - len(w.IDs))
						}
					}
					b.left = 0
				}
				if i == 0 {
					if err := e.Pass(background, chunk); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(background)
				cancel()
				if err := e.Pass(ctx, []engine.Work{{Seq: s.seqs[0], IDs: []int32{1, 2}}}); !errors.Is(err, context.Canceled) {
					t.Errorf("%s arm, cancelled: %v", arm, err)
				}
				s.step(t, []int{1, 2, 0}, model.HeadNext)
				tokens = append(tokens, s.ids...)
			}
			return tokens
		}
		want := run(0)
		for _, at := range []int{1, 4, 9} {
			if got := run(at); !slices.Equal(got, want) {
				t.Errorf("%s arm, interrupted at %d: %v, want %v", arm, at, got, want)
			}
		}
	}
}
