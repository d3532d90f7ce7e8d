package coact

import "math/bits"

// Tally is how many cards a set of tokens costs under one split. Cards[i] is the number of tokens that cost i+1.
type Tally struct {
	Tokens    uint64   `json:"tokens"`
	PSingle   float64  `json:"p_single"`
	MeanCards float64  `json:"mean_cards"`
	Cards     []uint64 `json:"tokens_by_cards"`
}

// merge adds up tallies: of the layers, of fit and held-out tokens, of seeds.
func merge(ts ...Tally) Tally {
	var m Tally
	for _, t := range ts {
		for len(m.Cards) < len(t.Cards) {
			m.Cards = append(m.Cards, 0)
		}
		for i, n := range t.Cards {
			m.Cards[i] += n
		}
	}
	cost := uint64(0)
	for i, n := range m.Cards {
		m.Tokens += n
		cost += n * uint64(i+1)
	}
	m.PSingle, m.MeanCards = share(m.Cards[0], m.Tokens), share(cost, m.Tokens)
	return m
}

// Work of a replicated pick is shared by the cards its token costs. In units of 1/720720 every share is whole: that is
// the least common multiple of 1..16.
const pickUnits = 720720

// scorer counts, for all candidates of a layer at once, how many cards each token costs. A candidate has one bit per
// card in a lane of width bits; a token's cards are the OR over its experts.
type scorer struct {
	width, lanes int      // bits of a lane, lanes of a word
	words        int      // of all candidates
	masks        []uint64 // n x words

	ours     []int    // candidates whose load is counted
	repWords int      // bytes of ours, eight to a word
	reps     []uint64 // n x repWords: 1 in the candidate's byte if the expert is replicated

	acc, repAcc []uint64
	hist        [2][]uint64 // [fit, held out] candidates x (MaxCards+1), by number of cards with a bit set
	load        [2][]uint64 // [fit, held out] ours x MaxCards, of replicated picks, in pickUnits
}

func (l *layer) newScorer(cards int) scorer {
	s := scorer{width: 2}
	for s.width < cards {
		s.width *= 2
	}
	s.lanes = 64 / s.width
	s.words = (len(l.cands) + s.lanes - 1) / s.lanes
	s.masks = make([]uint64, l.n*s.words)
	for c, cand := range l.cands {
		if cand.kind == coactSplit {
			s.ours = append(s.ours, c)
		}
		for e, card := range cand.card {
			if card != everywhere {
				s.masks[e*s.words+c/s.lanes] |= 1 << (c%s.lanes*s.width + int(card))
			}
		}
	}
	s.repWords = (len(s.ours) + 7) / 8
	s.reps = make([]uint64, l.n*s.repWords)
	for i, c := range s.ours {
		for e, card := range l.cands[c].card {
			if card == everywhere {
				s.reps[e*s.repWords+i/8] |= 1 << (i % 8 * 8)
			}
		}
	}
	s.acc, s.repAcc = make([]uint64, s.words), make([]uint64, s.repWords)
	for i := range s.hist {
		s.hist[i] = make([]uint64, len(l.cands)*(MaxCards+1))
		s.load[i] = make([]uint64, len(s.ours)*MaxCards)
	}
	return s
}

func (l *layer) score(b *batch, cards int) {
	t := b.first
	for ids := b.ids; len(ids) > 0; ids = ids[l.k:] {
		part := 0
		if t >= l.fit {
			part = 1
		}
		t++
		l.scorer.token(ids[:l.k], cards, part, len(l.cands))
	}
}

func (s *scorer) token(ids []uint16, cards, part, cands int) {
	clear(s.acc)
	clear(s.repAcc)
	for _, e := range ids {
		for i, m := range s.masks[int(e)*s.words:][:len(s.acc)] {
			s.acc[i] |= m
		}
		for i, m := range s.reps[int(e)*s.repWords:][:len(s.repAcc)] {
			s.repAcc[i] += m // at most 255 slots: no byte runs over
		}
	}
	lane := uint64(1)<<s.width - 1
	hist := s.hist[part]
	c := 0
	for _, word := range s.acc {
		for range min(s.lanes, cands-c) {
			hist[c*(MaxCards+1)+bits.OnesCount16(uint16(word&lane))]++
			word >>= s.width
			c++
		}
	}
	for i, c := range s.ours {
		r := s.repAcc[i/8] >> (i % 8 * 8) & 0xff
		if r == 0 {
			continue
		}
		m := uint16(s.acc[c/s.lanes] >> (c % s.lanes * s.width) & lane)
		if m == 0 {
			m = uint16(1<<cards - 1) // any card will do; over many tokens, all alike
		}
		each := r * pickUnits / uint64(bits.OnesCount16(m))
		for load := s.load[part][i*MaxCards:][:MaxCards]; m != 0; m &= m - 1 {
			load[bits.TrailingZeros16(m)] += each
		}
	}
}

// tally returns what candidate c cost on the fit tokens (part 0) or on the held-out ones (part 1).
func (s *scorer) tally(c, part, cards int) Tally {
	h := s.hist[part][c*(MaxCards+1):][:cards+1]
	t := Tally{Cards: make([]uint64, cards)}
	copy(t.Cards, h[1:])
	t.Cards[0] += h[0] // all experts replicated: one card, any
	return merge(t)
}

// loads returns the picks, in pickUnits, that each card computes under our i-th candidate.
func (l *layer) loads(i, part, cards int) []uint64 {
	picks, fit := l.picks(false), l.picks(true)
	load := make([]uint64, cards)
	copy(load, l.scorer.load[part][i*MaxCards:])
	for e, card := range l.cands[l.scorer.ours[i]].card {
		n := fit[e]
		if part == 1 {
			n = picks[e] - fit[e]
		}
		if card != everywhere {
			load[card] += n * pickUnits
		}
	}
	return load
}
