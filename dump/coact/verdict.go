package coact

import "fmt"

const (
	paysFrom   = 0.9  // held-out tokens on one card from which experts "rarely cross cards"
	partlyFrom = 0.5  // below, most tokens cross, and two cards mostly wait for each other
	gainFrom   = 0.05 // over random parts with the same replicas, from which the split itself did something
)

// decide picks the budget to speak of, by the fit tokens alone: the smallest one at which nearly all tokens stay on
// one card, or, where none does that, the one at which most do.
func (r *Report) decide() {
	best := -1
	pays := func(s *Split) bool { return s.Fit.PSingle >= paysFrom }
	for i := range r.Pooled.Splits {
		s := &r.Pooled.Splits[i]
		if best < 0 {
			best = i
			continue
		}
		b := &r.Pooled.Splits[best]
		switch {
		case pays(s) && pays(b):
			if s.Replicate < b.Replicate {
				best = i
			}
		case s.Fit.PSingle > b.Fit.PSingle || s.Fit.PSingle == b.Fit.PSingle && s.Replicate < b.Replicate:
			best = i
		}
	}
	s := &r.Pooled.Splits[best]
	r.Chosen = s.Replicate
	r.Verdict = verdict(s, r.Experts, r.Cards)
	r.Placement = r.placement(best)
}

// verdict says what the held-out tokens say, in the words of the question.
func verdict(s *Split, experts, cards int) string {
	p := s.HeldOut.PSingle
	text := fmt.Sprintf("%.1f %% of tokens stay on one card", 100*p)
	if s.Replicate > 0 {
		text += fmt.Sprintf(" with %d of %d experts on every card", s.Replicate, experts)
	}
	if cards > 2 { // one card of many is much to ask: say how many it takes
		text += fmt.Sprintf(" (%.2f of %d cards a token, %.2f with a random split)", s.HeldOut.MeanCards, cards, s.Random.MeanCards)
	}
	switch {
	case s.HeldOut.Tokens == 0:
		return "no held-out tokens: nothing can be said"
	case s.Replicate == experts:
		return text + ": every card holds all experts, nothing is split"
	case p < partlyFrom:
		return text + ": a split by co-activation does not pay here"
	case p-s.Random.PSingle < gainFrom:
		return text + fmt.Sprintf(", %.1f %% with the others split at random: the replicas pay here, a split by co-activation adds nothing", 100*s.Random.PSingle)
	case p < paysFrom:
		return text + fmt.Sprintf(": a split by co-activation pays in part here, %.1f %% still cross", 100*(1-p))
	}
	return text + ": a split by co-activation pays here"
}
