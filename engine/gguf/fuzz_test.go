package gguf

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzParse wants of any bytes: no panic, memory in proportion, an error that is ErrFormat or a file that survives use and,
// written again, reads the same.
func FuzzParse(f *testing.F) {
	whole := small().bytes()
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(newRaw().u32(keyAlignment, 64).bytes())
	f.Add((&raw{version: 2, align: 32}).f32("x", 4).bytes())
	for _, r := range shards() {
		f.Add(r.bytes())
	}
	for seed := range uint64(6) {
		w, _, _, _ := randomFile(seed)
		var buf bytes.Buffer
		if _, err := w.WriteTo(&buf); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := Parse("f", data)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("%v is not ErrFormat", err)
			}
			return
		}
		use(t, g)
		if g.Alignment() > 1<<16 {
			return // writing would pad with it
		}
		again, err := Parse("again", rewrite(t, g))
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		if len(again.Tensors()) != len(g.Tensors()) || len(again.Keys()) != len(g.Keys()) {
			t.Fatalf("written again: %d tensors and %d keys, want %d and %d",
				len(again.Tensors()), len(again.Keys()), len(g.Tensors()), len(g.Keys()))
		}
		for i, k := range g.Keys() {
			v, _ := g.Value(k)
			if w, _ := again.Value(k); again.Keys()[i] != k || w.Type != v.Type || !bytes.Equal(w.raw, v.raw) {
				t.Fatalf("written again: key %q differs", k)
			}
		}
		for i, ts := range g.Tensors() {
			if o := again.Tensors()[i]; o.Name != ts.Name || o.Type != ts.Type || !bytes.Equal(o.Data(), ts.Data()) {
				t.Fatalf("written again: tensor %q differs", ts.Name)
			}
		}
	})
}
