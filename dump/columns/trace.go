package columns

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/parquet-go/parquet-go"

	"sluice/dump"
)

// traceFormat is the first line of a route trace.
const traceFormat = "route_trace v1"

// fields are the columns of a group in our order; parquet.Group itself sorts them by name.
type fields struct {
	parquet.Group
	names []string
}

func (f fields) Fields() []parquet.Field {
	all := f.Group.Fields()
	slices.SortFunc(all, func(a, b parquet.Field) int {
		return slices.Index(f.names, a.Name()) - slices.Index(f.names, b.Name())
	})
	return all
}

// traceSchema has the recording's columns, seqs tells whether sequence and pass among them, and those that its reader does
// not know, as text.
func traceSchema(seqs bool, extra []string) *parquet.Schema {
	f := fields{Group: parquet.Group{}}
	add := func(name string, n parquet.Node) {
		f.names = append(f.names, name)
		f.Group[name] = n
	}
	delta := func(n parquet.Node) parquet.Node { return parquet.Encoded(n, &parquet.DeltaBinaryPacked) }
	dict := func(n parquet.Node) parquet.Node { return parquet.Encoded(n, &parquet.RLEDictionary) }
	add("turn", delta(parquet.Int(64)))
	add("phase", dict(parquet.Int(32)))
	add("step", delta(parquet.Int(64)))
	add("layer", dict(parquet.Int(32)))
	add("slot", dict(parquet.Int(32)))
	add("expert", dict(parquet.Int(32)))
	add("weight", parquet.Optional(parquet.Encoded(parquet.Leaf(parquet.DoubleType), &parquet.ByteStreamSplit)))
	add("residency", dict(parquet.Int(32)))
	add("expert_bytes", dict(parquet.Int(64)))
	add("dropped", parquet.Optional(parquet.Leaf(parquet.BooleanType)))
	if seqs {
		add(dump.SeqColumn, delta(parquet.Int(64)))
		add(dump.PassColumn, delta(parquet.Int(64)))
	}
	for _, name := range extra {
		add(name, dict(parquet.String()))
	}
	return parquet.NewSchema("route_trace", f)
}

func (s *Summary) trace(ctx context.Context, w io.Writer, in io.Reader, facts Facts) error {
	r, err := dump.NewTraceReader(in)
	if err != nil {
		return err
	}
	extra := r.ExtraColumns()
	pw := parquet.NewGenericWriter[any](w, options(traceSchema(r.Seqs(), extra))...)
	hasDropped := slices.Contains(r.Columns(), "dropped")
	width := 12 + len(extra)
	rows := make([]parquet.Row, 0, blockRows)
	values := make([]parquet.Value, 0, blockRows*width)
	flush := func() error {
		_, err := pw.WriteRows(rows)
		s.Rows += uint64(len(rows))
		rows, values = rows[:0], values[:0]
		return err
	}
	var row dump.TraceRow
	for err = r.Next(&row); err == nil; err = r.Next(&row) {
		at := len(values)
		values = appendTraceRow(values, &row, hasDropped, r.Seqs())
		rows = append(rows, values[at:len(values):len(values)])
		if len(rows) == blockRows {
			if err := flush(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if err := s.ended(err); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	s.Records = r.Rows()
	set(pw, traceFacts(r.Meta()), facts)
	return pw.Close()
}

// appendTraceRow appends the row's values. A weight that is not known is null, so that a sum over the column is the sum
// over the known ones; dropped is null in a trace from before dropping was recorded.
func appendTraceRow(v []parquet.Value, row *dump.TraceRow, hasDropped, seqs bool) []parquet.Value {
	col := len(v)
	add := func(x parquet.Value, definition int) {
		v = append(v, x.Level(0, definition, len(v)-col))
	}
	add(parquet.Int64Value(int64(row.Turn)), 0)
	add(parquet.Int32Value(int32(row.Phase)), 0)
	add(parquet.Int64Value(int64(row.Step)), 0)
	add(parquet.Int32Value(int32(row.Layer)), 0)
	add(parquet.Int32Value(int32(row.Slot)), 0)
	add(parquet.Int32Value(int32(row.Expert)), 0)
	if row.WeightUnknown {
		add(parquet.NullValue(), 0)
	} else {
		add(parquet.DoubleValue(row.Weight), 1)
	}
	add(parquet.Int32Value(int32(row.Residency)), 0)
	add(parquet.Int64Value(row.ExpertBytes), 0)
	if hasDropped {
		add(parquet.BooleanValue(row.Dropped), 1)
	} else {
		add(parquet.NullValue(), 0)
	}
	if seqs {
		add(parquet.Int64Value(int64(row.Seq)), 0)
		add(parquet.Int64Value(row.Pass), 0)
	}
	for _, x := range row.Extra {
		add(parquet.ByteArrayValue(slices.Clone(x)), 0) // the reader's memory lives until its next row only
	}
	return v
}

// traceFacts are the preamble's.
func traceFacts(m dump.TraceMeta) Facts {
	f := Facts{"format": traceFormat}
	set := func(key, value string) {
		if value != "" && value != "0" {
			f[key] = value
		}
	}
	set("model", m.Model)
	set("arch", m.Arch)
	set("n_layer", strconv.Itoa(m.NLayer))
	set("n_expert", strconv.Itoa(m.NExpert))
	set("n_expert_used", strconv.Itoa(m.NUsed))
	for _, x := range m.Extra {
		set(x[0], x[1])
	}
	for _, l := range m.Layers {
		set(fmt.Sprintf("layer.%d.expert_bytes", l.Layer), strconv.FormatInt(l.ExpertBytes, 10))
		set(fmt.Sprintf("layer.%d.dense_bytes", l.Layer), strconv.FormatInt(l.DenseBytes, 10))
	}
	return f
}
