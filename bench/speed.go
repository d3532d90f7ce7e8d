package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sluice/engine"
)

// SpeedConfig says what to time.
type SpeedConfig struct {
	PP     []int  // prompt lengths in tokens
	TG     []int  // numbers of decoded tokens
	Repeat int    // timed rounds; one more round before them warms up and is not counted
	Seed   uint64 // of the token ids fed
}

// Speed is one test's result over the rounds.
type Speed struct {
	Test    string    `json:"test"`   // "pp512", "tg64"
	Tokens  int       `json:"tokens"` // per round
	TPS     float64   `json:"tps"`    // median, tokens per second
	MinTPS  float64   `json:"min_tps"`
	MaxTPS  float64   `json:"max_tps"`
	Seconds []float64 `json:"seconds"` // per round
}

// MeasureSpeed times prefill and decode on random token ids, each from an empty context (the
// expert cache stays warm). Rounds interleave the tests, so that a drift of the machine hits all
// alike. Decode feeds random ids, since a model's own greedy text soon repeats itself and then
// asks for the same experts again and again. progress, if not nil, is told of each finished round.
func MeasureSpeed(ctx context.Context, s *engine.Session, nVocab int, c SpeedConfig, progress func(round, of int)) ([]Speed, error) {
	if c.Repeat < 1 {
		return nil, fmt.Errorf("bench: %d rounds: want 1 or more", c.Repeat)
	}
	var out []Speed
	for _, n := range c.PP {
		out = append(out, Speed{Test: fmt.Sprintf("pp%d", n), Tokens: n})
	}
	for _, n := range c.TG {
		out = append(out, Speed{Test: fmt.Sprintf("tg%d", n), Tokens: n})
	}
	for _, r := range out {
		if r.Tokens < 1 || r.Tokens > s.Ctx() {
			return nil, fmt.Errorf("bench: test %s: want 1..%d tokens (the context)", r.Test, s.Ctx())
		}
	}
	for round := range c.Repeat + 1 {
		for i := range out {
			r := &out[i]
			sec, err := timeOnce(ctx, s, r.Tokens, i < len(c.PP), nVocab, c.Seed+uint64(round))
			if err != nil {
				return nil, err
			}
			if round > 0 {
				r.Seconds = append(r.Seconds, sec)
			}
		}
		if progress != nil {
			progress(round, c.Repeat)
		}
	}
	for i := range out {
		summarise(&out[i])
	}
	return out, nil
}

func timeOnce(ctx context.Context, s *engine.Session, n int, prefill bool, nVocab int, seed uint64) (float64, error) {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(nVocab))
	}
	s.Reset()
	start := time.Now()
	if prefill {
		if _, err := s.Prefill(ctx, ids); err != nil {
			return 0, err
		}
		return time.Since(start).Seconds(), nil
	}
	for _, id := range ids {
		if _, err := s.Decode(ctx, id); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds(), nil
}

func summarise(r *Speed) {
	sec := slices.Sorted(slices.Values(r.Seconds))
	mid := sec[len(sec)/2]
	if len(sec)%2 == 0 {
		mid = (mid + sec[len(sec)/2-1]) / 2
	}
	n := float64(r.Tokens)
	r.TPS, r.MinTPS, r.MaxTPS = n/mid, n/sec[len(sec)-1], n/sec[0]
}
