package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"sluice/engine/cpu"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// Engine computes sequences of one model: it owns the expert source, the backend with its worker team or device memory,
// and the scratch memory of a pass, all allocated at creation. One goroutine drives it; a pass allocates nothing.
type Engine struct {
	m    *model.Model
	cfg  Config
	src  store.Source
	back model.Backend

	pass  model.Pass
	spans []model.Span // capacity Seqs
	ids   []int32      // capacity Batch, as are the next two
	whose []moe.Row
	spare []bool // Pass.Exempt
	lays  int64  // passes that were tried, for who is in one
	turns int32  // begun so far, over all sequences
	next  int32  // number of the next sequence
}

// Work is what one sequence has in a pass: a prompt chunk, or the token that was drawn from it.
type Work struct {
	Seq    *Seq
	IDs    []int32 // appended to the sequence
	Decode bool    // one token that was drawn; else part of a prompt
	Head   model.Head
}

// Open allocates an engine. Errors name the setting, what was given and what is allowed.
func Open(m *model.Model, c Config) (_ *Engine, err error) {
	if err := c.fill(m); err != nil {
		return nil, err
	}
	if c.Telemetry != nil && c.Recorder == nil && c.Device == nil {
		c.Recorder = model.NewRecorder(1, 1) // its clock readings are what is wanted
	}
	e := &Engine{m: m, cfg: c, src: c.Source}
	if e.src == nil {
		if e.src, err = store.NewMapped(m.Layout); err != nil {
			return nil, err
		}
	}
	if err := e.cfg.fillPrefetch(e.src.Stats().BudgetBytes); err != nil {
		return nil, err
	}
	taps, err := e.taps()
	if err != nil {
		if c.Source == nil {
			err = errors.Join(err, e.src.Close())
		}
		return nil, err
	}
	b := model.Config{Model: m, Ctx: c.Ctx, Seqs: c.Seqs, Batch: c.Batch, Threads: c.Threads, Arm: c.Arm, KV: c.KV, NExpertUsed: c.NExpertUsed,
		ExactActs: c.ExactActs, Source: e.src, Prefetch: e.cfg.Prefetch, PrefetchBytes: c.PrefetchBytes,
		Taps: taps, Watch: c.Trace != nil, Recorder: c.Recorder, Meter: c.Telemetry.meter()}
	if c.Drop.Frac > 0 {
		b.Drop = &e.cfg.Drop
	}
	for i := range m.Ropes {
		b.Ropes = append(b.Ropes, kernels.NewRopeTable(m.Ropes[i], c.Ctx))
	}
	if c.Device == nil {
		for _, r := range b.Ropes {
			r.Reserve(min(c.Ctx, ropeReserve))
		}
		if b.Meter != nil {
			b.Source = store.NewMetered(e.src, b.Meter.AddManage)
		}
		e.back, err = cpu.New(b)
	} else {
		e.back, err = c.Device.NewBackend(b)
	}
	if err != nil {
		if c.Source == nil {
			err = errors.Join(err, e.src.Close())
		}
		return nil, err
	}
	e.spans = make([]model.Span, 0, c.Seqs)
	e.ids, e.whose, e.spare = make([]int32, 0, c.Batch), make([]moe.Row, 0, c.Batch), make([]bool, 0, c.Batch)
	c.Telemetry.attach(e)
	return e, nil
}

// Close stops the worker team, or gives back the device's memory, and closes the expert source. Sequences are of no use
// after it.
func (e *Engine) Close() error { return errors.Join(e.back.Close(), e.src.Close()) }

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Model is the model that is computed.
func (e *Engine) Model() *model.Model { return e.m }

// Drops returns what the drop policy did so far.
func (e *Engine) Drops() model.DropCount { return e.back.Drops() }

// SourceStats returns the expert source's counters.
func (e *Engine) SourceStats() store.Stats { return e.src.Stats() }

// WeightBytes is how many bytes of weights the passes have read so far, from memory or from the file's mapping: every matrix
// once per pass over it, experts only where they were computed.
func (e *Engine) WeightBytes() int64 { return e.back.WeightBytes() }

// Notes are what the engine's device decided and did without, a sentence each; nil on the processor.
func (e *Engine) Notes() []string { return e.back.Notes() }

// Passes is how many passes were begun.
func (e *Engine) Passes() int64 { return e.pass.Number }

// DeviceStats returns the figures of the engine's device; false: it computes on the processor.
func (e *Engine) DeviceStats() (model.DeviceStats, bool) {
	d, ok := e.back.(interface{ DeviceStats() model.DeviceStats })
	if !ok {
		return model.DeviceStats{}, false
	}
	return d.DeviceStats(), true
}

// Pass computes rows of several sequences together: each matrix is read once for all of them, and each expert that any of
// them needs. What a sequence gets does not depend on the others (with dropping off). Together the rows must not be more
// than the configuration's Batch, and a sequence may have work only once. After an error, a done ctx included, every
// sequence is as long as before.
func (e *Engine) Pass(ctx context.Context, work []Work) error {
	if err := e.run(ctx, work); err != nil {
		return err
	}
	return e.cfg.Telemetry.end()
}

// run is Pass but for the end of the telemetry's step, which a caller that takes more of the pass's results sets itself.
func (e *Engine) run(ctx context.Context, work []Work) (err error) {
	if err := e.lay(work); err != nil {
		return err
	}
	defer e.recoverFault(debug.SetPanicOnFault(true), &err)
	e.cfg.Telemetry.begin(&e.pass)
	if err := e.back.Run(ctx, &e.pass); err != nil {
		return err
	}
	for i := range work {
		w := &work[i]
		w.Seq.tokens = append(w.Seq.tokens, w.IDs...)
	}
	return nil
}

// lay makes a pass of the work.
func (e *Engine) lay(work []Work) error {
	e.spans, e.ids, e.whose, e.spare = e.spans[:0], e.ids[:0], e.whose[:0], e.spare[:0]
	exempts := false
	e.lays++
	for i := range work {
		w := &work[i]
		pos := len(w.Seq.tokens)
		switch {
		case w.Seq.lay == e.lays:
			return fmt.Errorf("engine: sequence %d has work twice in a pass", w.Seq.number)
		case len(w.IDs) == 0 || w.Decode && len(w.IDs) != 1:
			return fmt.Errorf("engine: work of %d tokens for a sequence, decode %t", len(w.IDs), w.Decode)
		case pos+len(w.IDs) > e.cfg.Ctx && w.Decode:
			return ErrContextFull
		case pos+len(w.IDs) > e.cfg.Ctx:
			return fmt.Errorf("engine: %d tokens at position %d exceed the context of %d: %w", len(w.IDs), pos, e.cfg.Ctx, ErrContextFull)
		case len(e.ids)+len(w.IDs) > e.cfg.Batch || len(e.spans) == cap(e.spans):
			return fmt.Errorf("engine: a pass of more than %d rows of %d sequences", e.cfg.Batch, cap(e.spans))
		}
		w.Seq.lay = e.lays
		row := moe.Row{Seq: w.Seq.number, Turn: w.Seq.turn, Phase: moe.Prefill}
		if w.Decode {
			row.Phase = moe.Decode
		}
		exempt := row.Phase == moe.Prefill && !e.cfg.DropInPrefill
		exempts = exempts || exempt
		e.spans = append(e.spans, model.Span{State: w.Seq.state, From: len(e.ids), N: len(w.IDs), Head: w.Head})
		for j := range w.IDs {
			row.Step = int32(pos + j)
			e.whose, e.spare = append(e.whose, row), append(e.spare, exempt)
		}
		e.ids = append(e.ids, w.IDs...)
	}
	if len(e.ids) == 0 {
		return errors.New("engine: a pass without rows")
	}
	e.pass = model.Pass{IDs: e.ids, Rows: e.whose, Spans: e.spans, Number: e.pass.Number + 1}
	if exempts && e.cfg.Drop.Frac > 0 {
		e.pass.Exempt = e.spare
	}
	return nil
}

// Logits are the last row's of the i-th work of the last Pass, which wanted them: the engine's memory, valid until its next
// call.
func (e *Engine) Logits(i int) []float32 { return e.back.Logits(i) }

// Next is the token of the greatest logit of the i-th work of the last Pass, which wanted it: the lower id on a tie. Logits
// of which none can be the greatest are model.ErrNotFinite.
func (e *Engine) Next(i int) (int32, error) { return e.back.Next(i) }

// recoverFault makes an error of a page of the model's mapping that could not be read in a pass: what it held is released.
func (e *Engine) recoverFault(old bool, err *error) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		fault := e.m.File.Fault(r)
		if fault == nil {
			panic(r)
		}
		e.src.Release()
		*err = fmt.Errorf("engine: %w", fault)
	}
}
