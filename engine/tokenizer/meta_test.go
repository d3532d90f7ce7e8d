package tokenizer

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"testing"

	"sluice/engine/gguf"
)

// meta is metadata in memory. Its getters refuse other types as a file's do.
type meta map[string]any

func get[T any](m meta, key string, def T) (T, error) {
	v, ok := m[key]
	if !ok {
		return def, nil
	}
	x, ok := v.(T)
	if !ok {
		return def, fmt.Errorf("key %q: found %T, want %T", key, v, def)
	}
	return x, nil
}

func (m meta) String(key, def string) (string, error)        { return get(m, key, def) }
func (m meta) Bool(key string, def bool) (bool, error)       { return get(m, key, def) }
func (m meta) Uint(key string, def uint64) (uint64, error)   { return get(m, key, def) }
func (m meta) Strings(key string) ([]string, error)          { return get[[]string](m, key, nil) }
func (m meta) Ints(key string) ([]int64, error)              { return get[[]int64](m, key, nil) }
func (m meta) Floats(key string) ([]float32, error)          { return get[[]float32](m, key, nil) }
func (m meta) with(key string, v any) meta                   { m = maps.Clone(m); m[key] = v; return m }
func (m meta) without(key string) meta                       { m = maps.Clone(m); delete(m, key); return m }
func (m meta) must(t testing.TB, o Options) (tok *Tokenizer) { return must(t)(FromMetadata(m, o)) }
func must(t testing.TB) func(*Tokenizer, error) (r *Tokenizer) {
	return func(r *Tokenizer, err error) *Tokenizer { fatal(t, err); return r }
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// typed is a token with a type.
type typed struct {
	text string
	kind kind
}

// bpeMeta is a byte-level BPE vocabulary: 256 bytes (ids 0 to 255 in byte order), merges that make a few words, and the
// given tokens after them.
func bpeMeta(pre string, more ...typed) meta {
	merges := []string{"t h", "th e", "Ġ the", "a a", "aa aa", "e r", "h e", "l l", "he ll", "hell o", "Ġ Ġ", "ĠĠ ĠĠ", "1 2", "12 3", "Ã ©",
		"' s", "i n", "in g", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ċ Ċ"}
	var tokens []string
	var types []int64
	for b := range 256 {
		tokens = append(tokens, string(byteRunes[b]))
		types = append(types, 1)
	}
	for _, m := range merges {
		var l, r string
		fmt.Sscanf(m, "%s %s", &l, &r)
		tokens = append(tokens, l+r)
		types = append(types, 1)
	}
	for _, x := range more {
		tokens = append(tokens, x.text)
		types = append(types, int64(x.kind))
	}
	return meta{keyModel: "gpt2", keyPre: pre, keyTokens: tokens, keyTypes: types, keyMerges: merges}
}

// spmMeta is a llama vocabulary: unknown, bos, eos, the bytes, and words with scores; then the given tokens.
func spmMeta(more ...typed) meta {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int64{2, 3, 3}
	scores := []float32{0, 0, 0}
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		types, scores = append(types, 6), append(scores, 0)
	}
	for i, w := range []string{"▁t", "he", "▁the", "er", "▁G", "ll", "hello", "hell", "▁hello", "in", "▁▁", "s>", "<s", "▁", "t", "h", "e", "r", "G", "l",
		"o", "i", "n", "s", "<", ">", "é"} {
		tokens = append(tokens, w)
		types, scores = append(types, 1), append(scores, -float32(i+1))
	}
	for _, x := range more {
		tokens = append(tokens, x.text)
		types, scores = append(types, int64(x.kind)), append(scores, 0)
	}
	return meta{keyModel: "llama", keyTokens: tokens, keyTypes: types, keyScores: scores}
}

func idOf(t testing.TB, tok *Tokenizer, text string) int32 {
	t.Helper()
	id, ok := tok.ids[text]
	if !ok {
		t.Fatalf("no token %q", text)
	}
	return id
}

// spell returns the ids as token texts.
func spell(tok *Tokenizer, ids []int32) []string {
	var s []string
	for _, id := range ids {
		s = append(s, tok.Text(id))
	}
	return s
}

// TestElementTypes: an array of the right length but another element type than ggml's is refused by a file's reader.
func TestElementTypes(t *testing.T) {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	array := func(b []byte, key string, elem gguf.ValueType, n int, data ...byte) []byte {
		b = le.AppendUint32(str(b, key), uint32(gguf.Array))
		return append(le.AppendUint64(le.AppendUint32(b, uint32(elem)), uint64(n)), data...)
	}
	file := func(key string, elem gguf.ValueType, data ...byte) []byte {
		b := le.AppendUint32([]byte("GGUF"), 3)
		b = le.AppendUint64(le.AppendUint64(b, 0), 3)
		b = str(le.AppendUint32(str(b, keyModel), uint32(gguf.String)), "llama")
		b = array(b, keyTokens, gguf.String, 1, str(nil, "a")...)
		return array(b, key, elem, 1, data...)
	}
	for _, tt := range []struct {
		key  string
		elem gguf.ValueType
		data []byte
		want []string
	}{
		{keyTypes, gguf.Uint8, []byte{1}, []string{keyTypes, "array of u8", "array of i32"}},
		{keyTypes, gguf.Float32, []byte{0, 0, 0, 0}, []string{keyTypes, "array of f32", "array of i32"}},
		{keyScores, gguf.Uint8, []byte{1}, []string{keyScores, "array of u8", "array of f32"}},
		{keyTypes, gguf.Int32, []byte{1, 0, 0, 0}, []string{keyScores, "absent"}},
	} {
		f, err := gguf.Parse("test.gguf", file(tt.key, tt.elem, tt.data...))
		fatal(t, err)
		_, err = New(f, Options{})
		for _, w := range tt.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s of %s: error %v, want %q in it", tt.key, tt.elem, err, w)
			}
		}
		fatal(t, f.Close())
	}
}
