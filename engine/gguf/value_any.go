package gguf

import (
	"encoding/binary"
	"math"
	"strings"
)

// Any returns the value as Go has it: uint64 or int64 for integers, float64, bool, string (bytes
// that are no UTF-8 replaced), and []any for arrays. It allocates in proportion to the value.
func (v Value) Any() any {
	switch v.Type {
	case Array:
		out := make([]any, 0, v.n)
		raw := v.raw
		for range v.n {
			e, rest := element(v.Elem, raw)
			if rest == nil {
				break // arrays of arrays: Len and Elem tell their shape
			}
			out = append(out, e)
			raw = rest
		}
		return out
	case String:
		return strings.ToValidUTF8(string(v.raw), "\uFFFD")
	}
	e, _ := element(v.Type, v.raw)
	return e
}

// element decodes the first value of raw, whose length was checked at parsing, and returns what
// follows it; nil for types without a fixed way to decode here.
func element(t ValueType, raw []byte) (v any, rest []byte) {
	le := binary.LittleEndian
	switch t {
	case String:
		n := le.Uint64(raw)
		return strings.ToValidUTF8(string(raw[8:8+n]), "\uFFFD"), raw[8+n:]
	case Array:
		return nil, nil
	}
	switch t {
	case Uint8:
		v = uint64(raw[0])
	case Int8:
		v = int64(int8(raw[0]))
	case Bool:
		v = raw[0] != 0
	case Uint16:
		v = uint64(le.Uint16(raw))
	case Int16:
		v = int64(int16(le.Uint16(raw)))
	case Uint32:
		v = uint64(le.Uint32(raw))
	case Int32:
		v = int64(int32(le.Uint32(raw)))
	case Float32:
		v = float64(math.Float32frombits(le.Uint32(raw)))
	case Uint64:
		v = le.Uint64(raw)
	case Int64:
		v = int64(le.Uint64(raw))
	case Float64:
		v = math.Float64frombits(le.Uint64(raw))
	}
	return v, raw[t.size():]
}
