package coact

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Ways to choose the experts that stand on every card.
const (
	ByNone      = "none"      // nothing to choose: no expert is replicated, or all are
	ByFrequency = "frequency" // the most picked ones
	ByCut       = "cut"       // those with the most co-activation across the cards of a split without replicas
)

// randomSeeds is over how many random splits the baseline is a mean.
const randomSeeds = 8

// candidate is one assignment of a layer's experts to cards that the score pass tries.
type candidate struct {
	replicate int    // budget
	by        string // ByNone, ByFrequency, ByCut
	kind      candidateKind
	card      []int8 // by expert; everywhere: on every card
}

const everywhere = -1

type candidateKind uint8

const (
	coactSplit  candidateKind = iota // ours
	randomSplit                      // one of randomSeeds
	evenSplit                        // contiguous ids
)

// plan makes the layer's candidates. The first one is the even split without replicas, whatever the budgets are.
func (l *layer) plan(o *Options) {
	g := newGraph(l.fitPairs, l.n, o.Cards)
	all := make([]int, l.n)
	for e := range all {
		all[e] = e
	}
	l.cands = append(l.cands, newCandidate(evenSplit, ByNone, l.n, evenParts(all, o.Cards)))
	base := newCandidate(coactSplit, ByNone, l.n, g.partition(all, o.Cards))
	for _, r := range o.Replicate {
		switch r {
		case 0:
			l.cands = append(l.cands, base)
			l.addBaselines(all, ByNone, o.Cards)
		case l.n:
			l.cands = append(l.cands, newCandidate(coactSplit, ByNone, l.n, nil))
			l.addBaselines(nil, ByNone, o.Cards)
		default:
			for _, by := range []string{ByFrequency, ByCut} {
				rest := l.withoutTop(r, by, base.card)
				l.cands = append(l.cands, newCandidate(coactSplit, by, l.n, g.partition(rest, o.Cards)))
				l.addBaselines(rest, by, o.Cards)
			}
		}
	}
}

func newCandidate(kind candidateKind, by string, n int, parts [][]int) candidate {
	c := candidate{replicate: n, by: by, kind: kind, card: make([]int8, n)}
	for e := range c.card {
		c.card[e] = everywhere
	}
	for card, part := range parts {
		c.replicate -= len(part)
		for _, e := range part {
			c.card[e] = int8(card)
		}
	}
	return c
}

func evenParts(verts []int, cards int) [][]int {
	parts := make([][]int, cards)
	for c := range parts {
		parts[c] = verts[partStart(len(verts), cards, c):partStart(len(verts), cards, c+1)]
	}
	return parts
}

// addBaselines adds what a split of the same experts has to be better than.
func (l *layer) addBaselines(single []int, by string, cards int) {
	l.cands = append(l.cands, newCandidate(evenSplit, by, l.n, evenParts(single, cards)))
	for seed := range uint64(randomSeeds) {
		mixed := slices.Clone(single)
		rnd := rand.New(rand.NewPCG(seed, uint64(l.index)))
		rnd.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		l.cands = append(l.cands, newCandidate(randomSplit, by, l.n, evenParts(mixed, cards)))
	}
}

// withoutTop returns, ascending, the experts that are left when the r best to replicate are taken out; the lower id
// goes first among equals. card is a split without replicas.
func (l *layer) withoutTop(r int, by string, card []int8) []int {
	value := l.picks(true)
	if by == ByCut {
		for e := range l.n {
			value[e] = 0
			for f := range l.n {
				if card[e] != card[f] {
					value[e] += uint64(l.fitPairs[e*l.n+f])
				}
			}
		}
	}
	order := make([]int, l.n)
	for e := range order {
		order[e] = e
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(value[b], value[a]), cmp.Compare(a, b)) })
	rest := order[r:]
	slices.Sort(rest)
	return rest
}
