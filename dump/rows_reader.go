package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// RowsReader reads the rows sidecar of a selection dump, row by row in bounded memory. Not safe for concurrent use.
type RowsReader struct {
	r       io.Reader
	off     int64 // of the block in hand
	end     int64 // behind it
	records uint64
	err     error

	// The block in hand.
	buf    []byte // head and groups
	number uint64 // of the record that comes next
	last   uint64 // behind the block's last record
	at     int    // of the groups: what comes next

	// The group in hand.
	from      int    // of its first span
	calls     uint64 // left, this one included
	spans     uint64 // of a call
	spansLeft uint64
	spanLeft  uint64 // rows of the span in hand
	row       PassRow
}

// NewRowsReader reads the head. Input that is no rows sidecar, and another version, are errors.
func NewRowsReader(r io.Reader) (*RowsReader, error) {
	var head [rowsHeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = errors.New("shorter than its head")
		}
		return nil, fmt.Errorf("dump: rows: %w", err)
	}
	if string(head[:8]) != rowsMagic {
		return nil, fmt.Errorf("dump: rows: begins with %q, want %q: not the rows of a selection dump", head[:8], rowsMagic)
	}
	version, size := binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint32(head[12:])
	if version != rowsVersion || size != rowsBlockBytes {
		return nil, fmt.Errorf("dump: rows: version %d with heads of %d bytes, want %d with %d", version, size, rowsVersion, rowsBlockBytes)
	}
	return &RowsReader{r: r, off: rowsHeadBytes, end: rowsHeadBytes, buf: make([]byte, rowsBlockBytes, rowsBufBytes)}, nil
}

// Next returns the next row and the number, from 0, of the dump's record that it belongs to. Numbers ascend; where one is
// left out the record's row is not known, since a run that recorded no rows appended it. At the end Next returns io.EOF, or
// *TornError where the input stops inside a block: all rows of the blocks before were delivered. A block that does not
// keep to the format is an error that names its byte. Errors stay. Next does not allocate, except for large blocks.
func (r *RowsReader) Next() (record uint64, row PassRow, err error) {
	for r.err == nil && r.number == r.last {
		r.err = r.block()
	}
	if r.err == nil {
		r.err = r.advance()
	}
	if r.err != nil {
		return 0, PassRow{}, r.err
	}
	row = r.row
	r.row.Step++
	r.spanLeft--
	r.number++
	r.records++
	if r.number == r.last && (r.spanLeft > 0 || r.spansLeft > 0 || r.calls > 1 || r.at < len(r.buf)) {
		r.err = r.bad("more rows than the head's %d records", binary.LittleEndian.Uint32(r.buf[8:]))
		return 0, PassRow{}, r.err
	}
	return r.number - 1, row, nil
}

// Records is the number of rows that Next has returned.
func (r *RowsReader) Records() uint64 { return r.records }

func (r *RowsReader) bad(format string, args ...any) error {
	return fmt.Errorf("dump: rows: block at byte %d: %s", r.off, fmt.Sprintf(format, args...))
}

// block reads the next block.
func (r *RowsReader) block() error {
	r.off = r.end
	head := r.buf[:rowsBlockBytes]
	if n, err := io.ReadFull(r.r, head); err == io.EOF && n == 0 {
		return io.EOF
	} else if err != nil {
		return r.cut(err)
	}
	first, records, size := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint32(head[12:])
	if records == 0 || size == 0 || size > maxRowsBlock || first < r.last || first > math.MaxUint64-uint64(records) {
		return r.bad("%d records from number %d in %d bytes: want 1 or more, from %d on, in at most %d bytes", records, first, size, r.last, maxRowsBlock)
	}
	if whole := rowsBlockBytes + int(size); cap(r.buf) < whole {
		r.buf = append(make([]byte, 0, whole), head...)
	}
	r.buf = r.buf[:rowsBlockBytes+int(size)]
	if _, err := io.ReadFull(r.r, r.buf[rowsBlockBytes:]); err != nil {
		return r.cut(err)
	}
	if sum := rowsSum(r.buf); sum != binary.LittleEndian.Uint32(r.buf[16:]) {
		return r.bad("checksum %08x, want %08x", binary.LittleEndian.Uint32(r.buf[16:]), sum)
	}
	r.end += int64(len(r.buf))
	r.number, r.last, r.at = first, first+uint64(records), rowsBlockBytes
	r.calls, r.spansLeft, r.spanLeft = 0, 0, 0
	return nil
}

// cut is the error of an input that ends, or fails, within a block.
func (r *RowsReader) cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return &TornError{Records: r.records, Offset: r.off}
	}
	return fmt.Errorf("dump: rows: block at byte %d: %w", r.off, err)
}

// advance makes r.row the next row of the block.
func (r *RowsReader) advance() error {
	if r.spanLeft > 0 {
		return nil
	}
	if r.spansLeft == 0 {
		if r.calls > 1 { // the same rows once more, in the next layer
			r.calls--
			r.at = r.from
		} else if err := r.group(); err != nil {
			return err
		}
		r.spansLeft = r.spans
	}
	n, ok := r.uvarint(math.MaxInt32)
	seq, ok1 := r.uvarint(math.MaxInt32)
	turn, ok2 := r.uvarint(math.MaxInt32)
	step, ok3 := r.uvarint(math.MaxUint32)
	if !ok || !ok1 || !ok2 || !ok3 || n == 0 || step>>1+n > math.MaxInt32 {
		return r.bad("span that ends at byte %d of it: %d rows of sequence %d, turn %d, from position %d", r.at, n, seq, turn, step>>1)
	}
	r.spansLeft--
	r.spanLeft = n
	r.row.Row = Row{Seq: int32(seq), Turn: int32(turn), Phase: uint8(step & 1), Step: int32(step >> 1)}
	return nil
}

func (r *RowsReader) group() error {
	calls, ok := r.uvarint(math.MaxUint32)
	pass, ok1 := r.uvarint(maxPass)
	spans, ok2 := r.uvarint(math.MaxUint32)
	if !ok || !ok1 || !ok2 || calls == 0 || pass == 0 || spans == 0 {
		return r.bad("group that begins before byte %d of it: %d calls of pass %d with %d spans", r.at, calls, pass, spans)
	}
	r.calls, r.spans, r.from, r.row.Pass = calls, spans, r.at, int64(pass)
	return nil
}

// uvarint reads a number up to limit.
func (r *RowsReader) uvarint(limit uint64) (n uint64, ok bool) {
	n, size := binary.Uvarint(r.buf[r.at:])
	if size <= 0 || n > limit {
		return n, false
	}
	r.at += size
	return n, true
}

// SelRowReader reads a selection dump together with its rows. Not safe for concurrent use.
type SelRowReader struct {
	*SelReader
	rows   *RowsReader
	number uint64 // of the record that row belongs to
	row    PassRow
	err    error // that the rows ended with; nil: they have not
	torn   *TornError
}

// NewSelRowReader reads the dump sel and its sidecar rows, both from their beginning. Errors are those of NewRowsReader.
func NewSelRowReader(sel, rows io.Reader) (*SelRowReader, error) {
	r, err := NewRowsReader(rows)
	if err != nil {
		return nil, err
	}
	p := &SelRowReader{SelReader: NewSelReader(sel), rows: r}
	p.advance()
	return p, nil
}

func (p *SelRowReader) advance() {
	if p.number, p.row, p.err = p.rows.Next(); p.err != nil {
		errors.As(p.err, &p.torn)
	}
}

// Next returns the dump's next record, as SelReader.Next does, and whose it is; known is false where the sidecar does not
// say. A sidecar that does not keep to its format is an error; one that ends before the dump does, torn or not, is none.
func (p *SelRowReader) Next() (rec SelRecord, row PassRow, known bool, err error) {
	if rec, err = p.SelReader.Next(); err != nil {
		return rec, row, false, err
	}
	n := p.Records() - 1
	for p.err == nil && p.number < n {
		p.advance()
	}
	switch {
	case p.err == nil:
		if p.number == n {
			return rec, p.row, true, nil
		}
	case p.err != io.EOF && p.torn == nil:
		return SelRecord{}, row, false, p.err
	}
	return rec, row, false, nil
}

// RowsTorn says where the sidecar is torn, as far as it has been read; nil: nowhere.
func (p *SelRowReader) RowsTorn() *TornError { return p.torn }
