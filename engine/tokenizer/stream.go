package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Stream turns ids into text as they come, in whole characters. Its output, Flush included, is the bytes of all tokens
// with U+FFFD for every byte that is not part of valid UTF-8.
type Stream struct {
	// Special prints control tokens as well, by their names.
	Special bool

	t    *Tokenizer
	held []byte // the beginning of a character, at most 3 bytes
}

// NewStream returns an empty Stream.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Next returns the text that is certain after one more token; "" if there is none yet.
func (s *Stream) Next(id int32) string {
	piece := s.t.Piece(id)
	if s.Special {
		piece = s.t.PieceSpecial(id)
	}
	b := append(s.held, piece...)
	var text strings.Builder
	for len(b) > 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		text.WriteRune(r)
		b = b[n:]
	}
	s.held = append(s.held[:0], b...)
	return text.String()
}

// Flush returns what was held back: U+FFFD for each byte of a character that no further token will complete.
func (s *Stream) Flush() string {
	n := len(s.held)
	s.held = s.held[:0]
	return strings.Repeat(string(utf8.RuneError), n)
}
