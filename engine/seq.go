package engine

import (
	"sluice/engine/model"
)

// Seq is one sequence of an engine: its tokens, and the state that they have come to. It belongs to the engine's goroutine.
type Seq struct {
	e      *Engine
	state  model.State
	tokens []int32 // one per position
	number int32
	turn   int32
	lay    int64 // Engine.lays of the last pass that it was in
}

// NewSeq begins a sequence, which is a turn of its own in recordings. More than Config.Seqs open ones are an error.
func (e *Engine) NewSeq() (*Seq, error) {
	st, err := e.back.NewState()
	if err != nil {
		return nil, err
	}
	s := &Seq{e: e, state: st, tokens: make([]int32, 0, e.cfg.Ctx), number: e.next, turn: e.turns}
	e.next++
	e.turns++
	return s, nil
}

// Close gives the sequence's memory back. A second Close does nothing.
func (s *Seq) Close() {
	if s.state != nil {
		s.state.Close()
		s.state = nil
	}
}

// Number is the sequence's in recordings.
func (s *Seq) Number() int { return int(s.number) }

// Pos is how many tokens the sequence has.
func (s *Seq) Pos() int { return len(s.tokens) }

// Tokens are the sequence's, a view valid until its next pass.
func (s *Seq) Tokens() []int32 { return s.tokens }

// Bytes is the memory that its state has taken.
func (s *Seq) Bytes() int64 { return s.state.Bytes() }

// NextTurn begins a new turn in recordings. Turns are counted over all sequences of the engine.
func (s *Seq) NextTurn() {
	s.turn = s.e.turns
	s.e.turns++
}

// Truncate forgets the tokens from position n on, and returns how many it could keep: n, or fewer where a state cannot go
// back. The caller computes the rest again.
func (s *Seq) Truncate(n int) (kept int) {
	kept = s.state.Truncate(min(n, len(s.tokens)))
	s.tokens = s.tokens[:kept]
	return kept
}

// Prefix is how many tokens the sequence and ids have in common at their beginning, at most len(ids)-1: there is always one
// to compute logits from.
func (s *Seq) Prefix(ids []int32) (n int) {
	for n < len(s.tokens) && n < len(ids)-1 && s.tokens[n] == ids[n] {
		n++
	}
	return n
}

// Keep shortens the sequence to what it has in common with ids as far as its state can go back, and returns its length: the
// part of ids that needs no forward pass.
func (s *Seq) Keep(ids []int32) int { return s.Truncate(s.Prefix(ids)) }

// Snapshot is a point that a sequence can go back to where Truncate could not.
type Snapshot struct {
	state model.Snapshot
}

// Pos is how many tokens the sequence had.
func (x Snapshot) Pos() int { return x.state.Len() }

// Bytes is the memory that the snapshot takes.
func (x Snapshot) Bytes() int64 { return x.state.Bytes() }

// Snapshot notes where the sequence is now.
func (s *Seq) Snapshot() Snapshot { return Snapshot{s.state.Snapshot()} }

// Restore goes back to a snapshot of this sequence, which must not have been shorter meanwhile.
func (s *Seq) Restore(x Snapshot) error {
	if err := s.state.Restore(x.state); err != nil {
		return err
	}
	s.tokens = s.tokens[:x.Pos()]
	return nil
}
