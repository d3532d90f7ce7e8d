package kernels

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Job is work that a Team divides. Do handles items lo <= i < hi, at most grain of them; worker (0 <= worker < Size) tells
// whose scratch memory to use: two calls with the same worker never overlap.
type Job interface {
	Do(worker, lo, hi int)
}

// Team is a fixed set of workers for short parallel loops, many thousand per second. Worker 0 is whoever calls Run; the
// others are goroutines locked to operating system threads. Between runs a worker spins for a bounded time (see spinLoads)
// and then parks on a channel, so an idle team costs nothing. Close ends the goroutines; a team that is not closed leaks
// them.
//
// A run waits only for workers that joined it. One that the scheduler keeps away, because cores are busy or GOMAXPROCS is
// below the size, finds its run over when it arrives and goes back to waiting; the others do its share.
type Team struct {
	size int

	// Written by Run while no worker is inside a run, read by workers after they joined.
	job      Job
	n, grain int64

	_      [64]byte // polled: a cache line of its own
	state  atomic.Uint64
	_      [56]byte
	shares []share // one per worker; a run uses the first nShares
	nShare int

	phase  atomic.Int32 // phaseIdle, phaseRunning, phaseClosed
	failed atomic.Pointer[JobPanic]
	done   chan struct{} // the last worker to leave wakes a parked Run
	wait   sync.WaitGroup
	others []teamWorker
}

// share is the run of items that one worker begins with. Each streams its own part of a matrix front to
// back: what a kernel prefetches past the rows at hand is then for the same core. A worker whose share is
// done goes on with what is left of the others'.
type share struct {
	next atomic.Int64 // first item not claimed yet
	end  int64
	_    [48]byte
}

// teamWorker is where one worker parks.
type teamWorker struct {
	parked atomic.Bool
	wake   chan struct{} // capacity 1; one token per parked that was taken back
	_      [40]byte
}

const (
	phaseIdle = iota
	phaseRunning
	phaseClosed
)

// Layout of Team.state: number of the run in the upper half, then flags, then the count of workers inside.
const (
	stateRun     = 1 << 32 // one run
	stateOpen    = 1 << 31 // workers may join
	stateWaiting = 1 << 30 // Run is parked (or about to) until the count is 0
	stateQuit    = 1 << 29 // workers end
	stateCount   = stateQuit - 1
)

// spinLoads is how often a waiting worker, or Run at its end, looks at the state before it parks: 22 microseconds at the
// 0.54 ns a look measured on Zen 4. The serial steps between two matrix products (a norm takes 2 microseconds) fit in;
// waking a parked thread took 120 there. A spinning worker holds a processor of the Go scheduler for that long at most.
const spinLoads = 40000

// JobPanic is what Run panics with after a Do did not return: Value is what it panicked with, or nil if it ended its
// goroutine (runtime.Goexit).
type JobPanic struct {
	Worker int
	Value  any
	Stack  []byte // of the worker
}

// Error names the worker and the value and holds the worker's stack.
func (p *JobPanic) Error() string {
	if p.Value == nil {
		return fmt.Sprintf("kernels: team worker %d: job ended its goroutine", p.Worker)
	}
	return fmt.Sprintf("kernels: team worker %d: %v\n\n%s", p.Worker, p.Value, p.Stack)
}

// Unwrap returns Value if it is an error.
func (p *JobPanic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// NewTeam starts threads-1 workers; threads below 1 panics. A team of one has no goroutines and runs everything in the
// caller.
func NewTeam(threads int) *Team {
	if threads < 1 {
		panic(fmt.Sprintf("kernels: NewTeam: %d threads, want at least 1", threads))
	}
	t := &Team{size: threads, done: make(chan struct{}, 1), others: make([]teamWorker, threads-1), shares: make([]share, threads)}
	t.wait.Add(threads - 1)
	for i := range t.others {
		t.others[i].wake = make(chan struct{}, 1)
		go t.serve(i + 1)
	}
	return t
}

// Size returns the number of workers, the caller of Run included.
func (t *Team) Size() int { return t.size }

// Run calls j.Do for the items 0..n-1 in pieces of grain items (the last may be shorter), each exactly once, on as many
// workers as come, and returns when all have returned. Which worker gets which piece is left to chance. n <= 0 does
// nothing; grain below 1 counts as 1. What the caller wrote before Run is visible to the job, and the job's writes are
// visible after it.
//
// If a Do panics, pieces not yet begun are skipped and Run panics with a *JobPanic once all workers have left; the team
// stays usable. One Run at a time: a second one, nested or concurrent, panics, as does Run after Close. It does not
// allocate.
func (t *Team) Run(n, grain int, j Job) {
	if !t.phase.CompareAndSwap(phaseIdle, phaseRunning) {
		panicTeam("Run", t.phase.Load())
	}
	defer t.phase.Store(phaseIdle) // deferred like gather: Run may also end by a Goexit in the caller's own Do
	if n <= 0 {
		return
	}
	t.run(int64(n), int64(min(max(grain, 1), n)), j)
	if failed := t.failed.Load(); failed != nil {
		panic(failed)
	}
}

func (t *Team) run(n, grain int64, j Job) {
	t.job, t.n, t.grain = j, n, grain
	t.failed.Store(nil)
	// Helpers beyond the number of pieces would find nothing to claim. (n-1)/grain is pieces-1: the caller takes one.
	helpers := min(int64(t.size-1), (n-1)/grain)
	t.nShare = int(helpers + 1)
	pieces := (n-1)/grain + 1
	for i := range t.shares[:t.nShare] {
		s := &t.shares[i]
		s.next.Store(pieces * int64(i) / (helpers + 1) * grain)
		s.end = min(pieces*int64(i+1)/(helpers+1)*grain, n)
	}
	if helpers > 0 {
		t.state.Add(stateRun + stateOpen)
		for i := range t.others[:helpers] {
			if w := &t.others[i]; w.parked.Load() && w.parked.CompareAndSwap(true, false) {
				w.wake <- struct{}{}
			}
		}
		defer t.gather()
	}
	t.claim(0)
}

// gather closes the run to further workers and waits for those inside.
func (t *Team) gather() {
	s := t.state.Add(^uint64(stateOpen - 1)) // minus stateOpen
	for range spinLoads {
		if s&stateCount == 0 {
			break
		}
		s = t.state.Load()
	}
	if s&stateCount != 0 {
		if t.state.Or(stateWaiting)&stateCount != 0 {
			<-t.done // sent by the worker whose leaving made the count 0
		}
		t.state.And(^uint64(stateWaiting))
	}
	t.job = nil
}

// claim does pieces until none is left. A Do that does not return is recorded, and the remaining pieces are withdrawn.
func (t *Team) claim(worker int) {
	returned := false
	defer func() {
		if !returned {
			t.failed.CompareAndSwap(nil, &JobPanic{Worker: worker, Value: recover(), Stack: debug.Stack()})
			for i := range t.shares[:t.nShare] {
				t.shares[i].next.Store(t.n)
			}
		}
	}()
	j, grain := t.job, t.grain
	for i := range t.nShare {
		s := &t.shares[(worker+i)%t.nShare]
		for {
			lo := s.next.Add(grain) - grain
			if lo >= s.end {
				break
			}
			j.Do(worker, int(lo), int(min(lo+grain, s.end)))
		}
	}
	returned = true
}

// serve is the life of one worker.
func (t *Team) serve(worker int) {
	defer t.wait.Done()
	// A thread of its own keeps its caches and, once cmd binds threads to cores, its core. It is never unlocked, so the
	// thread ends with the goroutine.
	runtime.LockOSThread()
	// A page of a mapped file that cannot be read any more is then a panic in Do, and by way of Run the caller's affair;
	// without this it ends the process.
	debug.SetPanicOnFault(true)
	var last uint64 // number of the last run seen
	for {
		s := t.await(worker, last)
		if s&stateQuit != 0 {
			return
		}
		last = s / stateRun
		if t.join(last) {
			t.take(worker)
		}
	}
}

// join counts the worker in, unless the run is over.
func (t *Team) join(run uint64) bool {
	for {
		s := t.state.Load()
		if s/stateRun != run || s&stateOpen == 0 {
			return false
		}
		if t.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

func (t *Team) take(worker int) {
	defer func() {
		if s := t.state.Add(^uint64(0)); s&stateCount == 0 && s&stateWaiting != 0 {
			t.done <- struct{}{}
		}
	}()
	t.claim(worker)
}

// await returns the state once it holds an open run other than last, or the order to quit.
func (t *Team) await(worker int, last uint64) uint64 {
	w := &t.others[worker-1]
	for {
		for range spinLoads {
			if s := t.state.Load(); news(s, last) {
				return s
			}
		}
		// Announce, then look again: a Run that opened before it could see the announcement sends no token.
		w.parked.Store(true)
		if s := t.state.Load(); news(s, last) && w.parked.CompareAndSwap(true, false) {
			return s
		}
		<-w.wake // sent, or about to be, by whoever took parked back
	}
}

func news(state, last uint64) bool {
	return state&stateQuit != 0 || state&stateOpen != 0 && state/stateRun != last
}

// Close ends the workers and waits until they are gone. Closing twice does nothing; closing during a Run panics.
func (t *Team) Close() {
	if !t.phase.CompareAndSwap(phaseIdle, phaseClosed) {
		if p := t.phase.Load(); p != phaseClosed {
			panicTeam("Close", p)
		}
		return
	}
	t.state.Or(stateQuit)
	for i := range t.others {
		if w := &t.others[i]; w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
	t.wait.Wait()
}

//go:noinline
func panicTeam(what string, phase int32) {
	if phase == phaseClosed {
		panic("kernels: Team: " + what + " after Close")
	}
	panic("kernels: Team: " + what + " during another Run")
}
