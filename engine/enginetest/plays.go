package enginetest

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// Chosen is what a router chose for one row.
type Chosen struct {
	layer, step int
	phase       moe.Phase
	experts     string // ids and bits of weights
}

// BySeq is a tap that sorts selections by sequence.
type BySeq map[int32][]Chosen

// Computed implements moe.Tap.
func (b BySeq) Computed(*moe.Observed) error { return nil }

// Routed implements moe.Tap.
func (b BySeq) Routed(o *moe.Observed) error {
	for t, r := range o.Rows {
		c := Chosen{layer: o.Layer, step: int(r.Step), phase: r.Phase}
		for j := range o.K {
			c.experts += fmt.Sprintf("%d:%08x ", o.Expert[t*o.K+j], math.Float32bits(o.Weight[t*o.K+j]))
		}
		b[r.Seq] = append(b[r.Seq], c)
	}
	return nil
}

// Sorted is a sequence's selections in the order of positions, whatever chunks its prompts came in.
func (b BySeq) Sorted(seq int) []Chosen {
	all := slices.Clone(b[int32(seq)])
	slices.SortStableFunc(all, func(x, y Chosen) int {
		if x.step != y.step {
			return x.step - y.step
		}
		return x.layer - y.layer
	})
	return all
}

// Play is what happens to one sequence: turns of a prompt and of tokens that are drawn behind it, each begun by cutting the
// sequence to so many tokens.
type Play struct {
	turns []playTurn
	at    int     // turn
	done  int     // of its prompt
	drawn int     // of its tokens
	next  int32   // drawn, not yet appended
	Got   []int32 // all that were drawn
	Seq   *engine.Seq
}

type playTurn struct {
	cut    int // -1: go on where it is
	prompt []int32
	draw   int
}

// RandomPlay makes a play of one to three turns over a vocabulary.
func RandomPlay(rng *rand.Rand, vocab, most int) *Play {
	p := &Play{}
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

// Clone is the play before it begins.
func (p *Play) Clone() *Play { return &Play{turns: p.turns} }

// over says whether the sequence has left.
func (p *Play) over() bool { return p.at == len(p.turns) }

// work is the sequence's next: at most so many rows of its prompt, or the token that was drawn.
func (p *Play) work(rows int) engine.Work {
	t := &p.turns[p.at]
	if p.done == 0 && p.drawn == 0 {
		if t.cut >= 0 {
			p.Seq.Truncate(t.cut)
		}
		if p.at > 0 {
			p.Seq.NextTurn()
		}
	}
	if p.done < len(t.prompt) {
		n := min(rows, len(t.prompt)-p.done)
		w := engine.Work{Seq: p.Seq, IDs: t.prompt[p.done : p.done+n]}
		if p.done += n; p.done == len(t.prompt) {
			w.Head = model.HeadLogits
		}
		return w
	}
	return engine.Work{Seq: p.Seq, IDs: []int32{p.next}, Decode: true, Head: model.HeadNext}
}

// took takes the result of the work that was the i-th of a pass.
func (p *Play) took(t testing.TB, e *engine.Engine, i int, w engine.Work) {
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
	p.Got = append(p.Got, p.next)
	if p.drawn++; p.drawn == p.turns[p.at].draw {
		p.at, p.done, p.drawn = p.at+1, 0, 0
	}
}

// Together plays all on one engine, in passes whose sequences and rows the seed chooses.
func Together(t testing.TB, e *engine.Engine, plays []*Play, rng *rand.Rand, batch, seqs int) {
	t.Helper()
	waiting := slices.Clone(plays)
	var running []*Play
	for len(waiting)+len(running) > 0 {
		for len(waiting) > 0 && len(running) < seqs && (len(running) == 0 || rng.IntN(3) > 0) {
			p := waiting[0]
			waiting = waiting[1:]
			var err error
			if p.Seq, err = e.NewSeq(); err != nil {
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
		if err := e.Pass(context.Background(), work); err != nil {
			t.Fatal(err)
		}
		for i, p := range running[:len(work)] {
			p.took(t, e, i, work[i])
		}
		running = slices.DeleteFunc(running, func(p *Play) bool {
			if p.over() {
				p.Seq.Close()
			}
			return p.over()
		})
	}
}

// RowRecord is what dump and trace say of one slot of one row, and of whose it is.
type RowRecord struct {
	layer, step, slot, expert, phase int
	weight                           float32
}

// SortRows puts them in the order of positions, then of layers.
func SortRows(rows []RowRecord) {
	slices.SortStableFunc(rows, func(a, b RowRecord) int {
		if a.step != b.step {
			return a.step - b.step
		}
		if a.layer != b.layer {
			return a.layer - b.layer
		}
		return a.slot - b.slot
	})
}

// ReadRows reads both recordings, which must agree, by sequence. Each (turn, step, layer, slot) is there once.
func ReadRows(t testing.TB, dir string, several bool) map[int][]RowRecord {
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
	recs := ReadDump(t, filepath.Join(dir, "sel.bin"))
	used := len(recs[0].Expert)
	out := map[int][]RowRecord{}
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
		rec := recs[i/used]
		if rec.Layer != row.Layer || int(rec.Expert[row.Slot]) != row.Expert {
			t.Fatalf("row %d: layer %d slot %d expert %d, the dump has layer %d %v", i, row.Layer, row.Slot, row.Expert, rec.Layer, rec.Expert)
		}
		out[row.Seq] = append(out[row.Seq], RowRecord{row.Layer, row.Step, row.Slot, row.Expert, row.Phase, rec.Weight[row.Slot]})
	}
	return out
}
