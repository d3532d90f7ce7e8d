package gguf

import (
	"encoding/binary"
	"fmt"
)

// cursor walks the bytes of one file. The first error sticks and every later read returns zero, so that the parser needs one
// check per record. Lengths are compared as uint64 with the bytes left before they become an int.
type cursor struct {
	file string
	b    []byte
	off  int
	err  error

	// The record being read, for error messages: kind "key" or "tensor", its index and, once known, its name.
	kind string
	idx  int
	name string
}

func (c *cursor) begin(kind string, idx int) { c.kind, c.idx, c.name = kind, idx, "" }

func (c *cursor) left() uint64 { return uint64(len(c.b) - c.off) }

// fail records an error at byte position pos, unless there is one already.
func (c *cursor) fail(pos int, format string, args ...any) {
	if c.err != nil {
		return
	}
	msg := fmt.Sprintf(format, args...)
	switch {
	case c.name != "":
		msg = fmt.Sprintf("%s %d %.100q: %s", c.kind, c.idx, c.name, msg)
	case c.kind != "":
		msg = fmt.Sprintf("%s %d: %s", c.kind, c.idx, msg)
	}
	c.err = formatErr(c.file, int64(pos), "%s", msg)
}

// take returns the next n bytes as a view, or nil after a failure.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.left() {
		c.fail(c.off, "%s needs %d bytes, %d left in the file", what, n, c.left())
		return nil
	}
	s := c.b[c.off : c.off+int(n) : c.off+int(n)]
	c.off += int(n)
	return s
}

func (c *cursor) u32(what string) uint32 {
	if s := c.take(4, what); s != nil {
		return binary.LittleEndian.Uint32(s)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if s := c.take(8, what); s != nil {
		return binary.LittleEndian.Uint64(s)
	}
	return 0
}

// str returns the bytes of a length-prefixed string as a view.
func (c *cursor) str(what string) []byte { return c.take(c.u64(what), what) }

// recordName reads the name of the record begun, a copy, and uses it in later messages.
func (c *cursor) recordName() string {
	pos := c.off
	s := c.str("name")
	if c.err == nil && (len(s) == 0 || len(s) > maxName) {
		c.fail(pos, "name of %d bytes, want 1 to %d", len(s), maxName)
	}
	if c.err != nil {
		return ""
	}
	c.name = string(s)
	return c.name
}

// count reads a record count and checks that so many records of at least min bytes can still follow. after says how many of
// the bytes left come before the first record.
func (c *cursor) count(what string, min, after uint64) uint64 {
	pos := c.off
	n := c.u64(what)
	room := uint64(0)
	if c.left() > after {
		room = c.left() - after
	}
	if c.err == nil && n > room/min {
		c.fail(pos, "%s %d needs at least %d bytes each, %d left in the file", what, n, min, room)
		return 0
	}
	return n
}
