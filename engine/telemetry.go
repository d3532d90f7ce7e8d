package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"sluice/engine/machine"
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
	Decode bool // a single token; else a prompt chunk
	Pos    int  // of the first token
	Tokens int

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

// Telemetry measures each forward pass of one session (SessionConfig.Telemetry). The nil *Telemetry measures nothing at the
// price of a nil check. Armed, a step costs a clock reading or two for each op, a few for each call of the
// source, and one reading each of /proc and getrusage; it allocates nothing unless the receiver does. Not safe for concurrent use.
type Telemetry struct {
	receive func(*Step) error
	mem     *machine.RSSReader
	sums    *opSums // of the session's Recorder; nil: a device's, which has none
	src     store.Source
	walk    Walk

	start   time.Time
	step    Step
	compute time.Duration // of a device
	manage  time.Duration
	inRoute time.Duration // of manage, inside OpRoute
	base    counters      // at the end of the last step
	usage   unix.Rusage
	prefill Step
	decode  Step
	steps   int
}

// counters are the running totals that a step is the difference of.
type counters struct {
	src    store.Stats
	drops  DropCount
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

// attach binds the telemetry to a session whose other parts exist.
func (t *Telemetry) attach(s *Session) {
	if t == nil {
		return
	}
	t.src, t.walk = s.src, s.walk
	if s.cfg.Device == nil { // a device adds its own
		t.sums = new(opSums)
		s.cfg.Recorder.sums = t.sums
	}
	t.rebase()
}

// rebase leaves out what happened outside the steps so far.
func (t *Telemetry) rebase() {
	if t == nil {
		return
	}
	t.base.src, t.base.drops = t.src.Stats(), t.walk.Drops()
	t.base.faults = t.majorFaults()
}

func (t *Telemetry) majorFaults() int64 {
	if unix.Getrusage(unix.RUSAGE_SELF, &t.usage) != nil {
		return t.base.faults // unknown: none
	}
	return t.usage.Majflt
}

// begin starts a step.
func (t *Telemetry) begin(pos, n int, ph phase) {
	if t == nil {
		return
	}
	t.step = Step{Step: t.steps, Decode: ph == phaseDecode, Pos: pos, Tokens: n}
	t.compute, t.manage, t.inRoute = 0, 0, 0
	if t.sums != nil {
		*t.sums = opSums{}
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
	now := counters{src: t.src.Stats(), drops: t.walk.Drops(), faults: t.majorFaults()}
	was := &t.base
	p.IOWait = time.Duration((now.src.WaitSeconds - was.src.WaitSeconds) * 1e9)
	p.Manage = t.manage
	if p.Compute = t.compute; t.sums != nil {
		p.Compute = t.sums.compute() - t.inRoute
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

// AddCompute and AddManage are for a device's walk, which measures the current step's parts itself; nil: nobody asks.
func (t *Telemetry) AddCompute(d time.Duration) {
	if t != nil {
		t.compute += d
	}
}

// AddManage is AddCompute for the cache's own work.
func (t *Telemetry) AddManage(d time.Duration) {
	if t != nil {
		t.manage += d
	}
}

// The calls of the expert source that are the cache's own work go through these.

func (f *forward) residency(il int) {
	t := f.cfg.Telemetry
	if t == nil {
		f.src.Residency(il, f.resident)
		return
	}
	start := time.Now()
	f.src.Residency(il, f.resident)
	took := time.Since(start)
	t.manage += took
	t.inRoute += took // the op that routing is recorded as begins before this
}

// demand leaves the time out that a source blocks on reads meanwhile.
func (f *forward) demand(il int, experts []int32) (int, error) {
	t := f.cfg.Telemetry
	if t == nil {
		return f.src.Demand(il, experts)
	}
	start, waited := time.Now(), f.src.Stats().WaitSeconds
	n, err := f.src.Demand(il, experts)
	t.manage += time.Since(start) - time.Duration((f.src.Stats().WaitSeconds-waited)*1e9)
	return n, err
}

// lookAhead counts a prediction, where there is one, as the cache's work too.
func (f *forward) lookAhead(il, n int, ph phase) error {
	t := f.cfg.Telemetry
	if t == nil {
		return f.prefetch(il, n, ph)
	}
	start, waited := time.Now(), f.src.Stats().WaitSeconds
	err := f.prefetch(il, n, ph)
	t.manage += time.Since(start) - time.Duration((f.src.Stats().WaitSeconds-waited)*1e9)
	return err
}

func (f *forward) release() {
	t := f.cfg.Telemetry
	if t == nil {
		f.src.Release()
		return
	}
	start := time.Now()
	f.src.Release()
	t.manage += time.Since(start)
}

// opSums is the time in each kind of op.
type opSums [nOpKinds]time.Duration

// compute is the time in the kinds that compute: all but the wait for experts.
func (s *opSums) compute() (sum time.Duration) {
	for kind, d := range s {
		if OpKind(kind) != OpFetch {
			sum += d
		}
	}
	return sum
}
