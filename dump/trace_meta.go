package dump

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	traceMagic   = "# route_trace v1"
	traceHeader  = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped"
	aheadHeader  = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes," + AheadColumn + "," + AheadBytesColumn + ",dropped"
	seqsHeader   = "," + SeqColumn + "," + PassColumn // behind either
	maxTraceLine = 64 << 10                           // bytes of one line with its end
	maxTraceID   = 1 << 16                            // layers, slots and experts stay below: a reader's tables stay small
	maxTraceInt  = 1<<31 - 1
	maxExtra     = 4096 // keys
)

// The columns of a run that reads ahead (TraceMeta.Ahead), which readers that do not know them take as text. They stand
// before the last one, so that a cut within a row can still be seen.
const (
	AheadColumn      = "ahead"       // experts of the next layer that the call asked for, the most wanted first, with a space between
	AheadBytesColumn = "ahead_bytes" // what of them was read
)

// The columns of a run of several sequences (TraceMeta.Seqs), the last ones. A reader knows them where both are there.
const (
	SeqColumn  = "seq"  // the row's sequence, from 0
	PassColumn = "pass" // the engine's forward pass, from 1: rows of one pass and layer are one layer call
)

// TraceMeta is the preamble of a route trace.
type TraceMeta struct {
	Model, Arch            string // general.name or file; general.architecture
	NLayer, NExpert, NUsed int    // n_layer, n_expert, n_expert_used; 0: not stated
	Layers                 []TraceLayer
	Extra                  [][2]string // further key, value pairs in file order
	Ahead                  bool        // the rows tell what was read ahead; of a trace that is read, see TraceReader.ExtraColumns
	Seqs                   bool        // the rows tell sequence and pass; of a trace that is read, see TraceReader.Seqs
}

// TraceLayer is what one layer weighs.
type TraceLayer struct {
	Layer                   int
	ExpertBytes, DenseBytes int64 // of one expert; of everything in the layer that is not streamed
}

// Keys with a meaning of their own. An Extra of such a name would overwrite it in every reader that merges the lines.
var traceKeys = [...]string{"model", "arch", "n_layer", "n_expert", "n_expert_used", "layer", "expert_bytes", "dense_bytes"}

func isTraceKey(key string) bool {
	for _, k := range traceKeys {
		if k == key {
			return true
		}
	}
	return false
}

// appendPreamble appends the preamble and the header line.
func appendPreamble(b []byte, m *TraceMeta) ([]byte, error) {
	for _, n := range [...]int{m.NLayer, m.NExpert, m.NUsed} {
		if n < 0 || n > maxTraceID {
			return nil, fmt.Errorf("n_layer %d, n_expert %d, n_expert_used %d: want 0..%d", m.NLayer, m.NExpert, m.NUsed, maxTraceID)
		}
	}
	b = append(b, traceMagic+"\n# model="...)
	b = appendEscaped(b, m.Model)
	b = append(b, " arch="...)
	b = appendEscaped(b, m.Arch)
	b = fmt.Appendf(b, " n_layer=%d n_expert=%d n_expert_used=%d\n", m.NLayer, m.NExpert, m.NUsed)
	for _, l := range m.Layers {
		if l.Layer < 0 || l.Layer >= maxTraceID || l.ExpertBytes < 0 || l.DenseBytes < 0 {
			return nil, fmt.Errorf("layer %d: expert_bytes %d, dense_bytes %d: negative, or layer not below %d",
				l.Layer, l.ExpertBytes, l.DenseBytes, maxTraceID)
		}
		b = fmt.Appendf(b, "# layer=%d expert_bytes=%d dense_bytes=%d\n", l.Layer, l.ExpertBytes, l.DenseBytes)
	}
	if len(m.Extra) > maxExtra {
		return nil, fmt.Errorf("%d extra keys, at most %d", len(m.Extra), maxExtra)
	}
	seen := make(map[string]bool, len(m.Extra))
	for _, kv := range m.Extra {
		key := kv[0]
		switch {
		case key == "" || string(appendEscaped(nil, key)) != key:
			return nil, fmt.Errorf("extra key %q: empty, or has white space, control characters, '=' or '%%'", key)
		case isTraceKey(key):
			return nil, fmt.Errorf("extra key %q has a meaning of its own in the format", key)
		case seen[key]:
			return nil, fmt.Errorf("extra key %q twice", key)
		}
		seen[key] = true
		b = append(append(append(b, "# "...), key...), '=')
		b = append(appendEscaped(b, kv[1]), '\n')
	}
	for line := range strings.Lines(string(b)) {
		if len(line) > maxTraceLine {
			return nil, fmt.Errorf("preamble line of %d bytes, at most %d: %.40q", len(line), maxTraceLine, line)
		}
	}
	header := traceHeader
	if m.Ahead {
		header = aheadHeader
	}
	if m.Seqs {
		header += seqsHeader
	}
	return append(append(b, header...), '\n'), nil
}

// appendEscaped appends v so that it stays one token for a reader that splits lines at white space and tokens at '=':
// '%', '=', white space, control characters and bytes that are not UTF-8 become %XX, byte by byte, as in a URL.
func appendEscaped(b []byte, v string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(v); {
		r, n := utf8.DecodeRuneInString(v[i:])
		bad := r == utf8.RuneError && n == 1
		if bad || r == '%' || r == '=' || unicode.IsSpace(r) || unicode.IsControl(r) {
			for _, c := range []byte(v[i : i+n]) {
				b = append(b, '%', hex[c>>4], hex[c&15])
			}
		} else {
			b = append(b, v[i:i+n]...)
		}
		i += n
	}
	return b
}

// unescape undoes appendEscaped. A '%' without two hexadecimal digits behind it stands for itself, for files of writers
// that do not escape.
func unescape(v string) string {
	if !strings.Contains(v, "%") {
		return v
	}
	b := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		if v[i] == '%' && i+2 < len(v) {
			if c, err := strconv.ParseUint(v[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(c))
				i += 2
				continue
			}
		}
		b = append(b, v[i])
	}
	return string(b)
}

// preamble collects the '#' lines of a trace. Like the scripts that read this format it merges the key=value tokens of
// all lines, the later one winning, and skips tokens without '='.
type preamble struct {
	meta  TraceMeta
	layer map[int]int    // index in meta.Layers
	extra map[string]int // index in meta.Extra
}

func (p *preamble) line(text string) error {
	fields := strings.Fields(strings.TrimLeft(text, "#"))
	if len(fields) >= 2 && fields[0] == "route_trace" && fields[1] != "v1" {
		return fmt.Errorf("route_trace version %.20q, want v1", fields[1])
	}
	var l TraceLayer
	var haveLayer, haveBytes bool
	for _, f := range fields {
		key, val, ok := strings.Cut(f, "=")
		if !ok {
			continue
		}
		var err error
		switch key {
		case "model":
			p.meta.Model = unescape(val)
		case "arch":
			p.meta.Arch = unescape(val)
		case "n_layer":
			p.meta.NLayer, err = preambleInt[int](val, maxTraceID)
		case "n_expert":
			p.meta.NExpert, err = preambleInt[int](val, maxTraceID)
		case "n_expert_used":
			p.meta.NUsed, err = preambleInt[int](val, maxTraceID)
		case "layer":
			haveLayer = true
			l.Layer, err = preambleInt[int](val, maxTraceID-1)
		case "expert_bytes":
			haveBytes = true
			l.ExpertBytes, err = preambleInt[int64](val, 1<<63-1)
		case "dense_bytes":
			l.DenseBytes, err = preambleInt[int64](val, 1<<63-1)
		default:
			err = p.addExtra(key, unescape(val))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if !haveLayer || !haveBytes {
		return nil
	}
	if i, ok := p.layer[l.Layer]; ok {
		p.meta.Layers[i] = l
		return nil
	}
	if p.layer == nil {
		p.layer = make(map[int]int)
	}
	p.layer[l.Layer] = len(p.meta.Layers)
	p.meta.Layers = append(p.meta.Layers, l)
	return nil
}

func (p *preamble) addExtra(key, val string) error {
	if i, ok := p.extra[key]; ok {
		p.meta.Extra[i][1] = val
		return nil
	}
	if len(p.meta.Extra) == maxExtra {
		return fmt.Errorf("more than %d keys", maxExtra)
	}
	if p.extra == nil {
		p.extra = make(map[string]int)
	}
	p.extra[key] = len(p.meta.Extra)
	p.meta.Extra = append(p.meta.Extra, [2]string{key, val})
	return nil
}

func preambleInt[T int | int64](val string, limit int64) (T, error) {
	n, msg := parseCount([]byte(val), limit)
	if msg != "" {
		return 0, errors.New(msg)
	}
	return T(n), nil
}

// parseCount reads a whole number 0..limit in plain decimal digits. msg says what is wrong, "" nothing.
func parseCount(f []byte, limit int64) (n int64, msg string) {
	if len(f) == 0 {
		return 0, "empty, want a whole number"
	}
	for i, c := range f {
		d := int64(c - '0')
		if c < '0' || c > '9' {
			if _, msg := parseCount(f[1:], 1<<63-1); i == 0 && c == '-' && msg == "" {
				return 0, fmt.Sprintf("%.20q is negative", f)
			}
			return 0, fmt.Sprintf("%.20q is not a whole number", f)
		}
		if d > limit || n > (limit-d)/10 {
			return 0, fmt.Sprintf("%.20q is above %d", f, limit)
		}
		n = n*10 + d
	}
	return n, ""
}
