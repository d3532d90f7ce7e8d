package moe

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
	dst   []byte // from the file offset off; zeroed behind what the file has
	off   int64  // multiple of in.align
	want  int    // bytes of dst that must arrive
	group *readGroup
	err   error // valid when group has finished
}

// lanes are reader goroutines, each on an OS thread of its own: a read blocks its thread in the kernel and takes none
// from the workers. Requests start in the order of submit.
type lanes struct {
	queue   chan *read
	n       int
	wg      sync.WaitGroup
	closing atomic.Bool

	reads, errors, bytes, nanos atomic.Int64
}

// startLanes starts n lanes; a submit blocks while depth requests wait.
func startLanes(n, depth int) *lanes {
	l := &lanes{queue: make(chan *read, depth), n: n}
	l.wg.Add(n)
	for range n {
		go l.run()
	}
	return l
}

func (l *lanes) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.wg.Done()
	for r := range l.queue {
		if l.closing.Load() {
			r.err = errClosed
		} else {
			l.serve(r)
		}
		r.group.finish()
	}
}

func (l *lanes) serve(r *read) {
	start := time.Now()
	n, err := r.in.read(r.dst, r.off, r.want)
	l.nanos.Add(int64(time.Since(start)))
	clear(r.dst[n:])
	l.bytes.Add(int64(n))
	l.reads.Add(1)
	if err != nil {
		l.errors.Add(1)
	}
	r.err = err
}

// submit hands a read to the lanes. Its group has counted it already, so that the group cannot finish early.
func (l *lanes) submit(r *read) { l.queue <- r }

// close lets the reads that have started finish, fails the ones that wait, and ends the lanes.
func (l *lanes) close() {
	l.closing.Store(true)
	close(l.queue)
	l.wg.Wait()
}

// fill writes the counters.
func (l *lanes) fill(s *Stats) {
	s.Reads, s.ReadErrors, s.BytesRead = l.reads.Load(), l.errors.Load(), l.bytes.Load()
	s.ReadSeconds = time.Duration(l.nanos.Load()).Seconds()
	s.Lanes = l.n
}
