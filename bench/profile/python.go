package profile

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Float is a float64 that is written as Python writes one: 1350.0, 1e+16.
type Float float64

// String is Python's repr of a finite float.
func (f Float) String() string {
	v := float64(f)
	s := strconv.FormatFloat(v, 'e', -1, 64)
	mant, exp, _ := strings.Cut(s, "e")
	if e, _ := strconv.Atoi(exp); e < -4 || e >= 16 {
		return mant + "e" + exp
	}
	s = strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// MarshalJSON writes the number as Python's json does.
func (f Float) MarshalJSON() ([]byte, error) { return []byte(f.String()), nil }

// Sum is a rounded sum. In Python a sum of no terms is the integer 0, which prints without a point.
type Sum struct {
	Value Float
	Empty bool
}

// String is Python's repr.
func (s Sum) String() string {
	if s.Empty {
		return "0"
	}
	return s.Value.String()
}

// MarshalJSON writes the number as Python's json does.
func (s Sum) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// round rounds to n decimals as Python's round does: the exact binary value to the nearest, ties to even.
func round(v float64, n int) Float {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', n, 64), 64)
	if err != nil {
		return Float(v)
	}
	return Float(r)
}

// repr is Python's repr of a string.
func repr(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b := []byte{quote}
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r < 0x100:
			b = append(append(b, `\x`...), hex(r, 2)...)
		case r < 0x10000:
			b = append(append(b, `\u`...), hex(r, 4)...)
		default:
			b = append(append(b, `\U`...), hex(r, 8)...)
		}
	}
	return string(append(b, quote))
}

func hex(r rune, width int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", width-len(s)) + s
}

func reprList(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = repr(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// writeJSON writes v as json.dumps(v, indent=1) and a newline: ASCII only.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeNonASCII(b.Bytes()))
	return err
}

// inlineJSON is v as json.dumps(v): one line, a space after each comma and colon.
func inlineJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	src := bytes.TrimSpace(escapeNonASCII(b.Bytes()))
	out := make([]byte, 0, len(src)*5/4)
	inside := false
	for i := 0; i < len(src); i++ {
		c := src[i]
		out = append(out, c)
		switch {
		case inside && c == '\\':
			i++
			out = append(out, src[i])
		case c == '"':
			inside = !inside
		case !inside && (c == ',' || c == ':'):
			out = append(out, ' ')
		}
	}
	return string(out), nil
}

// escapeNonASCII writes every character of JSON text outside printable ASCII as \u escapes. Such characters stand
// inside strings only, line ends apart.
func escapeNonASCII(b []byte) []byte {
	if !bytes.ContainsFunc(b, func(r rune) bool { return r >= 0x7f }) {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for _, r := range string(b) {
		switch {
		case r < 0x7f:
			out = append(out, byte(r))
		case r < 0x10000:
			out = append(append(out, `\u`...), hex(r, 4)...)
		default:
			r -= 0x10000
			out = append(append(out, `\u`...), hex(0xd800+r>>10, 4)...)
			out = append(append(out, `\u`...), hex(0xdc00+r&0x3ff, 4)...)
		}
	}
	return out
}

// cleanPath writes a path as Python's pathlib prints it: "." parts and doubled slashes go, ".." stays.
func cleanPath(s string) string {
	root := ""
	if strings.HasPrefix(s, "/") {
		root = "/"
		if strings.HasPrefix(s, "//") && !strings.HasPrefix(s, "///") {
			root = "//"
		}
	}
	var parts []string
	for _, p := range strings.Split(s, "/") {
		if p != "" && p != "." {
			parts = append(parts, p)
		}
	}
	if root == "" && len(parts) == 0 {
		return "."
	}
	return root + strings.Join(parts, "/")
}
