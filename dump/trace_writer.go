package dump

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Residency of an expert at the moment of the decision, as in the trace's column.
const (
	Miss        = 0
	Hit         = 1
	HitPrefetch = 2
)

// Phases of a trace.
const (
	Prefill = 0
	Decode  = 1
)

// Row says whose a row of a layer call is.
type Row struct {
	Seq   int32 // sequence, from 0
	Turn  int32 // turn, from 0, counted over all sequences
	Phase uint8 // Prefill or Decode
	Step  int32 // absolute position of the token in its sequence
}

// longer than any row: eight integers of at most 10 digits, three byte counts and a pass of at most 19, a weight of at most
// 13 characters, separators; and what an expert read ahead adds
const (
	maxTraceRow   = 256
	maxTraceAhead = 6
)

// TraceWriter writes a route trace. The nil *TraceWriter is the disarmed trace: all its methods do nothing. Safe for
// concurrent use; the rows of one call stay together.
type TraceWriter struct {
	sink    sink
	notes   []string
	nLayer  int
	nExpert int
	ahead   bool     // see TraceMeta.Ahead
	seqs    bool     // see TraceMeta.Seqs
	first   []uint64 // by expert: number of the call whose first row of that expert was written last
	call    uint64
}

// CreateTrace creates the route trace at path, replacing the contents of an existing file, and writes the preamble and
// the header at once. One file holds one run: its turns follow each other in the turn column. A second writer on the
// same file is refused as long as the first one lives, and then nothing is replaced.
func CreateTrace(path string, meta TraceMeta) (*TraceWriter, error) {
	head, err := appendPreamble(nil, &meta)
	if err != nil {
		return nil, fmt.Errorf("dump: %s: preamble: %w", path, err)
	}
	o, err := openRecording(path)
	if err != nil {
		return nil, err
	}
	if o.size > 0 {
		if err := o.f.Truncate(0); err != nil {
			o.f.Close()
			return nil, fmt.Errorf("dump: %s: cannot replace: %w", path, pathCause(err))
		}
	}
	w := newTraceWriter(path, o.f, &meta)
	w.notes = o.notes
	if n, err := o.f.Write(head); err != nil {
		_ = o.f.Truncate(0) // as far as the file allows: an empty file is plainer than half a preamble
		o.f.Close()
		return nil, fmt.Errorf("dump: %s: write failed at byte %d, in the preamble: %w", path, n, pathCause(err))
	}
	w.sink.size = int64(len(head))
	return w, nil
}

func newTraceWriter(path string, f file, meta *TraceMeta) *TraceWriter {
	w := &TraceWriter{nLayer: meta.NLayer, nExpert: meta.NExpert, ahead: meta.Ahead, seqs: meta.Seqs, first: make([]uint64, meta.NExpert)}
	w.sink.start(path, f, 0, wholeLines)
	return w
}

// wholeLines returns the longest prefix of b that ends with a line, and how many lines it has.
func wholeLines(b []byte) (n int, lines uint64) {
	n = bytes.LastIndexByte(b, '\n') + 1
	return n, uint64(bytes.Count(b[:n], []byte{'\n'}))
}

// TraceCall is one MoE layer call over T tokens of K slots each. The writer keeps none of the slices.
type TraceCall struct {
	Turn, Phase int // turn of the session from 0; Prefill or Decode
	Pos0        int // absolute position of the first token
	Layer, T, K int

	// Rows says for each of the T tokens whose it is, in place of Turn, Phase and Pos0; nil: one sequence, 0, whose tokens
	// follow each other from Pos0. Tokens of several sequences need TraceMeta.Seqs. Pass: the engine's forward pass, from 1,
	// written with TraceMeta.Seqs only.
	Rows []Row
	Pass int64

	Expert    []int32   // T x K, token-major, slots in the router's order
	Weight    []float32 // T x K as routed, before any drop; NaN and nil: unknown
	Resident  []uint8   // by expert: Miss, Hit or HitPrefetch before the call; nil: all Hit
	ReadBytes []int64   // by expert: bytes read for this call, 0 for none; nil: none at all
	Dropped   []bool    // T x K; nil: none

	// With TraceMeta.Ahead: the experts of the next layer (the first one's after the last) that the call asked for ahead of
	// their demand, the most wanted first, and the bytes of those that had to be read.
	Ahead      []int32
	AheadBytes int64
}

// Call appends one row per routed expert, token-major: step is Pos0 plus the token's index, or what Rows says, and the bytes
// of an expert stand on the call's first row with that expert, whichever token it is, of whichever sequence; what was asked
// for ahead stands on the first row of all. What the format or the preamble cannot hold
// (negative numbers, ids not below n_layer and n_expert where those are stated, lengths that do not fit T x K, a
// residency above 2) is an error, and then nothing of the call is recorded. After a write error every call returns that
// error. A nil receiver returns nil at once. c is not kept; no allocation, except when experts appear whose ids are
// above the preamble's n_expert.
func (w *TraceWriter) Call(c *TraceCall) error {
	if w == nil {
		return nil
	}
	return w.record(c)
}

func (w *TraceWriter) record(c *TraceCall) error {
	s := &w.sink
	if err := w.check(c); err != nil {
		return fmt.Errorf("dump: %s: %w", s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	if n := len(c.ReadBytes); n > len(w.first) {
		w.first = append(w.first, make([]uint64, n-len(w.first))...)
	}
	w.call++
	now := time.Now()
	for i, e := range c.Expert {
		room := maxTraceRow
		if i == 0 {
			room += maxTraceAhead * len(c.Ahead)
		}
		if err := s.room(room, now); err != nil {
			return err
		}
		weight, residency, bytes, dropped := float32(math.NaN()), uint8(Hit), int64(0), byte('0')
		if c.Weight != nil {
			weight = c.Weight[i]
		}
		if c.Resident != nil {
			residency = c.Resident[e]
		}
		if c.ReadBytes != nil && w.first[e] != w.call {
			w.first[e] = w.call
			bytes = c.ReadBytes[e]
		}
		if c.Dropped != nil && c.Dropped[i] {
			dropped = '1'
		}
		who := c.row(i / c.K)
		b := s.buf
		b = append(strconv.AppendInt(b, int64(who.Turn), 10), ',')
		b = append(strconv.AppendInt(b, int64(who.Phase), 10), ',')
		b = append(strconv.AppendInt(b, int64(who.Step), 10), ',')
		b = append(strconv.AppendInt(b, int64(c.Layer), 10), ',')
		b = append(strconv.AppendInt(b, int64(i%c.K), 10), ',')
		b = append(strconv.AppendInt(b, int64(e), 10), ',')
		b = append(appendWeight(b, weight), ',')
		b = append(strconv.AppendInt(b, int64(residency), 10), ',')
		b = append(strconv.AppendInt(b, bytes, 10), ',')
		if w.ahead {
			b = appendAhead(b, c, i == 0)
		}
		b = append(b, dropped)
		if w.seqs {
			b = strconv.AppendInt(append(b, ','), int64(who.Seq), 10)
			b = strconv.AppendInt(append(b, ','), c.Pass, 10)
		}
		s.buf = append(b, '\n')
		s.records.Add(1)
	}
	return s.done(now)
}

// row is whose token t of the call is.
func (c *TraceCall) row(t int) Row {
	if c.Rows != nil {
		return c.Rows[t]
	}
	return Row{Turn: int32(c.Turn), Phase: uint8(c.Phase), Step: int32(c.Pos0 + t)}
}

// appendAhead appends the two columns of what is read ahead; they are empty but on a call's first row.
func appendAhead(b []byte, c *TraceCall, first bool) []byte {
	if !first {
		return append(b, ',', ',')
	}
	for i, e := range c.Ahead {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(e), 10)
	}
	return append(strconv.AppendInt(append(b, ','), c.AheadBytes, 10), ',')
}

// appendWeight formats as C's printf("%.6g"), with which the format's first writer defines the column. Go's 'g' is
// the same down to the exponent's two digits; only the names of the special values differ.
func appendWeight(b []byte, w float32) []byte {
	switch {
	case w != w:
		return append(b, "nan"...)
	case w > math.MaxFloat32:
		return append(b, "inf"...)
	}
	return strconv.AppendFloat(b, float64(w), 'g', 6, 64)
}

func (w *TraceWriter) check(c *TraceCall) error {
	n := len(c.Expert)
	switch {
	case c.Rows == nil && (c.Turn < 0 || c.Turn > maxTraceInt):
		return fmt.Errorf("trace: turn %d outside 0..%d", c.Turn, maxTraceInt)
	case c.Rows == nil && c.Phase != Prefill && c.Phase != Decode:
		return fmt.Errorf("trace: phase %d, want %d (prefill) or %d (decode)", c.Phase, Prefill, Decode)
	case c.Layer < 0 || c.Layer >= limitOr(w.nLayer):
		return fmt.Errorf("trace: layer %d, want 0..%d", c.Layer, limitOr(w.nLayer)-1)
	case c.T == 0 && n == 0:
	case c.K < 1 || c.K > maxTraceID || c.T < 0 || c.T > n || n != c.T*c.K:
		return fmt.Errorf("trace: layer %d: ragged selection: %d experts for %d tokens of %d", c.Layer, n, c.T, c.K)
	}
	switch {
	case c.Rows == nil && (c.Pos0 < 0 || c.Pos0 > maxTraceInt-c.T):
		return fmt.Errorf("trace: layer %d: positions from %d outside 0..%d", c.Layer, c.Pos0, maxTraceInt)
	case c.Weight != nil && len(c.Weight) != n:
		return fmt.Errorf("trace: layer %d: %d weights for %d experts", c.Layer, len(c.Weight), n)
	case c.Dropped != nil && len(c.Dropped) != n:
		return fmt.Errorf("trace: layer %d: %d drop flags for %d experts", c.Layer, len(c.Dropped), n)
	}
	if c.Rows != nil && len(c.Rows) != c.T {
		return fmt.Errorf("trace: layer %d: rows of %d tokens, want %d", c.Layer, len(c.Rows), c.T)
	}
	if w.seqs && (c.Pass < 1 || c.Pass > maxPass) {
		return fmt.Errorf("trace: layer %d: pass %d, want 1..%d", c.Layer, c.Pass, int64(maxPass))
	}
	for t := range c.Rows {
		if err := c.Rows[t].check(); err != nil {
			return fmt.Errorf("trace: layer %d: token %d of %d: %w", c.Layer, t, c.T, err)
		}
		if first := c.Rows[0].Seq; !w.seqs && c.Rows[t].Seq != first {
			return fmt.Errorf("trace: layer %d: rows of sequences %d and %d, but the trace was opened without a column for them", c.Layer, first, c.Rows[t].Seq)
		}
	}
	limit := limitOr(w.nExpert)
	switch {
	case !w.ahead && (len(c.Ahead) > 0 || c.AheadBytes != 0):
		return fmt.Errorf("trace: layer %d: %d experts read ahead, but the trace was opened without columns for them", c.Layer, len(c.Ahead))
	case c.AheadBytes < 0 || len(c.Ahead) > maxAhead:
		return fmt.Errorf("trace: layer %d: %d experts, %d bytes read ahead: want at most %d, and 0 or more", c.Layer, len(c.Ahead), c.AheadBytes, maxAhead)
	}
	for _, e := range c.Ahead {
		if e < 0 || int(e) >= limit {
			return fmt.Errorf("trace: layer %d: expert %d read ahead, want 0..%d", c.Layer, e, limit-1)
		}
	}
	if c.Resident != nil {
		limit = min(limit, len(c.Resident))
	}
	if c.ReadBytes != nil {
		limit = min(limit, len(c.ReadBytes))
	}
	for i, e := range c.Expert {
		if e < 0 || int(e) >= limit {
			return fmt.Errorf("trace: layer %d, position %d, slot %d: expert %d, want 0..%d", c.Layer, c.row(i/c.K).Step, i%c.K, e, limit-1)
		}
		if c.Resident != nil && c.Resident[e] > HitPrefetch {
			return fmt.Errorf("trace: layer %d: expert %d: residency %d, want 0..%d", c.Layer, e, c.Resident[e], HitPrefetch)
		}
		if c.ReadBytes != nil && c.ReadBytes[e] < 0 {
			return fmt.Errorf("trace: layer %d: expert %d: %d bytes read", c.Layer, e, c.ReadBytes[e])
		}
		if c.Weight != nil && c.Weight[i] < 0 {
			return fmt.Errorf("trace: layer %d, position %d, slot %d: negative weight %g", c.Layer, c.row(i/c.K).Step, i%c.K, c.Weight[i])
		}
	}
	return nil
}

// maxPass bounds the number of a pass, so that sums over it cannot overflow.
const maxPass = 1<<53 - 1

// check refuses what the formats cannot hold.
func (r *Row) check() error {
	switch {
	case r.Seq < 0 || r.Turn < 0 || r.Step < 0:
		return fmt.Errorf("sequence %d, turn %d, position %d: want 0..%d", r.Seq, r.Turn, r.Step, maxTraceInt)
	case r.Phase > Decode:
		return fmt.Errorf("phase %d, want %d (prefill) or %d (decode)", r.Phase, Prefill, Decode)
	}
	return nil
}

// maxAhead keeps a row within a line that readers take.
const maxAhead = (maxTraceLine - maxTraceRow) / maxTraceAhead

// limitOr is the count that a preamble states, or the format's own bound where it states none.
func limitOr(stated int) int {
	if stated > 0 {
		return stated
	}
	return maxTraceID
}

// TakesAhead tells whether calls may say what was read ahead (TraceMeta.Ahead).
func (w *TraceWriter) TakesAhead() bool { return w != nil && w.ahead }

// TakesRows says whether the trace was opened for rows of several sequences (TraceMeta.Seqs).
func (w *TraceWriter) TakesRows() bool { return w != nil && w.seqs }

// Rows is how many rows this writer has taken. After a write error it is the number that are whole in the file. Safe
// to call while another goroutine records.
func (w *TraceWriter) Rows() uint64 {
	if w == nil {
		return 0
	}
	return w.sink.records.Load()
}

// Notes tells what CreateTrace could not do and did without, one sentence each.
func (w *TraceWriter) Notes() []string {
	if w == nil {
		return nil
	}
	return w.notes
}

// Flush writes what is buffered to the file now, for a caller that reads it back.
func (w *TraceWriter) Flush() error {
	if w == nil {
		return nil
	}
	return w.sink.flushNow()
}

// Close flushes, closes the file and gives up the lock. It returns the first write error, also when called again.
func (w *TraceWriter) Close() error {
	if w == nil {
		return nil
	}
	return w.sink.close()
}
