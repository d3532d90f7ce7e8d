package engine

import (
	"context"
	"fmt"
	"math"

	"sluice/engine/model"
	"sluice/kernels"
)

// EvalMode says how the tokens of a text are run.
type EvalMode string

const (
	EvalPrefill EvalMode = "prefill" // whole chunks
	EvalDecode  EvalMode = "decode"  // teacher-forced, one token a step through the expert cache
)

// Perplexity is the quality of a session's configuration on a text.
type Perplexity struct {
	Chunks      int
	Predictions int
	NLL         float64 // sum of negative log-probabilities, nats
}

// Mean is the mean negative log-probability.
func (p Perplexity) Mean() float64 { return p.NLL / float64(p.Predictions) }

// Value is exp(Mean).
func (p Perplexity) Value() float64 { return math.Exp(p.Mean()) }

// MeasurePerplexity scores ids in consecutive chunks of the given length, without overlap; a
// shorter tail is left out. Every chunk starts from an empty context (the expert cache stays warm)
// and gives chunk-1 predictions. progress, if not nil, is told the chunks done and the value so far.
func (s *Session) MeasurePerplexity(ctx context.Context, ids []int32, chunk int, mode EvalMode, progress func(done, total int, p Perplexity)) (Perplexity, error) {
	var p Perplexity
	if chunk < 2 || chunk > s.cfg.Ctx {
		return p, model.Settingf("eval chunk of %d tokens: want 2..%d (the context)", chunk, s.cfg.Ctx)
	}
	total := len(ids) / chunk
	if total == 0 {
		return p, fmt.Errorf("engine: the text has %d tokens, less than one chunk of %d", len(ids), chunk)
	}
	for c := range total {
		s.Reset()
		if c > 0 {
			s.NextTurn()
		}
		part := ids[c*chunk : (c+1)*chunk]
		score := func(i int, logits []float32) error {
			if i+1 == len(part) {
				return nil // nothing follows in this chunk
			}
			nll := kernels.LogSumExp(logits) - float64(logits[part[i+1]])
			if math.IsNaN(nll) || math.IsInf(nll, 0) {
				return fmt.Errorf("engine: log-probability at token %d of chunk %d is not finite", i+1, c)
			}
			p.NLL += nll
			p.Predictions++
			return nil
		}
		var err error
		if mode == EvalDecode {
			err = s.scoreDecode(ctx, part, score)
		} else {
			err = s.PrefillAll(ctx, part, score)
		}
		if err != nil {
			return p, err
		}
		p.Chunks++
		if progress != nil {
			progress(c+1, total, p)
		}
	}
	return p, nil
}

// scoreDecode runs tokens one a step; the last of a chunk predicts nothing, but runs all the same,
// so that both modes feed the expert cache alike.
func (s *Session) scoreDecode(ctx context.Context, part []int32, score func(int, []float32) error) error {
	for i, id := range part {
		logits, err := s.Decode(ctx, id)
		if err != nil {
			return err
		}
		if err := score(i, logits); err != nil {
			return err
		}
	}
	return nil
}
