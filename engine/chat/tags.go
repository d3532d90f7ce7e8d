package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ardanlabs/jinja"
)

// The template engine's messages name a line at most, and many templates are one line. This file finds the tag at fault,
// and refuses characters in tags that the engine would skip in silence: a file whose newlines were written as \n has them.

// tag is {{ text }} or {% text %}.
type tag struct {
	statement bool
	text      string // without delimiters and minus signs
	end       int    // offset in the source past the closing delimiter
	trim      bool   // closed by a minus sign
	line, col int
}

// at is an error at a place.
func at(line, col int, format string, args ...any) error {
	return fmt.Errorf("line %d, column %d: %w", line, col, fmt.Errorf(format, args...))
}

// word returns the statement's keyword and what follows it.
func (t tag) word() (word, rest string) {
	text := strings.TrimSpace(t.text)
	for i, c := range []byte(text) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') {
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// position returns line and column of an offset.
func position(source string, offset int) (line, col int) {
	before := source[:offset]
	return 1 + strings.Count(before, "\n"), offset - strings.LastIndexByte(before, '\n')
}

// scanTags returns the tags outside comments and raw blocks.
func scanTags(source string) ([]tag, error) {
	var tags []tag
	raw := false
	line, col, from := 1, 1, 0 // the place of offset from
	for i := 0; i+1 < len(source); i++ {
		kind := source[i+1]
		if source[i] != '{' || kind != '{' && kind != '%' && kind != '#' {
			continue
		}
		if n := strings.Count(source[from:i], "\n"); n > 0 {
			line, col = line+n, i-strings.LastIndexByte(source[:i], '\n')
		} else {
			col += i - from
		}
		from = i
		if kind == '#' {
			n := strings.Index(source[i+2:], "#}")
			if n < 0 {
				return nil, at(line, col, "comment without end")
			}
			i += 2 + n + 1
			continue
		}
		start := i + 2
		if start < len(source) && source[start] == '-' {
			start++
		}
		end, bad := closing(source, start, kind)
		if end < 0 && raw {
			continue
		}
		if end < 0 {
			return nil, at(line, col, "tag without end")
		}
		t := tag{statement: kind == '%', text: source[start:end], end: end + 2, line: line, col: col}
		if source[end] == '-' {
			t.end, t.trim = end+3, true
		}
		if word, _ := t.word(); t.statement && (word == "raw" || raw && word == "endraw") {
			raw = word == "raw"
		} else if raw {
			continue
		}
		if bad >= 0 {
			line, col := position(source, bad)
			return nil, at(line, col, "character %q in a tag outside a string", []rune(source[bad:])[0])
		}
		tags = append(tags, t)
		i = t.end - 1
	}
	return tags, nil
}

// closing returns the offset of the delimiter, or of the minus sign before it, that closes a tag whose text begins at i,
// -1 for none; and the offset of the first character that no expression has, -1 for none.
func closing(source string, i int, kind byte) (end, bad int) {
	closer := "}}"
	if kind == '%' {
		closer = "%}"
	}
	bad = -1
	for ; i < len(source); i++ {
		c := source[i]
		switch {
		case strings.HasPrefix(source[i:], closer), c == '-' && strings.HasPrefix(source[i+1:], closer):
			return i, bad
		case c == '\'' || c == '"':
			for i++; i < len(source) && source[i] != c; i++ {
				if source[i] == '\\' {
					i++
				}
			}
		case strings.IndexByte(" \t\r\n_()[]{}.,:|~+-*/%<>=", c) >= 0, '0' <= c && c <= '9', 'a' <= c|0x20 && c|0x20 <= 'z':
		case c == '!' && strings.HasPrefix(source[i:], "!="):
		case bad < 0:
			bad = i
		}
	}
	return -1, bad
}

// closers are the statements that end a block, by the one that begins it. A set begins one where it has no value.
var closers = map[string]string{"if": "endif", "for": "endfor", "macro": "endmacro", "call": "endcall", "filter": "endfilter",
	"generation": "endgeneration", "raw": "endraw", "set": "endset"}

// opens reports whether the tag begins a block.
func (t tag) opens() bool {
	word, rest := t.word()
	return t.statement && closers[word] != "" && (word != "set" || !strings.Contains(rest, "="))
}

// locate finds the tag that made the engine fail with err: one that it refuses by itself, or else one that opens or
// closes a block with no counterpart.
func locate(tags []tag, err error) error {
	for _, t := range tags {
		source := "{{" + t.text + "}}"
		if t.statement {
			word, rest := t.word()
			source = "{%" + t.text + "%}"
			switch {
			case word == "elif":
				source = "{% if" + rest + "%}{% endif %}"
			case t.opens():
				source += "{%" + closers[word] + "%}"
			case word == "else" || word == "break" || word == "continue" || strings.HasPrefix(word, "end"):
				continue
			}
		}
		if _, err := jinja.Compile(source); err != nil {
			return at(t.line, t.col, "%s", reason(err))
		}
	}
	var open []tag
	for _, t := range tags {
		word, _ := t.word()
		switch {
		case !t.statement:
		case t.opens():
			open = append(open, t)
		case strings.HasPrefix(word, "end"):
			if len(open) == 0 {
				return at(t.line, t.col, "%s closes nothing", word)
			}
			last := open[len(open)-1]
			if opener, _ := last.word(); closers[opener] != word {
				return at(t.line, t.col, "%s, but %s of line %d, column %d is open", word, opener, last.line, last.col)
			}
			open = open[:len(open)-1]
		case (word == "else" || word == "elif") && len(open) == 0:
			return at(t.line, t.col, "%s outside a block", word)
		}
	}
	if len(open) > 0 {
		t := open[len(open)-1]
		word, _ := t.word()
		return at(t.line, t.col, "%s without %s", word, closers[word])
	}
	return errors.New(reason(err))
}

// reason is the engine's message without the prefixes that do not count.
func reason(err error) string {
	s := err.Error()
	for _, p := range []string{"jinja scan: ", "jinja parse: ", "line 1: "} {
		s = strings.TrimPrefix(s, p)
	}
	return s
}

const countFunction = "sluice_count_call"

// countMacroCalls returns the source with a call of countFunction at the beginning of every macro. The statement takes
// the place of the macro tag's end in all rules about white space.
func countMacroCalls(source string, tags []tag) string {
	var b strings.Builder
	from := 0
	for _, t := range tags {
		if word, _ := t.word(); !t.statement || word != "macro" {
			continue
		}
		b.WriteString(source[from:t.end])
		b.WriteString("{%- set _ = " + countFunction + "() ")
		if t.trim {
			b.WriteByte('-')
		}
		b.WriteString("%}")
		from = t.end
	}
	b.WriteString(source[from:])
	return b.String()
}
