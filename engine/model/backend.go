package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// Backend computes forward passes over rows of several sequences: on this processor (package cpu) or on a device. It owns
// scratch memory and the pool that sequences' states take theirs from. One goroutine drives it, one call at a time.
type Backend interface {
	// NewState is the memory of a sequence that begins. It takes what the sequence needs from the pool as it grows; the pool
	// has room for Config.Seqs sequences of Config.Ctx positions. More than Config.Seqs open states are an error.
	NewState() (State, error)

	// Run computes a pass, and what its spans want. After an error, a done ctx included, the states are as long as before, the
	// positions behind hold nothing of meaning, and the backend takes a further Run. Nothing of p is kept.
	Run(ctx context.Context, p *Pass) error

	// Logits are those of the last row of a span with HeadLogits (NVocab), after Run; valid until the backend's next call.
	Logits(span int) []float32

	// Next is the first maximum of the logits of the last row of a span with HeadNext. Logits of which the greatest is not a
	// finite number are ErrNotFinite.
	Next(span int) (int32, error)

	// EachLogits hands out the logits of the first n rows of the last Run, in order; a slice is valid during its call of visit.
	EachLogits(n int, visit func(row int, logits []float32) error) error

	Drops() DropCount   // so far
	WeightBytes() int64 // that passes have read so far: every matrix once a pass, experts where they were computed
	Notes() []string    // what was decided and what was done without, a sentence each
	Close() error
}

// State is what one sequence has come to: keys and values of its positions in tiles, latents, recurrences.
type State interface {
	// Len is how many positions there are.
	Len() int

	// Truncate forgets positions from n on and returns how many are kept: n, or fewer where something cannot go back. A
	// recurrence cannot, and of a window only what is still there.
	Truncate(n int) (kept int)

	// Snapshot copies what Truncate could not bring back, to Restore it later into this state: which then has as many
	// positions as now, provided that it was never shorter meanwhile. Its memory is the caller's.
	Snapshot() Snapshot
	Restore(s Snapshot) error

	Bytes() int64 // of memory taken
	Close()       // gives it back; the state is of no use after it
}

// Snapshot is a point that a State can go back to.
type Snapshot interface {
	Len() int     // positions
	Bytes() int64 // of memory
}

// ErrSnapshot says that a state has lost what a snapshot stands on, or that it is another's.
var ErrSnapshot = errors.New("the snapshot does not fit the sequence any more")

// Head is what a pass computes of a span beyond the residual stream.
type Head uint8

// The heads.
const (
	HeadNone   Head = iota // nothing of which the pass would know: EachLogits may follow
	HeadLogits             // the last row's logits
	HeadNext               // the last row's greatest logit's id alone
)

// Span is a run of consecutive rows of one sequence: a prompt chunk or a single token.
type Span struct {
	State State
	From  int // row of the pass
	N     int // rows
	Head  Head
}

// Pass is rows of one or more sequences, at most Config.Batch. The slices are the caller's.
type Pass struct {
	IDs    []int32   // tokens, by row
	Rows   []moe.Row // whose each is; Step is its position, and ascends by one within a span from State.Len on
	Spans  []Span    // in the order of rows, over all of them; a state is in one at most
	Exempt []bool    // by row: nothing may be dropped; nil: no row is exempt
	Number int64     // of the engine's passes, counted from 1
}

// Decode says whether every row is a single token of its sequence that follows a token it was drawn from.
func (p *Pass) Decode() bool {
	for i := range p.Rows {
		if p.Rows[i].Phase != moe.Decode {
			return false
		}
	}
	return true
}

// Drops is the policy of the pass and the rows that it exempts; nil where it drops in none.
func (p *Pass) Drops(d *moe.Drop) (*moe.Drop, []bool) {
	if d == nil || p.Exempt == nil {
		return d, nil
	}
	if !slices.Contains(p.Exempt, false) {
		return nil, nil
	}
	return d, p.Exempt
}

// KV is the type of keys and values in a state.
type KV string

// The types.
const (
	KVF16 KV = "f16"
	KVF32 KV = "f32"
	KVQ8  KV = "q8_0"
)

// Bytes is the size of n values, n a multiple of 32 for KVQ8.
func (k KV) Bytes(n int64) int64 {
	switch k {
	case KVF32:
		return 4 * n
	case KVQ8:
		return n + n/32*4
	}
	return 2 * n
}

// Arm is where routing is done.
type Arm string

// The arms.
const (
	ArmHost  Arm = "host"
	ArmTable Arm = "table"
)

// Config is what an engine hands to its backend: checked, with its defaults filled in. Source is the engine's, which
// closes it.
type Config struct {
	Model       *Model
	Ctx         int // positions of a sequence
	Seqs        int // sequences at most
	Batch       int // rows of a pass at most
	Threads     int
	Arm         Arm
	KV          KV
	NExpertUsed int
	ExactActs   bool
	Drop        *moe.Drop // nil: nothing is dropped
	Source      store.Source

	Prefetch      moe.Prefetch
	PrefetchBytes int64

	Taps     []moe.Tap // told of each layer call; none: no selection is made
	Watch    bool      // a tap records what was resident and read
	Recorder *Recorder // of the ops; nil: off
	Meter    *Meter    // of a pass's parts; nil: off
	Ropes    []*kernels.RopeTable
}

// Routers are the routing rules by layer, with the configuration's experts per token; nil where a layer has no experts.
func (c *Config) Routers() ([]*moe.Router, error) {
	all := make([]*moe.Router, len(c.Model.Layers))
	for i := range all {
		f := c.Model.Layers[i].Experts()
		if f == nil {
			continue
		}
		r := f.Router.Rule
		r.NUsed = c.NExpertUsed
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		all[i] = &r
	}
	return all, nil
}

// Device makes backends elsewhere than on this processor. It may serve several engines, and is closed by its owner after
// the last of them.
type Device interface {
	Name() string // for the start line: what and which

	// NewBackend takes the memory that the engine needs and the model's weights, unless they are there. Errors name the
	// tensor, layer, kind, setting or number that the device cannot do with, and of memory what was asked for and what was
	// free.
	NewBackend(c Config) (Backend, error)

	// Close frees everything and reports what was not given back.
	Close() error
}

// DeviceStats says where a device holds an engine's experts and what moved. Hits and misses are the device memory's alone,
// and no part of what decides on drops.
type DeviceStats struct {
	Resident    bool  // all experts are in the device's memory for good
	BudgetBytes int64 // device memory for experts
	Slots       int   // experts that it holds
	Hits        int64 // experts of layer calls that were on the device
	Misses      int64 // that were copied there for the call
	Evictions   int64
	CopiedBytes int64 // of experts, to the device
	Graph       bool  // a decode step is one replay of a captured graph
}

// DropCount adds up what the drop policy did.
type DropCount struct {
	Routed, Dropped   int64
	Mass, MassDropped float64 // sums of routed weights
}

// Add adds a layer call's.
func (d *DropCount) Add(c *moe.Call) {
	d.Routed += int64(c.Routed)
	d.Dropped += int64(c.Dropped)
	d.Mass += c.Mass
	d.MassDropped += c.MassDropped
}

// Meter adds up the parts of the current pass that its backend and the calls of the expert source take. The nil *Meter
// measures nothing.
type Meter struct {
	Compute time.Duration // of a device; the processor's is the sum of its Recorder's ops
	Manage  time.Duration // the expert cache's own work
}

// AddCompute adds to Compute.
func (m *Meter) AddCompute(d time.Duration) {
	if m != nil {
		m.Compute += d
	}
}

// AddManage adds to Manage.
func (m *Meter) AddManage(d time.Duration) {
	if m != nil {
		m.Manage += d
	}
}

// ErrNotFinite is returned where no token can be chosen: a logit is NaN, or the greatest is infinite.
var ErrNotFinite = errors.New("engine: logits are not finite")

// Greatest is the first maximum.
func Greatest(logits []float32) (int32, error) {
	if i := kernels.ArgMax(logits); i >= 0 && !math.IsInf(float64(logits[i]), 0) {
		return int32(i), nil
	}
	return 0, ErrNotFinite
}

// Refuse is the error of a backend that does not compute what a layer asks for.
func (m *Model) Refuse(backend string, il int, what string) error {
	return fmt.Errorf("%s: layer %d: %s is not computed on %s", m.File.Name(), il, what, backend)
}
