package profile

import (
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// parseNumber reads a finite decimal number, correctly rounded, with white space around it; empty is 0. It refuses
// what Python's float takes beyond that (nan, inf, digits grouped by _) and Go's (hexadecimal).
func parseNumber(b []byte) (float64, bool) {
	b = trim(b)
	if len(b) == 0 {
		return 0, true
	}
	// Up to 15 digits and a power of ten up to 22 are exact in a float64, so one division rounds right
	// (Clinger, "How to read floating point numbers accurately", 1990). Nearly every cell is of this kind.
	var n int64
	digits, scale, point := 0, 0, false
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9' && digits < 15:
			n = n*10 + int64(c-'0')
			digits++
			if point {
				scale++
			}
		case c == '.' && !point:
			point = true
		default:
			return parseSlow(b)
		}
	}
	if digits == 0 {
		return 0, false
	}
	if scale == 0 {
		return float64(n), true
	}
	pow := 1.0
	for range scale {
		pow *= 10
	}
	return float64(n) / pow, true
}

func parseSlow(b []byte) (float64, bool) {
	for _, c := range b {
		if (c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil && !math.IsInf(v, 0)
}

// trim removes white space as Python's str.strip does.
func trim(b []byte) []byte {
	if n := len(b); n == 0 || inner(b[0]) && inner(b[n-1]) {
		return b
	}
	return trimSpace(b)
}

// inner says whether a byte is a whole character and no white space, which nearly every cell begins and ends with.
func inner(c byte) bool { return ' ' < c && c < utf8.RuneSelf }

func trimSpace(b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if !isSpace(r) {
			break
		}
		b = b[n:]
	}
	for len(b) > 0 {
		r, n := utf8.DecodeLastRune(b)
		if !isSpace(r) {
			break
		}
		b = b[:len(b)-n]
	}
	return b
}

func isSpace(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || '\t' <= r && r <= '\r' || 0x1c <= r && r <= 0x1f
	}
	return unicode.IsSpace(r)
}

// logical returns the logical size of a dimension: "32[16]" gives 16, "7" gives 7, text gives "?".
func logical(b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if !isSpace(r) {
			break
		}
		b = b[n:]
	}
	n := digitsAt(b)
	if n == 0 {
		return []byte{'?'}
	}
	if rest := b[n:]; len(rest) > 0 && rest[0] == '[' {
		if m := digitsAt(rest[1:]); m > 0 && 1+m < len(rest) && rest[1+m] == ']' {
			return rest[1 : 1+m]
		}
	}
	return b[:n]
}

func digitsAt(b []byte) int {
	n := 0
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	return n
}
