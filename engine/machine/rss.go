package machine

import (
	"bytes"
	"os"
	"path/filepath"
)

// RSS is the process's resident memory by kind, in bytes.
type RSS struct {
	Anon int64 // heap, stacks, expert slots, copies of weights: what a limit is hit with
	File int64 // pages of mapped files, the binary's included: the kernel may take them back
	Peak int64 // largest sum so far; 0: unknown
}

// Total is both kinds together.
func (r RSS) Total() int64 { return r.Anon + r.File }

// ReadRSS reads the process's resident memory below root. Where the kernel does not tell the kinds
// apart (before Linux 4.5) all of it counts as anonymous. Shared memory counts as anonymous: it cannot
// be dropped. ok is false where nothing is known.
func ReadRSS(root string) (r RSS, ok bool) {
	status := filepath.Join(root, "proc/self/status")
	r.Peak, _ = kibibytes(status, "VmHWM:")
	anon, ok := kibibytes(status, "RssAnon:")
	if !ok {
		r.Anon, ok = kibibytes(status, "VmRSS:")
		return r, ok
	}
	shmem, _ := kibibytes(status, "RssShmem:")
	r.Anon = anon + shmem
	r.File, _ = kibibytes(status, "RssFile:")
	return r, true
}

// RSSReader reads the two kinds again and again without allocating, for a reading per token. Shared
// memory counts as File here, and there is no Peak: /proc/self/statm has no more.
type RSSReader struct {
	f    *os.File
	page int64
	buf  [128]byte
}

// NewRSSReader opens the counters below root.
func NewRSSReader(root string) (*RSSReader, error) {
	f, err := os.Open(filepath.Join(root, "proc/self/statm"))
	if err != nil {
		return nil, err
	}
	return &RSSReader{f: f, page: int64(os.Getpagesize())}, nil
}

// Read returns the present values; ok is false when the system did not give them. The nil reader knows
// nothing.
func (r *RSSReader) Read() (rss RSS, ok bool) {
	if r == nil {
		return RSS{}, false
	}
	n, _ := r.f.ReadAt(r.buf[:], 0) // ends with io.EOF: the file is shorter than the buffer
	// size resident shared text lib data dt, in pages
	var v [3]int64
	line := r.buf[:n]
	for i := range v {
		end := bytes.IndexByte(line, ' ')
		if end < 0 {
			return RSS{}, false
		}
		for _, c := range line[:end] {
			if c < '0' || c > '9' {
				return RSS{}, false
			}
			v[i] = v[i]*10 + int64(c-'0')
		}
		line = line[end+1:]
	}
	return RSS{Anon: max(0, v[1]-v[2]) * r.page, File: v[2] * r.page}, true
}

// Close closes the counters.
func (r *RSSReader) Close() error {
	if r == nil {
		return nil
	}
	return r.f.Close()
}
