package coact

import (
	"cmp"
	"slices"
)

// Frequency describes how evenly a layer's experts are picked. An expert's frequency is the share of the tokens that
// picked it.
type Frequency struct {
	Tokens      uint64  `json:"tokens"`
	FreqMin     float64 `json:"freq_min"`
	FreqMedian  float64 `json:"freq_median"` // mean of the two middle ones where their number is even
	FreqMax     float64 `json:"freq_max"`
	Gini        float64 `json:"gini"`         // of the pick counts: 0 all alike, towards 1 all picks on one expert
	Top16Share  float64 `json:"top16_share"`  // picks that fell on the layer's 16 most picked experts
	NeverPicked int     `json:"never_picked"` // experts without a pick
}

const topExperts = 16

func frequency(picks []uint64, tokens uint64) Frequency {
	c := slices.Sorted(slices.Values(picks))
	n := len(c)
	f := Frequency{Tokens: tokens, Gini: gini(c)}
	of := func(picks float64) float64 { return picks / float64(tokens) }
	f.FreqMin, f.FreqMax = of(float64(c[0])), of(float64(c[n-1]))
	f.FreqMedian = of(float64(c[(n-1)/2]+c[n/2]) / 2)
	f.Top16Share = share(sum(c[max(0, n-topExperts):]), sum(c))
	f.NeverPicked, _ = slices.BinarySearch(c, 1)
	return f
}

// gini is (n + 1 - 2 * sum of the cumulative shares) / n over ascending counts.
func gini(ascending []uint64) float64 {
	n, total := float64(len(ascending)), float64(sum(ascending))
	if total == 0 {
		return 0
	}
	var run, cumulative uint64 // exact up to 2^64: 2^31 tokens of 255 experts, summed over 65536
	shares := 0.0
	for _, c := range ascending {
		run += c
		cumulative += run
	}
	shares = float64(cumulative) / total
	return (n + 1 - 2*shares) / n
}

// Pair is two experts that were picked together.
type Pair struct {
	A      int     `json:"a"`
	B      int     `json:"b"`
	Tokens uint64  `json:"tokens"` // that picked both
	Lift   float64 `json:"lift"`   // times as often as if the two were picked independently
}

// Pairs sums up a layer's co-activation matrix.
type Pairs struct {
	OffDiagSum uint64 `json:"coact_offdiag_sum"` // over ordered pairs: tokens x k x (k-1)
	Max        uint64 `json:"coact_max"`         // tokens of the most frequent pair
	Top        []Pair `json:"top_pairs"`         // the most frequent ones, descending
}

const topPairs = 5

func (l *layer) pairStats() Pairs {
	p := Pairs{Top: []Pair{}}
	for a := range l.n {
		for b := a + 1; b < l.n; b++ {
			c := uint64(l.pairs[a*l.n+b])
			p.OffDiagSum += 2 * c
			if c == 0 || len(p.Top) == topPairs && c <= p.Top[topPairs-1].Tokens {
				continue
			}
			at, _ := slices.BinarySearchFunc(p.Top, c, func(q Pair, c uint64) int {
				if q.Tokens >= c {
					return -1 // behind those as frequent: lower ids first
				}
				return cmp.Compare(c, q.Tokens)
			})
			lift := float64(c) * float64(l.tokens) / (float64(l.pairs[a*l.n+a]) * float64(l.pairs[b*l.n+b]))
			p.Top = slices.Insert(p.Top, at, Pair{a, b, c, lift})
			p.Top = p.Top[:min(len(p.Top), topPairs)]
		}
	}
	if len(p.Top) > 0 {
		p.Max = p.Top[0].Tokens
	}
	return p
}

func sum(v []uint64) uint64 {
	s := uint64(0)
	for _, x := range v {
		s += x
	}
	return s
}

// share is a/b, 0 of nothing.
func share(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
