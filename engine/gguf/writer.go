package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"sluice/internal/whole"
	"sluice/kernels"
)

// Writer collects metadata and tensor descriptions and then writes a GGUF file. Only the metadata is held in memory; tensor
// data comes from callbacks while the file is being written. The first error of an Add method sticks and is returned by the
// writing methods. A Writer is not safe for concurrent use.
//
// A shard of a set is written like any other file, with the split keys added by the caller.
type Writer struct {
	version uint32
	align   uint64
	kvs     []encodedKey
	keys    map[string]bool
	tensors []pendingTensor
	names   map[string]bool
	err     error
}

type encodedKey struct {
	key string
	enc []byte // value type and value
}

type pendingTensor struct {
	name   string
	typ    kernels.Type
	dims   []uint64
	offset uint64 // from the start of the data
	size   uint64
	write  func(io.Writer) error
}

// NewWriter returns a Writer for format version 2 or 3. Any other version is an error when writing.
func NewWriter(version uint32) *Writer {
	w := &Writer{version: version, align: defaultAlignment, keys: map[string]bool{}, names: map[string]bool{}}
	if version != 2 && version != 3 {
		w.fail("version %d, want 2 or 3", version)
	}
	return w
}

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("gguf: write: "+format, args...)
	}
}

// Add appends a key. The Go type of v is the type in the file: uint8, int8, uint16, int16, uint32, int32, uint64, int64,
// float32, float64, bool, string, or a slice of one of them. The slice is copied. An empty or repeated key and any other type
// (int among them: its width in the file would be a guess) are errors. The key general.alignment takes effect and must come
// before the first tensor.
func (w *Writer) Add(key string, v any) {
	t, elem, n := goType(v)
	if t > Float64 {
		w.fail("key %q: Go type %T has no GGUF type", key, v)
		return
	}
	enc := binary.LittleEndian.AppendUint32(nil, uint32(t))
	if t == Array {
		enc = binary.LittleEndian.AppendUint32(enc, uint32(elem))
		enc = binary.LittleEndian.AppendUint64(enc, uint64(n))
	}
	switch v := v.(type) {
	case string:
		enc = appendString(enc, v)
	case []string:
		for _, s := range v {
			enc = appendString(enc, s)
		}
	default:
		var err error
		if enc, err = binary.Append(enc, binary.LittleEndian, v); err != nil {
			w.fail("key %q: %w", key, err)
			return
		}
	}
	if a, ok := v.(uint32); ok && key == keyAlignment {
		w.align = uint64(a)
	}
	w.add(key, enc)
}

// AddValue appends a key with a value read from a File, of whatever type, byte for byte. The bytes are copied.
func (w *Writer) AddValue(key string, v Value) {
	if v.Type == Uint32 && key == keyAlignment {
		w.align, _, _ = integer(v.Type, v.raw)
	}
	enc := binary.LittleEndian.AppendUint32(nil, uint32(v.Type))
	switch v.Type {
	case Array:
		enc = binary.LittleEndian.AppendUint32(enc, uint32(v.Elem))
		enc = binary.LittleEndian.AppendUint64(enc, uint64(v.n))
	case String:
		enc = binary.LittleEndian.AppendUint64(enc, uint64(len(v.raw)))
	}
	w.add(key, append(enc, v.raw...))
}

func (w *Writer) add(key string, enc []byte) {
	switch {
	case key == "" || len(key) > maxName:
		w.fail("key of %d bytes, want 1 to %d", len(key), maxName)
	case w.keys[key]:
		w.fail("duplicate key %q", key)
	case key == keyAlignment && (enc[0] != byte(Uint32) || w.align == 0 || w.align&(w.align-1) != 0):
		w.fail("key %q: want a uint32 that is a power of two", key)
	case key == keyAlignment && len(w.tensors) > 0:
		w.fail("key %q after the first tensor", key)
	}
	w.keys[key] = true
	w.kvs = append(w.kvs, encodedKey{key, enc})
}

// goType maps the Go types that Add takes; t is above Float64 for any other.
func goType(v any) (t, elem ValueType, n int) {
	switch v := v.(type) {
	case uint8:
		return Uint8, 0, 1
	case int8:
		return Int8, 0, 1
	case uint16:
		return Uint16, 0, 1
	case int16:
		return Int16, 0, 1
	case uint32:
		return Uint32, 0, 1
	case int32:
		return Int32, 0, 1
	case float32:
		return Float32, 0, 1
	case bool:
		return Bool, 0, 1
	case string:
		return String, 0, 1
	case uint64:
		return Uint64, 0, 1
	case int64:
		return Int64, 0, 1
	case float64:
		return Float64, 0, 1
	case []uint8:
		return Array, Uint8, len(v)
	case []int8:
		return Array, Int8, len(v)
	case []uint16:
		return Array, Uint16, len(v)
	case []int16:
		return Array, Int16, len(v)
	case []uint32:
		return Array, Uint32, len(v)
	case []int32:
		return Array, Int32, len(v)
	case []float32:
		return Array, Float32, len(v)
	case []bool:
		return Array, Bool, len(v)
	case []string:
		return Array, String, len(v)
	case []uint64:
		return Array, Uint64, len(v)
	case []int64:
		return Array, Int64, len(v)
	case []float64:
		return Array, Float64, len(v)
	}
	return Float64 + 1, 0, 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// AddTensor appends a tensor of the given type and dimensions (ggml order, dims[0] the row length; copied). write is called
// while the file is written and must write exactly the tensor's bytes in file layout.
func (w *Writer) AddTensor(name string, t kernels.Type, dims []uint64, write func(io.Writer) error) {
	size, err := tensorSize(t, dims)
	var offset uint64
	fits := true
	if n := len(w.tensors); n > 0 {
		last := w.tensors[n-1]
		offset, fits = alignUp(last.offset+last.size, w.align)
	}
	switch {
	case name == "" || len(name) > maxName:
		w.fail("tensor name of %d bytes, want 1 to %d", len(name), maxName)
	case w.names[name]:
		w.fail("duplicate tensor %q", name)
	case err != nil:
		w.fail("tensor %q: %w", name, err)
	case !fits || offset+size > 1<<63-1:
		w.fail("tensor %q: end of data past 2^63-1", name)
	default:
		w.names[name] = true
		w.tensors = append(w.tensors, pendingTensor{name, t, append([]uint64(nil), dims...), offset, size, write})
	}
}

// AddTensorBytes is AddTensor with the data in memory. data is kept until the file is written.
func (w *Writer) AddTensorBytes(name string, t kernels.Type, dims []uint64, data []byte) {
	w.AddTensor(name, t, dims, func(out io.Writer) error {
		_, err := out.Write(data)
		return err
	})
}

// header encodes everything before the tensor data, padding included.
func (w *Writer) header() []byte {
	le := binary.LittleEndian
	b := append([]byte(magic), 0, 0, 0, 0)
	le.PutUint32(b[4:], w.version)
	b = le.AppendUint64(b, uint64(len(w.tensors)))
	b = le.AppendUint64(b, uint64(len(w.kvs)))
	for _, kv := range w.kvs {
		b = append(appendString(b, kv.key), kv.enc...)
	}
	for _, t := range w.tensors {
		b = appendString(b, t.name)
		b = le.AppendUint32(b, uint32(len(t.dims)))
		for _, d := range t.dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint32(b, uint32(t.typ))
		b = le.AppendUint64(b, t.offset)
	}
	if len(w.tensors) > 0 {
		up, _ := alignUp(uint64(len(b)), w.align)
		b = append(b, make([]byte, up-uint64(len(b)))...)
	}
	return b
}

// exactWriter passes on at most the bytes that a tensor has.
type exactWriter struct {
	out  io.Writer
	left uint64
	n    int64
}

var errTooLong = errors.New("more bytes than the tensor has")

func (e *exactWriter) Write(p []byte) (int, error) {
	if uint64(len(p)) > e.left {
		return 0, errTooLong
	}
	n, err := e.out.Write(p)
	e.left -= uint64(n)
	e.n += int64(n)
	return n, err
}

// WriteTo writes the file to out, in many small writes if the callbacks do, and returns the bytes written. It implements
// io.WriterTo.
func (w *Writer) WriteTo(out io.Writer) (int64, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := out.Write(w.header())
	total := int64(n)
	if err != nil {
		return total, fmt.Errorf("gguf: write header: %w", err)
	}
	var pad []byte
	for _, t := range w.tensors {
		e := &exactWriter{out: out, left: t.size}
		err := t.write(e)
		total += e.n
		if err == nil && e.left > 0 {
			err = fmt.Errorf("%d bytes written", e.n)
		}
		if err != nil {
			return total, fmt.Errorf("gguf: write tensor %q of %d bytes: %w", t.name, t.size, err)
		}
		if up, _ := alignUp(t.size, w.align); up > t.size {
			if pad == nil {
				pad = make([]byte, w.align)
			}
			n, err := out.Write(pad[:up-t.size])
			total += int64(n)
			if err != nil {
				return total, fmt.Errorf("gguf: write padding of tensor %q: %w", t.name, err)
			}
		}
	}
	return total, nil
}

// WriteFile writes the file so that path never holds half a model (whole.WriteFile). On failure what was there before stays.
func (w *Writer) WriteFile(path string) error {
	if w.err != nil {
		return w.err
	}
	var failed error
	err := whole.WriteFile(path, func(f io.Writer) error {
		buf := bufio.NewWriterSize(f, 1<<20)
		if _, failed = w.WriteTo(buf); failed != nil {
			return failed
		}
		return buf.Flush()
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	return nil
}
