//go:build cuda

package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// openEngine opens an engine that closes with the test.
func openEngine(t testing.TB, m *model.Model, c engine.Config) *engine.Engine {
	t.Helper()
	e, err := engine.Open(m, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// begin begins n sequences.
func begin(t testing.TB, e *engine.Engine, n int) []*engine.Seq {
	t.Helper()
	seqs := make([]*engine.Seq, n)
	for i := range seqs {
		var err error
		if seqs[i], err = e.NewSeq(); err != nil {
			t.Fatal(err)
		}
	}
	return seqs
}

func pass(t testing.TB, e *engine.Engine, work ...engine.Work) {
	t.Helper()
	if err := e.Pass(background, work); err != nil {
		t.Fatal(err)
	}
}

func next(t testing.TB, e *engine.Engine, i int) int32 {
	t.Helper()
	id, err := e.Next(i)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestCUDAPassFaults: what goes wrong in one row is named by that row's own position, whichever row it is, and costs the
// others nothing but the pass: they go on as if it had not been.
func TestCUDAPassFaults(t *testing.T) {
	const bad = 5 // its embedding is not finite
	m := spoiled(t, "qwen3moe", "token_embd.weight", bad*narrow.Embd+3, float32(math.NaN()))
	for _, p := range places {
		d := openDevice(t, cuda.Options{CacheBytes: int64(p.slots) * expertBytes(m)})
		e := openEngine(t, m, engine.Config{Device: d, Arm: p.arm, Ctx: 64, Seqs: 4, Batch: 32})
		seqs := begin(t, e, 4)
		prompts := [][]int32{{7, 2, 9}, {1, 3, 4, 8, 6, 2, 9, 11}, {10}, {12, 13}}
		step := func(ids []int32) []int32 {
			t.Helper()
			var work []engine.Work
			for i := range ids {
				work = append(work, engine.Work{Seq: seqs[i], IDs: ids[i : i+1], Decode: true, Head: model.HeadNext})
			}
			pass(t, e, work...)
			out := make([]int32, len(ids))
			for i := range out {
				if out[i] = next(t, e, i); out[i] == bad {
					t.Fatal("the bad token was drawn: take another seed")
				}
			}
			return out
		}
		begun := func() []int32 {
			t.Helper()
			var work []engine.Work
			for i, s := range seqs {
				s.Truncate(0)
				work = append(work, engine.Work{Seq: s, IDs: prompts[i], Head: model.HeadNext})
			}
			pass(t, e, work...)
			ids := make([]int32, len(seqs))
			for i := range ids {
				ids[i] = next(t, e, i)
			}
			return ids
		}
		var want [][]int32
		ids := begun()
		for range 6 {
			want = append(want, ids)
			ids = step(ids)
		}
		for _, c := range []struct {
			at       int // steps before
			row, pos int // of the bad token
			work     func(ids []int32) []engine.Work
		}{
			{0, 1, 8, func(ids []int32) []engine.Work {
				return []engine.Work{{Seq: seqs[0], IDs: ids[:1], Decode: true, Head: model.HeadNext}, {Seq: seqs[1], IDs: []int32{bad}, Decode: true, Head: model.HeadNext}}
			}},
			{3, 3, 5, func(ids []int32) []engine.Work { // where a graph has been captured
				var work []engine.Work
				for i := range ids {
					work = append(work, engine.Work{Seq: seqs[i], IDs: ids[i : i+1], Decode: true, Head: model.HeadNext})
				}
				work[3].IDs = []int32{bad}
				return work
			}},
			{2, 4, 13, func(ids []int32) []engine.Work { // in a chunk among single rows; nothing is wanted of it
				return []engine.Work{{Seq: seqs[0], IDs: ids[:1], Decode: true, Head: model.HeadNext}, {Seq: seqs[1], IDs: []int32{9, 8, 7, bad, 2}},
					{Seq: seqs[3], IDs: ids[3:], Decode: true, Head: model.HeadLogits}}
			}},
			{1, 0, 2, func(ids []int32) []engine.Work {
				return []engine.Work{{Seq: seqs[2], IDs: []int32{bad}, Head: model.HeadNone}, {Seq: seqs[1], IDs: ids[1:2], Decode: true, Head: model.HeadNext}}
			}},
		} {
			ids := begun()
			for i := range c.at {
				if !slices.Equal(ids, want[i]) {
					t.Fatalf("%s: step %d: %v, want %v", p.name, i, ids, want[i])
				}
				ids = step(ids)
			}
			before := []int{seqs[0].Pos(), seqs[1].Pos(), seqs[2].Pos(), seqs[3].Pos()}
			err := e.Pass(background, c.work(slices.Clone(ids)))
			if text := fmt.Sprintf("cuda: layer 0: the token's embedding is not finite (token at position %d)", c.pos); err == nil || err.Error() != text {
				t.Errorf("%s, row %d: got %v, want %s", p.name, c.row, err, text)
			}
			for i, s := range seqs {
				if s.Pos() != before[i] {
					t.Errorf("%s: sequence %d is %d long after the error, before it %d", p.name, i, s.Pos(), before[i])
				}
			}
			for i := c.at; i < len(want); i++ {
				if !slices.Equal(ids, want[i]) {
					t.Fatalf("%s: after the error, step %d: %v, want %v", p.name, i, ids, want[i])
				}
				ids = step(ids)
			}
		}
	}
}

// TestCUDAPassDrops: a tap by itself, without a trace, hears of every slot whether it fell, and of prompts that share passes
// with decoded rows none does; on either arm, wherever experts are, it hears the same.
func TestCUDAPassDrops(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", narrowData(t)))
	want := ""
	for _, c := range []struct {
		arm   model.Arm
		slots int64
	}{{model.ArmHost, 3}, {model.ArmTable, 3}, {model.ArmTable, 0}} {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, 4), Policy: "lru", IO: "buffered", Force: true}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		seen := &fallen{}
		d := openDevice(t, cuda.Options{CacheBytes: c.slots * expertBytes(m)})
		e := openEngine(t, m, engine.Config{Device: d, Arm: c.arm, Ctx: 256, Seqs: 5, Batch: 24, Source: src,
			Drop: moe.Drop{Frac: 0.9, Renorm: true}, Taps: []moe.Tap{seen}})
		rng := rand.New(rand.NewPCG(4, 9))
		var plays []*enginetest.Play
		for range 6 {
			plays = append(plays, enginetest.RandomPlay(rng, m.NVocab, 30))
		}
		enginetest.Together(t, e, plays, rng, 24, 5)
		if seen.prompts > 0 || seen.decoded == 0 || int64(seen.decoded) != e.Drops().Dropped {
			t.Errorf("%+v: of prompts %d slots fell, of decoded rows %d; counted %+v", c, seen.prompts, seen.decoded, e.Drops())
		}
		if want == "" {
			want = seen.b.String()
		} else if seen.b.String() != want {
			t.Errorf("%+v: the tap heard otherwise", c)
		}
	}
}

// fallen is a tap that writes down what was chosen and what fell.
type fallen struct {
	b                strings.Builder
	prompts, decoded int
}

func (f *fallen) Routed(*moe.Observed) error { return nil }

func (f *fallen) Computed(o *moe.Observed) error {
	for t, r := range o.Rows {
		for i := t * o.K; i < (t+1)*o.K; i++ {
			fmt.Fprintf(&f.b, "%d %d %d %d %08x %v\n", o.Layer, r.Seq, r.Step, o.Expert[i], math.Float32bits(o.Weight[i]), o.Dropped[i])
			if o.Dropped[i] && r.Phase == moe.Prefill {
				f.prompts++
			} else if o.Dropped[i] {
				f.decoded++
			}
		}
	}
	return nil
}

// TestCUDASeqsMemory: keys and values of more sequences than the device has room for are refused with what was asked for
// and what was free.
func TestCUDASeqsMemory(t *testing.T) {
	emulatedOnly(t)
	if !child(t, "SLUICE_EMU_MB=48") {
		return
	}
	m := narrowModel(t, "qwen3moe", "f16")
	d := openDevice(t, cuda.Options{})
	cfg := engine.Config{Device: d, Ctx: 1000, Batch: 512}
	var full *driver.NoMemoryError
	cfg.Seqs = 512
	if _, err := engine.Open(m, cfg); !errors.As(err, &full) || full.Asked != 512*16*2*64*32*2 || !strings.HasPrefix(full.What, "keys of layer ") && !strings.HasPrefix(full.What, "values of layer ") {
		t.Errorf("512 sequences: %v", err)
	} else {
		t.Log(err)
	}
	cfg.Seqs, cfg.Batch = 8, 64
	e := openEngine(t, m, cfg)
	s := begin(t, e, 1)[0]
	if s.Bytes() != 0 {
		t.Errorf("an empty sequence has %d bytes", s.Bytes())
	}
	pass(t, e, engine.Work{Seq: s, IDs: randomIDs(m, 1, 64)})
	tile := int64(m.NLayer * 2 * m.NKVHead * m.HeadDim * 64 * 2)
	if s.Bytes() != tile {
		t.Errorf("a sequence of 64 tokens has %d bytes, want %d", s.Bytes(), tile)
	}
	pass(t, e, engine.Work{Seq: s, IDs: []int32{1}})
	if s.Bytes() != 2*tile {
		t.Errorf("a sequence of 65 tokens has %d bytes, want %d", s.Bytes(), 2*tile)
	}
	if s.Truncate(64); s.Bytes() != tile {
		t.Errorf("cut to 64 tokens it has %d bytes, want %d", s.Bytes(), tile)
	}
}
