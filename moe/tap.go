package moe

import "fmt"

// Phase says what a row of a layer call belongs to. The numbers are those of the route trace.
type Phase uint8

const (
	Prefill Phase = 0 // a token that was given: a prompt's, or a text's that is scored
	Decode  Phase = 1 // a token that the run chose itself, one step after the other
)

// String is the phase's name as reports spell it.
func (p Phase) String() string {
	switch p {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Residency of an expert at the moment of a decision: the state before the layer call. The numbers are those of the route
// trace.
const (
	Miss     uint8 = 0 // in no memory level: it would have to be read
	Hit      uint8 = 1
	HitAhead uint8 = 2 // read ahead, and not demanded since
)

// Row says whose a row of a layer call is.
type Row struct {
	Seq   int32 // sequence, from 0
	Turn  int32 // turn, from 0, counted over all sequences of the engine: (turn, step, layer) is met once
	Phase Phase
	Step  int32 // absolute position of the token in its sequence
}

// Observed is one layer call as taps see it. The slices are the backend's and hold during the call of the tap only.
type Observed struct {
	Layer, T, K int
	Pass        int64     // forward pass of the engine, counted from 1
	Rows        []Row     // T
	Expert      []int32   // T x K, slots in the router's order
	Weight      []float32 // T x K as routed
	Dropped     []bool    // T x K (Computed only)
	Resident    []uint8   // by expert, before the call: Miss, Hit or HitAhead; nil: everything is resident
	Read        []int64   // by expert: logical bytes read for the call (Computed only)
	Ahead       []int32   // experts of the next layer that the call asked to be read ahead, the most wanted first
	AheadBytes  int64     // of them, what had to be read
}

// Tap is told of every layer call. It must not change what it is shown. An error ends the pass.
type Tap interface {
	// Routed comes right after routing, before anything is fetched.
	Routed(o *Observed) error
	// Computed comes after the layer call, with the same rows.
	Computed(o *Observed) error
}
