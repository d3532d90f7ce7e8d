package coact

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/dump"
	"sluice/dump/dumptest"
)

// appendRecord encodes one record of a selection dump.
func appendRecord(b []byte, layer int, experts []int) []byte {
	b = append(b, byte(layer), byte(len(experts)))
	for i, e := range experts {
		b = binary.LittleEndian.AppendUint16(b, uint16(e))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1/float32(i+2)))
	}
	return b
}

// randomDump has tokens of every layer in turn, chunks of a prompt first; half of a token's experts come from its group.
func randomDump(seed uint64, layers, tokens, experts, k int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 7))
	var b []byte
	for t := 0; t < tokens; {
		chunk := 1
		if t < tokens/2 {
			chunk = min(32, tokens/2-t)
		}
		for l := range layers {
			for range chunk {
				group := rnd.IntN(2) * (experts / 2)
				var tok []int
				for len(tok) < k {
					e := rnd.IntN(experts)
					if len(tok) < k/2 {
						e = group + rnd.IntN(experts-experts/2)
					}
					if !slices.Contains(tok, e) {
						tok = append(tok, e)
					}
				}
				b = appendRecord(b, l*3, tok)
			}
		}
		t += chunk
	}
	return b
}

// recount scores a placement as its file has it, by the definition and token by token.
func recount(t *testing.T, data []byte, p *Placement) (pooled PlacementScore, byLayer map[int]PlacementScore) {
	t.Helper()
	type count struct{ fit, fitSingle, held, heldSingle, heldCards uint64 }
	tokens := map[int]uint64{}
	records := func(fn func(dump.SelRecord)) {
		r := dump.NewSelReader(bytes.NewReader(data))
		for {
			rec, err := r.Next()
			if err == io.EOF {
				return
			}
			must(t, err)
			fn(rec)
		}
	}
	records(func(rec dump.SelRecord) { tokens[rec.Layer]++ })
	counts, seen := map[int]*count{}, map[int]uint64{}
	place := map[int][][]int{}
	for _, l := range p.Layers {
		counts[l.Layer], place[l.Layer] = &count{}, l.Experts
	}
	records(func(rec dump.SelRecord) {
		cards := map[int]bool{}
		for _, e := range rec.Expert {
			if on := place[rec.Layer][e]; len(on) == 1 {
				cards[on[0]] = true
			}
		}
		cost := uint64(max(1, len(cards)))
		c, single := counts[rec.Layer], uint64(0)
		if cost == 1 {
			single = 1
		}
		if seen[rec.Layer] < tokens[rec.Layer]*7/10 {
			c.fit++
			c.fitSingle += single
		} else {
			c.held++
			c.heldSingle += single
			c.heldCards += cost
		}
		seen[rec.Layer]++
	})
	of := func(c *count) PlacementScore {
		return PlacementScore{share(c.fitSingle, c.fit), share(c.heldSingle, c.held), share(c.heldCards, c.held)}
	}
	var all count
	byLayer = map[int]PlacementScore{}
	for l, c := range counts {
		byLayer[l] = of(c)
		all.fit += c.fit
		all.fitSingle += c.fitSingle
		all.held += c.held
		all.heldSingle += c.heldSingle
		all.heldCards += c.heldCards
	}
	return of(&all), byLayer
}

// What is printed is what the placement file gives when somebody counts again, for every number of cards and budget.
func TestPrintedScoresFollowFromThePlacementFile(t *testing.T) {
	for name, c := range map[string]struct {
		data             []byte
		experts          int
		cards, replicate []int
	}{
		"random":    {randomDump(1, 3, 400, 24, 4), 24, []int{2, 3, 5, 16}, []int{0, 1, 7, 23, 24}},
		"clustered": {dumptest.Read(t, "clustered-288.sel.bin"), 288, []int{2, 7}, []int{16}},
	} {
		data, experts := c.data, c.experts
		for _, cards := range c.cards {
			for _, replicate := range c.replicate {
				r := analyse(t, data, Options{Experts: experts, Cards: cards, Replicate: []int{replicate}})
				var file bytes.Buffer
				must(t, r.Placement.Write(&file))
				p, err := ReadPlacement(&file)
				must(t, err)
				if !cmp.Equal(p, r.Placement) {
					t.Fatal(cmp.Diff(r.Placement, p))
				}
				pooled, layers := recount(t, data, p)
				s := &r.Pooled.Splits[0]
				printed := PlacementScore{s.Fit.PSingle, s.HeldOut.PSingle, s.HeldOut.MeanCards}
				if pooled != p.PlacementScore || pooled != printed {
					t.Errorf("%s, %d cards, %d replicated: counted %+v, file %+v, printed %+v", name, cards, replicate, pooled, p.PlacementScore, printed)
				}
				for i, l := range p.Layers {
					s := &r.Layers[i].Splits[0]
					printed := PlacementScore{s.Fit.PSingle, s.HeldOut.PSingle, s.HeldOut.MeanCards}
					if layers[l.Layer] != l.PlacementScore || layers[l.Layer] != printed {
						t.Errorf("%s, %d cards, layer %d: counted %+v, file %+v", name, cards, l.Layer, layers[l.Layer], l.PlacementScore)
					}
				}
				checkSizes(t, p, replicate)
			}
		}
	}
}

// Every card holds as many experts as any other, to within one.
func checkSizes(t *testing.T, p *Placement, replicate int) {
	t.Helper()
	for _, l := range p.Layers {
		single, all := make([]int, p.Cards), 0
		for _, cards := range l.Experts {
			if len(cards) == 1 {
				single[cards[0]]++
			} else {
				all++
			}
		}
		if all != replicate || slices.Max(single)-slices.Min(single) > 1 {
			t.Errorf("layer %d: %d on every card, others %v", l.Layer, all, single)
		}
	}
}

func TestCountsAddUp(t *testing.T) {
	data := randomDump(2, 4, 300, 40, 6)
	r := analyse(t, data, Options{Experts: 40, Cards: 4, Replicate: []int{0, 8}})
	for i, l := range r.layers {
		picks := sum(l.picks(false))
		if picks != l.tokens*uint64(l.k) || sum(l.picks(true)) != l.fit*uint64(l.k) {
			t.Errorf("layer %d: %d picks of %d tokens", l.index, picks, l.tokens)
		}
		if off := r.Layers[i].OffDiagSum; off != l.tokens*uint64(l.k*(l.k-1)) {
			t.Errorf("layer %d: pair sum %d", l.index, off)
		}
		for _, s := range r.Layers[i].Splits {
			if s.Fit.Tokens != l.fit || s.HeldOut.Tokens != l.tokens-l.fit || s.Random.Tokens != randomSeeds*s.HeldOut.Tokens || s.Even.Tokens != s.HeldOut.Tokens {
				t.Errorf("layer %d: tokens %+v", l.index, s)
			}
			if sum(s.unitsFit) != sum(l.picks(true))*pickUnits || sum(s.units)+sum(s.unitsFit) != picks*pickUnits {
				t.Errorf("layer %d, %d replicated: the cards' loads are not the picks", l.index, s.Replicate)
			}
		}
	}
}

// The figures are counts: neither the number of threads nor the way the reader's blocks fall changes them.
func TestResultDoesNotDependOnThreads(t *testing.T) {
	data := randomDump(3, 5, 3000, 20, 4)
	o := Options{Experts: 20, Cards: 3, Replicate: []int{0, 4}, Threads: 1}
	want := analyse(t, data, o)
	for _, o.Threads = range []int{2, 9} {
		got := analyse(t, data, o)
		if !reflect.DeepEqual(got.Layers[0].Splits[0].Fit, want.Layers[0].Splits[0].Fit) || !cmp.Equal(got, want, cmpopts.IgnoreUnexported(Report{}, Split{})) {
			t.Fatal(cmp.Diff(want, got, cmpopts.IgnoreUnexported(Report{}, Split{})))
		}
	}
}

// On a graph with two groups and nothing between them the cut is nothing, wherever the groups' ids lie.
func TestPartitionFindsGroups(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		const n, groups = 40, 4
		group := make([]int, n)
		for v := range group {
			group[v] = v % groups
		}
		rnd.Shuffle(n, func(i, j int) { group[i], group[j] = group[j], group[i] })
		w := make([]uint32, n*n)
		for a := range n {
			for b := range a {
				if group[a] == group[b] {
					x := uint32(1 + rnd.IntN(3))
					w[a*n+b], w[b*n+a] = x, x
				}
			}
		}
		g := newGraph(w, n, groups)
		all := make([]int, n)
		for v := range all {
			all[v] = v
		}
		parts := g.partition(all, groups)
		for i := range parts {
			for j := range i {
				if c := g.cut(parts[i], parts[j]); c != 0 {
					t.Fatalf("seed %d: %d between two parts", seed, c)
				}
			}
		}
	}
}

// The refinement's own account of its gain is the change of the cut, and no pass makes it worse.
func TestRefineNeverRaisesTheCut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	for range 50 {
		n := 4 + rnd.IntN(30)
		w := make([]uint32, n*n)
		for a := range n {
			for b := range a {
				x := uint32(rnd.IntN(4))
				w[a*n+b], w[b*n+a] = x, x
			}
		}
		g := newGraph(w, n, 2)
		v := rnd.Perm(n)
		a, b := v[:n/3], v[n/3:]
		before := g.cut(a, b)
		gained := g.refine(a, b)
		if after := g.cut(a, b); after > before || gained != (after < before) {
			t.Fatalf("cut %d, then %d, gained %v", before, after, gained)
		}
	}
}

func TestMatrix(t *testing.T) {
	data := appendRecord(appendRecord(nil, 2, []int{3, 1}), 2, []int{1, 0})
	r := analyse(t, data, Options{Experts: 4, Cards: 2, Replicate: []int{0}})
	var b bytes.Buffer
	must(t, r.WriteMatrix(&b))
	want := "layer,expert_a,expert_b,tokens\n2,0,0,1\n2,0,1,1\n2,1,1,2\n2,1,3,1\n2,3,3,1\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
}

func TestCancel(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	_, err := Analyse(ctx, bytes.NewReader(randomDump(1, 2, 50, 8, 2)), Options{Experts: 8, Cards: 2, Replicate: []int{0}})
	if err != context.Canceled {
		t.Error(err)
	}
}
