package engine

import (
	"context"
	"errors"
	"time"
)

// GenerateConfig says when generation ends.
type GenerateConfig struct {
	MaxTokens int  // at most this many tokens; below 0: until another rule ends it
	IgnoreEOS bool // go on past end-of-generation tokens
}

// StopReason tells why generation ended.
type StopReason string

const (
	StopLength  StopReason = "length"  // MaxTokens reached
	StopEOS     StopReason = "eos"     // the model ended its text
	StopContext StopReason = "context" // the context is full
	StopCancel  StopReason = "cancel"  // the context passed in was cancelled
)

// Clock is a number of tokens and the time they took.
type Clock struct {
	Tokens  int
	Seconds float64
}

// TPS is tokens per second, 0 when nothing was timed.
func (c Clock) TPS() float64 {
	if c.Seconds <= 0 {
		return 0
	}
	return float64(c.Tokens) / c.Seconds
}

// Generation is the result of Generate.
type Generation struct {
	Tokens  []int32 // generated ids; an end-of-generation token that ended the text is the last
	Prefill Clock   // the prompt
	Decode  Clock   // forward passes of single tokens: one less than Tokens, unless cancelled
	Stop    StopReason
}

// Generate appends the prompt and generates from it. emit, if not nil, gets each token as it is
// drawn; its error ends the run. Cancelling ctx ends it after the current layer with what was
// generated so far and no error. The KV cache then holds the prompt and all generated tokens but
// the last, which has had no forward pass; Resume of a conversation feeds it first.
func (s *Session) Generate(ctx context.Context, prompt []int32, smp *Sampler, c GenerateConfig, emit func(id int32) error) (Generation, error) {
	var g Generation
	for _, id := range prompt {
		smp.Accept(id)
	}
	start := time.Now()
	logits, err := s.Prefill(ctx, prompt)
	if err != nil {
		return cancelled(g, err)
	}
	g.Prefill = Clock{Tokens: len(prompt), Seconds: time.Since(start).Seconds()}
	start = time.Now()
	var outside time.Duration    // time spent in emit is not decode time
	id, drawn := int32(0), false // a device draws the greatest itself
	for g.Stop = StopLength; c.MaxTokens < 0 || len(g.Tokens) < c.MaxTokens; {
		if !drawn {
			if id, err = smp.Sample(logits); err != nil {
				return g, err
			}
		}
		smp.Accept(id)
		g.Tokens = append(g.Tokens, id)
		if s.m.Tok.IsEOG(id) && !c.IgnoreEOS {
			g.Stop = StopEOS
			break
		}
		if emit != nil {
			t := time.Now()
			err := emit(id)
			outside += time.Since(t)
			if err != nil {
				return g, err
			}
		}
		if len(g.Tokens) == c.MaxTokens {
			break
		}
		if drawn = smp.greedy(); drawn {
			id, err = s.Greedy(ctx, id)
		} else {
			logits, err = s.Decode(ctx, id)
		}
		if err != nil {
			g.Decode.Seconds = (time.Since(start) - outside).Seconds()
			return cancelled(g, err)
		}
		g.Decode.Tokens++
	}
	g.Decode.Seconds = (time.Since(start) - outside).Seconds()
	return g, nil
}

// cancelled turns the two expected ends of a forward pass into stop reasons.
func cancelled(g Generation, err error) (Generation, error) {
	switch {
	case errors.Is(err, ErrContextFull) && len(g.Tokens) > 0:
		g.Stop = StopContext
		return g, nil
	case errors.Is(err, context.Canceled):
		g.Stop = StopCancel
		return g, nil
	}
	return g, err
}
