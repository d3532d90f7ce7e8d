package dump

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bufBytes      = 1 << 20
	flushInterval = time.Second
)

// file is what a sink needs of an *os.File; tests put a disk that fills up behind it.
type file interface {
	io.Writer
	Truncate(size int64) error
	Close() error
}

// sink is the buffered end of a recording. Its buffer only ever holds whole records, so every write to the file ends
// at a record boundary, and a failed one is cut back to such a boundary.
//
// When it flushes: the record path flushes once flushInterval has passed since the last flush, and when the buffer is
// full. That alone would break the promise "a kill loses at most the last second" where records stop coming (the run
// waits for its user): what is buffered then would stay there for ever. So a record that finds the buffer empty arms a
// timer, and the timer flushes what is left over flushInterval later. It is armed at most once per interval, and not
// at all while nothing is recorded; an idle recording costs nothing. A busy one is flushed by the record path just
// before the timer would, so the timer adds no writes of its own.
//
// Nothing is synced to the device: a killed process loses what it had buffered, a power failure may lose more.
type sink struct {
	path    string
	before  func() error                           // called ahead of each write; nil: nothing. Its error ends the recording
	whole   func(b []byte) (n int, records uint64) // longest prefix of b made of whole records
	records atomic.Uint64                          // accepted; after a failed write: in the file

	mu      sync.Mutex
	f       file
	buf     []byte // cap bufBytes
	size    int64  // length of the file, a record boundary
	flushed uint64 // records that this sink has in the file
	last    time.Time
	oldest  time.Time // when the first record in buf was made
	timer   *time.Timer
	armed   bool
	closed  bool
	err     error // first write error; every later call returns it
}

// start makes the sink ready. size is the present length of f.
func (s *sink) start(path string, f file, size int64, whole func([]byte) (int, uint64)) {
	s.path, s.f, s.size, s.whole = path, f, size, whole
	s.buf = make([]byte, 0, bufBytes)
	s.last = time.Now()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.timer.Stop()
}

// ready reports why the sink takes no more records. Callers of this and the following methods hold mu.
func (s *sink) ready() error {
	if s.err != nil {
		return s.err
	}
	if s.closed {
		return fmt.Errorf("dump: %s: recording is closed", s.path)
	}
	return nil
}

// room makes sure that n more bytes fit into buf. n is at most bufBytes.
func (s *sink) room(n int, now time.Time) error {
	if cap(s.buf)-len(s.buf) < n {
		if err := s.flush(now); err != nil {
			return err
		}
	}
	if len(s.buf) == 0 {
		s.oldest = now
	}
	return nil
}

// done ends one call of the record path.
func (s *sink) done(now time.Time) error {
	if len(s.buf) == 0 {
		return nil
	}
	if now.Sub(s.last) >= flushInterval {
		return s.flush(now)
	}
	if !s.armed {
		s.armed = true
		s.timer.Reset(flushInterval)
	}
	return nil
}

func (s *sink) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.closed || s.err != nil || len(s.buf) == 0 {
		return
	}
	now := time.Now()
	if wait := flushInterval - now.Sub(s.oldest); wait > 0 {
		// The record path flushed meanwhile and newer records came.
		s.armed = true
		s.timer.Reset(wait)
		return
	}
	_ = s.flush(now) // sticky: the next call returns it
}

func (s *sink) flush(now time.Time) error {
	if s.err != nil {
		return s.err
	}
	s.last = now
	if len(s.buf) == 0 {
		return nil
	}
	if s.before != nil {
		if err := s.before(); err != nil {
			return s.stop(err)
		}
	}
	n, err := s.f.Write(s.buf)
	if err == nil && n < len(s.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return s.fail(n, err)
	}
	s.size += int64(n)
	s.flushed = s.records.Load()
	s.buf = s.buf[:0]
	return nil
}

// fail makes err sticky after a write that got n bytes of buf into the file, and cuts the file back to whole records.
func (s *sink) fail(n int, err error) error {
	keep, kept := s.whole(s.buf[:n])
	torn := ""
	if keep < n && s.f.Truncate(s.size+int64(keep)) != nil {
		torn = ", the last one torn"
	}
	at := s.size + int64(n)
	s.size += int64(keep)
	s.flushed += kept
	return s.stop(fmt.Errorf("dump: %s: write failed at byte %d, %d records kept%s: %w", s.path, at, s.flushed, torn, pathCause(err)))
}

// stop ends the recording with what is in the file, and makes err sticky.
func (s *sink) stop(err error) error {
	s.records.Store(s.flushed)
	s.buf = s.buf[:0]
	s.err = err
	return err
}

// flushNow writes what is buffered to the file now. It returns the first write error, which names the file.
func (s *sink) flushNow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	return s.flush(time.Now())
}

// close flushes and closes; a second call returns the first write error again, else nil.
func (s *sink) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.err
	}
	s.closed = true
	s.timer.Stop()
	err := s.flush(time.Now())
	if cerr := s.f.Close(); err == nil && cerr != nil {
		s.err = fmt.Errorf("dump: %s: close: %w", s.path, pathCause(cerr))
		err = s.err
	}
	return err
}
