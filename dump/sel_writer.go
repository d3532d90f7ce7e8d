package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

const (
	maxSelLayer  = math.MaxUint8
	maxSelExpert = math.MaxUint16
)

// SelWriter appends records to a selection dump. The nil *SelWriter is the disarmed dump: all its methods do nothing.
// Safe for concurrent use; records of concurrent calls are not interleaved within a call.
type SelWriter struct {
	sink  sink
	whose bool      // it was opened to be told whose records are (SelMeta.Rows)
	rows  *rowsSink // nil: whose the records are is not said. Used under the sink's lock
	notes []string
}

// TakesRows says whether the dump was opened for records of several sequences (SelMeta.Rows).
func (w *SelWriter) TakesRows() bool { return w != nil && w.whose }

// OpenSel opens the selection dump at path for append, creating it, and writes meta to the sidecar PATH.meta.json. With
// meta.Rows it also opens the sidecar PATH.rows, for records of several sequences (RecordRows).
//
// Records of earlier runs stay. A torn tail is cut off first, since records appended behind it could not be read any
// more; Notes tells of it. The cut is made only where the file is known to be a dump: a sidecar stands beside it, or
// its whole records look like a router's output. Anything else, and a file that holds n_sel 0, is refused unchanged.
// A second writer on the same file is refused as long as the first one lives. A pipe or device gets the records only.
func OpenSel(path string, meta SelMeta) (*SelWriter, error) {
	o, err := openRecording(path)
	if err != nil {
		return nil, err
	}
	w := &SelWriter{notes: o.notes, whose: meta.Rows}
	if o.regular {
		var notes []string
		if notes, err = prepareSel(path, o, meta); err == nil {
			w.notes = append(w.notes, notes...)
			err = w.openRows(path, o, meta.Rows)
		}
		if err == nil {
			err = writeSelMeta(path, meta)
		}
		if err != nil {
			o.f.Close()
			_ = w.rows.close()
			return nil, err
		}
	} else {
		w.notes = append(w.notes, fmt.Sprintf("dump: %s: not a regular file: no sidecar is written", path))
	}
	w.sink.start(path, o.f, o.size, wholeSel)
	if w.rows != nil {
		w.sink.before = w.rows.flush
	}
	return w, nil
}

// openRows opens the rows sidecar of a run that has one. For a run that has none it sees to it that a sidecar which is there
// says nothing of the records to come.
func (w *SelWriter) openRows(path string, o *opened, rows bool) (err error) {
	var notes []string
	switch {
	case rows:
		w.rows, notes, err = openRows(path, o.records)
	case !hasRows(path):
	case o.size == 0:
		notes, err = removeRows(path)
	default:
		notes = trimRows(path, o.records)
	}
	w.notes = append(w.notes, notes...)
	return err
}

// prepareSel checks what the file holds already, cuts a torn tail and sets o.size to what is left.
func prepareSel(path string, o *opened, meta SelMeta) (notes []string, err error) {
	if o.size == 0 {
		return nil, nil
	}
	r := NewSelReader(io.NewSectionReader(o.f, 0, o.size))
	for err == nil {
		_, err = r.frame()
	}
	o.records = r.Records()
	old, metaErr := ReadSelMeta(path)
	if torn := (*TornError)(nil); errors.As(err, &torn) {
		if metaErr != nil {
			if err := plausibleSel(io.NewSectionReader(o.f, 0, torn.Offset)); err != nil {
				return nil, fmt.Errorf("dump: %s: refusing to cut %d bytes at byte %d off a file not known to be a selection dump: %w",
					path, o.size-torn.Offset, torn.Offset, err)
			}
		}
		if err := o.f.Truncate(torn.Offset); err != nil {
			return nil, fmt.Errorf("dump: %s: torn at byte %d and cannot be cut there: %w", path, torn.Offset, pathCause(err))
		}
		notes = append(notes, fmt.Sprintf("dump: %s: torn tail of an earlier run: cut %d bytes at byte %d, %d whole records kept",
			path, o.size-torn.Offset, torn.Offset, torn.Records))
		o.size = torn.Offset
	} else if err != io.EOF {
		return nil, fmt.Errorf("dump: %s: cannot append: %w", path, err)
	}
	if metaErr == nil && r.Records() > 0 &&
		(old.Model != meta.Model || old.Arch != meta.Arch || old.NLayer != meta.NLayer || old.NExpert != meta.NExpert) {
		notes = append(notes, fmt.Sprintf("dump: %s: holds %d records of model %q (%s, %d layers, %d experts); appending those of %q (%s, %d layers, %d experts)",
			path, r.Records(), old.Model, old.Arch, old.NLayer, old.NExpert, meta.Model, meta.Arch, meta.NLayer, meta.NExpert))
	}
	return notes, nil
}

// plausibleSel reports why whole records do not look like a router's output. It stands between a mistyped path and the
// loss of the end of somebody's file: any text parses as records of odd shape.
func plausibleSel(src io.Reader) error {
	const maxWeight = 1e4 // weights are probabilities times a scale of order 1; four lower-case letters of text are above 1e20
	r := NewSelReader(src)
	var seen [maxSelExpert + 1]uint64 // number of the last record with this expert
	for {
		at := r.Offset()
		rec, err := r.Next()
		if err == io.EOF && r.Records() > 0 {
			return nil
		}
		if err == io.EOF {
			return errors.New("no whole record and no " + metaSuffix)
		}
		if err != nil {
			return err
		}
		for i, e := range rec.Expert {
			if seen[e] == r.Records() {
				return fmt.Errorf("record at byte %d has expert %d twice", at, e)
			}
			seen[e] = r.Records()
			if w := rec.Weight[i]; !(w >= -maxWeight && w <= maxWeight) {
				return fmt.Errorf("record at byte %d has weight %g", at, w)
			}
		}
	}
}

// Record appends t records of one layer call: expert and weight are t x k, token-major, slots in the router's order,
// and are not kept. t 0 records nothing. Geometry that the format cannot hold (layer above 255, k 0 or above 255,
// expert negative or above 65535, lengths other than t*k) is an error, and then nothing of the call is recorded. After
// a write error every call returns that error. A nil receiver returns nil at once. No allocation without an error.
func (w *SelWriter) Record(layer, t, k int, expert []int32, weight []float32) error {
	if w == nil {
		return nil
	}
	return w.record(layer, t, k, expert, weight, nil, 0)
}

// RecordRows is Record for tokens of several sequences: rows, t of them, say whose each token is, pass the engine's forward
// pass, from 1. They go to the sidecar; where OpenSel was not asked for one, only the records are kept. A dump with the
// sidecar takes no Record.
func (w *SelWriter) RecordRows(layer, t, k int, expert []int32, weight []float32, rows []Row, pass int64) error {
	if w == nil {
		return nil
	}
	return w.record(layer, t, k, expert, weight, rows, pass)
}

func (w *SelWriter) record(layer, t, k int, expert []int32, weight []float32, rows []Row, pass int64) error {
	s := &w.sink
	if t == 0 && len(expert) == 0 && len(weight) == 0 {
		return nil
	}
	if err := checkSel(layer, t, k, expert, weight); err != nil {
		return fmt.Errorf("dump: %s: %w", s.path, err)
	}
	if w.rows != nil {
		if err := checkRows(t, rows, pass); err != nil {
			return fmt.Errorf("dump: %s: layer %d: %w", s.path, layer, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	if w.rows != nil {
		if err := w.rows.add(rows, pass); err != nil {
			return s.stop(err)
		}
	}
	now := time.Now()
	for i := 0; i < len(expert); i += k {
		if err := s.room(selHeadBytes+k*selSlotBytes, now); err != nil {
			return err
		}
		s.buf = appendSel(s.buf, layer, expert[i:i+k], weight[i:i+k])
		s.records.Add(1)
	}
	return s.done(now)
}

func checkSel(layer, t, k int, expert []int32, weight []float32) error {
	if layer < 0 || layer > maxSelLayer {
		return fmt.Errorf("layer %d outside the format's 0..%d", layer, maxSelLayer)
	}
	if k < 1 || k > maxSel {
		return fmt.Errorf("layer %d: n_sel %d outside the format's 1..%d", layer, k, maxSel)
	}
	// t is compared first: t*k cannot overflow then.
	if t < 0 || t > len(expert) || len(expert) != t*k {
		return fmt.Errorf("layer %d: ragged selection: %d experts for %d tokens of %d", layer, len(expert), t, k)
	}
	if len(weight) != len(expert) {
		return fmt.Errorf("layer %d: ragged selection: %d weights for %d experts", layer, len(weight), len(expert))
	}
	for i, e := range expert {
		if uint32(e) > maxSelExpert {
			return fmt.Errorf("layer %d: token %d of %d, slot %d: expert %d outside the format's 0..%d",
				layer, i/k, t, i%k, e, maxSelExpert)
		}
	}
	return nil
}

func appendSel(b []byte, layer int, expert []int32, weight []float32) []byte {
	b = append(b, byte(layer), byte(len(expert)))
	for i, e := range expert {
		b = binary.LittleEndian.AppendUint16(b, uint16(e))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(weight[i]))
	}
	return b
}

// Records is the receipt: how many records this writer has taken. After a write error it is the number that are whole
// in the file. Safe to call while another goroutine records.
func (w *SelWriter) Records() uint64 {
	if w == nil {
		return 0
	}
	return w.sink.records.Load()
}

// Notes tells what OpenSel did besides opening, one sentence each: a torn tail cut, a lock the file system lacks,
// another model's records in the file.
func (w *SelWriter) Notes() []string {
	if w == nil {
		return nil
	}
	return w.notes
}

// Flush writes what is buffered to the file now, for a caller that reads it back.
func (w *SelWriter) Flush() error {
	if w == nil {
		return nil
	}
	return w.sink.flushNow()
}

// Close flushes, closes the files and gives up the lock. It returns the first write error, also when called again.
func (w *SelWriter) Close() error {
	if w == nil {
		return nil
	}
	err := w.sink.close()
	if rowsErr := w.rows.close(); err == nil {
		err = rowsErr
	}
	return err
}
