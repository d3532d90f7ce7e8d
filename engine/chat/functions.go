package chat

import (
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

const (
	// maxRange bounds range(), whose list is made at once.
	maxRange = 100_000
	// Calls of macros that one Render may make. Recursion without end would exhaust the stack, which Go cannot recover
	// from; a template that needs more has not been seen.
	callsBase, callsPerMessage = 10_000, 100
)

// functions are the functions of one Render that the template engine lacks or must not have unbounded.
type functions struct {
	now       time.Time
	callsLeft int
	raised    *RaisedError
}

func (f *functions) values() map[string]jinja.Value {
	return map[string]jinja.Value{
		"raise_exception": jinja.NewCallable("raise_exception", f.raise),
		"strftime_now":    jinja.NewCallable("strftime_now", f.strftimeNow),
		"range":           jinja.NewCallable("range", makeRange),
		countFunction:     jinja.NewCallable(countFunction, f.count),
	}
}

func (f *functions) raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	f.raised = &RaisedError{"(no message)"}
	if len(args) > 0 && args[0].IsString() {
		f.raised.Message = args[0].AsString()
	}
	return jinja.Undefined(), f.raised
}

func (f *functions) count([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if f.callsLeft--; f.callsLeft < 0 {
		return jinja.Undefined(), fmt.Errorf("too many macro calls, a macro may call itself without end")
	}
	return jinja.None(), nil
}

func makeRange(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	n := [3]int64{0, 0, 1} // start, stop, step
	for i, a := range args {
		if i >= len(n) || !a.IsInt() {
			return jinja.Undefined(), fmt.Errorf("range: want 1 to 3 integers")
		}
		n[i] = a.AsInt()
	}
	switch len(args) {
	case 0:
		return jinja.Undefined(), fmt.Errorf("range: want 1 to 3 integers")
	case 1:
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		return jinja.Undefined(), fmt.Errorf("range: step 0")
	}
	var items []jinja.Value
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(items) == maxRange {
			return jinja.Undefined(), fmt.Errorf("range: more than %d values", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

func (f *functions) strftimeNow(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Undefined(), fmt.Errorf("strftime_now: want one string")
	}
	s, err := strftime(f.now, args[0].AsString())
	return jinja.NewString(s), err
}

// timeFormats are the conversions of C's strftime with no locale, as layouts of package time.
var timeFormats = map[string]string{
	"Y": "2006", "y": "06", "m": "01", "-m": "1", "d": "02", "-d": "2", "e": "_2", "B": "January", "b": "Jan", "h": "Jan",
	"A": "Monday", "a": "Mon", "H": "15", "I": "03", "-I": "3", "M": "04", "-M": "4", "S": "05", "-S": "5", "p": "PM",
	"j": "002", "Z": "MST", "z": "-0700", "F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06",
	"c": "Mon Jan _2 15:04:05 2006", "x": "01/02/06", "X": "15:04:05",
}

func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(format, "%")
		b.WriteString(text)
		if !found {
			return b.String(), nil
		}
		n := 1
		if strings.HasPrefix(rest, "-") {
			n = 2
		}
		code := rest[:min(n, len(rest))]
		layout, ok := timeFormats[code]
		switch {
		case ok:
			b.WriteString(t.Format(layout))
		case code == "%":
			b.WriteByte('%')
		case code == "-H":
			fmt.Fprint(&b, t.Hour())
		case code == "f":
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		default:
			return "", fmt.Errorf("strftime_now: unknown conversion %q", "%"+code)
		}
		format = rest[len(code):]
	}
}
