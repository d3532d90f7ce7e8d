package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// bpe is a byte-level BPE vocabulary. Its symbols are the token ids, and numbers from the token count on for the
// spellings that merges go through without being tokens.
type bpe struct {
	pre     preTokenizer
	nTokens int32
	bytes   [256]int32        // symbol of a single byte
	merges  map[uint64]joined // by left symbol<<32 | right symbol
	extra   []string          // spellings of the symbols that are no tokens
	words   map[string]int32  // spelling to id, for pre-tokenizers that ask for it, else nil
}

type joined struct {
	rank uint32
	sym  int32
}

// newBPE builds the tables. ids has the plain tokens only: no text becomes a control token by merging.
func newBPE(pre preTokenizer, nTokens int, ids map[string]int32, merges []string) (*bpe, error) {
	b := &bpe{pre: pre, nTokens: int32(nTokens), merges: make(map[uint64]joined, len(merges))}
	if pre.ignoreMerges {
		b.words = ids
	}
	extra := map[string]int32{}
	intern := func(spelling string) int32 {
		if id, ok := ids[spelling]; ok {
			return id
		}
		if id, ok := extra[spelling]; ok {
			return id
		}
		id := b.nTokens + int32(len(b.extra))
		extra[spelling] = id
		b.extra = append(b.extra, spelling)
		return id
	}
	for i := range b.bytes {
		b.bytes[i] = intern(string(byteRunes[i]))
	}
	for rank, m := range merges {
		left, right, ok := strings.Cut(m, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, fmt.Errorf("tokenizer: %s[%d]: %q, want two symbols with one space between", keyMerges, rank, m)
		}
		key := uint64(intern(left))<<32 | uint64(intern(right))
		if _, twice := b.merges[key]; !twice {
			b.merges[key] = joined{uint32(rank), intern(left + right)}
		}
	}
	return b, nil
}

// missingBytes counts the bytes that no token spells, of those that UTF-8 uses: many vocabularies do without the rest.
func (b *bpe) missingBytes() (n int) {
	for c, sym := range b.bytes {
		if sym >= b.nTokens && c != 0xc0 && c != 0xc1 && c < 0xf5 {
			n++
		}
	}
	return n
}

// encode appends the ids of text, in which special tokens are ordinary characters. A byte that is not valid UTF-8 is
// encoded as U+FFFD, as llama.cpp does. A byte without a token is left out.
func (b *bpe) encode(dst []int32, text string) []int32 {
	t := newRunes(text)
	var m merger
	m.join = func(left, right int32) (uint32, int32, bool) {
		j, ok := b.merges[uint64(m.sym[left])<<32|uint64(m.sym[right])]
		return j.rank, j.sym, ok
	}
	var word, spelled []byte
	i := 0
	for _, end := range b.pre.cut(t, nil) {
		word = word[:0]
		for ; i < end; i++ {
			word = utf8.AppendRune(word, t.r[i])
		}
		if b.words != nil {
			spelled = appendSpelled(spelled[:0], word)
			if id, ok := b.words[string(spelled)]; ok {
				dst = append(dst, id)
				continue
			}
		}
		m.reset()
		for _, c := range word {
			m.add(1, b.bytes[c])
		}
		m.run()
		for s := int32(0); s >= 0 && len(m.sym) > 0; s = m.next[s] {
			if m.sym[s] < b.nTokens {
				dst = append(dst, m.sym[s])
				continue
			}
			for _, c := range word[m.start[s]:m.end[s]] {
				if b.bytes[c] < b.nTokens {
					dst = append(dst, b.bytes[c])
				}
			}
		}
	}
	return dst
}
