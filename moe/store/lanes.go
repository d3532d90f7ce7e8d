package store

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var errClosed = errors.New("source closed")

// read is one request to the lanes. The requester owns its memory and leaves it alone until group has finished.
type read struct {
	in    *input
	dst   []byte   // from the file offset off; zeroed behind what the file has
	off   int64    // multiple of in.align
	want  int      // bytes of dst that must arrive
	what  [3]int32 // layer, expert and projection, for the observer
	group *readGroup
	err   error // valid when group has finished
}

// readGroup is a set of reads that belong together. The last one to finish tells the source, over a channel that its
// groups share: one token there says that some group has finished, not which.
type readGroup struct {
	pending atomic.Int32
	arrived chan struct{} // capacity 1
}

// finish counts one read as done. What the reads wrote is visible to whoever then sees done.
func (g *readGroup) finish() {
	if g.pending.Add(-1) == 0 {
		select {
		case g.arrived <- struct{}{}:
		default: // the token that is there has not been taken: its taker will look at this group too
		}
	}
}

func (g *readGroup) done() bool { return g.pending.Load() == 0 }

// lanes are reader goroutines, each on an OS thread of its own: a read blocks its thread in the kernel and takes none
// from the workers. Requests start in the order of submit, but those that can wait only when no other does.
type lanes struct {
	queue   chan *read
	later   chan *read
	n       int
	wg      sync.WaitGroup
	closing atomic.Bool
	watch   Observer // nil: nobody

	reads, errors, bytes, nanos atomic.Int64
}

// startLanes starts n lanes; a submit blocks while depth requests of its kind wait. watch, if not nil, is told of each
// read.
func startLanes(n, depth int, watch Observer) *lanes {
	l := &lanes{queue: make(chan *read, depth), later: make(chan *read, depth), n: n, watch: watch}
	l.wg.Add(n)
	for i := range n {
		go l.run(i)
	}
	return l
}

func (l *lanes) run(lane int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.wg.Done()
	for {
		r := l.next()
		if r == nil {
			return
		}
		if l.closing.Load() {
			r.err = errClosed
		} else {
			l.serve(lane, r)
		}
		r.group.finish()
	}
}

// next returns the request to serve, nil when the lanes are closed and none is left.
func (l *lanes) next() *read {
	select {
	case r := <-l.queue:
		if r != nil {
			return r
		}
	default:
	}
	select {
	case r := <-l.queue:
		if r != nil {
			return r
		}
		return <-l.later // both are closed
	case r := <-l.later:
		if r != nil {
			return r
		}
		return <-l.queue
	}
}

func (l *lanes) serve(lane int, r *read) {
	start := time.Now()
	n, err := r.in.read(r.dst, r.off, r.want)
	took := time.Since(start)
	l.nanos.Add(int64(took))
	clear(r.dst[n:])
	l.bytes.Add(int64(n))
	l.reads.Add(1)
	if err != nil {
		l.errors.Add(1)
	}
	r.err = err
	if l.watch != nil {
		l.watch.ObserveRead(ReadEvent{Lane: lane, Layer: int(r.what[0]), Expert: int(r.what[1]), Projection: int(r.what[2]),
			Bytes: n, Failed: err != nil, Start: start, Took: took})
	}
}

// submit hands a read to the lanes, ahead of all that can wait unless this one can. Its group has counted it already, so
// that the group cannot finish early.
func (l *lanes) submit(r *read, canWait bool) {
	if canWait {
		l.later <- r
		return
	}
	l.queue <- r
}

// close lets the reads that have started finish, fails the ones that wait, and ends the lanes.
func (l *lanes) close() {
	l.closing.Store(true)
	close(l.queue)
	close(l.later)
	l.wg.Wait()
}

// fill writes the counters.
func (l *lanes) fill(s *Stats) {
	s.Reads, s.ReadErrors, s.BytesRead = l.reads.Load(), l.errors.Load(), l.bytes.Load()
	s.ReadSeconds = time.Duration(l.nanos.Load()).Seconds()
	s.Lanes = l.n
}
