package engine_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"sluice/engine/gguf"
	"sluice/engine/synth"
	"sluice/kernels"
)

// tensorSpec is a tensor of a file to be written.
type tensorSpec struct {
	name string
	typ  kernels.Type
	dims []uint64
	data []byte
}

// floats decodes the tensor.
func floats(s *tensorSpec) []float32 {
	n := 1
	for _, d := range s.dims {
		n *= int(d)
	}
	v := make([]float32, n)
	kernels.Dequantize(s.typ, v, s.data)
	return v
}

// put encodes v in the tensor's type.
func (s *tensorSpec) put(v []float32) {
	s.data = make([]byte, s.typ.RowBytes(len(v)))
	kernels.Quantize(s.typ, s.data, v)
}

// archOf is the architecture of a model in memory.
func archOf(t testing.TB, data []byte) string {
	t.Helper()
	f, err := gguf.Parse("origin.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	arch, err := f.NeedString("general.architecture")
	if err != nil {
		t.Fatal(err)
	}
	return arch
}

// rewrite says how a file differs from the one it is made from.
type rewrite struct {
	set    map[string]any         // keys replaced or, in sorted order at the end, added
	remove []string               // keys left out
	tensor func(*tensorSpec) bool // edits a tensor (data is a copy); false leaves it out
	add    []tensorSpec           // at the end
}

func (r *rewrite) writer(t testing.TB, f *gguf.File) *gguf.Writer {
	t.Helper()
	w := gguf.NewWriter(f.Version())
	r.keys(w, f)
	for _, x := range f.Tensors() {
		s := tensorSpec{x.Name, x.Type, slices.Clone(x.Dims), slices.Clone(x.Data())}
		if r.tensor == nil || r.tensor(&s) {
			w.AddTensorBytes(s.name, s.typ, s.dims, s.data)
		}
	}
	for _, s := range r.add {
		w.AddTensorBytes(s.name, s.typ, s.dims, s.data)
	}
	return w
}

func (r *rewrite) keys(w *gguf.Writer, f *gguf.File) {
	left := map[string]any{}
	for k, v := range r.set {
		left[k] = v
	}
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		if set, ok := left[key]; ok {
			w.Add(key, set)
			delete(left, key)
		} else if !slices.Contains(r.remove, key) {
			w.AddValue(key, v)
		}
	}
	names := make([]string, 0, len(left))
	for key := range left {
		names = append(names, key)
	}
	slices.Sort(names)
	for _, key := range names {
		w.Add(key, left[key])
	}
}

// apply returns the file data, changed as r says.
func (r *rewrite) apply(t *testing.T, data []byte) []byte {
	t.Helper()
	f, err := gguf.Parse("origin.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var buf bytes.Buffer
	if _, err := r.writer(t, f).WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// writeShards writes a model as a set of n files, tensors dealt out in turn, and returns their paths.
// As tools that split files do, only the first has the model's keys.
func writeShards(t testing.TB, data []byte, n int) []string {
	t.Helper()
	f, err := gguf.Parse("origin.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	paths := make([]string, n)
	for no := range n {
		w := gguf.NewWriter(3)
		if no == 0 {
			new(rewrite).keys(w, f)
		}
		w.Add("split.no", uint16(no))
		w.Add("split.count", uint16(n))
		w.Add("split.tensors.count", int32(len(f.Tensors())))
		for i, x := range f.Tensors() {
			if i%n == no {
				w.AddTensorBytes(x.Name, x.Type, x.Dims, x.Data())
			}
		}
		paths[no] = filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", no+1, n))
		if err := w.WriteFile(paths[no]); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

func buildSynth(t testing.TB, c synth.Config) []byte {
	t.Helper()
	data, err := synth.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
