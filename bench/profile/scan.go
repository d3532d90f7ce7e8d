package profile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// Limits of a CSV file. A quote that never closes would otherwise swallow a file of any size.
const (
	MaxRecordBytes = 64 << 20
	MaxColumns     = 1 << 20
)

// Error is a fault at a place of a CSV file.
type Error struct {
	File   string
	Line   int    // physical line, from 1; 0: the file as a whole
	Column int    // number of the field in its record, from 1; 0: the whole line
	Name   string // the column's name in the header, "" where there is none
	Msg    string
}

func (e *Error) Error() string {
	s := "profile: " + e.File
	if e.Line > 0 {
		s += fmt.Sprintf(": line %d", e.Line)
	}
	if e.Column > 0 {
		s += fmt.Sprintf(", column %d", e.Column)
	}
	if e.Name != "" {
		s += " (" + e.Name + ")"
	}
	return s + ": " + e.Msg
}

// scanner splits comma separated values by the rules of Python's csv module (dialect excel, not strict): a quote
// counts at the start of a field only, two quotes inside stand for one, text after the closing quote belongs to the
// field, a record ends at \n, \r or \r\n, and empty lines are no records. Unlike that module it refuses a quote that
// never closes.
//
// encoding/csv knows neither of the first three; and most of a profile is text that a summary skips, so this one
// splits off the leading fields only and counts the rest.
type scanner struct {
	r        io.Reader
	buf      []byte
	pos, end int // unread bytes
	at       int // cursor of a quoted record, pos <= at
	eof      bool
	nextLine int

	need int // leading fields to split off, set before scan

	// The record, valid until the next scan.
	line   int // where it starts
	fields int // how many it has
	rec    []byte
	off    []int32 // field i is rec[off[i] : off[i+1]-1], i < min(fields, need)
	lines  []int   // line of each field, for a record of several lines; else empty
	text   []byte  // what rec is for a record with quotes
}

func newScanner(r io.Reader) *scanner {
	return &scanner{r: r, buf: make([]byte, 256<<10), nextLine: 1, need: MaxColumns}
}

// field returns field i of the record, nil when the record is too short.
func (s *scanner) field(i int) []byte {
	if i < 0 || i+1 >= len(s.off) {
		return nil
	}
	return s.rec[s.off[i] : s.off[i+1]-1]
}

// lineOf is the line on which field i starts.
func (s *scanner) lineOf(i int) int {
	if i < len(s.lines) {
		return s.lines[i]
	}
	return s.line
}

// scan goes to the next record: io.EOF when there is none, *Error without a file name for a fault.
func (s *scanner) scan() error {
	for {
		line, after, err := s.readLine(s.pos)
		if _, long := err.(*Error); long && bytes.IndexByte(s.buf[s.pos:s.end], '"') >= 0 {
			// A quote that never closes is the likelier fault than a line without end.
			s.line = s.nextLine
			return s.scanQuoted()
		} else if err != nil {
			return err
		}
		if len(line) == 0 {
			if after == s.pos {
				return io.EOF
			}
			s.pos = after
			s.nextLine++
			continue
		}
		s.line = s.nextLine
		if bytes.IndexByte(line, '"') >= 0 {
			return s.scanQuoted()
		}
		s.pos = after
		s.nextLine++
		s.lines = s.lines[:0]
		s.rec = line
		return s.split()
	}
}

// readLine returns the line at position at without its end, and the position after it. Reading more may move the
// buffer: at is then s.pos, so only a caller that starts there may let it happen.
func (s *scanner) readLine(at int) (line []byte, after int, err error) {
	from := at
	for {
		if i := bytes.IndexByte(s.buf[from:s.end], '\n'); i >= 0 {
			line, after = s.buf[at:from+i], from+i+1
			break
		}
		if s.eof {
			line, after = s.buf[at:s.end], s.end
			break
		}
		seen := s.end - s.pos
		if err := s.fill(); err != nil {
			return nil, 0, err
		}
		at, from = s.pos, s.pos+seen
	}
	// A lone \r ends a record too. At the very end of the line it is the first half of \r\n.
	if i := bytes.IndexByte(line, '\r'); i >= 0 {
		if i+1 < len(line) {
			return line[:i], at + i + 1, nil
		}
		line = line[:i]
	}
	return line, after, nil
}

// fill reads more behind the unread bytes, which move to the front.
func (s *scanner) fill() error {
	if s.pos > 0 {
		s.end = copy(s.buf, s.buf[s.pos:s.end])
		s.at -= s.pos
		s.pos = 0
	}
	if s.end >= MaxRecordBytes {
		return &Error{Line: s.nextLine, Msg: fmt.Sprintf("record longer than %d bytes", MaxRecordBytes)}
	}
	if s.end == len(s.buf) {
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	for range 100 {
		n, err := s.r.Read(s.buf[s.end:])
		s.end += n
		if err == io.EOF {
			s.eof = true
			return nil
		}
		if err != nil || n > 0 {
			return err
		}
	}
	return io.ErrNoProgress
}

// split finds the fields of a record without quotes.
func (s *scanner) split() error {
	const (
		commas = 0x2c2c2c2c2c2c2c2c
		low7   = 0x7f7f7f7f7f7f7f7f
	)
	rec, off := s.rec, append(s.off[:0], 0)
	i, idle := 0, 0
	for ; i+8 <= len(rec) && len(off) <= s.need; i += 8 {
		w := binary.LittleEndian.Uint64(rec[i:]) ^ commas
		// High bit of each byte that is zero. The shorter classic form also marks a '-' right after a comma.
		m := ^(((w & low7) + low7) | w | low7)
		if m == 0 {
			// Attributes run to hundreds of bytes, where the library's search takes wider steps.
			if idle++; idle == 4 {
				j := bytes.IndexByte(rec[i+8:], ',')
				if j < 0 {
					i = len(rec)
					break
				}
				i += j // the next step starts at the comma
				idle = 0
			}
			continue
		}
		for idle = 0; m != 0; m &= m - 1 {
			off = append(off, int32(i+bits.TrailingZeros64(m)>>3+1))
		}
	}
	for ; i < len(rec) && len(off) <= s.need; i++ {
		if rec[i] == ',' {
			off = append(off, int32(i+1))
		}
	}
	s.fields = len(off)
	if i < len(rec) {
		s.fields += bytes.Count(rec[i:], []byte{','})
	}
	if s.fields > MaxColumns {
		return &Error{Line: s.line, Msg: fmt.Sprintf("%d fields, at most %d are read", s.fields, MaxColumns)}
	}
	if i == len(rec) {
		off = append(off, int32(len(rec)+1))
	}
	s.off = off
	return nil
}

// scanQuoted splits a record whose first line has a quote, byte by byte.
func (s *scanner) scanQuoted() error {
	s.text, s.off, s.lines = s.text[:0], append(s.off[:0], 0), append(s.lines[:0], s.nextLine)
	s.at = s.pos
	start := true // of a field
	for {
		if ok, err := s.more(); err != nil {
			return err
		} else if !ok {
			break
		}
		c := s.buf[s.at]
		s.at++
		switch {
		case c == '"' && start:
			start = false
			if err := s.quoted(); err != nil {
				return err
			}
			continue
		case c == ',':
			if len(s.off) >= MaxColumns {
				return &Error{Line: s.line, Msg: fmt.Sprintf("more than %d fields", MaxColumns)}
			}
			s.text = append(s.text, ',')
			s.off = append(s.off, int32(len(s.text)))
			s.lines = append(s.lines, s.nextLine)
			start = true
			continue
		case c != '\n' && c != '\r':
			start = false
			s.text = append(s.text, c)
			continue
		}
		s.nextLine++
		if c == '\r' {
			if ok, err := s.more(); err != nil {
				return err
			} else if ok && s.buf[s.at] == '\n' {
				s.at++
			}
		}
		break
	}
	s.pos = s.at
	s.rec = s.text
	s.fields = len(s.off)
	s.off = append(s.off, int32(len(s.text)+1))
	return nil
}

// more says whether there is a byte at s.at, reading on when needed.
func (s *scanner) more() (bool, error) {
	for s.at >= s.end && !s.eof {
		if err := s.fill(); err != nil {
			return false, err
		}
	}
	return s.at < s.end, nil
}

// quoted appends the rest of a quoted field up to its closing quote.
func (s *scanner) quoted() error {
	line, column := s.nextLine, len(s.off)
	for {
		ok, err := s.more()
		if _, long := err.(*Error); long || err == nil && !ok {
			return &Error{Line: line, Column: column, Msg: "the quote that opens this field never closes"}
		} else if err != nil {
			return err
		}
		part := s.buf[s.at:s.end]
		i := bytes.IndexByte(part, '"')
		if i >= 0 {
			part = part[:i]
		}
		s.nextLine += bytes.Count(part, []byte{'\n'})
		s.text = append(s.text, part...)
		if s.at += len(part); i < 0 {
			continue
		}
		s.at++
		// The file may end right behind the closing quote: that is no fault of this field.
		if ok, err := s.more(); err != nil || !ok || s.buf[s.at] != '"' {
			return err
		}
		s.text = append(s.text, '"')
		s.at++
	}
}
