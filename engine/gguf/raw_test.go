package gguf

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"sluice/kernels"
)

// raw builds files byte by byte, so that the tests of the reader neither trust the Writer nor are limited to what it accepts.
type raw struct {
	version  uint32
	nTensors *uint64 // nil: as many as there are
	nKeys    *uint64
	keys     [][]byte
	infos    [][]byte
	align    int
	data     []byte
}

var le = binary.LittleEndian

func newRaw() *raw { return &raw{version: 3, align: 32} }

func str(s string) []byte { return append(le.AppendUint64(nil, uint64(len(s))), s...) }

// key adds a key with a value type and the value's bytes.
func (r *raw) key(name string, t ValueType, val []byte) *raw {
	r.keys = append(r.keys, append(le.AppendUint32(str(name), uint32(t)), val...))
	return r
}

func (r *raw) u32(name string, v uint32) *raw { return r.key(name, Uint32, le.AppendUint32(nil, v)) }

func (r *raw) u16(name string, v uint16) *raw { return r.key(name, Uint16, le.AppendUint16(nil, v)) }

// arr adds an array that claims n elements and has the given bytes.
func (r *raw) arr(name string, elem ValueType, n uint64, elems []byte) *raw {
	return r.key(name, Array, append(le.AppendUint64(le.AppendUint32(nil, uint32(elem)), n), elems...))
}

// info adds a tensor info without data.
func (r *raw) info(name string, t uint32, off uint64, dims ...uint64) *raw {
	b := le.AppendUint32(str(name), uint32(len(dims)))
	for _, d := range dims {
		b = le.AppendUint64(b, d)
	}
	r.infos = append(r.infos, le.AppendUint64(le.AppendUint32(b, t), off))
	return r
}

// f32 adds a tensor of n floats with data, after the ones before.
func (r *raw) f32(name string, n int) *raw {
	r.info(name, uint32(kernels.F32), uint64(len(r.data)), uint64(n))
	for i := range n {
		r.data = le.AppendUint32(r.data, uint32(0x3f800000+i))
	}
	for len(r.data)%r.align != 0 {
		r.data = append(r.data, 0)
	}
	return r
}

// header returns everything before the padding of the data.
func (r *raw) header() []byte {
	nT, nK := uint64(len(r.infos)), uint64(len(r.keys))
	if r.nTensors != nil {
		nT = *r.nTensors
	}
	if r.nKeys != nil {
		nK = *r.nKeys
	}
	b := le.AppendUint32([]byte("GGUF"), r.version)
	b = le.AppendUint64(le.AppendUint64(b, nT), nK)
	for _, part := range append(append([][]byte{}, r.keys...), r.infos...) {
		b = append(b, part...)
	}
	return b
}

func (r *raw) bytes() []byte {
	b := r.header()
	for len(b)%r.align != 0 {
		b = append(b, 0)
	}
	return append(b, r.data...)
}

// small returns a file with a value of every kind and three tensors.
func small() *raw {
	r := newRaw()
	r.key("general.architecture", String, str("llama"))
	r.u32("llama.block_count", 2)
	r.key("a.i8", Int8, []byte{0xff})
	r.key("a.f32", Float32, le.AppendUint32(nil, 0x3f000000))
	r.key("a.bool", Bool, []byte{1})
	r.key("a.i64", Int64, le.AppendUint64(nil, 1<<40))
	r.arr("tokenizer.ggml.tokens", String, 3, append(append(str("a"), str("")...), str("bc")...))
	r.arr("tokenizer.ggml.scores", Float32, 2, make([]byte, 8))
	r.arr("a.nested", Array, 1, append(le.AppendUint32(nil, uint32(Int16)), append(le.AppendUint64(nil, 2), 1, 0, 2, 0)...))
	return r.f32("token_embd.weight", 8).f32("blk.0.attn_norm.weight", 3).f32("output.weight", 16)
}

func writeTemp(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
