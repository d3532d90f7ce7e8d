package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStream(t *testing.T) {
	tok := bpeMeta("qwen2", typed{"<c>", kindControl}).must(t, Options{})
	c := idOf(t, tok, "<c>")
	s := tok.NewStream()
	for i, step := range []struct {
		id   int32
		want string
	}{{'a', "a"}, {0xf0, ""}, {0x9f, ""}, {0x99, ""}, {0x82, "🙂"}, {0xe2, ""}, {'b', "\ufffdb"}, {0xff, "\ufffd"}, {0x80, "\ufffd"}, {c, ""},
		{0xc3, ""}, {c, ""}, {0xa9, "é"}, {-1, ""}, {0xf0, ""}, {0x9f, ""}} {
		if got := s.Next(step.id); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
	if got := s.Flush(); got != "\ufffd\ufffd" {
		t.Errorf("flush: %q", got)
	}
	if got := s.Flush() + s.Next('x'); got != "x" {
		t.Errorf("after the flush: %q", got)
	}
	s.Special = true
	if got := s.Next(c); got != "<c>" {
		t.Errorf("special: %q", got)
	}
}

// TestStreamWhole: whatever the bytes, each part is valid and all together are the whole text.
func TestStreamWhole(t *testing.T) {
	tok := bpeMeta("qwen2").must(t, Options{})
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		var bytes []byte
		var out strings.Builder
		s := tok.NewStream()
		for range rng.IntN(12) {
			id := rng.Int32N(int32(tok.NVocab()))
			if rng.IntN(2) == 0 {
				id = 0x80 + rng.Int32N(0x80)
			}
			bytes = append(bytes, tok.Piece(id)...)
			part := s.Next(id)
			if !utf8.ValidString(part) {
				t.Fatalf("%q after %q", part, bytes)
			}
			out.WriteString(part)
		}
		out.WriteString(s.Flush())
		if got, want := out.String(), oneByOne(string(bytes)); got != want {
			t.Fatalf("%q streams as %q, want %q", bytes, got, want)
		}
	}
}
