package dump

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// fakeDisk is a file on a disk with room for so many bytes. Like the real thing it takes what fits before it fails.
type fakeDisk struct {
	data       []byte
	room       int
	noTruncate bool
	closeErr   error
	closed     int
}

func (d *fakeDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room-len(d.data))
	d.data = append(d.data, p[:n]...)
	if n < len(p) {
		return n, &os.PathError{Op: "write", Path: "fake", Err: syscall.ENOSPC}
	}
	return n, nil
}

func (d *fakeDisk) Truncate(size int64) error {
	if d.noTruncate {
		return syscall.EINVAL
	}
	d.data = d.data[:size]
	return nil
}

func (d *fakeDisk) Close() error { d.closed++; return d.closeErr }

func newSelWriter(f file) *SelWriter {
	w := &SelWriter{}
	w.sink.start("fake.sel.bin", f, 0, wholeSel)
	return w
}

// A disk that fills up at every possible byte: what was written stays readable, no partial record remains, the receipt
// equals the file, and the error stays.
func TestSelDiskFull(t *testing.T) {
	expert, weight := []int32{1, 2, 3, 4}, []float32{.4, .3, .2, .1}
	const total = 2*(2+6*2) + (2 + 6*4) + 2*(2+6*2)
	for _, noTruncate := range []bool{false, true} {
		for room := 0; room < total; room++ {
			d := &fakeDisk{room: room, noTruncate: noTruncate}
			w := newSelWriter(d)
			must(t, w.Record(1, 2, 2, expert, weight))
			firstErr := w.Flush()
			recordErr := w.Record(2, 1, 4, expert, weight) // buffered: fails only where the first flush did
			if (firstErr == nil) != (recordErr == nil) {
				t.Fatalf("room %d: flush %v, then record %v", room, firstErr, recordErr)
			}
			if firstErr == nil {
				must(t, w.Record(3, 2, 2, expert, weight))
				firstErr = w.Flush()
			}
			wantErr(t, firstErr, "fake.sel.bin", "no space left on device")
			if !errors.Is(firstErr, syscall.ENOSPC) {
				t.Fatal("cause lost")
			}
			for range 2 {
				for _, err := range []error{w.Record(1, 1, 1, expert[:1], weight[:1]), w.Flush(), w.Close()} {
					if err != firstErr {
						t.Fatalf("room %d: %v, want the first error %v", room, err, firstErr)
					}
				}
			}
			if d.closed != 1 {
				t.Fatalf("closed %d times", d.closed)
			}
			recs, sr, err := readSel(bytes.NewReader(d.data))
			torn := (*TornError)(nil)
			if ok := err == io.EOF || noTruncate && errors.As(err, &torn); !ok {
				t.Fatalf("room %d: file ends with %v", room, err)
			}
			if torn != nil {
				wantErr(t, firstErr, "the last one torn")
			}
			whole, records := wholeSel(d.data)
			if w.Records() != uint64(len(recs)) || records != w.Records() || int64(whole) != sr.Offset() {
				t.Fatalf("room %d: receipt %d, file %d", room, w.Records(), len(recs))
			}
			if room-whole >= 2+6*4 {
				t.Fatalf("room %d: only %d bytes used", room, whole)
			}
		}
	}
}

func TestTraceDiskFull(t *testing.T) {
	for room := 0; room < 120; room++ {
		d := &fakeDisk{room: room}
		w := newTraceWriter("fake.csv", d, &TraceMeta{})
		must(t, w.Call(&TraceCall{T: 3, K: 2, Expert: []int32{1, 2, 3, 4, 5, 6}}))
		err := w.Flush()
		wantErr(t, err, "fake.csv", "no space left")
		if got := w.Call(&TraceCall{T: 1, K: 1, Expert: []int32{1}}); got != err {
			t.Fatal(got)
		}
		if got := w.Close(); got != err {
			t.Fatal(got)
		}
		if n := bytes.Count(d.data, []byte("\n")); uint64(n) != w.Rows() || n > 0 && d.data[len(d.data)-1] != '\n' {
			t.Fatalf("room %d: %d rows counted, file %q", room, w.Rows(), d.data)
		}
	}
}

// Records that do not fit the rest of the buffer are written on the record path; the error comes from there.
func TestDiskFullOnTheRecordPath(t *testing.T) {
	d := &fakeDisk{room: bufBytes / 2}
	w := newSelWriter(d)
	expert, weight := make([]int32, 255), make([]float32, 255)
	var err error
	calls := 0
	for ; err == nil && calls < 2000; calls++ {
		err = w.Record(0, 1, 255, expert, weight)
	}
	wantErr(t, err, "fake.sel.bin", "no space left")
	if want := uint64(bufBytes / 2 / maxSelRecord); calls != bufBytes/maxSelRecord+1 || w.Records() != want || len(d.data) != int(want)*maxSelRecord {
		t.Errorf("failed at call %d with %d records in %d bytes", calls, w.Records(), len(d.data))
	}
	if w.Close() != err {
		t.Error("close does not return it")
	}
}

func TestCloseErrorIsReported(t *testing.T) {
	d := &fakeDisk{room: 1 << 20, closeErr: syscall.EIO}
	w := newSelWriter(d)
	recordGolden(t, w)
	err := w.Close()
	wantErr(t, err, "fake.sel.bin", "close", "input/output error")
	if w.Close() != err {
		t.Error("second close")
	}
}

func TestDevFull(t *testing.T) {
	const path = "/dev/full"
	if _, err := os.Stat(path); err != nil {
		t.Skip("no /dev/full here")
	}
	w, err := OpenSel(path, testMeta)
	must(t, err)
	if _, err := os.Stat(path + ".meta.json"); err == nil {
		t.Error("sidecar beside a device")
	}
	if len(w.Notes()) != 1 {
		t.Errorf("notes %q", w.Notes())
	}
	recordGolden(t, w)
	err = w.Flush()
	wantErr(t, err, path, "no space left on device", "0 records kept")
	if w.Close() != err || w.Records() != 0 {
		t.Error("close or receipt")
	}
	_, err = CreateTrace(path, TraceMeta{})
	wantErr(t, err, path, "no space left on device", "preamble")
}

// A buffered record reaches the file within a second although no other one follows, and then the timer rests.
func TestQuietRecordingIsFlushed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSel(t, path)
	recordGolden(t, w)
	if got := readFile(t, path); len(got) != 0 {
		t.Fatal("not buffered")
	}
	deadline := time.Now().Add(5 * time.Second)
	for len(readFile(t, path)) != len(golden) {
		if time.Now().After(deadline) {
			t.Fatal("never flushed")
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.sink.mu.Lock()
	armed, age := w.sink.armed, time.Since(w.sink.oldest)
	w.sink.mu.Unlock()
	if armed || age < flushInterval {
		t.Errorf("armed %v after %v", armed, age)
	}
	must(t, w.Close())
}

// The record path flushes at most once a second, and does so itself.
func TestRecordPathFlushes(t *testing.T) {
	d := &fakeDisk{room: 1 << 20}
	w := newSelWriter(d)
	recordGolden(t, w)
	recordGolden(t, w)
	if len(d.data) != 0 {
		t.Fatal("flushed before a second had passed")
	}
	w.sink.mu.Lock()
	w.sink.last = w.sink.last.Add(-flushInterval)
	w.sink.mu.Unlock()
	recordGolden(t, w)
	w.sink.mu.Lock()
	n := len(d.data)
	w.sink.mu.Unlock()
	if n != 3*len(golden) {
		t.Fatalf("%d bytes in the file", n)
	}
	recordGolden(t, w)
	must(t, w.Close())
	if len(d.data) != 4*len(golden) {
		t.Error("close did not flush")
	}
}
