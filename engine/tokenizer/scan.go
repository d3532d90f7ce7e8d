package tokenizer

// The scanners of single expressions. Each says in its comment which expression it is; the tests hold it against a
// regular expression engine with that expression.

// runOf matches [set]+.
func runOf(in func(r rune, c class) bool) matcher {
	return func(t *runes, i, hi int) int {
		j := i
		for j < hi && in(t.r[j], t.c[j]) {
			j++
		}
		return j - i
	}
}

// matchSpaced matches \s?[set]+.
func matchSpaced(in func(r rune, c class) bool) matcher {
	run := runOf(in)
	return func(t *runes, i, hi int) int {
		if t.c[i]&space != 0 && i+1 < hi {
			if n := run(t, i+1, hi); n > 0 {
				return n + 1
			}
		}
		return run(t, i, hi)
	}
}

// matchNumber matches \p{N}{1,most}, and \p{N}+ where most is 0.
func matchNumber(most int) matcher {
	return func(t *runes, i, hi int) int {
		if most > 0 {
			hi = min(hi, i+most)
		}
		return t.run(i, hi, number) - i
	}
}

// matchThreeDigits matches [0-9][0-9][0-9].
func matchThreeDigits(t *runes, i, hi int) int {
	if i+3 > hi {
		return 0
	}
	for _, r := range t.r[i : i+3] {
		if r < '0' || r > '9' {
			return 0
		}
	}
	return 3
}

// matchNewline matches [\r\n].
func matchNewline(t *runes, i, hi int) int {
	if newline(t.r[i]) {
		return 1
	}
	return 0
}

// matchTrailingSpace matches \s+$.
func matchTrailingSpace(t *runes, i, hi int) int {
	j := t.run(i, hi, space)
	if j < hi {
		return i - j
	}
	return j - i
}

func newline(r rune) bool { return r == '\n' || r == '\r' }

// contraction returns the length of 's|'t|'re|'ve|'m|'ll|'d at i, 0 for none; with fold in either case of ASCII.
func contraction(t *runes, i, hi int, fold bool) int {
	if i+1 >= hi || t.r[i] != '\'' {
		return 0
	}
	at := func(i int) rune {
		r := t.r[i]
		if fold && 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	first := at(i + 1)
	switch first {
	case 's', 't', 'm', 'd':
		return 2
	}
	if i+2 >= hi {
		return 0
	}
	second := at(i + 2)
	if (first == 'r' || first == 'v') && second == 'e' || first == 'l' && second == 'l' {
		return 3
	}
	return 0
}

// matchSpace matches \s+(?!\S)|\s+: a run of spaces, less its last if something follows.
func matchSpace(t *runes, i, hi int) int {
	n := t.run(i, hi, space) - i
	if n > 1 && i+n < hi {
		n--
	}
	return n
}

// matchLineEnd matches \s*[\r\n]+|\s+(?!\S)|\s+: a run of spaces up to its last newline if it has one.
func matchLineEnd(t *runes, i, hi int) int {
	for j := t.run(i, hi, space); j > i; j-- {
		if newline(t.r[j-1]) {
			return j - i
		}
	}
	return matchSpace(t, i, hi)
}

// matchGPT2 matches
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func matchGPT2(t *runes, i, hi int) int {
	if n := contraction(t, i, hi, false); n > 0 {
		return n
	}
	j := i
	if t.r[i] == ' ' && i+1 < hi {
		j++
	}
	switch c := t.c[j]; {
	case c&letter != 0:
		return t.run(j, hi, letter) - i
	case c&number != 0:
		return t.run(j, hi, number) - i
	case c&space == 0:
		return t.runNot(j, hi, space|letter|number) - i
	}
	return matchSpace(t, i, hi)
}

// words are the parameters of matchWords.
type words struct {
	digits int  // most digits in a word
	marks  bool // marks belong to words, not to punctuation
}

// matchWords matches the expression of Llama 3 (digits 3) and Qwen (digits 1)
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//	\s*[\r\n]+|\s+(?!\S)|\s+
//
// with [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+ where marks is set.
func matchWords(w words) matcher {
	word := letter
	if w.marks {
		word |= mark
	}
	notPunct := space | word | number
	digits := matchNumber(w.digits)
	return func(t *runes, i, hi int) int {
		if n := contraction(t, i, hi, true); n > 0 {
			return n
		}
		c := t.c[i]
		if c&(letter|number) == 0 && !newline(t.r[i]) {
			if j := t.run(i+1, hi, word); j > i+1 {
				return j - i
			}
		}
		if c&word != 0 {
			return t.run(i, hi, word) - i
		}
		if c&number != 0 {
			return digits(t, i, hi)
		}
		if n := punctuation(t, i, hi, func(c class) bool { return c&notPunct == 0 }, newline); n > 0 {
			return n
		}
		return matchLineEnd(t, i, hi)
	}
}

// punctuation matches " ?[set]+[tail]*", 0 for none.
func punctuation(t *runes, i, hi int, in func(class) bool, tail func(rune) bool) int {
	j := i
	if t.r[i] == ' ' {
		j++
	}
	start := j
	for j < hi && in(t.c[j]) {
		j++
	}
	if j == start {
		return 0
	}
	for j < hi && tail(t.r[j]) {
		j++
	}
	return j - i
}
