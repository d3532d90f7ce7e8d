package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"sluice/engine/machine"
	"sluice/engine/model"
	"sluice/moe/store"
)

// Step is what one forward pass took: a decoded token, or a prompt chunk. Counters are what was added since the end of
// the step before (the first: since the session began), so that the steps of a session add up to its totals.
//
//	Wall == IOWait + Compute + Manage + Other
//
// The three named parts are measured, each by its own clock readings; Other is the rest, which is loops, checks, and
// whatever kept the goroutine from running. Compute runs while reads are in flight, so that IOWait is only the time in
// which there was nothing to compute.
type Step struct {
	Step   int  // counted from 0
	Decode bool // tokens that were drawn; else, or among them, a prompt chunk
	Pos    int  // of the first token
	Tokens int
	Seqs   int // whose rows the pass had
	Drawn  int // of Tokens, those that were drawn; the others are of prompts

	Wall    time.Duration
	IOWait  time.Duration // blocked until experts were in memory
	Compute time.Duration // ops of the forward pass and of its logits, routing and dropping included
	Manage  time.Duration // the expert cache's own work: residency, choice of evictions, slots, submitting reads
	Other   time.Duration

	BytesRead    int64 // that arrived, padding included; of reads in flight at the end, in a later step
	Reads        int64
	Hits, Misses int64
	Evictions    int64

	Prefetched, PrefetchUsed, PrefetchWasted int64 // experts, as store.Stats has them

	Routed, Dropped   int64
	Mass, MassDropped float64 // sums of routed weights

	MajorFaults int64       // of the whole process: pages of a mapping that had to be read
	RSS         machine.RSS // at the end of the step, by kind; zero where the system does not say
}

// add adds the summable fields of b.
func (a *Step) add(b *Step) {
	a.Tokens += b.Tokens
	a.Wall += b.Wall
	a.IOWait += b.IOWait
	a.Compute += b.Compute
	a.Manage += b.Manage
	a.Other += b.Other
	a.BytesRead += b.BytesRead
	a.Reads += b.Reads
	a.Hits += b.Hits
	a.Misses += b.Misses
	a.Evictions += b.Evictions
	a.Prefetched += b.Prefetched
	a.PrefetchUsed += b.PrefetchUsed
	a.PrefetchWasted += b.PrefetchWasted
	a.Routed += b.Routed
	a.Dropped += b.Dropped
	a.Mass += b.Mass
	a.MassDropped += b.MassDropped
	a.MajorFaults += b.MajorFaults
	a.RSS = b.RSS
}

// Telemetry measures each forward pass of one engine (Config.Telemetry). The nil *Telemetry measures nothing at the
// price of a nil check. Armed, a step costs a clock reading or two for each op, a few for each call of the
// source, and one reading each of /proc and getrusage; it allocates nothing unless the receiver does. Not safe for concurrent use.
type Telemetry struct {
	receive func(*Step) error
	mem     *machine.RSSReader
	sums    *model.OpSums // of the engine's Recorder; nil: a device's, which has none
	parts   model.Meter   // of the current step
	e       *Engine

	start   time.Time
	step    Step
	base    counters // at the end of the last step
	usage   unix.Rusage
	prefill Step
	decode  Step
	steps   int
}

// counters are the running totals that a step is the difference of.
type counters struct {
	src    store.Stats
	drops  model.DropCount
	faults int64
}

// NewTelemetry hands each finished step to receive, which must not keep the pointer; nil: only totals are kept. An error of
// it ends the forward pass with that error. root is where /proc is found, "/" outside tests.
func NewTelemetry(root string, receive func(*Step) error) *Telemetry {
	mem, _ := machine.NewRSSReader(root) // nil where there is no such file: RSS stays zero, as documented
	return &Telemetry{receive: receive, mem: mem}
}

// Totals returns the sums over all steps of prompts and of decoded tokens. RSS is the last step's, Step their number.
func (t *Telemetry) Totals() (prefill, decode Step) { return t.prefill, t.decode }

// Close closes what the measuring needed. The totals stay.
func (t *Telemetry) Close() error {
	if t == nil {
		return nil
	}
	return t.mem.Close()
}

// meter is what a backend and the source's calls add to.
func (t *Telemetry) meter() *model.Meter {
	if t == nil {
		return nil
	}
	return &t.parts
}

// attach binds the telemetry to an engine whose other parts exist.
func (t *Telemetry) attach(e *Engine) {
	if t == nil {
		return
	}
	t.e = e
	if e.cfg.Device == nil { // a device adds its own
		t.sums = new(model.OpSums)
		e.cfg.Recorder.Sum(t.sums)
	}
	t.rebase()
}

// rebase leaves out what happened outside the steps so far.
func (t *Telemetry) rebase() {
	if t == nil {
		return
	}
	t.base.src, t.base.drops = t.e.src.Stats(), t.e.back.Drops()
	t.base.faults = t.majorFaults()
}

func (t *Telemetry) majorFaults() int64 {
	if unix.Getrusage(unix.RUSAGE_SELF, &t.usage) != nil {
		return t.base.faults // unknown: none
	}
	return t.usage.Majflt
}

// begin starts the step of a pass.
func (t *Telemetry) begin(p *model.Pass) {
	if t == nil {
		return
	}
	t.step = Step{Step: t.steps, Decode: p.Decode(), Pos: int(p.Rows[0].Step), Tokens: len(p.Rows), Seqs: len(p.Spans)}
	for i := range p.Rows {
		t.step.Drawn += int(p.Rows[i].Phase) // moe.Decode is 1
	}
	t.parts = model.Meter{}
	if t.sums != nil {
		*t.sums = model.OpSums{}
	}
	t.start = time.Now()
}

// end finishes a step that has succeeded. One that failed is given up by the next begin; what it read then counts there.
func (t *Telemetry) end() error {
	if t == nil {
		return nil
	}
	p := &t.step
	p.Wall = time.Since(t.start)
	now := counters{src: t.e.src.Stats(), drops: t.e.back.Drops(), faults: t.majorFaults()}
	was := &t.base
	p.IOWait = time.Duration((now.src.WaitSeconds - was.src.WaitSeconds) * 1e9)
	p.Manage = t.parts.Manage
	if p.Compute = t.parts.Compute; t.sums != nil {
		p.Compute = t.sums.Compute()
	}
	p.Other = p.Wall - p.IOWait - p.Compute - p.Manage
	p.BytesRead, p.Reads = now.src.BytesRead-was.src.BytesRead, now.src.Reads-was.src.Reads
	p.Hits, p.Misses, p.Evictions = now.src.Hits-was.src.Hits, now.src.Misses-was.src.Misses, now.src.Evictions-was.src.Evictions
	p.Prefetched, p.PrefetchUsed = now.src.Prefetched-was.src.Prefetched, now.src.PrefetchUsed-was.src.PrefetchUsed
	p.PrefetchWasted = now.src.PrefetchWasted - was.src.PrefetchWasted
	p.Routed, p.Dropped = now.drops.Routed-was.drops.Routed, now.drops.Dropped-was.drops.Dropped
	p.Mass, p.MassDropped = now.drops.Mass-was.drops.Mass, now.drops.MassDropped-was.drops.MassDropped
	p.MajorFaults = now.faults - was.faults
	p.RSS, _ = t.mem.Read()
	t.base = now
	t.steps++
	sum := &t.prefill
	if p.Decode {
		sum = &t.decode
	}
	sum.add(p)
	sum.Step++
	if t.receive == nil {
		return nil
	}
	return t.receive(p)
}
