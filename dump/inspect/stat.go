package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"text/tabwriter"

	"sluice/dump"
)

// Totals are those of a recording. Sel or Trace is set, by its kind.
type Totals struct {
	Kind    string       `json:"kind"`
	Records uint64       `json:"records"` // whole ones; rows of a trace
	Bytes   int64        `json:"bytes"`   // of the selection dump's whole records, of the trace's file
	Torn    *Torn        `json:"torn"`
	Sel     []SelTotal   `json:"selection_layers,omitempty"`
	Trace   []TraceTotal `json:"trace_layers,omitempty"`
	Rows    *RowTotals   `json:"rows,omitempty"` // whose the records are, where the recording says so
}

// RowTotals sum up whose the records of a selection dump, or the rows of a trace, are.
type RowTotals struct {
	Sequences int    `json:"sequences"`       // highest number and 1
	Turns     int    `json:"turns"`           // highest number and 1
	Passes    uint64 `json:"passes"`          // forward passes
	Prefill   uint64 `json:"prefill_records"` // rows of a trace
	Decode    uint64 `json:"decode_records"`
	Unknown   uint64 `json:"unknown_records"` // of which the sidecar says nothing
	Torn      *Torn  `json:"torn"`            // the sidecar
	pass      int64
}

func (t *RowTotals) add(seq, turn, phase int, pass int64) {
	t.Sequences, t.Turns = max(t.Sequences, seq+1), max(t.Turns, turn+1)
	if pass != t.pass {
		t.pass = pass
		t.Passes++
	}
	if phase == dump.Decode {
		t.Decode++
	} else {
		t.Prefill++
	}
}

// SelTotal sums up one layer of a selection dump.
type SelTotal struct {
	Layer     int     `json:"layer"`
	Tokens    uint64  `json:"tokens"`
	Slots     uint64  `json:"slots"`
	MinK      int     `json:"min_n_sel"`
	MaxK      int     `json:"max_n_sel"`
	Experts   int     `json:"distinct_experts"`
	MaxExpert int     `json:"max_expert"`
	MeanMass  float64 `json:"mean_weight_per_token"` // over the finite weights
	NonFinite uint64  `json:"non_finite_weights"`
	Repeated  uint64  `json:"tokens_with_an_expert_twice"` // no router does that
}

// TraceTotal sums up one layer and phase of a route trace.
type TraceTotal struct {
	Layer       int     `json:"layer"`
	Phase       string  `json:"phase"`
	Rows        uint64  `json:"rows"`
	Experts     int     `json:"distinct_experts"`
	Hits        uint64  `json:"hits"`
	Prefetched  uint64  `json:"hits_by_prefetch"`
	Misses      uint64  `json:"misses"`
	BytesRead   int64   `json:"bytes_read"`       // on demand
	BytesAhead  int64   `json:"bytes_read_ahead"` // by this layer's calls, of experts of the next one
	Dropped     uint64  `json:"dropped"`
	Weight      float64 `json:"weight"` // sum as routed, over the known ones
	WeightDrop  float64 `json:"weight_dropped"`
	UnknownRows uint64  `json:"unknown_weights"`
}

// bitset is the experts that were seen.
type bitset []uint64

func (b *bitset) add(i int) {
	for len(*b) <= i/64 {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// Stat reads a recording once and sums it up by layer. rows: the rows sidecar of a selection dump (dump.RowsPath), nil where
// it has none.
func Stat(ctx context.Context, r io.ReadSeeker, rows io.Reader) (*Totals, error) {
	kind, err := Detect(r)
	if err != nil {
		return nil, err
	}
	t := &Totals{Kind: kind.String()}
	if kind == Trace {
		err = t.trace(ctx, r)
	} else {
		err = t.selection(ctx, r, rows)
	}
	if t.Torn, err = tornOf(err); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return t, nil
}

func (t *Totals) selection(ctx context.Context, in, rows io.Reader) error {
	type acc struct {
		SelTotal
		mass float64
		seen bitset
	}
	var layers [256]*acc
	last := make([]uint64, 1<<16) // number of the last record with this expert
	r := dump.NewSelReader(in)
	next := r.Next
	if rows != nil {
		p, err := dump.NewSelRowReader(in, rows)
		if err != nil {
			return err
		}
		r, next = p.SelReader, func() (dump.SelRecord, error) { return t.pair(p) }
		t.Rows = &RowTotals{}
	}
	rec, err := next()
	for ; err == nil; rec, err = next() {
		n := r.Records()
		if n&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		a, k := layers[rec.Layer], len(rec.Expert)
		if a == nil {
			a = &acc{SelTotal: SelTotal{Layer: rec.Layer, MinK: k}}
			layers[rec.Layer] = a
		}
		a.Tokens++
		a.Slots += uint64(k)
		a.MinK, a.MaxK = min(a.MinK, k), max(a.MaxK, k)
		twice := false
		for i, e := range rec.Expert {
			twice = twice || last[e] == n
			last[e] = n
			a.MaxExpert = max(a.MaxExpert, int(e))
			a.seen.add(int(e))
			if w := rec.Weight[i]; w-w == 0 {
				a.mass += float64(w)
			} else {
				a.NonFinite++
			}
		}
		if twice {
			a.Repeated++
		}
	}
	t.Records, t.Bytes = r.Records(), r.Offset()
	t.Sel = []SelTotal{}
	for _, a := range layers {
		if a != nil {
			a.MeanMass, a.Experts = a.mass/float64(a.Tokens), a.seen.count()
			t.Sel = append(t.Sel, a.SelTotal)
		}
	}
	return err
}

// pair counts whose the next record is.
func (t *Totals) pair(p *dump.SelRowReader) (dump.SelRecord, error) {
	rec, row, known, err := p.Next()
	switch {
	case err != nil:
		if torn := p.RowsTorn(); torn != nil {
			t.Rows.Torn = &Torn{torn.Records, torn.Offset}
		}
	case known:
		t.Rows.add(int(row.Seq), int(row.Turn), int(row.Phase), row.Pass)
	default:
		t.Rows.Unknown++
	}
	return rec, err
}

func (t *Totals) trace(ctx context.Context, in io.ReadSeeker) error {
	type key struct{ layer, phase int }
	type acc struct {
		TraceTotal
		seen bitset
	}
	layers := map[key]*acc{}
	r, err := dump.NewTraceReader(in)
	if err != nil {
		return err
	}
	if r.Seqs() {
		t.Rows = &RowTotals{}
	}
	var row dump.TraceRow
	for err = r.Next(&row); err == nil; err = r.Next(&row) {
		if r.Rows()&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		a := layers[key{row.Layer, row.Phase}]
		if a == nil {
			a = &acc{TraceTotal: TraceTotal{Layer: row.Layer, Phase: "prefill"}}
			if row.Phase == dump.Decode {
				a.Phase = "decode"
			}
			layers[key{row.Layer, row.Phase}] = a
		}
		if t.Rows != nil {
			t.Rows.add(row.Seq, row.Turn, row.Phase, row.Pass)
		}
		a.Rows++
		a.seen.add(row.Expert)
		a.BytesRead += row.ExpertBytes
		ahead, aheadErr := r.AheadBytes()
		if aheadErr != nil {
			return aheadErr
		}
		a.BytesAhead += ahead
		switch row.Residency {
		case dump.Hit:
			a.Hits++
		case dump.HitPrefetch:
			a.Prefetched++
		default:
			a.Misses++
		}
		if row.WeightUnknown {
			a.UnknownRows++
		} else {
			a.Weight += row.Weight
		}
		if row.Dropped {
			a.Dropped++
			if !row.WeightUnknown {
				a.WeightDrop += row.Weight
			}
		}
	}
	t.Records = r.Rows()
	if size, seekErr := in.Seek(0, io.SeekEnd); seekErr == nil {
		t.Bytes = size
	}
	t.Trace = []TraceTotal{}
	keys := slices.SortedFunc(maps.Keys(layers), func(a, b key) int { return (a.layer-b.layer)*2 + a.phase - b.phase })
	for _, k := range keys {
		a := layers[k]
		a.Experts = a.seen.count()
		t.Trace = append(t.Trace, a.TraceTotal)
	}
	return err
}

// WriteText writes the totals for a terminal.
func (t *Totals) WriteText(w io.Writer) error {
	unit := "records"
	if t.Trace != nil {
		unit = "rows"
	}
	fmt.Fprintf(w, "%s: %d %s, %d bytes\n", t.Kind, t.Records, unit, t.Bytes)
	if t.Torn != nil {
		fmt.Fprintln(w, t.Torn)
	}
	if r := t.Rows; r != nil {
		fmt.Fprintf(w, "whose: %d sequences, %d turns, %d forward passes; %d %s prefill, %d decode", r.Sequences, r.Turns, r.Passes, r.Prefill, unit, r.Decode)
		if r.Unknown > 0 {
			fmt.Fprintf(w, ", %d unknown", r.Unknown)
		}
		fmt.Fprintln(w)
		if r.Torn != nil {
			fmt.Fprintf(w, "sidecar: torn tail: %d whole rows, torn at byte %d\n", r.Torn.Records, r.Torn.Offset)
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		var s []string
		for _, c := range cells {
			s = append(s, fmt.Sprint(c))
		}
		fmt.Fprintln(tw, strings.Join(s, "\t"))
	}
	if t.Sel != nil {
		row("layer", "tokens", "n_sel", "experts seen", "highest id", "weight per token", "not finite", "expert twice")
	}
	for _, l := range t.Sel {
		k := fmt.Sprint(l.MinK)
		if l.MaxK != l.MinK {
			k = fmt.Sprintf("%d..%d", l.MinK, l.MaxK)
		}
		row(l.Layer, l.Tokens, k, l.Experts, l.MaxExpert, fmt.Sprintf("%.4f", l.MeanMass), l.NonFinite, l.Repeated)
	}
	if t.Trace != nil {
		row("layer", "phase", "rows", "experts seen", "hits", "by prefetch", "misses", "bytes read", "read ahead", "dropped", "weight", "dropped", "unknown")
	}
	for _, l := range t.Trace {
		row(l.Layer, l.Phase, l.Rows, l.Experts, l.Hits, l.Prefetched, l.Misses, l.BytesRead, l.BytesAhead, l.Dropped,
			fmt.Sprintf("%.3f", l.Weight), fmt.Sprintf("%.3f", l.WeightDrop), l.UnknownRows)
	}
	return tw.Flush()
}
