package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ValueType is the type id of a metadata value or of an array's elements, as it stands in files.
type ValueType uint32

// The value types of GGUF.
const (
	Uint8 ValueType = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var valueTypes = [...]struct {
	name string
	size uint64 // bytes of one value, 0 where it varies
}{
	Uint8: {"u8", 1}, Int8: {"i8", 1}, Uint16: {"u16", 2}, Int16: {"i16", 2}, Uint32: {"u32", 4}, Int32: {"i32", 4},
	Float32: {"f32", 4}, Bool: {"bool", 1}, String: {"str", 0}, Array: {"arr", 0}, Uint64: {"u64", 8}, Int64: {"i64", 8},
	Float64: {"f64", 8},
}

// String returns ggml's short name, such as "u32" or "str", and "type(77)" for an id that GGUF does not have.
func (t ValueType) String() string {
	if int(t) < len(valueTypes) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

func (t ValueType) size() uint64 {
	if int(t) < len(valueTypes) {
		return valueTypes[t].size
	}
	return 0
}

const (
	// maxArrayDepth bounds arrays of arrays. GGUF allows them without limit, no known model has any.
	maxArrayDepth = 4
	minStringLen  = 8     // a length
	minArrayLen   = 4 + 8 // element type and count
)

// Value is one metadata value: a view into its file, valid until the File is closed. The zero Value is a u8 without bytes and
// is never returned for a key that exists.
type Value struct {
	Type ValueType
	Elem ValueType // element type where Type is Array
	n    int       // elements of an array, 1 otherwise
	pos  int64     // of the value type in the file
	raw  []byte    // the value's bytes: of a string without its length, of an array without element type and count
}

// Len returns the number of elements of an array and 1 for any other value.
func (v Value) Len() int { return v.n }

// kind names the type for error messages.
func (v Value) kind() string {
	if v.Type == Array {
		return fmt.Sprintf("arr[%s,%d]", v.Elem, v.n)
	}
	return v.Type.String()
}

// value reads a value type and a value.
func (c *cursor) value() Value {
	v := Value{n: 1, pos: int64(c.off)}
	v.Type = ValueType(c.u32("value type"))
	switch {
	case c.err != nil:
	case v.Type == String:
		v.raw = c.str("string")
	case v.Type == Array:
		v.Elem = ValueType(c.u32("array element type"))
		n := c.u64("array count")
		start := c.off
		c.skipElems(v.Elem, n, 1)
		if c.err == nil {
			v.n, v.raw = int(n), c.b[start:c.off:c.off]
		}
	case v.Type.size() == 0:
		c.fail(int(v.pos), "unknown value type %d", uint32(v.Type))
	default:
		v.raw = c.take(v.Type.size(), "value")
		if c.err == nil && v.Type == Bool && v.raw[0] > 1 {
			c.fail(c.off-1, "bool is %d, want 0 or 1", v.raw[0])
		}
	}
	return v
}

// skipElems checks and passes n array elements without keeping anything of them.
func (c *cursor) skipElems(elem ValueType, n uint64, depth int) {
	if c.err != nil {
		return
	}
	min := elem.size()
	switch elem {
	case String:
		min = minStringLen
	case Array:
		min = minArrayLen
	}
	if min == 0 {
		c.fail(c.off, "unknown array element type %d", uint32(elem))
		return
	}
	if n > c.left()/min {
		c.fail(c.off, "array of %d %s needs at least %d bytes each, %d left in the file", n, elem, min, c.left())
		return
	}
	switch elem {
	case String:
		for i := uint64(0); i < n && c.err == nil; i++ {
			c.str("array string")
		}
	case Array:
		if depth == maxArrayDepth {
			c.fail(c.off, "arrays nested more than %d deep", maxArrayDepth)
		}
		for i := uint64(0); i < n && c.err == nil; i++ {
			e := ValueType(c.u32("array element type"))
			c.skipElems(e, c.u64("array count"), depth+1)
		}
	default:
		c.take(n*min, "array")
	}
}

// integer returns the value of little-endian integer bytes: the magnitude's bits in u and whether it is negative. ok is false
// for types that are not integers.
func integer(t ValueType, b []byte) (u uint64, neg, ok bool) {
	var i int64
	switch t {
	case Uint8:
		return uint64(b[0]), false, true
	case Uint16:
		return uint64(binary.LittleEndian.Uint16(b)), false, true
	case Uint32:
		return uint64(binary.LittleEndian.Uint32(b)), false, true
	case Uint64:
		return binary.LittleEndian.Uint64(b), false, true
	case Int8:
		i = int64(int8(b[0]))
	case Int16:
		i = int64(int16(binary.LittleEndian.Uint16(b)))
	case Int32:
		i = int64(int32(binary.LittleEndian.Uint32(b)))
	case Int64:
		i = int64(binary.LittleEndian.Uint64(b))
	default:
		return 0, false, false
	}
	return uint64(i), i < 0, true
}

// float returns the value of little-endian float bytes; ok is false for types that are not floats.
func float(t ValueType, b []byte) (x float64, ok bool) {
	switch t {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	}
	return 0, false
}

// nextString cuts one length-prefixed string off b. The lengths were checked when the file was parsed; they are checked again
// because the mapping follows a file that someone may write to.
func nextString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 8 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(len(b)-8) {
		return nil, nil, false
	}
	return b[8 : 8+n], b[8+n:], true
}

// shownElems is how many elements of an array String prints.
const shownElems = 8

// String formats the value for people: scalars as they are, strings quoted, of an array the type, the count and the first
// elements.
func (v Value) String() string {
	if v.Type != Array {
		return scalarText(v.Type, v.raw)
	}
	var sb strings.Builder
	sb.WriteString(v.kind())
	sb.WriteByte('{')
	rest := v.raw
	for i := 0; i < v.n && v.Elem != Array; i++ {
		if i > 0 {
			sb.WriteString(", ")
		}
		if i == shownElems {
			break
		}
		var e []byte
		if size := int(v.Elem.size()); size > 0 {
			e, rest = rest[:size], rest[size:]
		} else if s, r, ok := nextString(rest); ok {
			e, rest = s, r
		}
		sb.WriteString(scalarText(v.Elem, e))
	}
	if v.n > shownElems || v.Elem == Array && v.n > 0 {
		sb.WriteString("...")
	}
	sb.WriteByte('}')
	return sb.String()
}

func scalarText(t ValueType, b []byte) string {
	if t == String {
		return strconv.Quote(string(b))
	}
	if uint64(len(b)) != t.size() {
		return "?"
	}
	if u, neg, ok := integer(t, b); ok {
		if neg {
			return strconv.FormatInt(int64(u), 10)
		}
		return strconv.FormatUint(u, 10)
	}
	switch t {
	case Bool:
		return strconv.FormatBool(b[0] != 0)
	case Float32:
		x, _ := float(t, b)
		return strconv.FormatFloat(x, 'g', -1, 32)
	}
	x, _ := float(t, b)
	return strconv.FormatFloat(x, 'g', -1, 64)
}
