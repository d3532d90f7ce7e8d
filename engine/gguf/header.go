package gguf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	keyAlignment     = "general.alignment"
	minKey           = 8 + 1 + 4 + 1 // a name of one byte, a type, a value of one byte
	maxName          = 1<<16 - 1     // bytes of a key, as the format states, or of a tensor name
)

type keyValue struct {
	key string
	val Value
}

// header is one file read up to its tensor infos.
type header struct {
	cur      cursor // stands before the tensor infos
	version  uint32
	nTensors uint64
	align    uint64
	kvs      []keyValue     // file order
	index    map[string]int // key -> position in kvs
}

// readHeader reads everything before the tensor infos of a file whose bytes are data.
func readHeader(file string, data []byte) (*header, error) {
	h := &header{cur: cursor{file: file, b: data}, index: map[string]int{}}
	c := &h.cur
	if err := checkHost(file, binary.NativeEndian.Uint16([]byte{1, 0}) == 1); err != nil {
		return nil, err
	}
	if m := c.take(4, "magic"); m != nil && string(m) != magic {
		c.fail(0, "magic %q, want %q: not a GGUF file", m, magic)
	}
	if h.version = c.u32("version"); c.err == nil {
		if msg := refuseVersion(h.version); msg != "" {
			c.fail(4, "%s", msg)
		}
	}
	// Both counts are bounded by the bytes left before anything is built from them; after the tensor count still comes the
	// key count.
	h.nTensors = c.count("tensor count", minTensorInfo, 8)
	nKeys := c.count("key count", minKey, 0)
	for i := 0; c.err == nil && uint64(i) < nKeys; i++ {
		h.readKey(i)
	}
	if c.err != nil {
		return nil, c.err
	}
	return h, h.readAlignment()
}

// checkHost refuses to work on a big-endian machine: tensor data is handed out in file layout and would be read wrongly.
func checkHost(file string, littleEndian bool) error {
	if !littleEndian {
		return fmt.Errorf("gguf: %s: little-endian file on a big-endian host is not supported", file)
	}
	return nil
}

// refuseVersion returns why a version is not read, "" for the two that are.
func refuseVersion(v uint32) string {
	switch {
	case v == 2 || v == 3:
		return ""
	case v == 1:
		return "GGUF version 1 is not supported, want 2 or 3: convert the file again with a current tool"
	case v&0xffff == 0 && v != 0:
		// A version is a small number, so zeros in its low half mean that its bytes stand the other way round.
		return fmt.Sprintf("big-endian file (version bytes %#08x, swapped %d) is not supported, want little-endian", v, bits.ReverseBytes32(v))
	}
	return fmt.Sprintf("GGUF version %d is not supported, want 2 or 3", v)
}

func (h *header) readKey(i int) {
	c := &h.cur
	c.begin("key", i)
	pos := c.off
	key := c.recordName()
	if c.err != nil {
		return
	}
	if j, ok := h.index[key]; ok {
		c.fail(pos, "duplicate, also key %d", j)
	}
	v := c.value()
	if c.err != nil {
		return
	}
	h.index[key] = i
	h.kvs = append(h.kvs, keyValue{key, v})
}

// readAlignment wants exactly u32, which is what the format states and what llama.cpp takes.
func (h *header) readAlignment() error {
	h.align = defaultAlignment
	i, ok := h.index[keyAlignment]
	if !ok {
		return nil
	}
	v := h.kvs[i].val
	if v.Type != Uint32 {
		return formatErr(h.cur.file, v.pos, "key %q: type %s, want u32", keyAlignment, v.kind())
	}
	h.align, _, _ = integer(v.Type, v.raw)
	if bits.OnesCount64(h.align) != 1 {
		return formatErr(h.cur.file, v.pos, "key %q: %d is not a power of two", keyAlignment, h.align)
	}
	return nil
}
