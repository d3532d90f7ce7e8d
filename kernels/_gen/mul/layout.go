package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The layout of a decoded tile of 32 weight rows, as mul_amd64.go declares it. Every array has the 16 values of rows 0-15
// and then those of rows 16-31, 64 bytes each: a step is 128 bytes.
const (
	step    = 128
	half    = 64
	tileW   = 0                // [64] codes of columns 4i..4i+3, four bytes a row
	tileSc  = tileW + 64*step  // [16] int32 scales of super-blocks, or [8] float32 d and [8] float32 m of small blocks
	tileMin = tileSc + 16*step // [8] pairs of int16 minima
	tileD   = tileMin + 8*step // float32 d of the super-block
	tileM   = tileD + step     // float32 dmin of the super-block
)

// The layout of one activation row's entry in the list that a tile is multiplied by.
const (
	tokQ    = 0
	tokD    = 8
	tokSums = 16
	tokDst  = 24
	tokMul  = 32
	tokSize = 40
)

const (
	fewRows = 16 // weight rows that few512 takes at a time
	fewMost = 16 // activation rows of one call of it, at most
)

// table places constant bytes in read-only memory, once a name and file.
func table(name string, b []byte) Mem {
	if m, ok := tables[name]; ok {
		return m
	}
	m := GLOBL(name, 16|8) // RODATA|NOPTR
	for i := 0; i < len(b); i += 8 {
		DATA(i, U64(binary.LittleEndian.Uint64(b[i:])))
	}
	tables[name] = m
	return m
}

var tables = map[string]Mem{}

// table32 is a constant of four bytes.
func table32(v uint32) Mem {
	name := fmt.Sprintf("c%08x", v)
	if m, ok := tables[name]; ok {
		return m
	}
	m := GLOBL(name, 16|8)
	DATA(0, U32(v))
	tables[name] = m
	return m
}

// cycle repeats b up to n bytes.
func cycle(n int, b ...byte) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = b[i%len(b)]
	}
	return out
}

// words and dwords spell out little-endian constants.
func words(w ...uint16) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}

func dwords(w ...uint32) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// each makes n registers.
func each(n int, f func() reg.VecVirtual) []reg.VecVirtual {
	r := make([]reg.VecVirtual, n)
	for i := range r {
		r[i] = f()
	}
	return r
}

// at is the memory at base+disp.
func at(base reg.Register, disp int) Mem { return Mem{Base: base, Disp: disp} }
