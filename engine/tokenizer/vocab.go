package tokenizer

import (
	"fmt"
	"math"
	"strconv"
)

// Metadata is what the tokenizer reads: the getters of a *gguf.File. An absent key gives def or nil, a key with a value
// of another type an error that names it.
type Metadata interface {
	String(key, def string) (string, error)
	Bool(key string, def bool) (bool, error)
	Uint(key string, def uint64) (uint64, error)
	Strings(key string) ([]string, error)
	Ints(key string) ([]int64, error)
	Floats(key string) ([]float32, error)
}

// The metadata keys, without the prefix they share in a file.
const (
	keyModel       = "tokenizer.ggml.model"
	keyPre         = "tokenizer.ggml.pre"
	keyTokens      = "tokenizer.ggml.tokens"
	keyScores      = "tokenizer.ggml.scores"
	keyTypes       = "tokenizer.ggml.token_type"
	keyMerges      = "tokenizer.ggml.merges"
	keyBOS         = "tokenizer.ggml.bos_token_id"
	keyEOS         = "tokenizer.ggml.eos_token_id"
	keyEOT         = "tokenizer.ggml.eot_token_id"
	keyEOM         = "tokenizer.ggml.eom_token_id"
	keyUnknown     = "tokenizer.ggml.unknown_token_id"
	keyAddBOS      = "tokenizer.ggml.add_bos_token"
	keyAddEOS      = "tokenizer.ggml.add_eos_token"
	keySpacePrefix = "tokenizer.ggml.add_space_prefix"
)

// maxTokens bounds the token count, far above every known vocabulary (a quarter of a million): ids are int32, and tables
// are made by the count.
const maxTokens = 1 << 22

// kind is a value of tokenizer.ggml.token_type.
type kind uint8

const (
	kindUndefined kind = iota // of no use in text
	kindNormal
	kindUnknown
	kindControl
	kindUser   // user-defined: found in text before anything else, always
	kindUnused // like undefined
	kindByte   // text is <0xXX>
	nKinds
)

// vocab is the token list.
type vocab struct {
	text    []string
	kind    []kind
	guarded []bool           // control or unknown by the file or by name: never found in protected text
	ids     map[string]int32 // by text, all kinds
	plain   map[string]int32 // those that ordinary text may become: not control, unknown and byte tokens by the file
}

func loadVocab(m Metadata) (*vocab, error) {
	text, err := m.Strings(keyTokens)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	n := len(text)
	if n == 0 || n > maxTokens {
		return nil, fmt.Errorf("tokenizer: %s: %d tokens, want 1 to %d", keyTokens, n, maxTokens)
	}
	types, err := m.Ints(keyTypes)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if types != nil && len(types) != n {
		return nil, fmt.Errorf("tokenizer: %s: %d values, want %d, one for each of %s", keyTypes, len(types), n, keyTokens)
	}
	v := &vocab{text: text, kind: make([]kind, n), guarded: make([]bool, n), ids: make(map[string]int32, n),
		plain: make(map[string]int32, n)}
	for i := range text {
		if text[i] == "" {
			// llama.cpp's name for it. An empty text would match everywhere.
			text[i] = "[EMPTY_" + strconv.Itoa(i) + "]"
		}
		if first, twice := v.ids[text[i]]; twice {
			return nil, fmt.Errorf("tokenizer: %s[%d]: %q is token %d already", keyTokens, i, text[i], first)
		}
		v.ids[text[i]] = int32(i)
		v.kind[i] = kindNormal
		if types != nil {
			if types[i] < 0 || types[i] >= int64(nKinds) {
				return nil, fmt.Errorf("tokenizer: %s[%d]: type %d, want 0 to %d", keyTypes, i, types[i], nKinds-1)
			}
			v.kind[i] = kind(types[i])
		}
		v.guarded[i] = v.kind[i] == kindControl || v.kind[i] == kindUnknown
		if !v.guarded[i] && v.kind[i] != kindByte {
			v.plain[text[i]] = int32(i)
		}
		if _, ok := byteOf(text[i]); v.kind[i] == kindByte && !ok {
			return nil, fmt.Errorf("tokenizer: %s[%d]: %q, but %s says it is a byte, want the form <0x0A>", keyTokens, i, text[i], keyTypes)
		}
	}
	return v, nil
}

// loadScores returns the scores, which a llama vocabulary must have and another may have.
func (v *vocab) loadScores(m Metadata, needed bool) ([]float32, error) {
	scores, err := m.Floats(keyScores)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if scores == nil && needed {
		return nil, fmt.Errorf("tokenizer: %s: absent, a llama vocabulary needs it", keyScores)
	}
	if scores != nil && len(scores) != len(v.text) {
		return nil, fmt.Errorf("tokenizer: %s: %d values, want %d, one for each of %s", keyScores, len(scores), len(v.text), keyTokens)
	}
	for i, x := range scores {
		if math.IsNaN(float64(x)) {
			return nil, fmt.Errorf("tokenizer: %s[%d]: not a number", keyScores, i)
		}
	}
	return scores, nil
}

// tokenID reads the key of one token's id: def where it is absent.
func (v *vocab) tokenID(m Metadata, key string, def int32) (int32, error) {
	const absent = math.MaxUint64
	id, err := m.Uint(key, absent)
	switch {
	case err != nil:
		return -1, fmt.Errorf("tokenizer: %w", err)
	case id == absent:
		return def, nil
	case id >= uint64(len(v.text)):
		return -1, fmt.Errorf("tokenizer: %s: id %d, want below %d, the count of %s", key, id, len(v.text), keyTokens)
	}
	return int32(id), nil
}

// byteOf returns the byte that a text of the form <0xXX> names.
func byteOf(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(text[3:5], 16, 8)
	return byte(b), err == nil
}
