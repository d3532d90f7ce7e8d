package tokenizer

import "unicode"

// class says which of the Unicode categories that pre-tokenizers ask for a rune is in. Every rune but a space is in at
// most one; control and unassigned characters are in none.
type class uint8

const (
	upper  class = 1 << iota // Lu, Lt
	lower                    // Ll
	other                    // Lm, Lo: letters without case, which both cases' classes take
	mark                     // M
	number                   // N
	punct                    // P
	symbol                   // S
	space                    // White_Space, which is \s of the expressions
	letter = upper | lower | other
)

var asciiClass = func() (t [128]class) {
	for r := range t {
		t[r] = lookUp(rune(r))
	}
	return t
}()

// classOf returns the classes of r. utf8.RuneError stands for an invalid byte too and is a symbol.
func classOf(r rune) class {
	if uint32(r) < 128 {
		return asciiClass[r]
	}
	return lookUp(r)
}

func lookUp(r rune) class {
	switch {
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r):
		switch {
		case unicode.In(r, unicode.Lu, unicode.Lt):
			return upper
		case unicode.Is(unicode.Ll, r):
			return lower
		}
		return other
	case unicode.IsMark(r):
		return mark
	case unicode.IsNumber(r):
		return number
	case unicode.IsPunct(r):
		return punct
	case unicode.IsSymbol(r):
		return symbol
	}
	return 0
}

// runes is a text and the class of each of its runes.
type runes struct {
	r []rune
	c []class
}

func newRunes(s string) *runes {
	t := &runes{r: []rune(s)}
	t.c = make([]class, len(t.r))
	for i, r := range t.r {
		t.c[i] = classOf(r)
	}
	return t
}

// run returns the end of the run of runes in any of the classes that begins at i; it goes no further than hi.
func (t *runes) run(i, hi int, want class) int {
	for i < hi && t.c[i]&want != 0 {
		i++
	}
	return i
}

// runNot is run for runes in none of the classes.
func (t *runes) runNot(i, hi int, not class) int {
	for i < hi && t.c[i]&not == 0 {
		i++
	}
	return i
}
