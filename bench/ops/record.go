package ops

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"sluice/engine"
	"sluice/engine/model"
)

// Config says what is profiled.
type Config struct {
	Depth   int    // tokens in the context before the profiled pass
	Prefill int    // a prompt of that many tokens, at most the session's chunk; 0: one decode step
	Replays int    // executions between the two sections; 0: DefaultReplays
	Seed    uint64 // of the token ids
	NVocab  int    // of the model
}

// DefaultReplays of a pass are enough for caches, branch predictors and the expert cache to be in their steady state.
const DefaultReplays = 5

// Profile is the same forward pass executed twice.
type Profile struct {
	Eager, Trace []Row
	Replay       int // number of the trace section's execution, counted from 1 after the eager one
	Team         int // workers
	Arm          string
	Arch         string // of the device log; "": the processor
	Decode       bool
	Depth        int
	Tokens       int
}

// Record executes the pass as often as c says, in a session that has the recorder, and returns its first and its last
// execution. The session's context is replaced by random tokens. What the recorder held before stays in its ring.
func Record(ctx context.Context, s *engine.Session, rec *model.Recorder, c Config) (*Profile, error) {
	conf := s.Config()
	n := max(1, c.Prefill)
	switch {
	case conf.Recorder != rec || rec == nil:
		return nil, fmt.Errorf("ops: the session has another recorder")
	case c.Depth < 0 || c.Prefill < 0 || c.Replays < 0 || c.NVocab < 1:
		return nil, fmt.Errorf("ops: depth %d, prefill %d, %d replays, %d token ids: want 0 or more, and an id", c.Depth, c.Prefill, c.Replays, c.NVocab)
	case c.Prefill > conf.Batch:
		return nil, fmt.Errorf("ops: prompt of %d tokens: one pass takes at most %d", c.Prefill, conf.Batch)
	case c.Depth+n > s.Ctx():
		return nil, fmt.Errorf("ops: %d tokens at depth %d exceed the context of %d", n, c.Depth, s.Ctx())
	}
	if c.Replays == 0 {
		c.Replays = DefaultReplays
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0x0b5))
	ids := make([]int32, c.Depth+n)
	for i := range ids {
		ids[i] = int32(rng.IntN(c.NVocab))
	}
	s.Reset()
	if c.Depth > 0 {
		if _, err := s.Prefill(ctx, ids[:c.Depth]); err != nil {
			return nil, err
		}
	}
	p := &Profile{Team: rec.Team(), Arm: string(conf.Arm), Decode: c.Prefill == 0, Depth: c.Depth, Tokens: n, Replay: c.Replays}
	if conf.Device != nil {
		p.Arch, _, _ = strings.Cut(conf.Device.Name(), ":")
	}
	place := s.Seq().Snapshot()
	for i := range c.Replays + 1 {
		err := s.Seq().Restore(place)
		if err != nil {
			return nil, err
		}
		if p.Decode {
			_, err = s.Decode(ctx, ids[c.Depth])
		} else {
			_, err = s.Prefill(ctx, ids[c.Depth:])
		}
		if err != nil {
			return nil, err
		}
		switch i {
		case 0:
			p.Eager, err = lastPass(rec)
		case c.Replays:
			p.Trace, err = lastPass(rec)
		}
		if err != nil {
			return nil, err
		}
	}
	if at, same := SameSequence(p.Eager, p.Trace); !same {
		return nil, fmt.Errorf("ops: the two executions differ from op %d on: %d and %d ops", at, len(p.Eager), len(p.Trace))
	}
	return p, nil
}

// lastPass are the rows of the last forward pass in the ring.
func lastPass(rec *model.Recorder) ([]Row, error) {
	ops, lost := rec.Ops()
	if len(ops) == 0 {
		return nil, fmt.Errorf("ops: nothing was recorded")
	}
	from := len(ops)
	for from > 0 && ops[from-1].Call == ops[len(ops)-1].Call {
		from--
	}
	if lost > 0 && from == 0 {
		return nil, fmt.Errorf("ops: the recorder has room for %d ops, less than one forward pass", len(ops))
	}
	return Fuse(ops[from:], rec.Info), nil
}
