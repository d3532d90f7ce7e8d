package kernels

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// countJob counts how often each item is done and checks the piece it is handed.
type countJob struct {
	t     *testing.T
	size  int
	n     int
	grain int
	done  []atomic.Int32
	plain []int // written without synchronisation: Run must order it
	busy  []atomic.Bool
}

func newCountJob(t *testing.T, size, n, grain int) *countJob {
	return &countJob{t: t, size: size, n: n, grain: grain, done: make([]atomic.Int32, n), plain: make([]int, n), busy: make([]atomic.Bool, size)}
}

func (j *countJob) Do(worker, lo, hi int) {
	if worker < 0 || worker >= j.size || j.busy[worker].Swap(true) {
		j.t.Errorf("worker %d of %d, or two at once", worker, j.size)
		return
	}
	if lo < 0 || lo >= hi || hi > j.n || hi-lo > j.grain || lo%j.grain != 0 {
		j.t.Errorf("piece %d..%d of %d in grains of %d", lo, hi, j.n, j.grain)
	}
	for i := lo; i < hi; i++ {
		j.done[i].Add(1)
		j.plain[i]++
	}
	j.busy[worker].Store(false)
}

func (j *countJob) check(times int) {
	j.t.Helper()
	for i := range j.done {
		if got := int(j.done[i].Load()); got != times || j.plain[i] != times {
			j.t.Fatalf("item %d of %d done %d times, want %d", i, j.n, got, times)
		}
	}
}

func TestTeamEveryItemOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, size := range []int{1, 2, 3, 8} {
		team := NewTeam(size)
		if team.Size() != size {
			t.Errorf("Size() = %d, want %d", team.Size(), size)
		}
		for _, n := range []int{1, 2, 3, 7, 64, 1000} {
			for _, grain := range []int{1, 2, 5, 64, 2000} {
				j := newCountJob(t, size, n, grain)
				for range 5 {
					team.Run(n, grain, j)
				}
				j.check(5)
			}
		}
		team.Close()
	}
}

func TestTeamOddArguments(t *testing.T) {
	defer goleak.VerifyNone(t)
	team := NewTeam(3)
	defer team.Close()
	j := newCountJob(t, 3, 10, 1)
	team.Run(0, 1, j)
	team.Run(-5, 1, j)
	j.check(0)
	team.Run(10, 0, j)
	team.Run(10, math.MinInt, j)
	j.check(2)
	j.grain = 10
	team.Run(10, math.MaxInt, j)
	j.check(3)
	wantPanic(t, "no threads", func() { NewTeam(0) })
}

// Many runs back to back, so that workers meet a run while spinning, while parking, and after it is over.
func TestTeamManyRuns(t *testing.T) {
	defer goleak.VerifyNone(t)
	team := NewTeam(3)
	defer team.Close()
	j := newCountJob(t, 3, 9, 1)
	const runs = 20000
	for i := range runs {
		team.Run(9, 1, j)
		switch {
		case i%5000 == 0:
			time.Sleep(time.Millisecond) // all have parked
		case i%100 == 0:
			for start := time.Now(); time.Since(start) < 22*time.Microsecond; { // about when they park
			}
		}
	}
	j.check(runs)
}

func TestTeamOneProcessor(t *testing.T) {
	defer goleak.VerifyNone(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	team := NewTeam(3)
	defer team.Close()
	j := newCountJob(t, 3, 50, 1)
	for range 500 {
		team.Run(50, 1, j)
	}
	j.check(500)
	meet := meetJob{}
	for range 20 {
		meet.here.Store(0)
		team.Run(3, 1, &meet)
	}
}

// meetJob returns only when all three workers are inside at once: parked workers must really be woken.
type meetJob struct{ here atomic.Int32 }

func (j *meetJob) Do(worker, lo, hi int) {
	for j.here.Add(1); j.here.Load() < 3; {
		runtime.Gosched()
	}
}

func TestTeamAllWorkersCome(t *testing.T) {
	defer goleak.VerifyNone(t)
	team := NewTeam(3)
	defer team.Close()
	var j meetJob
	for range 20 {
		j.here.Store(0)
		team.Run(3, 1, &j)
		time.Sleep(100 * time.Microsecond)
	}
}

// With every processor taken by other goroutines a run must still end.
func TestTeamBusyProcessors(t *testing.T) {
	defer goleak.VerifyNone(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
			}
		})
	}
	team := NewTeam(4)
	j := newCountJob(t, 4, 16, 1)
	for range 20 {
		team.Run(16, 1, j)
	}
	j.check(20)
	stop.Store(true)
	wg.Wait()
	team.Close()
}

// panicJob fails on one item, in the way that how says.
type panicJob struct {
	at  int
	how func()
}

func (j *panicJob) Do(worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		if i == j.at {
			j.how()
		}
		time.Sleep(50 * time.Microsecond) // lets others take items
	}
}

func TestTeamPanic(t *testing.T) {
	defer goleak.VerifyNone(t)
	cause := errors.New("row 7 is odd")
	for _, size := range []int{1, 3} {
		team := NewTeam(size)
		for at := range 8 {
			err := runRecovered(team, 8, &panicJob{at, func() { panic(cause) }})
			if err == nil || !errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error()) || !strings.Contains(err.Error(), "panicJob") {
				t.Fatalf("size %d, item %d: Run panicked with %v, want the job's value and stack", size, at, err)
			}
			if err.Worker < 0 || err.Worker >= size {
				t.Errorf("worker %d of %d", err.Worker, size)
			}
			j := newCountJob(t, size, 30, 2) // the team stays usable
			team.Run(30, 2, j)
			j.check(1)
		}
		err := runRecovered(team, 8, &panicJob{3, func() { panic("text") }})
		if err == nil || err.Value != "text" || errors.Unwrap(err) != nil {
			t.Errorf("size %d: %v, want the value %q", size, err, "text")
		}
		if err := runRecovered(team, 1000, allPanicJob{}); err == nil {
			t.Errorf("size %d: no panic although every item panics", size)
		}
		team.Close()
	}
}

type allPanicJob struct{}

func (allPanicJob) Do(worker, lo, hi int) { panic(lo) }

func runRecovered(team *Team, n int, j Job) (err *JobPanic) {
	defer func() {
		if v := recover(); v != nil {
			err = v.(*JobPanic)
		}
	}()
	team.Run(n, 1, j)
	return nil
}

// exitJob ends the goroutine of every worker but the caller, or the caller's only.
type exitJob struct{ caller bool }

func (j exitJob) Do(worker, lo, hi int) {
	if (worker == 0) == j.caller {
		runtime.Goexit()
	}
	time.Sleep(time.Millisecond)
}

func TestTeamGoexit(t *testing.T) {
	defer goleak.VerifyNone(t)
	team := NewTeam(3)
	if err := runRecovered(team, 20, exitJob{}); err == nil || err.Value != nil || !strings.Contains(err.Error(), "ended its goroutine") {
		t.Errorf("workers gone: %v, want a panic that says so", err)
	}
	j := newCountJob(t, 3, 30, 1) // those left do the work
	team.Run(30, 1, j)
	j.check(1)
	var wg sync.WaitGroup
	wg.Go(func() { team.Run(20, 1, exitJob{caller: true}) })
	wg.Wait()
	team.Run(30, 1, j)
	j.check(2)
	team.Close()
}

type nestedJob struct{ team *Team }

func (j nestedJob) Do(worker, lo, hi int) { j.team.Run(1, 1, allPanicJob{}) }

type closeJob struct{ team *Team }

func (j closeJob) Do(worker, lo, hi int) { j.team.Close() }

func TestTeamMisuse(t *testing.T) {
	defer goleak.VerifyNone(t)
	team := NewTeam(2)
	for want, j := range map[string]Job{"Run during another Run": nestedJob{team}, "Close during another Run": closeJob{team}} {
		if err := runRecovered(team, 4, j); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	team.Close()
	team.Close()
	defer func() {
		if v := recover(); v != "kernels: Team: Run after Close" {
			t.Errorf("Run after Close: %v", v)
		}
	}()
	team.Run(1, 1, allPanicJob{})
}

type sumJob struct {
	x   []float32
	sum [8]struct {
		v float32
		_ [60]byte
	}
}

func (j *sumJob) Do(worker, lo, hi int) {
	for _, v := range j.x[lo:hi] {
		j.sum[worker].v += v
	}
}

func TestTeamDoesNotAllocate(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, size := range []int{1, 3} {
		team := NewTeam(size)
		j := &sumJob{x: make([]float32, 100)}
		if n := testing.AllocsPerRun(200, func() { team.Run(100, 10, j) }); n != 0 {
			t.Errorf("size %d: %v allocations per Run, want 0", size, n)
		}
		team.Close()
	}
}

// The bound on spinning that team.go states, with room for slow and busy machines: this guards against a spin that has
// become milliseconds, not against a few microseconds.
func TestTeamSpinIsShort(t *testing.T) {
	var state atomic.Uint64
	best := time.Hour
	for range 20 {
		start := time.Now()
		for range spinLoads {
			if news(state.Load(), 0) {
				t.Fatal("news without a run")
			}
		}
		best = min(best, time.Since(start))
	}
	if best > time.Millisecond {
		t.Errorf("a spin of %d looks takes %v, want well below a millisecond", spinLoads, best)
	}
	t.Logf("%d looks take %v", spinLoads, best)
}

// BenchmarkTeamRun gives the cost of a Run of next to no work, back to back and (as run-ns/op, without the pause) after a
// pause in which the workers have parked.
func BenchmarkTeamRun(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, pause := range []time.Duration{0, 100 * time.Microsecond} {
			b.Run(fmt.Sprintf("threads=%d/pause=%v", threads, pause), func(b *testing.B) {
				team := NewTeam(threads)
				defer team.Close()
				j := &sumJob{x: make([]float32, 64)}
				var total time.Duration
				b.ReportAllocs()
				for b.Loop() {
					if pause > 0 {
						time.Sleep(pause)
					}
					start := time.Now()
					team.Run(64, 8, j)
					total += time.Since(start)
				}
				b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "run-ns/op")
			})
		}
	}
}
