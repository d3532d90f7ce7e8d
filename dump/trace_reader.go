package dump

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// TraceRow is one routed expert: for whom, which, how strongly, and what it cost.
type TraceRow struct {
	Turn, Phase, Step, Layer, Slot, Expert int
	Weight                                 float64 // of the text, as routed; not finite where WeightUnknown
	WeightUnknown                          bool    // nan or inf: the row counts, but takes part in no sum and no threshold
	Residency                              int     // Miss, Hit, HitPrefetch
	ExpertBytes                            int64
	Dropped                                bool
	Seq                                    int      // sequence; 0 in a trace without columns for it (TraceReader.Seqs)
	Pass                                   int64    // forward pass, from 1; likewise
	Extra                                  [][]byte // fields of the columns that ExtraColumns names; the reader's memory
}

// What the reader knows columns by; the index is the kind of a field.
var traceColumns = [...]string{"turn", "phase", "step", "layer", "slot", "expert", "weight", "residency", "expert_bytes", "dropped",
	SeqColumn, PassColumn}

const (
	colTurn = iota
	colPhase
	colStep
	colLayer
	colSlot
	colExpert
	colWeight
	colResidency
	colExpertBytes
	colDropped
	colSeq
	colPass
	colUnknown
)

// TraceReader reads a route trace row by row in constant memory, whatever the order of its columns; LF and CRLF ends,
// blank lines and '#' lines between the rows are taken. Not safe for concurrent use.
type TraceReader struct {
	br      *bufio.Reader
	pre     preamble
	kinds   []uint8 // by column
	columns []string
	unknown []string
	extra   [][]byte
	list    int   // of AheadColumn among the unknown, -1: there is none
	ahead   int   // of AheadBytesColumn, likewise
	seqs    bool  // SeqColumn and PassColumn are there
	plain   bool  // columns in the writer's order
	line    int   // number of the line last read, from 1
	off     int64 // where it begins
	next    int64 // where the next one begins
	rows    uint64
	err     error
}

// NewTraceReader reads the preamble and the header. r needs no buffering of its own. A header without one of the nine
// columns turn to expert_bytes, a column named twice, or a version other than v1 is an error that names the line.
func NewTraceReader(r io.Reader) (*TraceReader, error) {
	t := &TraceReader{br: bufio.NewReaderSize(r, maxTraceLine)}
	for {
		line, _, err := t.readLine()
		switch {
		case err == io.EOF:
			return nil, fmt.Errorf("dump: trace: no header line in %d bytes: %w", t.next, io.ErrUnexpectedEOF)
		case err != nil:
			return nil, err
		}
		if t.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		switch {
		case len(line) == 0:
		case line[0] == '#':
			if err := t.pre.line(string(line)); err != nil {
				return nil, fmt.Errorf("dump: trace: line %d: %w", t.line, err)
			}
		default:
			if err := t.header(string(line)); err != nil {
				return nil, fmt.Errorf("dump: trace: line %d: %w", t.line, err)
			}
			return t, nil
		}
	}
}

// Meta is the preamble as read so far, with the '#' lines between rows merged in. Its slices belong to the reader.
func (t *TraceReader) Meta() TraceMeta { return t.pre.meta }

// Columns names all columns in file order; a trace recorded before dropping existed has no "dropped" among them.
func (t *TraceReader) Columns() []string { return t.columns }

// Seqs tells whether the rows say sequence and pass: the trace is of an engine that was opened for several sequences.
func (t *TraceReader) Seqs() bool { return t.seqs }

// ExtraColumns names the columns that this reader does not know, in file order.
func (t *TraceReader) ExtraColumns() []string { return t.unknown }

// AheadBytes is what the call whose first row Next has just delivered read ahead of the next layer's demands; 0 on other rows, and
// in traces of runs that read nothing ahead. Those bytes are in no row's ExpertBytes.
func (t *TraceReader) AheadBytes() (int64, error) {
	if t.ahead < 0 || len(t.extra[t.ahead]) == 0 && (t.list < 0 || len(t.extra[t.list]) == 0) {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(t.extra[t.ahead]), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("dump: trace: line %d: column %s: %.20q, want the bytes that were read ahead", t.line, AheadBytesColumn, t.extra[t.ahead])
	}
	return n, nil
}

// Rows is the number of rows that Next has delivered.
func (t *TraceReader) Rows() uint64 { return t.rows }

// Line is the number, from 1, of the line last read.
func (t *TraceReader) Line() int { return t.line }

func (t *TraceReader) header(line string) error {
	t.columns = strings.Split(line, ",")
	var missing []string
	for k, name := range traceColumns {
		if k < colDropped && !slices.Contains(t.columns, name) {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return fmt.Errorf("header %.60q lacks columns: %s", line, strings.Join(missing, ", "))
	}
	t.seqs = slices.Contains(t.columns, SeqColumn) && slices.Contains(t.columns, PassColumn)
	names := make(map[string]bool)
	for i, name := range t.columns {
		if names[name] {
			return fmt.Errorf("column %d: %.40q twice in the header", i+1, name)
		}
		names[name] = true
		k := slices.Index(traceColumns[:], name)
		if k < 0 || k > colDropped && !t.seqs {
			k = colUnknown
			t.unknown = append(t.unknown, name)
		}
		t.kinds = append(t.kinds, uint8(k))
	}
	t.extra = make([][]byte, len(t.unknown))
	t.list, t.ahead = slices.Index(t.unknown, AheadColumn), slices.Index(t.unknown, AheadBytesColumn)
	t.plain = standardOrder(t.kinds)
	return nil
}

// Next fills row with the next row; row.Extra points into the reader's memory and is overwritten by the following
// call. Next does not allocate, except for '#' lines. At the end it returns io.EOF. A field that is not what its
// column holds, a row of another length than the header, an id that the preamble's n_layer or n_expert excludes, or a
// line above 64 KiB is an error that names line and column. A last line without its end that is incomplete, or that ends in
// seq or pass, whose digits nothing bounds, is *TornError. Errors stay.
func (t *TraceReader) Next(row *TraceRow) error {
	if t.err != nil {
		return t.err
	}
	if t.plain && t.nextFast(row) {
		return nil
	}
	for {
		line, whole, err := t.readLine()
		if err != nil {
			t.err = err
			return err
		}
		if len(line) == 0 {
			continue
		}
		torn := false
		if line[0] == '#' {
			if err = t.pre.line(string(line)); err == nil {
				continue
			}
			torn = true
		} else if torn, err = t.parse(line, whole, row); err == nil {
			t.rows++
			return nil
		}
		err = fmt.Errorf("dump: trace: line %d: %w", t.line, err)
		if torn && !whole {
			err = &TornError{Records: t.rows, Offset: t.off, Err: err}
		}
		t.err = err
		return err
	}
}

// readLine returns the next line without its end; whole is false for a last line that has none.
func (t *TraceReader) readLine() (line []byte, whole bool, err error) {
	line, err = t.br.ReadSlice('\n')
	t.off = t.next
	t.next += int64(len(line))
	switch {
	case err == nil:
		line, whole = line[:len(line)-1], true
	case err == io.EOF && len(line) > 0:
	case err == io.EOF:
		return nil, false, io.EOF
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, false, fmt.Errorf("dump: trace: line %d: longer than %d bytes", t.line+1, maxTraceLine)
	default:
		return nil, false, fmt.Errorf("dump: trace: line %d at byte %d: %w", t.line+1, t.next, err)
	}
	t.line++
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, whole, nil
}

// parse fills row from one line. torn: the error is one that a cut at the end of line would make.
func (t *TraceReader) parse(line []byte, whole bool, row *TraceRow) (torn bool, err error) {
	*row = TraceRow{Extra: t.extra}
	unknown := 0
	rest := line
	for col, kind := range t.kinds {
		field, more, ok := rest, []byte(nil), false
		if i := bytes.IndexByte(rest, ','); i >= 0 {
			field, more, ok = rest[:i], rest[i+1:], true
		}
		rest = more
		msg := ""
		if kind == colUnknown {
			t.extra[unknown] = field
			unknown++
		} else {
			msg = t.set(row, kind, field)
			if msg == "" && !whole && !ok {
				msg = cutField(kind, field)
			}
		}
		if msg != "" {
			return !ok, fmt.Errorf("column %d (%s): %s", col+1, t.columns[col], msg)
		}
		if last := col == len(t.kinds)-1; last && ok {
			return false, fmt.Errorf("column %d: row goes on past the header's %d columns", col+2, col+1)
		} else if !last && !ok {
			return true, fmt.Errorf("column %d: row ends after %d of %d columns", col+1, col+1, len(t.kinds))
		}
	}
	return false, nil
}

// cutField says why a field at the end of a file that has no line end there is not to be trusted, "" if it is.
func cutField(kind uint8, field []byte) string {
	switch {
	case kind == colDropped && len(field) == 0:
		return "empty at the end of the file"
	case kind == colSeq || kind == colPass: // of our writer, which ends its lines: the number may have had more digits
		return "ends with the file, without a line end"
	}
	return ""
}

// set stores one field and returns what is wrong with it, "" for nothing.
func (t *TraceReader) set(row *TraceRow, kind uint8, field []byte) string {
	limit := int64(maxTraceInt)
	switch kind {
	case colWeight:
		return row.setWeight(field)
	case colPhase:
		limit = Decode
	case colLayer:
		limit = int64(limitOr(t.pre.meta.NLayer)) - 1
	case colSlot:
		limit = maxTraceID - 1
	case colExpert:
		limit = int64(limitOr(t.pre.meta.NExpert)) - 1
	case colResidency:
		limit = HitPrefetch
	case colExpertBytes:
		limit = math.MaxInt64
	case colPass:
		limit = maxPass
	case colDropped:
		limit = 1
		if len(field) == 0 {
			return "" // as the scripts that read the format: nothing is not dropped
		}
	}
	n, msg := parseCount(field, limit)
	switch kind {
	case colTurn:
		row.Turn = int(n)
	case colPhase:
		row.Phase = int(n)
	case colStep:
		row.Step = int(n)
	case colLayer:
		row.Layer = int(n)
	case colSlot:
		row.Slot = int(n)
	case colExpert:
		row.Expert = int(n)
	case colResidency:
		row.Residency = int(n)
	case colExpertBytes:
		row.ExpertBytes = n
	case colDropped:
		row.Dropped = n == 1
	case colSeq:
		row.Seq = int(n)
	case colPass:
		row.Pass = n
	}
	return msg
}

func (row *TraceRow) setWeight(field []byte) string {
	if len(field) == 0 {
		return "empty, want a number or nan"
	}
	word := field
	if word[0] == '-' || word[0] == '+' { // C prints a NaN's sign
		word = word[1:]
	}
	if bytes.EqualFold(word, []byte("nan")) {
		row.Weight, row.WeightUnknown = math.NaN(), true
		return ""
	}
	if field[0] == '-' && len(field) > 1 && (field[1] == 'i' || field[1] == 'I') {
		return fmt.Sprintf("%.20q is negative", field)
	}
	if bytes.EqualFold(word, []byte("inf")) {
		row.Weight, row.WeightUnknown = math.Inf(1), true
		return ""
	}
	for _, c := range field {
		if (c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E' {
			return fmt.Sprintf("%.20q is not a number", field) // ParseFloat would take hexadecimal too
		}
	}
	w, err := strconv.ParseFloat(string(field), 64) // the compiler keeps short conversions on the stack
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Sprintf("%.20q is out of range", field)
	case err != nil:
		return fmt.Sprintf("%.20q is not a number", field)
	case w < 0:
		return fmt.Sprintf("%.20q is negative", field)
	}
	row.Weight = w
	return ""
}
