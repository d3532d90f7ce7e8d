package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"sluice/dump"
	"sluice/kernels"
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

// SessionConfig says how a session computes. The zero value of a field means its default.
type SessionConfig struct {
	Ctx         int    // context length in tokens; default: the model's, at most 4096
	Batch       int    // prompt chunk in tokens; default DefaultBatch
	Threads     int    // size of the worker team; default 1, and on a device nothing else
	Arm         string // "host" or "table"; default "host", on a device "table"
	KV          string // type of the key/value cache: "f16", "f32" or "q8_0"; default "f16"
	Device      Device // computes the forward passes; nil: this processor. Not closed by the session
	NExpertUsed int    // experts per token; default the model's

	// ExactActs keeps activations in float32 where the default quantises them to 8 bits for
	// quantised weights. Slower; the reference for what quantising activations costs.
	ExactActs bool

	Drop          moe.Drop
	DropInPrefill bool

	Source store.Source // where experts come from; nil: store.NewMapped. Closed with the session

	// Prefetch says which experts of the next layer are read ahead: one of PrefetchModes. It needs a
	// Source with a budget. PrefetchBytes bounds what one layer call asks for; default as many experts as
	// the call has tokens, and at most a quarter of the budget.
	Prefetch      string
	PrefetchBytes int64

	SelDump *dump.SelWriter   // nil: disarmed. Not closed by the session
	Trace   *dump.TraceWriter // nil: disarmed. Not closed by the session

	Recorder  *Recorder  // of the ops; nil: off. Serves one session
	Telemetry *Telemetry // of each forward pass; nil: off. Serves one session, and is not closed by it
}

// DropCount adds up what the drop policy did.
type DropCount struct {
	Routed, Dropped   int64
	Mass, MassDropped float64 // sums of routed weights
}

func (d *DropCount) add(c *moe.Call) {
	d.Routed += int64(c.Routed)
	d.Dropped += int64(c.Dropped)
	d.Mass += c.Mass
	d.MassDropped += c.MassDropped
}

// Session is one conversation with a model: its KV cache, expert source and scratch memory, all
// allocated at creation; a decode step allocates nothing. A Session belongs to one goroutine.
type Session struct {
	m    *Model
	cfg  SessionConfig
	src  store.Source
	walk Walk

	kept []int32 // the tokens in the KV cache, one per position
	turn int
	one  [1]int32 // of Decode
}

// NewSession allocates a session. Errors name the setting, what was given and what is allowed.
func (m *Model) NewSession(c SessionConfig) (*Session, error) {
	if err := c.fill(m); err != nil {
		return nil, err
	}
	if c.Telemetry != nil && c.Recorder == nil && c.Device == nil {
		c.Recorder = NewRecorder(1, 1) // its clock readings are what is wanted
	}
	s := &Session{m: m, cfg: c, src: c.Source}
	router := m.router(c.NExpertUsed)
	if err := router.Validate(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	var err error
	if s.src == nil {
		if s.src, err = store.NewMapped(m.Layout); err != nil {
			return nil, err
		}
	}
	if err := s.cfg.fillPrefetch(s.src.Stats().BudgetBytes); err != nil {
		return nil, err
	}
	w := WalkConfig{Model: m, Session: s.cfg, Router: router, Source: s.src, Rope: kernels.NewRopeTable(m.Rope, c.Ctx)}
	if c.Drop.Frac > 0 {
		w.Drop = &s.cfg.Drop
	}
	if c.Device == nil {
		w.Rope.Reserve(min(c.Ctx, ropeReserve))
		s.walk = newForward(w)
	} else if s.walk, err = c.Device.NewWalk(w); err != nil {
		if c.Source == nil {
			err = errors.Join(err, s.src.Close())
		}
		return nil, err
	}
	s.kept = make([]int32, 0, c.Ctx)
	c.Telemetry.attach(s)
	return s, nil
}

func (c *SessionConfig) fill(m *Model) error {
	if c.Ctx == 0 {
		c.Ctx = min(m.NCtxTrain, DefaultCtx)
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	switch {
	case c.Arm == "" && c.Device == nil:
		c.Arm = "host"
	case c.Arm == "":
		c.Arm = "table"
	}
	if c.KV == "" {
		c.KV = "f16"
	}
	if c.NExpertUsed == 0 {
		c.NExpertUsed = m.NExpertUsed
	}
	switch {
	case c.Ctx < 1 || c.Ctx > m.NCtxTrain:
		return settingf("context of %d tokens: want 1..%d (the model's context_length)", c.Ctx, m.NCtxTrain)
	case c.Batch < 1 || c.Batch > 1<<16:
		return settingf("prompt chunk of %d tokens: want 1..%d", c.Batch, 1<<16)
	case c.Threads < 1 || c.Threads > 1024:
		return settingf("%d threads: want 1..1024", c.Threads)
	case c.Arm != "host" && c.Arm != "table":
		return settingf("arm %q: want host or table", c.Arm)
	case c.NExpertUsed < 1 || c.NExpertUsed > m.NExpert:
		return settingf("%d experts per token: want 1..%d (the model's expert_count)", c.NExpertUsed, m.NExpert)
	}
	if err := checkKV(m, c.KV); err != nil {
		return err
	}
	if err := c.checkDevice(); err != nil {
		return err
	}
	c.Batch = min(c.Batch, c.Ctx)
	if err := c.Drop.Validate(c.NExpertUsed); err != nil {
		return settingf("%w", err)
	}
	return nil
}

// fillPrefetch checks the settings that depend on the expert source's budget.
func (c *SessionConfig) fillPrefetch(budget int64) error {
	if c.Prefetch == "" {
		c.Prefetch = PrefetchOff
	}
	switch {
	case !slices.Contains(PrefetchModes(), c.Prefetch):
		return settingf("prefetch %q: want one of %s", c.Prefetch, strings.Join(PrefetchModes(), ", "))
	case c.PrefetchBytes < 0:
		return settingf("prefetch of at most %d bytes: want 0 (the default) or more", c.PrefetchBytes)
	case c.Prefetch == PrefetchOff && c.PrefetchBytes > 0:
		return settingf("a bound of %d bytes on what is prefetched, but prefetch is off", c.PrefetchBytes)
	case c.Prefetch != PrefetchOff && budget == 0:
		return settingf("prefetch %s without an expert cache: there is nothing to read ahead", c.Prefetch)
	}
	return nil
}

// Close stops the worker team, or gives back the device's memory, and closes the expert source.
func (s *Session) Close() error { return errors.Join(s.walk.Close(), s.src.Close()) }

// Pos is the number of tokens in the KV cache.
func (s *Session) Pos() int { return len(s.kept) }

// Ctx is the context length in tokens.
func (s *Session) Ctx() int { return s.cfg.Ctx }

// Config is the configuration with its defaults filled in.
func (s *Session) Config() SessionConfig { return s.cfg }

// Drops returns what the drop policy did so far.
func (s *Session) Drops() DropCount { return s.walk.Drops() }

// SourceStats returns the expert source's counters.
func (s *Session) SourceStats() store.Stats { return s.src.Stats() }

// KVBytes is the memory of the key/value cache.
func (s *Session) KVBytes() int64 { return s.m.KVBytes(s.cfg) }

// Reset empties the KV cache. The expert cache keeps what it holds.
func (s *Session) Reset() { s.kept = s.kept[:0] }

// Keep shortens the KV cache to the longest prefix that ids also starts with, and returns its
// length: the part of ids that needs no forward pass. At most len(ids)-1 tokens are kept, so that
// there is always one to compute logits from.
func (s *Session) Keep(ids []int32) int {
	n := 0
	for n < len(s.kept) && n < len(ids)-1 && s.kept[n] == ids[n] {
		n++
	}
	s.kept = s.kept[:n]
	return n
}

// NextTurn counts a new turn of the conversation for the route trace.
func (s *Session) NextTurn() { s.turn++ }

// Prefill appends prompt tokens in chunks and returns the logits (nVocab) after the last one. The
// slice is the session's and holds until its next call. On an error or a cancelled context the KV
// cache stays at the end of the last whole chunk.
func (s *Session) Prefill(ctx context.Context, ids []int32) (logits []float32, err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	if len(ids) == 0 {
		return nil, errors.New("engine: empty prompt")
	}
	if len(s.kept)+len(ids) > s.cfg.Ctx {
		return nil, fmt.Errorf("engine: %d tokens at position %d exceed the context of %d: %w", len(ids), len(s.kept), s.cfg.Ctx, ErrContextFull)
	}
	for len(ids) > 0 {
		n, head := min(len(ids), s.cfg.Batch), HeadNone
		if n == len(ids) {
			head = HeadLogits
		}
		s.cfg.Telemetry.begin(s.Pos(), n, phasePrefill)
		if err := s.walk.Run(ctx, Pass{IDs: ids[:n], Pos: s.Pos(), Turn: s.turn, Head: head}); err != nil {
			return nil, err
		}
		s.kept = append(s.kept, ids[:n]...)
		if err := s.cfg.Telemetry.end(); err != nil {
			return nil, err
		}
		ids = ids[n:]
	}
	return s.walk.Logits(), nil
}

// PrefillAll is Prefill that hands the logits of every token to visit, in order; i counts from 0.
// The slice is valid during the call.
func (s *Session) PrefillAll(ctx context.Context, ids []int32, visit func(i int, logits []float32) error) (err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	if len(s.kept)+len(ids) > s.cfg.Ctx {
		return fmt.Errorf("engine: %d tokens at position %d exceed the context of %d: %w", len(ids), len(s.kept), s.cfg.Ctx, ErrContextFull)
	}
	for done := 0; done < len(ids); {
		n := min(len(ids)-done, s.cfg.Batch)
		s.cfg.Telemetry.begin(s.Pos(), n, phasePrefill)
		if err := s.walk.Run(ctx, Pass{IDs: ids[done : done+n], Pos: s.Pos(), Turn: s.turn}); err != nil {
			return err
		}
		s.kept = append(s.kept, ids[done:done+n]...)
		if err := s.walk.EachLogits(n, func(i int, l []float32) error { return visit(done+i, l) }); err != nil {
			return err
		}
		if err := s.cfg.Telemetry.end(); err != nil {
			return err
		}
		done += n
	}
	return nil
}

// Decode appends one token and returns the logits after it (the session's memory, valid until its
// next call). It allocates nothing.
func (s *Session) Decode(ctx context.Context, id int32) (logits []float32, err error) {
	if err := s.step(ctx, id, HeadLogits); err != nil {
		return nil, err
	}
	return s.walk.Logits(), s.cfg.Telemetry.end()
}

// Greedy is Decode for a caller that takes the token with the greatest logit, the lower id on a tie, and wants to know
// no more: a device then hands back that id and nothing else. Logits of which none can be the greatest are ErrNotFinite.
func (s *Session) Greedy(ctx context.Context, id int32) (next int32, err error) {
	if err := s.step(ctx, id, HeadNext); err != nil {
		return 0, err
	}
	if next, err = s.walk.Next(); err != nil {
		return 0, err
	}
	return next, s.cfg.Telemetry.end()
}

// step is the forward pass of one token. The caller ends the telemetry's step.
func (s *Session) step(ctx context.Context, id int32, head Head) (err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	if len(s.kept) >= s.cfg.Ctx {
		return ErrContextFull
	}
	s.one[0] = id
	s.cfg.Telemetry.begin(s.Pos(), 1, phaseDecode)
	if err := s.walk.Run(ctx, Pass{IDs: s.one[:], Pos: s.Pos(), Turn: s.turn, Decode: true, Head: head}); err != nil {
		return err
	}
	s.kept = append(s.kept, id)
	return nil
}

// recoverFault is recoverFault for a forward pass: what it held is released. The KV cache ends where it did
// before the pass.
func (s *Session) recoverFault(old bool, err *error) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		e := s.m.File.Fault(r)
		if e == nil {
			panic(r)
		}
		s.src.Release()
		*err = fmt.Errorf("engine: %w", e)
	}
}

// Tokens are the tokens in the KV cache, a view valid until the session's next call.
func (s *Session) Tokens() []int32 { return s.kept }
