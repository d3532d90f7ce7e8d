package dump

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// The rows sidecar of a selection dump, PATH.rows: whose each record is. Its bytes stand in docs/format/selection-dump.md.
const (
	rowsSuffix     = ".rows"
	rowsMagic      = "SLUICERW"
	rowsVersion    = 1
	rowsHeadBytes  = 16
	rowsBlockBytes = 20 // a block's head
	maxRowsBlock   = 1 << 20
	rowsBufBytes   = 256 << 10
	rowsCallRows   = 1 << 12 // of a layer call in one group
	maxRowsSpan    = 20      // bytes: three numbers below 2^31, and one below 2^32
	maxRowsGroup   = 3 * binary.MaxVarintLen64
)

var rowsTable = crc32.MakeTable(crc32.Castagnoli)

// RowsPath is where the rows sidecar of the selection dump at path lies.
func RowsPath(path string) string { return path + rowsSuffix }

// PassRow is whose a record of a selection dump is, and the forward pass that it comes from, counted from 1.
type PassRow struct {
	Row
	Pass int64
}

func appendRowsHead(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, rowsMagic...), rowsVersion)
	return binary.LittleEndian.AppendUint32(b, rowsBlockBytes)
}

// rowsSink writes a rows sidecar. It belongs to the dump's sink, whose lock it is called under, and is flushed right before
// the dump is: whatever a kill leaves, a record of the dump has its row.
//
// What is collected between two flushes is a block. In it a pass is said once, however many layers it has: layer calls that
// follow each other with the same rows are one group with a count, which is known when the block is written.
type rowsSink struct {
	path string
	f    file
	size int64 // of the file, a block's end

	first   uint64 // number of the block's first record in the dump
	records uint32 // of the block
	buf     []byte // the block so far: its head, then whole groups

	// The open group.
	calls, spans int
	pass         int64
	group, next  []byte // its spans, and those of the call that comes

	closed   bool
	closeErr error
}

func newRowsSink(path string, f file, size int64, first uint64) *rowsSink {
	room := rowsCallRows * maxRowsSpan
	s := &rowsSink{path: path, f: f, size: size, first: first, group: make([]byte, 0, room), next: make([]byte, 0, room)}
	s.buf = make([]byte, rowsBlockBytes, rowsBufBytes)
	return s
}

// add takes the rows of one layer call, whose records come next in the dump.
func (s *rowsSink) add(rows []Row, pass int64) error {
	for len(rows) > 0 {
		n := min(len(rows), rowsCallRows)
		if err := s.call(rows[:n], pass); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (s *rowsSink) call(rows []Row, pass int64) error {
	b, spans := s.next[:0], 0
	for from := 0; from < len(rows); spans++ {
		r, n := rows[from], 1
		for from+n < len(rows) && rows[from+n] == (Row{r.Seq, r.Turn, r.Phase, r.Step + int32(n)}) {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		b = binary.AppendUvarint(b, uint64(r.Seq))
		b = binary.AppendUvarint(b, uint64(r.Turn))
		b = binary.AppendUvarint(b, uint64(r.Step)<<1|uint64(r.Phase))
		from += n
	}
	s.next = b
	if s.calls > 0 && pass == s.pass && string(b) == string(s.group) {
		s.calls++
	} else {
		s.endGroup()
		if len(s.buf)+maxRowsGroup+len(b) > cap(s.buf) {
			if err := s.flush(); err != nil {
				return err
			}
		}
		s.calls, s.spans, s.pass = 1, spans, pass
		s.group, s.next = b, s.group
	}
	s.records += uint32(len(rows))
	return nil
}

// endGroup moves the open group into the block; there is room for it.
func (s *rowsSink) endGroup() {
	if s.calls == 0 {
		return
	}
	s.buf = binary.AppendUvarint(s.buf, uint64(s.calls))
	s.buf = binary.AppendUvarint(s.buf, uint64(s.pass))
	s.buf = binary.AppendUvarint(s.buf, uint64(s.spans))
	s.buf = append(s.buf, s.group...)
	s.calls = 0
}

// flush writes the block. One that fails is cut off again where the file allows it.
func (s *rowsSink) flush() error {
	s.endGroup()
	if s.records == 0 {
		return nil
	}
	b := s.buf
	binary.LittleEndian.PutUint64(b, s.first)
	binary.LittleEndian.PutUint32(b[8:], s.records)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(b)-rowsBlockBytes))
	binary.LittleEndian.PutUint32(b[16:], rowsSum(b))
	n, err := s.f.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		torn := ""
		if n > 0 && s.f.Truncate(s.size) != nil {
			torn = ", its end torn"
		}
		return fmt.Errorf("dump: %s: write failed at byte %d%s: %w", s.path, s.size+int64(n), torn, pathCause(err))
	}
	s.size += int64(n)
	s.first += uint64(s.records)
	s.records, s.buf = 0, b[:rowsBlockBytes]
	return nil
}

// close closes the file, which the dump's last flush has gone before; a second call returns the first error again. A nil
// receiver has nothing to close.
func (s *rowsSink) close() error {
	if s == nil {
		return nil
	}
	if !s.closed {
		s.closed = true
		if err := s.f.Close(); err != nil {
			s.closeErr = fmt.Errorf("dump: %s: close: %w", s.path, pathCause(err))
		}
	}
	return s.closeErr
}

// rowsSum is the checksum of a whole block: of its head, but for the sum itself, and its groups.
func rowsSum(block []byte) uint32 {
	return crc32.Update(crc32.Checksum(block[:16], rowsTable), rowsTable, block[rowsBlockBytes:])
}

// checkRows refuses the rows of a call that the sidecar cannot hold.
func checkRows(t int, rows []Row, pass int64) error {
	if len(rows) != t {
		return fmt.Errorf("rows of %d tokens, want %d", len(rows), t)
	}
	if pass < 1 || pass > maxPass {
		return fmt.Errorf("pass %d, want 1..%d", pass, int64(maxPass))
	}
	for i := range rows {
		if err := rows[i].check(); err != nil {
			return fmt.Errorf("token %d of %d: %w", i, t, err)
		}
		if rows[i].Step == math.MaxInt32 {
			return fmt.Errorf("token %d of %d: position %d, want below %d", i, t, rows[i].Step, math.MaxInt32)
		}
	}
	return nil
}
