package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"sluice/dump"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// DefaultBatch is the prompt chunk when none is asked for.
const DefaultBatch = 512

// DefaultCtx is the context when none is asked for, if the model has that much.
const DefaultCtx = 4096

// ropeReserve is how many positions' angles are computed at the start; past it a chunk of 256 is
// computed when it is first reached.
const ropeReserve = 8192

// ErrContextFull is returned when a token does not fit the session's context any more.
var ErrContextFull = errors.New("context is full")

// Config says how an engine computes. The zero value of a field means its default.
type Config struct {
	Ctx         int          // context length of a sequence in tokens; default: the model's, at most 4096
	Seqs        int          // sequences at a time; default 1
	Batch       int          // rows of a pass at most: a prompt chunk, or tokens of several sequences; default DefaultBatch
	Threads     int          // size of the worker team; default 1, and on a device nothing else
	Arm         model.Arm    // default host, on a device table
	KV          model.KV     // type of the key/value cache; default f16
	Device      model.Device // computes the forward passes; nil: this processor. Not closed by the engine
	NExpertUsed int          // experts per token; default the model's

	// ExactActs keeps activations in float32 where the default quantises them to 8 bits for
	// quantised weights. Slower; the reference for what quantising activations costs.
	ExactActs bool

	Drop          moe.Drop
	DropInPrefill bool

	Source store.Source // where experts come from; nil: store.NewMapped. Closed with the engine

	// Prefetch says which experts of the next layer are read ahead. It needs a Source with a budget. PrefetchBytes bounds
	// what one layer call asks for; default as many experts as the call has rows, and at most a quarter of the budget.
	Prefetch      moe.Prefetch
	PrefetchBytes int64

	SelDump *dump.SelWriter   // nil: disarmed. Not closed by the engine
	Trace   *dump.TraceWriter // nil: disarmed. Not closed by the engine

	Taps []moe.Tap // told of each layer call beside those two

	Recorder  *model.Recorder // of the ops; nil: off. Serves one engine
	Telemetry *Telemetry      // of each forward pass; nil: off. Serves one engine, and is not closed by it
}

// Session is one conversation with a model: an engine with one sequence. A Session belongs to one goroutine; a decode step
// allocates nothing.
type Session struct {
	*Engine
	seq  *Seq
	one  [1]int32 // of Decode
	work [1]Work
}

// NewSession allocates a session. Errors name the setting, what was given and what is allowed.
func NewSession(m *model.Model, c Config) (*Session, error) {
	if c.Seqs > 1 {
		return nil, model.Settingf("%d sequences in a session: want one", c.Seqs)
	}
	e, err := Open(m, c)
	if err != nil {
		return nil, err
	}
	s := &Session{Engine: e}
	if s.seq, err = e.NewSeq(); err != nil {
		err = errors.Join(err, e.back.Close())
		if c.Source == nil {
			err = errors.Join(err, e.src.Close())
		}
		return nil, err
	}
	return s, nil
}

func (c *Config) fill(m *model.Model) error {
	if c.Ctx == 0 {
		c.Ctx = min(m.NCtxTrain, DefaultCtx)
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.Seqs == 0 {
		c.Seqs = 1
	}
	switch {
	case c.Arm == "" && c.Device == nil:
		c.Arm = model.ArmHost
	case c.Arm == "":
		c.Arm = model.ArmTable
	}
	if c.KV == "" {
		c.KV = model.KVF16
	}
	if c.NExpertUsed == 0 {
		c.NExpertUsed = m.NExpertUsed
	}
	switch {
	case c.Ctx < 1 || c.Ctx > m.NCtxTrain:
		return model.Settingf("context of %d tokens: want 1..%d (the model's context_length)", c.Ctx, m.NCtxTrain)
	case c.Batch < 1 || c.Batch > 1<<16:
		return model.Settingf("prompt chunk of %d tokens: want 1..%d", c.Batch, 1<<16)
	case c.Threads < 1 || c.Threads > 1024:
		return model.Settingf("%d threads: want 1..1024", c.Threads)
	case c.Seqs < 1 || c.Seqs > 1<<12:
		return model.Settingf("%d sequences: want 1..%d", c.Seqs, 1<<12)
	case c.Arm != model.ArmHost && c.Arm != model.ArmTable:
		return model.Settingf("arm %q: want host or table", c.Arm)
	case c.NExpertUsed < 1 || c.NExpertUsed > m.NExpert:
		return model.Settingf("%d experts per token: want 1..%d (the model's expert_count)", c.NExpertUsed, m.NExpert)
	}
	switch c.KV {
	case model.KVF16, model.KVF32, model.KVQ8:
	default:
		return model.Settingf("kv type %q: want f16, f32 or q8_0", c.KV)
	}
	if err := c.checkDevice(); err != nil {
		return err
	}
	if c.Seqs > c.Batch {
		return model.Settingf("%d sequences with at most %d rows in a pass: a step of all of them needs one each", c.Seqs, c.Batch)
	}
	c.Batch = min(c.Batch, c.Ctx*c.Seqs)
	if err := c.Drop.Validate(c.NExpertUsed); err != nil {
		return model.Settingf("%w", err)
	}
	return nil
}

// fillPrefetch checks the settings that depend on the expert source's budget.
func (c *Config) fillPrefetch(budget int64) error {
	if c.Prefetch == "" {
		c.Prefetch = moe.PrefetchOff
	}
	switch {
	case !slices.Contains(moe.PrefetchModes(), c.Prefetch):
		return model.Settingf("prefetch %q: want one of %s", c.Prefetch, strings.Join(moe.PrefetchNames(), ", "))
	case c.PrefetchBytes < 0:
		return model.Settingf("prefetch of at most %d bytes: want 0 (the default) or more", c.PrefetchBytes)
	case c.Prefetch == moe.PrefetchOff && c.PrefetchBytes > 0:
		return model.Settingf("a bound of %d bytes on what is prefetched, but prefetch is off", c.PrefetchBytes)
	case c.Prefetch != moe.PrefetchOff && budget == 0:
		return model.Settingf("prefetch %s without an expert cache: there is nothing to read ahead", c.Prefetch)
	}
	return nil
}

// checkDevice refuses what no device of ours computes, by the setting's name.
func (c *Config) checkDevice() error {
	switch {
	case c.Device == nil:
		return nil
	case c.KV != model.KVF16:
		return model.Settingf("kv type %q: on device %s the key/value cache is f16", c.KV, c.Device.Name())
	case c.ExactActs:
		return model.Settingf("float32 activations: device %s quantises the activations of quantised weights", c.Device.Name())
	case c.Threads > 1:
		return model.Settingf("%d threads: device %s computes, there is no worker team", c.Threads, c.Device.Name())
	case c.Prefetch != "" && c.Prefetch != moe.PrefetchOff:
		return model.Settingf("prefetch %s: on device %s experts are copied when they are demanded", c.Prefetch, c.Device.Name())
	}
	return nil
}

// Pos is the number of tokens in the KV cache.
func (s *Session) Pos() int { return s.seq.Pos() }

// Ctx is the context length in tokens.
func (s *Session) Ctx() int { return s.cfg.Ctx }

// KVBytes is the memory of the key/value cache.
func (s *Session) KVBytes() int64 { return KVBytes(s.m, s.cfg) }

// KVBytes is the memory that the sequences' keys and values take with this configuration, all positions counted.
func KVBytes(m *model.Model, c Config) (n int64) {
	if c.Ctx == 0 {
		c.Ctx = min(m.NCtxTrain, DefaultCtx)
	}
	return int64(max(1, c.Seqs)) * m.StateBytes(c.KV, c.Ctx)
}

// Seq is the session's sequence.
func (s *Session) Seq() *Seq { return s.seq }

// Reset empties the KV cache. The expert cache keeps what it holds.
func (s *Session) Reset() { s.seq.Truncate(0) }

// Keep is Seq.Keep.
func (s *Session) Keep(ids []int32) int { return s.seq.Keep(ids) }

// NextTurn counts a new turn of the conversation for the route trace.
func (s *Session) NextTurn() { s.seq.NextTurn() }

// Tokens are the tokens in the KV cache, a view valid until the session's next call.
func (s *Session) Tokens() []int32 { return s.seq.tokens }

// pass is a pass of the session's sequence alone. The caller ends the telemetry's step.
func (s *Session) pass(ctx context.Context, w Work) error {
	w.Seq = s.seq
	s.work[0] = w
	return s.run(ctx, s.work[:])
}

// end ends the telemetry's step of a pass whose results were taken.
func (s *Session) end() error { return s.cfg.Telemetry.end() }

// room says whether so many tokens fit.
func (s *Session) room(n int) error {
	if s.Pos()+n > s.cfg.Ctx {
		return fmt.Errorf("engine: %d tokens at position %d exceed the context of %d: %w", n, s.Pos(), s.cfg.Ctx, ErrContextFull)
	}
	return nil
}

// Prefill appends prompt tokens in chunks and returns the logits (nVocab) after the last one. The
// slice is the session's and holds until its next call. On an error or a cancelled context the KV
// cache stays at the end of the last whole chunk.
func (s *Session) Prefill(ctx context.Context, ids []int32) (logits []float32, err error) {
	if len(ids) == 0 {
		return nil, errors.New("engine: empty prompt")
	}
	if err := s.room(len(ids)); err != nil {
		return nil, err
	}
	for len(ids) > 0 {
		n, head := min(len(ids), s.cfg.Batch), model.HeadNone
		if n == len(ids) {
			head = model.HeadLogits
		}
		if err := s.pass(ctx, Work{IDs: ids[:n], Head: head}); err != nil {
			return nil, err
		}
		if err := s.end(); err != nil {
			return nil, err
		}
		ids = ids[n:]
	}
	return s.Logits(0), nil
}

// PrefillAll is Prefill that hands the logits of every token to visit, in order; i counts from 0.
// The slice is valid during the call.
func (s *Session) PrefillAll(ctx context.Context, ids []int32, visit func(i int, logits []float32) error) (err error) {
	if err := s.room(len(ids)); err != nil {
		return err
	}
	for done := 0; done < len(ids); {
		n := min(len(ids)-done, s.cfg.Batch)
		if err := s.pass(ctx, Work{IDs: ids[done : done+n]}); err != nil {
			return err
		}
		if err := s.eachLogits(n, func(i int, l []float32) error { return visit(done+i, l) }); err != nil {
			return err
		}
		if err := s.end(); err != nil {
			return err
		}
		done += n
	}
	return nil
}

// eachLogits hands out the logits of the last pass's rows, within a guard like the pass itself.
func (s *Session) eachLogits(n int, visit func(i int, logits []float32) error) (err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	return s.back.EachLogits(n, visit)
}

// Decode appends one token and returns the logits after it (the session's memory, valid until its
// next call). It allocates nothing.
func (s *Session) Decode(ctx context.Context, id int32) (logits []float32, err error) {
	if err := s.step(ctx, id, model.HeadLogits); err != nil {
		return nil, err
	}
	return s.Logits(0), s.end()
}

// Greedy is Decode for a caller that takes the token with the greatest logit, the lower id on a tie, and wants to know
// no more: a device then hands back that id and nothing else. Logits of which none can be the greatest are ErrNotFinite.
func (s *Session) Greedy(ctx context.Context, id int32) (next int32, err error) {
	if err := s.step(ctx, id, model.HeadNext); err != nil {
		return 0, err
	}
	if next, err = s.Next(0); err != nil {
		return 0, err
	}
	return next, s.end()
}

// step is the forward pass of one token. The caller ends the telemetry's step.
func (s *Session) step(ctx context.Context, id int32, head model.Head) (err error) {
	s.one[0] = id
	return s.pass(ctx, Work{IDs: s.one[:], Decode: true, Head: head})
}
