package dump

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

const (
	selHeadBytes = 2
	selSlotBytes = 6
	maxSel       = 255
	maxSelRecord = selHeadBytes + maxSel*selSlotBytes
	selReadBytes = 64 << 10
)

// SelRecord is one record of a selection dump: what the router chose for one token in one MoE layer.
type SelRecord struct {
	Layer  int
	Expert []int32   // n_sel ids 0..65535 in slot order
	Weight []float32 // n_sel routing weights, any bit pattern the file holds
}

// SelReader reads a selection dump record by record in constant memory. Records of different n_sel may follow each
// other. Not safe for concurrent use.
type SelReader struct {
	r       io.Reader
	buf     []byte
	lo, hi  int   // unread part of buf
	off     int64 // of the record that comes next
	records uint64
	readErr error // what the source ended with
	err     error
	expert  [maxSel]int32
	weight  [maxSel]float32
}

// NewSelReader reads from r, in large blocks; r needs no buffering of its own.
func NewSelReader(r io.Reader) *SelReader {
	return &SelReader{r: r, buf: make([]byte, selReadBytes)}
}

// Next returns the next record. Its slices belong to the reader and are overwritten by the following call; Next does
// not allocate. At the end it returns io.EOF, or *TornError where the input stops inside a record; n_sel 0, which no
// writer makes, is an error that names the byte; an error of the source is wrapped. All of them stay.
func (r *SelReader) Next() (SelRecord, error) {
	b, err := r.frame()
	if err != nil {
		return SelRecord{}, err
	}
	n := int(b[1])
	rec := SelRecord{Layer: int(b[0]), Expert: r.expert[:n:n], Weight: r.weight[:n:n]}
	for i, b := 0, b[selHeadBytes:]; i < n && len(b) >= selSlotBytes; i, b = i+1, b[selSlotBytes:] {
		rec.Expert[i] = int32(binary.LittleEndian.Uint16(b))
		rec.Weight[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[2:]))
	}
	return rec, nil
}

// Records is the number of records that Next has returned.
func (r *SelReader) Records() uint64 { return r.records }

// Offset is the number of bytes that these records took: where the next one begins.
func (r *SelReader) Offset() int64 { return r.off }

// frame returns the bytes of the next record, valid until the next call.
func (r *SelReader) frame() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	for {
		have := r.buf[r.lo:r.hi]
		if len(have) >= selHeadBytes {
			if have[1] == 0 {
				r.err = fmt.Errorf("dump: selection record %d at byte %d: n_sel 0, want 1..%d: not a %s file",
					r.records, r.off, maxSel, SelFormat)
				return nil, r.err
			}
			if n := selHeadBytes + int(have[1])*selSlotBytes; n <= len(have) {
				r.lo += n
				r.off += int64(n)
				r.records++
				return have[:n], nil
			}
		}
		if r.readErr != nil {
			switch {
			case r.readErr != io.EOF:
				r.err = fmt.Errorf("dump: selection record %d at byte %d: %w", r.records, r.off, r.readErr)
			case len(have) > 0:
				r.err = &TornError{Records: r.records, Offset: r.off}
			default:
				r.err = io.EOF
			}
			return nil, r.err
		}
		r.fill()
	}
}

// fill moves the unread part to the front and reads once behind it. There is room: a record is far shorter than buf.
func (r *SelReader) fill() {
	r.hi = copy(r.buf, r.buf[r.lo:r.hi])
	r.lo = 0
	const tries = 100 // as package bufio: a source that returns nothing and no error is broken
	for range tries {
		n, err := r.r.Read(r.buf[r.hi:])
		r.hi += n
		if n > 0 || err != nil {
			r.readErr = err
			return
		}
	}
	r.readErr = io.ErrNoProgress
}

// wholeSel returns the longest prefix of b that is whole records, and how many they are.
func wholeSel(b []byte) (n int, records uint64) {
	for len(b)-n >= selHeadBytes {
		end := n + selHeadBytes + int(b[n+1])*selSlotBytes
		if end > len(b) {
			break
		}
		n, records = end, records+1
	}
	return n, records
}
