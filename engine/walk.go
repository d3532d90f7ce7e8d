package engine

import (
	"context"

	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// Walk computes the forward passes of one session: it owns the key/value cache, the scratch memory and the last pass's
// results. The CPU's is in this package, a device's is what its NewWalk returns. One call at a time.
type Walk interface {
	// Run computes one chunk of tokens, at most the session's Batch, at p.Pos, and what p.Head asks for. After an error, a
	// done ctx included, positions from p.Pos on hold nothing of meaning, and the walk takes a further Run at p.Pos or below.
	// p.IDs is not kept.
	Run(ctx context.Context, p Pass) error

	// Logits are the last row's (nVocab), after a Run with HeadLogits; the walk's memory, valid until its next call.
	Logits() []float32

	// Next is the first maximum of the last row's logits, after a Run with HeadNext. Logits of which the greatest is not a
	// finite number are ErrNotFinite.
	Next() (int32, error)

	// EachLogits hands out the logits of all n rows of the last Run, in order; a slice is valid during its call of visit.
	EachLogits(n int, visit func(i int, logits []float32) error) error

	Drops() DropCount   // so far
	WeightBytes() int64 // see Session.WeightBytes
	Notes() []string    // what was decided and what was done without, a sentence each
	Close() error
}

// Head is what a pass computes beyond the residual stream.
type Head uint8

// The heads.
const (
	HeadNone   Head = iota // nothing of which this pass would know: EachLogits may follow
	HeadLogits             // the last row's logits
	HeadNext               // the last row's greatest logit's id alone
)

// Pass is one chunk of tokens.
type Pass struct {
	IDs    []int32
	Pos    int // position of the first
	Turn   int // of the conversation, for the route trace
	Decode bool
	Head   Head
}

// phase is the route trace's number.
func (p *Pass) phase() phase {
	if p.Decode {
		return phaseDecode
	}
	return phasePrefill
}

// Device computes forward passes elsewhere than on this processor (SessionConfig.Device). It may serve several sessions,
// and is closed by its owner after the last of them.
type Device interface {
	Name() string // for the start line: what and which

	// NewWalk takes the memory that the session needs and the model's weights, unless they are there. Errors name the
	// tensor, setting or number that the device cannot do with, and of memory what was asked for and what was free.
	NewWalk(c WalkConfig) (Walk, error)

	// Close frees everything and reports what was not given back.
	Close() error
}

// WalkConfig is what a session hands to its walk. Source is the session's, which closes it.
type WalkConfig struct {
	Model   *Model
	Session SessionConfig // checked, with its defaults filled in
	Router  *moe.Router   // of every layer, validated
	Drop    *moe.Drop     // nil: nothing is dropped
	Source  store.Source
	Rope    *kernels.RopeTable // of the session's context
}

// DeviceStats says where a device holds a session's experts and what moved. Hits and misses are the device memory's alone,
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

// DeviceStats returns the figures of the session's device; false: the session computes on the processor.
func (s *Session) DeviceStats() (DeviceStats, bool) {
	d, ok := s.walk.(interface{ DeviceStats() DeviceStats })
	if !ok {
		return DeviceStats{}, false
	}
	return d.DeviceStats(), true
}

// Notes are what the session's device decided and did without, a sentence each; nil on the processor.
func (s *Session) Notes() []string { return s.walk.Notes() }

// checkDevice refuses what no device of ours computes, by the setting's name.
func (c *SessionConfig) checkDevice() error {
	switch {
	case c.Device == nil:
		return nil
	case c.KV != "f16":
		return settingf("kv type %q: on device %s the key/value cache is f16", c.KV, c.Device.Name())
	case c.ExactActs:
		return settingf("float32 activations: device %s quantises the activations of quantised weights", c.Device.Name())
	case c.Threads > 1:
		return settingf("%d threads: device %s computes, there is no worker team", c.Threads, c.Device.Name())
	case c.Prefetch != "" && c.Prefetch != PrefetchOff:
		return settingf("prefetch %s: on device %s experts are copied when they are demanded", c.Prefetch, c.Device.Name())
	}
	return nil
}
