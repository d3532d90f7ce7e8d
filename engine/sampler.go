package engine

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sluice/engine/model"
)

// SamplerConfig says how the next token is drawn from the logits. The steps come in this order:
// repeat penalty, top-k, top-p, min-p, temperature, draw.
type SamplerConfig struct {
	Temp          float64 // 0: greedy, the first maximum
	TopK          int     // keep the k largest; 0: all
	TopP          float64 // keep the smallest set with this probability; 1: all
	MinP          float64 // keep what has at least this share of the best probability; 0: all
	RepeatPenalty float64 // divides positive and multiplies negative logits of recent tokens; 1: off
	RepeatLastN   int     // how many recent tokens that looks at
	Seed          uint64
}

// DefaultSampler is what `engine run` uses: temperature 0.8 and the cuts that llama.cpp's users know.
func DefaultSampler() SamplerConfig {
	return SamplerConfig{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1, RepeatLastN: 64}
}

// Validate names the field that is out of range. The checks are written so that NaN fails.
func (c SamplerConfig) Validate() error {
	switch {
	case !(c.Temp >= 0 && c.Temp <= 100):
		return fmt.Errorf("temperature %g: want 0..100", c.Temp)
	case c.TopK < 0:
		return fmt.Errorf("top-k %d: want 0 (all) or more", c.TopK)
	case !(c.TopP > 0 && c.TopP <= 1):
		return fmt.Errorf("top-p %g: want above 0, at most 1", c.TopP)
	case !(c.MinP >= 0 && c.MinP <= 1):
		return fmt.Errorf("min-p %g: want 0..1", c.MinP)
	case !(c.RepeatPenalty > 0 && c.RepeatPenalty <= 100):
		return fmt.Errorf("repeat penalty %g: want above 0, at most 100", c.RepeatPenalty)
	case c.RepeatLastN < 0:
		return fmt.Errorf("repeat window %d: want 0 or more", c.RepeatLastN)
	}
	return nil
}

// Sampler draws tokens. It allocates nothing after NewSampler and belongs to one goroutine.
type Sampler struct {
	c      SamplerConfig
	rng    *rand.Rand
	cand   []candidate
	recent []int32 // ring of the last RepeatLastN tokens
	next   int
}

type candidate struct {
	id    int32
	logit float32
	p     float64
}

// NewSampler makes a sampler for a vocabulary of nVocab tokens.
func NewSampler(c SamplerConfig, nVocab int) (*Sampler, error) {
	if err := c.Validate(); err != nil {
		return nil, model.Settingf("%w", err)
	}
	s := &Sampler{c: c, rng: rand.New(rand.NewPCG(c.Seed, 0x9e3779b97f4a7c15))}
	if c.Temp > 0 || c.RepeatPenalty != 1 {
		s.cand = make([]candidate, nVocab)
	}
	if c.RepeatPenalty != 1 {
		s.recent = make([]int32, 0, c.RepeatLastN)
	}
	return s, nil
}

// greedy says whether a draw is the first maximum of the logits as they are.
func (s *Sampler) greedy() bool { return s.c.Temp == 0 && s.c.RepeatPenalty == 1 }

// Accept tells the sampler which token was taken, prompt tokens included (repeat penalty).
func (s *Sampler) Accept(id int32) {
	if cap(s.recent) == 0 {
		return
	}
	if len(s.recent) < cap(s.recent) {
		s.recent = append(s.recent, id)
		return
	}
	s.recent[s.next] = id
	s.next = (s.next + 1) % len(s.recent)
}

// Sample draws the next token. logits is changed only by the repeat penalty.
func (s *Sampler) Sample(logits []float32) (int32, error) {
	s.penalise(logits)
	if s.c.Temp == 0 {
		return model.Greatest(logits)
	}
	cand := s.cand[:len(logits)]
	for i, l := range logits {
		if math.IsNaN(float64(l)) || math.IsInf(float64(l), 1) {
			return 0, model.ErrNotFinite
		}
		cand[i] = candidate{id: int32(i), logit: l}
	}
	cand = s.cut(cand)
	var sum float64
	top := float64(cand[0].logit)
	if math.IsInf(top, -1) {
		return 0, model.ErrNotFinite // every token is impossible
	}
	likely := cand[0].id
	for i := range cand {
		cand[i].p = math.Exp((float64(cand[i].logit) - top) / s.c.Temp)
		sum += cand[i].p
	}
	r := s.rng.Float64() * sum
	for i := range cand {
		if cand[i].p == 0 {
			break // sorted: nothing but impossible tokens follows
		}
		likely = cand[i].id
		if r -= cand[i].p; r < 0 {
			break
		}
	}
	return likely, nil // the last possible one when r was the sum itself, up to rounding
}

// penalise weakens every distinct recent token once.
func (s *Sampler) penalise(logits []float32) {
	for i, id := range s.recent {
		if slices.Index(s.recent[:i], id) >= 0 || uint(id) >= uint(len(logits)) {
			continue
		}
		if logits[id] > 0 {
			logits[id] /= float32(s.c.RepeatPenalty)
		} else {
			logits[id] *= float32(s.c.RepeatPenalty)
		}
	}
}

// cut sorts by descending logit (lower id first on a tie) and applies top-k, top-p and min-p.
func (s *Sampler) cut(cand []candidate) []candidate {
	if k := s.c.TopK; k > 0 && k < len(cand) {
		cand = largest(cand, k)
	}
	slices.SortFunc(cand, func(a, b candidate) int {
		if c := cmp.Compare(b.logit, a.logit); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
	var sum float64
	for i := range cand {
		cand[i].p = math.Exp(float64(cand[i].logit) - float64(cand[0].logit))
		sum += cand[i].p
	}
	if s.c.TopP < 1 {
		var acc float64
		for i := range cand {
			if acc += cand[i].p; acc >= s.c.TopP*sum {
				cand = cand[:i+1]
				break
			}
		}
	}
	if s.c.MinP > 0 {
		for i := range cand {
			if cand[i].p < s.c.MinP { // cand[0].p is 1
				cand = cand[:i]
				break
			}
		}
	}
	return cand
}

// largest moves the k largest candidates to the front, in any order: a binary heap with the
// smallest kept candidate at its root.
func largest(cand []candidate, k int) []candidate {
	h := cand[:k]
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(h, i)
	}
	for _, c := range cand[k:] {
		if before(h[0], c) {
			h[0] = c
			siftDown(h, 0)
		}
	}
	return h
}

// before reports whether a ranks below b: smaller logit, on a tie the higher id.
func before(a, b candidate) bool {
	return a.logit < b.logit || (a.logit == b.logit && a.id > b.id)
}

func siftDown(h []candidate, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && before(h[c+1], h[c]) {
			c++
		}
		if !before(h[c], h[i]) {
			return
		}
		h[c], h[i] = h[i], h[c]
		i = c
	}
}
