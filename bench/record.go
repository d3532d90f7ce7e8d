package bench

import (
	"context"
	"fmt"

	"sluice/bench/chrometrace"
	"sluice/bench/ops"
	"sluice/engine"
	"sluice/engine/model"
)

// RecordConfig says what a recorded run does and where it goes.
type RecordConfig struct {
	Prompt int // tokens; 0: none
	Decode int // tokens after it; 0: none. Then the prompt is what the ops CSV profiles
	Depth  int // tokens before both
	Seed   uint64

	OpsCSV, ChromeTrace string // files; "": not written
	Facts               map[string]string
}

const (
	maxRecordedOps   = 1 << 18
	maxRecordedReads = 1 << 17
)

// NewRecorder has room for the run, within bounds: of a longer one the end is kept.
func (c RecordConfig) NewRecorder(m *model.Model, batch int) *model.Recorder {
	const perLayer = 20    // ops of a layer, shared expert and some cut passes included
	const passesChunk = 10 // that a long chunk may be cut into
	passes := c.Decode + ops.DefaultReplays + 2 + passesChunk*((c.Prompt+c.Depth)/batch+2)
	n := min(maxRecordedOps, passes*(perLayer*m.NLayer+4))
	reads := 1
	if c.ChromeTrace != "" {
		reads = min(maxRecordedReads, 3*m.NExpert*m.NLayer+3*m.NExpertUsed*m.NLayer*(c.Decode+ops.DefaultReplays+2))
	}
	return model.NewRecorder(n, reads)
}

// RecordRun runs the prompt and the decode on random tokens in a session that has the recorder, then the profiled pass
// twice and more (ops.Record): one decode step behind the prompt, or the prompt. It writes the files and returns what it has
// to say. Nothing is timed here: recorded and unrecorded figures never share a table.
func RecordRun(ctx context.Context, s *engine.Session, rec *model.Recorder, m *model.Model, c RecordConfig) (notes []string, err error) {
	s.Reset()
	ids := tokens(c.Seed, 1, c.Depth+c.Prompt+c.Decode, m.NVocab)
	if n := c.Depth + c.Prompt; n > 0 {
		if _, err := s.Prefill(ctx, ids[:n]); err != nil {
			return nil, err
		}
	}
	for _, id := range ids[c.Depth+c.Prompt:] {
		if _, err := s.Decode(ctx, id); err != nil {
			return nil, err
		}
	}
	if c.OpsCSV != "" {
		oc := ops.Config{Depth: c.Depth, Prefill: min(c.Prompt, s.Config().Batch), Seed: c.Seed, NVocab: m.NVocab}
		if c.Decode > 0 {
			oc.Depth, oc.Prefill = min(c.Depth+c.Prompt, s.Ctx()-1), 0
		}
		p, err := ops.Record(ctx, s, rec, oc)
		if err != nil {
			return nil, err
		}
		if err := p.Save(c.OpsCSV); err != nil {
			return nil, err
		}
		what := "a decode step"
		if !p.Decode {
			what = fmt.Sprintf("a prompt of %d tokens", p.Tokens)
		}
		notes = append(notes, fmt.Sprintf("%s: %d ops of %s at position %d, executed %d times: the first is the section eager, the last trace",
			c.OpsCSV, len(p.Eager), what, p.Depth, p.Replay+1))
	}
	if c.ChromeTrace != "" {
		t := chrometrace.Of(rec, c.Facts)
		if err := t.Save(c.ChromeTrace); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("%s: %d ops, %d reads, %d cache decisions (%d, %d and %d earlier ones had no room)",
			c.ChromeTrace, len(t.Ops), len(t.Reads), len(t.Demands), t.LostOps, t.LostReads, t.LostDemands))
	}
	return notes, nil
}
