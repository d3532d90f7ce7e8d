package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/kernels"
)

// SpeedConfig says what to time.
type SpeedConfig struct {
	PP     []int  // prompt lengths in tokens
	TG     []int  // numbers of decoded tokens
	Depth  []int  // tokens in the context before each test; nil: 0
	Repeat int    // timed rounds, 1 or more
	WarmUp int    // rounds before them that are not counted
	Seed   uint64 // of the token ids fed
}

// Subject is an open session to be timed. Nothing else uses it meanwhile.
type Subject struct {
	Variant Variant
	Session *engine.Session
	Enter   func() // called before its turn, outside all clocks; nil: nothing
}

// Speed is one test's result of one variant over the rounds.
type Speed struct {
	Test    string    `json:"test"`   // "pp512", "tg64", "tg64@d4096" at a depth
	Tokens  int       `json:"tokens"` // per round
	Depth   int       `json:"depth"`
	Config  Variant   `json:"config"`
	TPS     float64   `json:"tps"` // median, tokens per second: of the prompt's clock for pp, of decode's for tg
	MinTPS  float64   `json:"min_tps"`
	MaxTPS  float64   `json:"max_tps"`
	Spread  float64   `json:"spread_percent"`         // of the seconds: (slowest - fastest) / median
	TTFT    float64   `json:"ttft_seconds,omitempty"` // pp only: median time from the prompt to its first token drawn
	Seconds []float64 `json:"seconds"`                // per round

	WeightBytes float64 `json:"weight_bytes_per_token"` // read by the kernels, means of the timed rounds
	ReadBytes   float64 `json:"read_bytes_per_token"`   // of experts from storage, padding included
	Dropped     float64 `json:"dropped_share"`          // of the routed experts
	WeightLost  float64 `json:"weight_lost"`            // share of the routed weight: dropped, or left out by fewer experts (SetWeightLost)
	TopK        *TopK   `json:"top_k_at_equal_bytes,omitempty"`
	Bandwidth   float64 `json:"bytes_per_second"` // weight bytes by the median time

	Limit *Limit `json:"limit"` // nil: the machine was not measured

	ttft  []float64
	kv    float64 // bytes of keys and values that a token needs
	drops model.DropCount
}

// prefill says which of the two kinds a test is.
func (r *Speed) prefill() bool { return r.Test[0] == 'p' }

// MeasureSpeed times prefill and decode of every subject on random token ids, each from the context that Depth says (the
// expert cache stays warm). Rounds interleave tests and subjects, so that a drift of the machine hits all alike. Decode
// feeds random ids, since a model's own greedy text soon repeats itself and then asks for the same experts again and again.
// Results come subject by subject; progress, if not nil, is told of each finished round, warm-up included.
func MeasureSpeed(ctx context.Context, m *model.Model, subjects []Subject, c SpeedConfig, progress func(round, of int)) ([]Speed, error) {
	if c.Repeat < 1 || c.WarmUp < 0 {
		return nil, fmt.Errorf("bench: %d rounds, %d to warm up: want 1 or more, 0 or more", c.Repeat, c.WarmUp)
	}
	if len(subjects) == 0 {
		return nil, fmt.Errorf("bench: nothing to time")
	}
	tests, err := c.tests()
	if err != nil {
		return nil, err
	}
	kvToken := float64(engine.KVBytes(m, engine.Config{Ctx: 1, KV: subjects[0].Session.Config().KV}))
	out := make([]Speed, 0, len(subjects)*len(tests))
	for _, s := range subjects {
		for _, t := range tests {
			if t.Depth+t.Tokens > s.Session.Ctx() {
				return nil, fmt.Errorf("bench: test %s: %d tokens, the context has %d", t.Test, t.Depth+t.Tokens, s.Session.Ctx())
			}
			t.Config = s.Variant
			t.kv = kvToken * (float64(t.Depth) + float64(t.Tokens+1)/2)
			if t.prefill() {
				t.kv = kvToken * float64(t.Depth+t.Tokens) / float64(t.Tokens) // once for all of them
			}
			out = append(out, t)
		}
	}
	rounds := c.Repeat + c.WarmUp
	for round := range rounds {
		for i, s := range subjects {
			if s.Enter != nil {
				s.Enter()
			}
			for j := range tests {
				if err := out[i*len(tests)+j].time(ctx, s.Session, m.NVocab, c, round); err != nil {
					return nil, err
				}
			}
		}
		if progress != nil {
			progress(round+1, rounds)
		}
	}
	for i := range out {
		out[i].summarise(c.Repeat)
	}
	return out, nil
}

// tests lists the tests, those of a depth together, so that a round computes a depth's context once.
func (c SpeedConfig) tests() (tests []Speed, err error) {
	depths := c.Depth
	if len(depths) == 0 {
		depths = []int{0}
	}
	for _, d := range depths {
		for i, n := range slices.Concat(c.PP, c.TG) {
			kind := "pp"
			if i >= len(c.PP) {
				kind = "tg"
			}
			t := Speed{Test: fmt.Sprintf("%s%d", kind, n), Tokens: n, Depth: d}
			if d > 0 {
				t.Test += fmt.Sprintf("@d%d", d)
			}
			if n < 1 || d < 0 {
				return nil, fmt.Errorf("bench: test %s at depth %d: want 1 or more tokens, 0 or more before them", t.Test, d)
			}
			tests = append(tests, t)
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("bench: nothing to time")
	}
	return tests, nil
}

// time runs the test once. Round numbers below c.WarmUp are not counted.
func (r *Speed) time(ctx context.Context, s *engine.Session, nVocab int, c SpeedConfig, round int) error {
	// The context's tokens depend on nothing but the seed: a deeper one begins with a shallower one, and what is there
	// already is kept.
	before := tokens(c.Seed, 0, r.Depth+1, nVocab)
	if r.Depth == 0 {
		s.Reset()
	} else if n := s.Keep(before); n < r.Depth {
		if _, err := s.Prefill(ctx, before[n:r.Depth]); err != nil {
			return err
		}
	}
	ids := tokens(c.Seed, uint64(round+1)<<32|uint64(r.Tokens), r.Tokens, nVocab)
	weights, read, drops := s.WeightBytes(), s.SourceStats().BytesRead, s.Drops()
	var sec, ttft float64
	start := time.Now()
	if r.prefill() {
		logits, err := s.Prefill(ctx, ids)
		if err != nil {
			return err
		}
		sec = time.Since(start).Seconds()
		kernels.ArgMax(logits)
		ttft = time.Since(start).Seconds()
	} else {
		for _, id := range ids {
			if _, err := s.Decode(ctx, id); err != nil {
				return err
			}
		}
		sec = time.Since(start).Seconds()
	}
	if round < c.WarmUp {
		return nil
	}
	r.Seconds, r.ttft = append(r.Seconds, sec), append(r.ttft, ttft)
	r.WeightBytes += float64(s.WeightBytes() - weights)
	r.ReadBytes += float64(s.SourceStats().BytesRead - read)
	r.dropped(drops, s.Drops())
	return nil
}

func tokens(seed, stream uint64, n, nVocab int) []int32 {
	rng := rand.New(rand.NewPCG(seed, stream))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(nVocab))
	}
	return ids
}

func (r *Speed) summarise(rounds int) {
	const tick = 1e-9 // a clock that did not move must not give an infinite speed
	sec := slices.Sorted(slices.Values(r.Seconds))
	lo, mid, hi := max(sec[0], tick), max(median(sec), tick), max(sec[len(sec)-1], tick)
	n := float64(r.Tokens)
	r.TPS, r.MinTPS, r.MaxTPS = n/mid, n/hi, n/lo
	r.Spread = 100 * (hi - lo) / mid
	if r.prefill() {
		r.TTFT = median(slices.Sorted(slices.Values(r.ttft)))
	}
	r.WeightBytes /= n * float64(rounds)
	r.ReadBytes /= n * float64(rounds)
	r.Bandwidth = r.WeightBytes * r.TPS
	r.shares()
}

// median of ascending values.
func median(v []float64) float64 {
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}
