package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// spm is a vocabulary in the style of SentencePiece's BPE: any two neighbours join whose text together is a token, the
// highest score first, starting from characters.
type spm struct {
	ids         map[string]int32 // plain tokens only: SentencePiece keeps control tokens and bytes out of merges too
	rank        []uint32         // by id: the lower, the higher the score
	bytes       [256]int32       // what a byte falls back to, -1 for nothing
	spacePrefix bool             // text after a special token or at the start gets a space before it
}

// blank is the character that stands for a space in tokens.
const blank = "▁"

// newSPM builds the tables; all has every token's id by its text, plain those that text may become.
func newSPM(scores []float32, plain, all map[string]int32, unknown int32, spacePrefix bool) *spm {
	s := &spm{ids: plain, rank: make([]uint32, len(scores)), spacePrefix: spacePrefix}
	for i, x := range scores {
		s.rank[i] = ^ordered(x)
	}
	for b := range s.bytes {
		id, ok := all[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id, ok = plain[string([]byte{byte(b)})]
		}
		if !ok {
			id = unknown
		}
		s.bytes[b] = id
	}
	return s
}

// missingBytes counts the bytes that have nothing to fall back to.
func (s *spm) missingBytes() (n int) {
	for _, id := range s.bytes {
		if id < 0 {
			n++
		}
	}
	return n
}

// encode appends the ids of text, in which special tokens are ordinary characters. Bytes that are not valid UTF-8 fall
// back to byte tokens as they are.
func (s *spm) encode(dst []int32, text string, prefixed bool) []int32 {
	if s.spacePrefix && prefixed {
		text = " " + text
	}
	text = strings.ReplaceAll(text, " ", blank)
	id := func(from, to int32) int32 {
		if id, ok := s.ids[text[from:to]]; ok {
			return id
		}
		return -1
	}
	var m merger
	m.join = func(left, right int32) (uint32, int32, bool) {
		i := id(m.start[left], m.end[right])
		if i < 0 {
			return 0, 0, false
		}
		return s.rank[i], i, true
	}
	for i := 0; i < len(text); {
		_, n := utf8.DecodeRuneInString(text[i:])
		m.add(n, id(int32(i), int32(i+n)))
		i += n
	}
	m.run()
	for i := int32(0); i >= 0 && len(m.sym) > 0; i = m.next[i] {
		if m.sym[i] >= 0 {
			dst = append(dst, m.sym[i])
			continue
		}
		for _, b := range []byte(text[m.start[i]:m.end[i]]) {
			if s.bytes[b] >= 0 {
				dst = append(dst, s.bytes[b])
			}
		}
	}
	return dst
}
