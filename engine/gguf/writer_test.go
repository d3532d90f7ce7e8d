package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sluice/kernels"
)

// randomFile makes a Writer from a seed and returns what a reader must find.
func randomFile(seed uint64) (w *Writer, keys map[string]any, order []string, data map[string][]byte) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w = NewWriter(2 + uint32(seed%2))
	keys, data = map[string]any{}, map[string][]byte{}
	if seed%3 == 0 {
		w.Add(keyAlignment, uint32(1)<<rng.IntN(9))
		order = append(order, keyAlignment)
	}
	text := func() string {
		b := make([]byte, rng.IntN(12))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return string(b)
	}
	for i := range rng.IntN(12) {
		k := fmt.Sprintf("k%d.%s", i, text())
		n := rng.IntN(5)
		var v any
		switch rng.IntN(9) {
		case 0:
			v = rng.Uint32()
		case 1:
			v = rng.NormFloat64()
		case 2:
			v = float32(rng.NormFloat64())
		case 3:
			v = rng.IntN(2) == 0
		case 4:
			v = text()
		case 5:
			s := make([]string, n)
			for j := range s {
				s[j] = text()
			}
			v = s
		case 6:
			s := make([]int16, n)
			for j := range s {
				s[j] = int16(rng.Uint32())
			}
			v = s
		case 7:
			s := make([]float32, n)
			for j := range s {
				s[j] = float32(rng.NormFloat64())
			}
			v = s
		case 8:
			s := make([]bool, n)
			for j := range s {
				s[j] = rng.IntN(2) == 0
			}
			v = s
		}
		w.Add(k, v)
		keys[k] = v
		order = append(order, k)
	}
	types := []kernels.Type{kernels.F32, kernels.F16, kernels.Q8_0, kernels.Q4_K, kernels.IQ1_M, kernels.I8}
	for i := range rng.IntN(8) {
		name := fmt.Sprintf("blk.%d.%s", i, text())
		typ := types[rng.IntN(len(types))]
		dims := []uint64{uint64(typ.BlockLen() * (1 + rng.IntN(3)))}
		for range rng.IntN(maxDims) {
			dims = append(dims, 1+uint64(rng.IntN(3)))
		}
		size, err := tensorSize(typ, dims)
		if err != nil {
			panic(err)
		}
		b := make([]byte, size)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		data[name] = b
		w.AddTensor(name, typ, dims, func(out io.Writer) error {
			half := len(b) / 2
			if _, err := out.Write(b[:half]); err != nil {
				return err
			}
			_, err := out.Write(b[half:])
			return err
		})
	}
	return w, keys, order, data
}

// get reads a key with the getter for the Go type of want.
func get(f *File, key string, want any) (any, error) {
	switch want.(type) {
	case uint32:
		u, err := f.Uint(key, 0)
		return uint32(u), err
	case float64:
		return f.Float(key, 0)
	case float32:
		x, err := f.Float(key, 0)
		return float32(x), err
	case bool:
		return f.Bool(key, false)
	case string:
		return f.String(key, "")
	case []string:
		return f.Strings(key)
	case []int16:
		s, err := f.Ints(key)
		out := make([]int16, len(s))
		for i, v := range s {
			out[i] = int16(v)
		}
		return out, err
	case []float32:
		return f.Floats(key)
	}
	return f.Bools(key)
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		w, keys, order, data := randomFile(seed)
		var buf bytes.Buffer
		n, err := w.WriteTo(&buf)
		if err != nil || n != int64(buf.Len()) {
			t.Fatalf("seed %d: %d bytes reported, %d written, %v", seed, n, buf.Len(), err)
		}
		f, err := Parse("f", buf.Bytes())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !reflect.DeepEqual(append([]string{}, order...), f.Keys()) {
			t.Errorf("seed %d: keys %q, want %q", seed, f.Keys(), order)
		}
		for k, want := range keys {
			if got, err := get(f, k, want); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("seed %d: key %q: got %v, %v, want %v", seed, k, got, err, want)
			}
		}
		if len(f.Tensors()) != len(data) || f.Version() != 2+uint32(seed%2) || f.Alignment() != w.align {
			t.Errorf("seed %d: %d tensors, version %d, alignment %d", seed, len(f.Tensors()), f.Version(), f.Alignment())
		}
		for _, ts := range f.Tensors() {
			if !bytes.Equal(ts.Data(), data[ts.Name]) || ts.Offset%int64(f.Alignment()) != 0 {
				t.Errorf("seed %d: tensor %q differs", seed, ts.Name)
			}
		}
		if again := rewrite(t, f); !bytes.Equal(again, buf.Bytes()) {
			t.Errorf("seed %d: a copy through AddValue differs", seed)
		}
	}
}

// rewrite copies a file through a Writer.
func rewrite(t testing.TB, f *File) []byte {
	t.Helper()
	w := NewWriter(f.Version())
	for _, k := range f.Keys() {
		v, _ := f.Value(k)
		w.AddValue(k, v)
	}
	for _, ts := range f.Tensors() {
		w.AddTensorBytes(ts.Name, ts.Type, ts.Dims, ts.Data())
	}
	var buf bytes.Buffer
	if _, err := w.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestWriterBytes compares with a file built by hand.
func TestWriterBytes(t *testing.T) {
	r := newRaw().key("general.architecture", String, str("llama")).u32("llama.block_count", 2)
	r.arr("toks", String, 2, append(str("a"), str("bc")...)).f32("x", 3).f32("y", 8)
	w := NewWriter(3)
	w.Add("general.architecture", "llama")
	w.Add("llama.block_count", uint32(2))
	w.Add("toks", []string{"a", "bc"})
	w.AddTensorBytes("x", kernels.F32, []uint64{3}, r.data[:12])
	w.AddTensorBytes("y", kernels.F32, []uint64{8}, r.data[32:64])
	var buf bytes.Buffer
	if _, err := w.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf.Bytes(), r.bytes()) {
		t.Errorf("got\n%x\nwant\n%x", buf.Bytes(), r.bytes())
	}
}

func TestWriterErrors(t *testing.T) {
	f32 := kernels.F32
	boom := errors.New("boom")
	cases := []struct {
		name string
		do   func(w *Writer)
		want string
	}{
		{"int", func(w *Writer) { w.Add("k", 1) }, `gguf: write: key "k": Go type int has no GGUF type`},
		{"empty key", func(w *Writer) { w.Add("", true) }, `gguf: write: key of 0 bytes, want 1 to 65535`},
		{"duplicate key", func(w *Writer) { w.Add("k", true); w.Add("k", true) }, `gguf: write: duplicate key "k"`},
		{"alignment", func(w *Writer) { w.Add(keyAlignment, uint32(3)) }, `gguf: write: key "general.alignment": want a uint32 that is a power of two`},
		{"alignment type", func(w *Writer) { w.Add(keyAlignment, int32(32)) }, `gguf: write: key "general.alignment": want a uint32 that is a power of two`},
		{"alignment late", func(w *Writer) {
			w.AddTensorBytes("x", f32, []uint64{1}, make([]byte, 4))
			w.Add(keyAlignment, uint32(64))
		},
			`gguf: write: key "general.alignment" after the first tensor`},
		{"duplicate tensor", func(w *Writer) { w.AddTensor("x", f32, []uint64{1}, nil); w.AddTensor("x", f32, []uint64{1}, nil) },
			`gguf: write: duplicate tensor "x"`},
		{"tensor name", func(w *Writer) { w.AddTensor("", f32, []uint64{1}, nil) }, `gguf: write: tensor name of 0 bytes, want 1 to 65535`},
		{"tensor row", func(w *Writer) { w.AddTensor("x", kernels.Q8_0, []uint64{33}, nil) },
			`gguf: write: tensor "x": row length 33 is not a multiple of the 32 of a Q8_0 block`},
		{"total", func(w *Writer) {
			w.AddTensor("x", f32, []uint64{1 << 60}, nil)
			w.AddTensor("y", f32, []uint64{1 << 60}, nil)
		}, `gguf: write: tensor "y": end of data past 2^63-1`},
		{"too few bytes", func(w *Writer) { w.AddTensorBytes("x", f32, []uint64{2}, make([]byte, 4)) },
			`gguf: write tensor "x" of 8 bytes: 4 bytes written`},
		{"too many bytes", func(w *Writer) { w.AddTensorBytes("x", f32, []uint64{2}, make([]byte, 12)) },
			`gguf: write tensor "x" of 8 bytes: more bytes than the tensor has`},
		{"callback", func(w *Writer) { w.AddTensor("x", f32, []uint64{2}, func(io.Writer) error { return boom }) },
			`gguf: write tensor "x" of 8 bytes: boom`},
	}
	for _, tc := range cases {
		w := NewWriter(3)
		tc.do(w)
		if _, err := w.WriteTo(io.Discard); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got  %v\nwant %s", tc.name, err, tc.want)
		}
	}
	if _, err := NewWriter(1).WriteTo(io.Discard); err == nil {
		t.Error("version 1 written")
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := writeTemp(t, dir, "m.gguf", []byte("what was there"))
	w := NewWriter(3)
	w.AddTensorBytes("x", kernels.F32, []uint64{2}, make([]byte, 4))
	if err := w.WriteFile(path); err == nil {
		t.Fatal("short tensor written")
	}
	if b, _ := os.ReadFile(path); string(b) != "what was there" {
		t.Errorf("failed write left %q", b)
	}
	w = NewWriter(3)
	w.AddTensorBytes("x", kernels.F32, []uint64{2}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40})
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ts, ok := f.Tensor("x"); !ok || ts.Size != 8 || ts.Rows() != 1 {
		t.Errorf("tensor %+v", ts)
	}
	st, _ := os.Stat(path)
	names, _ := os.ReadDir(dir)
	if len(names) != 1 || st.Mode().Perm() != 0o644 {
		t.Errorf("%d files, mode %v", len(names), st.Mode())
	}
	err = w.WriteFile(filepath.Join(dir, "no", "m.gguf"))
	if err == nil || !strings.HasPrefix(err.Error(), "gguf: ") {
		t.Errorf("got %v", err)
	}
}

// TestWriterStreams writes a tensor far larger than what the Writer may hold.
func TestWriterStreams(t *testing.T) {
	const size = 64 << 20
	chunk := make([]byte, 1<<20)
	w := NewWriter(3)
	w.AddTensor("x", kernels.I8, []uint64{size}, func(out io.Writer) error {
		for range size / len(chunk) {
			if _, err := out.Write(chunk); err != nil {
				return err
			}
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "m.gguf")
	if got := allocated(func() {
		if err := w.WriteFile(path); err != nil {
			t.Fatal(err)
		}
	}); got > 2<<20 {
		t.Errorf("%d bytes allocated", got)
	}
}
