package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"sluice/dump"
)

// CatOptions choose what Cat prints.
type CatOptions struct {
	Layer int       // only this one; -1: all
	Skip  uint64    // records (rows of a trace) of that layer to pass over first
	Limit uint64    // records to print at most; 0: all
	Rows  io.Reader // the rows sidecar of a selection dump (dump.RowsPath), for whose each record is; nil: it has none
	JSON  bool      // one document {"kind", "records", "torn"} instead of lines
}

// Cat prints a recording's records with the byte at which each begins, as lines or as one JSON document, and tells
// whether it is torn. A layer without records is an error.
func Cat(ctx context.Context, w io.Writer, r io.ReadSeeker, o CatOptions) (*Torn, error) {
	kind, err := Detect(r)
	if err != nil {
		return nil, err
	}
	c := &catter{w: bufio.NewWriterSize(w, 1<<16), o: o}
	if o.JSON {
		fmt.Fprintf(c.w, `{"kind": %q, "records": [`, kind)
	}
	read := c.selection
	if kind == Trace {
		read = c.trace
	}
	torn, err := tornOf(read(ctx, r))
	if err == nil && o.Layer >= 0 && c.met == 0 && !c.full() {
		err = fmt.Errorf("inspect: layer %d has no records", o.Layer)
	}
	if o.JSON && err == nil {
		end, _ := json.Marshal(torn)
		fmt.Fprintf(c.w, "\n], \"torn\": %s}\n", end)
	}
	if flushErr := c.w.Flush(); err == nil {
		err = flushErr
	}
	return torn, err
}

type catter struct {
	w            *bufio.Writer
	o            CatOptions
	met, printed uint64
	line         []byte
}

func (c *catter) full() bool { return c.o.Limit > 0 && c.printed == c.o.Limit }

// wants counts a record and tells whether to print it.
func (c *catter) wants(layer int) bool {
	if c.o.Layer >= 0 && layer != c.o.Layer {
		return false
	}
	c.met++
	return c.met > c.o.Skip
}

func (c *catter) end() error {
	if c.o.JSON && c.printed > 0 {
		c.w.WriteByte(',')
	}
	if c.o.JSON {
		c.w.WriteByte('\n')
	}
	c.printed++
	if !c.o.JSON {
		c.line = append(c.line, '\n')
	}
	_, err := c.w.Write(c.line)
	return err
}

func (c *catter) selection(ctx context.Context, in io.Reader) error {
	r := dump.NewSelReader(in)
	next := func() (rec dump.SelRecord, row dump.PassRow, known bool, err error) {
		rec, err = r.Next()
		return rec, row, false, err
	}
	if c.o.Rows != nil {
		p, err := dump.NewSelRowReader(in, c.o.Rows)
		if err != nil {
			return err
		}
		r, next = p.SelReader, p.Next
	}
	for !c.full() {
		at := r.Offset()
		rec, row, known, err := next()
		if err != nil {
			return err
		}
		if r.Records()&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !c.wants(rec.Layer) {
			continue
		}
		b := c.line[:0]
		if c.o.JSON {
			b = fmt.Appendf(b, `{"offset": %d, "record": %d, "layer": %d, "expert": [`, at, r.Records()-1, rec.Layer)
			for i, e := range rec.Expert {
				b = strconv.AppendInt(appendComma(b, i), int64(e), 10)
			}
			b = append(b, `], "weight": [`...)
			for i, w := range rec.Weight {
				b = appendJSONFloat(appendComma(b, i), float64(w), 32)
			}
			b = append(b, ']')
			if known {
				b = fmt.Appendf(b, `, "seq": %d, "turn": %d, "phase": %q, "step": %d, "pass": %d`, row.Seq, row.Turn, phases[row.Phase], row.Step, row.Pass)
			}
			b = append(b, '}')
		} else {
			b = fmt.Appendf(b, "%12d  record %d  layer %d  n_sel %d ", at, r.Records()-1, rec.Layer, len(rec.Expert))
			for i, e := range rec.Expert {
				b = strconv.AppendInt(append(b, ' '), int64(e), 10)
				b = strconv.AppendFloat(append(b, ':'), float64(rec.Weight[i]), 'g', -1, 32)
			}
			if known {
				b = fmt.Appendf(b, "  seq %d  turn %d  %s  step %d  pass %d", row.Seq, row.Turn, phases[row.Phase], row.Step, row.Pass)
			}
		}
		c.line = b
		if err := c.end(); err != nil {
			return err
		}
	}
	return io.EOF
}

var phases = [...]string{dump.Prefill: "prefill", dump.Decode: "decode"}

var residencies = [...]string{"miss", "hit", "hit-prefetch"}

func (c *catter) trace(ctx context.Context, in io.Reader) error {
	lines := &lineStarts{in: in, first: 1, starts: []int64{0}}
	r, err := dump.NewTraceReader(lines)
	if err != nil {
		return err
	}
	var row dump.TraceRow
	extra := r.ExtraColumns()
	for !c.full() {
		if err := r.Next(&row); err != nil {
			return err
		}
		if r.Rows()&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		at := lines.at(r.Line())
		if !c.wants(row.Layer) {
			continue
		}
		phase := phases[row.Phase]
		b := c.line[:0]
		if c.o.JSON {
			b = fmt.Appendf(b, `{"offset": %d, "line": %d, "turn": %d, "phase": %q, "step": %d, "layer": %d, "slot": %d, "expert": %d, "weight": `,
				at, r.Line(), row.Turn, phase, row.Step, row.Layer, row.Slot, row.Expert)
			b = appendJSONFloat(b, row.Weight, 64)
			b = fmt.Appendf(b, `, "residency": %q, "expert_bytes": %d, "dropped": %t`, residencies[row.Residency], row.ExpertBytes, row.Dropped)
			if r.Seqs() {
				b = fmt.Appendf(b, `, "seq": %d, "pass": %d`, row.Seq, row.Pass)
			}
			for i, name := range extra {
				k, _ := json.Marshal(name) // strings always marshal
				v, _ := json.Marshal(string(row.Extra[i]))
				b = append(append(append(append(b, ", "...), k...), ": "...), v...)
			}
			b = append(b, '}')
		} else {
			b = fmt.Appendf(b, "%12d  line %d  turn %d  %s  step %d  layer %d  slot %d  expert %d  weight %v  %s  %d bytes",
				at, r.Line(), row.Turn, phase, row.Step, row.Layer, row.Slot, row.Expert, row.Weight, residencies[row.Residency], row.ExpertBytes)
			if row.Dropped {
				b = append(b, "  dropped"...)
			}
			if r.Seqs() {
				b = fmt.Appendf(b, "  seq %d  pass %d", row.Seq, row.Pass)
			}
			for i, name := range extra {
				b = fmt.Appendf(b, "  %s=%q", name, row.Extra[i])
			}
		}
		c.line = b
		if err := c.end(); err != nil {
			return err
		}
	}
	return io.EOF
}

// lineStarts passes a text through and remembers where the lines begin that its reader has not asked for yet: those
// of one buffer.
type lineStarts struct {
	in     io.Reader
	off    int64
	first  int     // number of the line that begins at starts[0]
	starts []int64 // bytes
}

func (l *lineStarts) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.starts = append(l.starts, l.off+int64(i)+1)
		}
	}
	l.off += int64(n)
	return n, err
}

// at returns where a line begins; lines before it are forgotten.
func (l *lineStarts) at(line int) int64 {
	l.starts = l.starts[line-l.first:]
	l.first = line
	return l.starts[0]
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendJSONFloat writes what JSON has no number for as a string.
func appendJSONFloat(b []byte, x float64, bits int) []byte {
	if x-x != 0 {
		return strconv.AppendQuote(b, strconv.FormatFloat(x, 'g', -1, bits))
	}
	return strconv.AppendFloat(b, x, 'g', -1, bits)
}
