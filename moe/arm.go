package moe

import (
	"fmt"
	"math"
)

// Call is one layer call: the arguments of Arm.Route and its results. The arm keeps nothing of it after Route returns.
type Call struct {
	Layer  int // layer index in the model, for errors
	T      int // rows of the call, 0 to the arm's maxT
	Pos0   int // absolute position of row 0, for errors
	Router *Router
	Logits []float32 // T x NExpert; not changed

	// Resident is the state before the call, NExpert: Miss, Hit or HitAhead. nil: everything is resident.
	Resident []uint8
	Drop     *Drop  // nil: dropping does not apply to this call
	Exempt   []bool // T: rows in which nothing may be dropped (a prompt's among decoded ones); nil: none

	Sel   *Selection // nil: no tap is armed; else filled within its capacity (NewSelection)
	Table *Table     // filled within its capacity (NewTable)

	// Results.
	Routed      int     // slots the router chose, T*NUsed
	Dropped     int     // of them, slots the policy dropped
	Mass        float64 // sum of the weights as routed, in (row, slot) order
	MassDropped float64 // of it, the weights of dropped slots, in the same order
}

// Arm routes layer calls. An arm owns scratch memory: one call at a time. Route allocates nothing unless it fails.
//
// Route returns a *LogitError for logits that no choice can be made from, and a plain error for a call that does not fit
// the arm or whose slices have a wrong length. After an error the results, Sel and Table hold nothing of meaning.
type Arm interface {
	Name() string // "host" or "table"; a device arm has its own
	Route(c *Call) error
}

// LogitError says that a row of router logits has no answer: NaN or +Inf at one expert, or -Inf everywhere. Such a row
// comes from a broken weight or an overflow before the router, and is never turned into a silent choice.
type LogitError struct {
	Layer    int
	Position int     // absolute position of the token
	Expert   int     // expert of the first bad logit; -1: every logit of the row is -Inf
	Value    float32 // the bad logit
}

// Error names layer, token position, expert and value.
func (e *LogitError) Error() string {
	if e.Expert < 0 {
		return fmt.Sprintf("moe: layer %d: token at position %d: every router logit is -Inf", e.Layer, e.Position)
	}
	return fmt.Sprintf("moe: layer %d: token at position %d: router logit of expert %d is %v, want a number below +Inf", e.Layer, e.Position, e.Expert, e.Value)
}

// badLogit builds the error for row t, out of the arms' loops.
func (c *Call) badLogit(t, expert int) error {
	v := float32(math.Inf(-1))
	if expert >= 0 {
		v = c.Logits[t*c.Router.NExpert+expert]
	}
	return &LogitError{Layer: c.Layer, Position: c.Pos0 + t, Expert: expert, Value: v}
}

// limits are what an arm was built for.
type limits struct{ nExpert, nUsed, maxT int }

func newLimits(nExpert, nUsed, maxT int) limits {
	if nExpert < 1 || nExpert > MaxExperts || nUsed < 1 || nUsed > nExpert || maxT < 1 || maxT > math.MaxInt32/nUsed {
		panic(fmt.Sprintf("moe: arm for %d experts, %d used, %d rows: out of range", nExpert, nUsed, maxT))
	}
	return limits{nExpert, nUsed, maxT}
}

// check holds a call against the arm's limits and its own lengths, and clears its results. It computes nothing that the
// arms have to agree on.
func (l limits) check(c *Call) error {
	c.Routed, c.Dropped, c.Mass, c.MassDropped = 0, 0, 0, 0
	r := c.Router
	switch {
	case r.NExpert < 1 || r.NExpert > l.nExpert:
		return fmt.Errorf("moe: layer %d: %d experts, arm has room for %d", c.Layer, r.NExpert, l.nExpert)
	case r.NUsed < 1 || r.NUsed > l.nUsed || r.NUsed > r.NExpert:
		return fmt.Errorf("moe: layer %d: %d of %d experts used, arm has room for %d", c.Layer, r.NUsed, r.NExpert, l.nUsed)
	case c.T < 0 || c.T > l.maxT:
		return fmt.Errorf("moe: layer %d: %d rows, arm has room for %d", c.Layer, c.T, l.maxT)
	case len(c.Logits) != c.T*r.NExpert:
		return fmt.Errorf("moe: layer %d: %d router logits, want %d x %d", c.Layer, len(c.Logits), c.T, r.NExpert)
	case c.Resident != nil && len(c.Resident) != r.NExpert:
		return fmt.Errorf("moe: layer %d: residency of %d experts, want %d", c.Layer, len(c.Resident), r.NExpert)
	case c.Exempt != nil && len(c.Exempt) != c.T:
		return fmt.Errorf("moe: layer %d: exemption of %d rows, want %d", c.Layer, len(c.Exempt), c.T)
	case !c.Table.fits(r.NExpert, c.T*r.NUsed):
		return fmt.Errorf("moe: layer %d: table has no room for %d slots of %d experts", c.Layer, c.T*r.NUsed, r.NExpert)
	case c.Sel != nil && !c.Sel.fits(c.T*r.NUsed):
		return fmt.Errorf("moe: layer %d: selection has no room for %d slots", c.Layer, c.T*r.NUsed)
	}
	if c.Drop != nil {
		if err := c.Drop.validFrac(); err != nil {
			return fmt.Errorf("moe: layer %d: %w", c.Layer, err)
		}
	}
	return nil
}
