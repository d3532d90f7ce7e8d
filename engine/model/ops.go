package model

import (
	"fmt"
	"sync"
	"time"

	"sluice/kernels"
	"sluice/moe/store"
)

// OpKind is one op of the forward path. A layer call runs the kinds from OpAttnNorm to OpDown, and to OpSharedDown where
// the model has a shared expert, in their order; which of them run does not depend on residency, drops or the arm.
type OpKind uint8

// The kinds.
const (
	OpEmbed        OpKind = iota // rows of the embedding
	OpAttnNorm                   // RMS norm, and the normalised rows as activations
	OpQKV                        // queries, keys and values
	OpRotary                     // bias, head norm, rotary embedding, and the rows put into the key/value cache
	OpAttend                     // scores, softmax, weighted values
	OpAttnActs                   // attention output as activations
	OpAttnOut                    // output projection, added to the residual stream
	OpMoENorm                    // RMS norm, activations, gate of the shared expert
	OpRouter                     // router logits
	OpRoute                      // selection, drop and grouping: the arm
	OpFetch                      // demand of the kept experts, and the wait until they are in memory
	OpGateUp                     // silu(gate)*up of all kept experts
	OpHidden                     // their hidden rows as activations
	OpDown                       // down projections, weighted and added to the residual stream
	OpSharedGateUp               // the same three of the shared expert
	OpSharedHidden
	OpSharedDown
	OpOutNorm // last norm
	OpOutput  // logits

	nOpKinds
)

var opNames = [nOpKinds]string{"embed", "attn_norm", "qkv", "rotary", "attend", "attn_acts", "attn_out", "moe_norm", "router",
	"route", "fetch", "gate_up", "hidden", "down", "shared_gate_up", "shared_hidden", "shared_down", "out_norm", "output"}

func (k OpKind) String() string {
	if k < nOpKinds {
		return opNames[k]
	}
	return fmt.Sprintf("op(%d)", uint8(k))
}

// OpMemory is where an op's weights were.
type OpMemory uint8

// The places.
const (
	OpDRAM  OpMemory = iota // in memory for good, or in the file's mapping
	OpCache                 // streamed experts, all of them in the expert cache
	OpFlash                 // streamed experts, some of them read from storage for this call
)

func (m OpMemory) String() string { return [...]string{"DRAM", "CACHE", "FLASH"}[m] }

// Op is one pass of one op. A prompt chunk or a layer call that does not fit the scratch memory, or whose experts do not
// fit the cache together, is computed in several passes, each an Op of its own.
type Op struct {
	Kind    OpKind
	Memory  OpMemory
	Decode  bool  // a single token; else a prompt chunk
	Layer   int32 // -1: outside the layers
	Call    int32 // forward pass, counted from 1
	Pos     int32 // of the forward pass's first token
	Tokens  int32 // rows of activations: tokens, or (token, expert) pairs
	Experts int32 // whose weights were used
	Read    int32 // of those, read from storage for this pass
	Workers int32 // of the team, that the op has work for
	Start   int64 // ns since the Recorder's beginning, monotonic
	End     int64
	Bytes   int64 // of weights
}

// OpInfo is what is the same for every pass of an op in a layer.
type OpInfo struct {
	Rows, Cols int            // of the weights, those of all matrices of the op together
	Types      []kernels.Type // of its matrices; nil: no matrix
	Acts       kernels.ActKind
	Bytes      int64 // of weights, per expert where there are experts

	items int // work for the team ...
	per   int // ... per pass, token or expert
}

const (
	perPass = iota
	perToken
	perExpert
)

// ReadEvent is one read of the expert source, ReadLane the lane that made it.
type ReadEvent struct {
	Lane, Layer, Expert int32
	Projection          uint8 // 0 gate, 1 up, 2 down
	Failed              bool
	Bytes               int64
	Start, End          int64 // as in Op
}

// DemandEvent is one decision of the expert cache.
type DemandEvent struct {
	Layer, Hits, Misses, Evicted int32
	At                           int64
}

// Recorder keeps the ops of one engine and the reads and decisions of its expert source
// (SourceConfig.Observer) in rings that are allocated at creation: recording allocates nothing, and when a ring is full the
// oldest entries go. A nil Recorder records nothing at the price of a nil check per op. Its methods are for the goroutine
// that owns the session, between that session's calls; what the source reports may come from any goroutine.
type Recorder struct {
	base  time.Time
	ops   []Op
	n     int // ops recorded since Reset
	info  [][nOpKinds]OpInfo
	outer [nOpKinds]OpInfo // ops outside the layers
	team  int
	call  Op      // fields that all ops of a forward pass share
	sums  *OpSums // of who adds up times; nil: nobody

	mu       sync.Mutex // reads come from the lanes
	reads    []ReadEvent
	nReads   int
	demands  []DemandEvent
	nDemands int
}

var _ store.Observer = (*Recorder)(nil)

// NewRecorder keeps up to ops passes and up to reads reads and cache decisions; each at least 1.
func NewRecorder(ops, reads int) *Recorder {
	return &Recorder{base: time.Now(), ops: make([]Op, max(1, ops)), reads: make([]ReadEvent, max(1, reads)),
		demands: make([]DemandEvent, max(1, reads))}
}

// Reset forgets what was recorded. The clock and the number of the forward pass go on.
func (r *Recorder) Reset() {
	r.n = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nReads, r.nDemands = 0, 0
}

// Ops returns the passes since Reset in their order, a copy, and how many earlier ones the ring had no room for.
func (r *Recorder) Ops() (ops []Op, lost int) { return unroll(r.ops, r.n) }

// Reads is Ops for the reads; in the order in which they ended.
func (r *Recorder) Reads() (reads []ReadEvent, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return unroll(r.reads, r.nReads)
}

// Demands is Ops for the decisions of the expert cache.
func (r *Recorder) Demands() (demands []DemandEvent, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return unroll(r.demands, r.nDemands)
}

func unroll[T any](ring []T, n int) (out []T, lost int) {
	if n <= len(ring) {
		return append(out, ring[:n]...), 0
	}
	at := n % len(ring)
	return append(append(out, ring[at:]...), ring[:at]...), n - len(ring)
}

// Info describes the op of a layer (-1: outside the layers). It is known once a session has the recorder.
func (r *Recorder) Info(kind OpKind, layer int) OpInfo {
	if layer < 0 {
		return r.outer[kind]
	}
	return r.info[layer][kind]
}

// Team is the size of the session's worker team.
func (r *Recorder) Team() int { return r.team }

// ObserveRead implements store.Observer.
func (r *Recorder) ObserveRead(e store.ReadEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads[r.nReads%len(r.reads)] = ReadEvent{Lane: int32(e.Lane), Layer: int32(e.Layer), Expert: int32(e.Expert),
		Projection: uint8(e.Projection), Failed: e.Failed, Bytes: int64(e.Bytes),
		Start: int64(e.Start.Sub(r.base)), End: int64(e.Start.Sub(r.base) + e.Took)}
	r.nReads++
}

// ObserveDemand implements store.Observer.
func (r *Recorder) ObserveDemand(layer, hits, misses, evicted int) {
	at := int64(time.Since(r.base))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.demands[r.nDemands%len(r.demands)] = DemandEvent{Layer: int32(layer), Hits: int32(hits), Misses: int32(misses),
		Evicted: int32(evicted), At: at}
	r.nDemands++
}

// Sum adds the time of each op to s from now on; nil: nowhere.
func (r *Recorder) Sum(s *OpSums) { r.sums = s }

// Now reads the clock for an op that starts now: ns since the recorder's beginning, what Op.Start and Op.End count in.
func (r *Recorder) Now() int64 {
	if r == nil {
		return 0
	}
	return int64(time.Since(r.base))
}

// BeginPass starts a forward pass whose first row is at pos.
func (r *Recorder) BeginPass(pos int, decode bool) {
	if r == nil {
		return
	}
	r.call = Op{Call: r.call.Call + 1, Pos: int32(pos), Decode: decode}
}

// End records an op that began at start, of layer il, over n rows of activations. It returns the op's end, at which a next
// one begins that follows with nothing in between: the clock is the larger part of what recording costs.
func (r *Recorder) End(start int64, kind OpKind, il, n int) int64 {
	if r == nil {
		return 0
	}
	return r.add(start, kind, il, n, 1, 0, OpDRAM)
}

// EndExperts is End for an op with the weights of several experts, of which read were read from storage for it.
func (r *Recorder) EndExperts(start int64, kind OpKind, il, n, experts, read int, mem OpMemory) int64 {
	if r == nil {
		return 0
	}
	return r.add(start, kind, il, n, experts, read, mem)
}

func (r *Recorder) add(start int64, kind OpKind, il, n, experts, read int, mem OpMemory) int64 {
	end := int64(time.Since(r.base))
	r.put(start, end, kind, il, n, experts, read, mem)
	if r.sums != nil {
		r.sums[kind] += time.Duration(end - start)
	}
	return end
}

// Add records an op that was timed elsewhere, on a device: from start to end, of a layer (-1: outside the layers), over
// tokens rows of activations, with the weights of so many experts, of which read were brought for it. A session's ops are
// added in their order, between BeginPass and the next one. nil records nothing.
func (r *Recorder) Add(kind OpKind, layer, tokens, experts, read int, mem OpMemory, start, end int64) {
	if r != nil {
		r.put(start, end, kind, layer, tokens, experts, read, mem)
	}
}

func (r *Recorder) put(start, end int64, kind OpKind, il, n, experts, read int, mem OpMemory) {
	info := &r.outer[kind]
	if il >= 0 {
		info = &r.info[il][kind]
	}
	items := info.items
	switch info.per {
	case perToken:
		items *= n
	case perExpert:
		items *= experts
	}
	o := &r.ops[r.n%len(r.ops)]
	*o = r.call
	o.Kind, o.Memory, o.Layer, o.Tokens, o.Read = kind, mem, int32(il), int32(n), int32(read)
	o.Workers, o.Start, o.End, o.Bytes = int32(max(1, min(items, r.team))), start, end, info.Bytes
	if kind >= OpFetch && kind <= OpDown {
		o.Experts, o.Bytes = int32(experts), info.Bytes*int64(experts)
	}
	r.n++
}

// NoExperts records the experts' ops of a layer call that has nothing to compute: the rows of a layer do not depend on
// what was dropped.
func (r *Recorder) NoExperts(il int) {
	if r == nil {
		return
	}
	for kind := OpFetch; kind <= OpDown; kind++ {
		r.add(r.Now(), kind, il, 0, 0, 0, OpDRAM)
		o := &r.ops[(r.n-1)%len(r.ops)]
		o.End = o.Start
	}
}

// OpSums is the time in each kind of op.
type OpSums [nOpKinds]time.Duration

// Compute is the time in the kinds that compute: all but the wait for experts.
func (s *OpSums) Compute() (sum time.Duration) {
	for kind, d := range s {
		if OpKind(kind) != OpFetch {
			sum += d
		}
	}
	return sum
}
