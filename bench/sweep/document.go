package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"sluice/bench/internal/jsonpos"
)

// Document is what a sweep of one mode writes: sweep_prefill.json or sweep_decode.json. The keys that figures read are
// panel, latency_ns, S_kv, T_q, h_kv, d_head, C, P and op_log_summary of each row.
type Document struct {
	Config   Config   `json:"config"`
	Topology Topology `json:"topology"` // that latency_ns was modelled on
	Rows     []Row    `json:"rows"`
}

// Row is one case.
type Row struct {
	Panel     string  `json:"panel"`
	LatencyNS float64 `json:"latency_ns"` // modelled
	SKV       int     `json:"S_kv"`
	TQ        int     `json:"T_q"`
	KVHeads   int     `json:"h_kv"`
	HeadDim   int     `json:"d_head"`
	C         int     `json:"C"`
	P         int     `json:"P"`
	Summary   Counts  `json:"op_log_summary"`

	MeasuredNS int64   `json:"measured_ns"` // wall time of the execution on this machine
	CopyBytes  int64   `json:"ipcq_copy_bytes"`
	MaxError   float64 `json:"max_abs_error"` // from the unpartitioned attention
	Work
}

// Tolerance is how far an output may be from that of the unpartitioned attention.
const Tolerance = 1e-5

// All runs the four cases of a configuration, one after the other, and models each on the topology. progress, if not nil,
// is told of each case before it starts. An output beyond Tolerance is an error.
func All(ctx context.Context, c Config, t Topology, progress func(k Case)) (*Document, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	var schedules []*Schedule
	for _, k := range Cases() { // all sizes are checked before anything is computed
		s, err := New(c, k)
		if err != nil {
			return nil, err
		}
		schedules = append(schedules, s)
	}
	problem, err := NewProblem(ctx, c)
	if err != nil {
		return nil, err
	}
	doc := &Document{Config: c, Topology: t}
	for _, s := range schedules {
		if progress != nil {
			progress(s.Case)
		}
		ns, err := t.Simulate(s)
		if err != nil {
			return nil, err
		}
		run, err := s.Execute(ctx, problem)
		if err != nil {
			return nil, err
		}
		if !(run.MaxError <= Tolerance) {
			return nil, fmt.Errorf("sweep: case %s: output is off by %g, at most %g is allowed", s.Case.Name, run.MaxError, Tolerance)
		}
		if run.Pairs != s.Work.Total || run.Active != s.Work.ActivePEs || run.KVBytes != s.Work.KVBytes {
			return nil, fmt.Errorf("sweep: case %s: executed %d pairs on %d ranks of %d bytes, the formulas say %+v", s.Case.Name, run.Pairs, run.Active, run.KVBytes, s.Work)
		}
		doc.Rows = append(doc.Rows, Row{Panel: s.Case.Panel(c.Mode), LatencyNS: ns, SKV: c.SKV, TQ: c.TQ, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			C: c.C, P: c.P, Summary: run.Counts, MeasuredNS: run.Elapsed.Nanoseconds(), CopyBytes: run.CopyBytes, MaxError: run.MaxError, Work: s.Work})
	}
	return doc, nil
}

const maxDocumentBytes = 16 << 20

// rowFile has pointers where a missing key must be told from a zero.
type rowFile struct {
	Panel     *string  `json:"panel"`
	LatencyNS *float64 `json:"latency_ns"`
	SKV       *int     `json:"S_kv"`
	TQ        *int     `json:"T_q"`
	KVHeads   *int     `json:"h_kv"`
	HeadDim   *int     `json:"d_head"`
	C         *int     `json:"C"`
	P         *int     `json:"P"`
	Summary   *struct {
		Copies *int64 `json:"ipcq_copy_count"`
		Reads  *int64 `json:"dma_read_count"`
		Writes *int64 `json:"dma_write_count"`
	} `json:"op_log_summary"`
}

// ReadDocument reads the rows of a sweep document, by whomever it was written, for the figures: what they need must be
// there, and Row's memory and work figures are computed from the sizes. The mode is that of the first panel's name. Errors
// name the line and column, or the row and the key.
func ReadDocument(r io.Reader) (*Document, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxDocumentBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxDocumentBytes {
		return nil, fmt.Errorf("sweep: document longer than %d bytes", maxDocumentBytes)
	}
	var file struct {
		Rows *[]rowFile `json:"rows"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("sweep: document: %w", jsonpos.Describe(b, err))
	}
	if file.Rows == nil {
		return nil, fmt.Errorf("sweep: document: key %q is missing", "rows")
	}
	if len(*file.Rows) == 0 {
		return nil, fmt.Errorf("sweep: document has no row")
	}
	doc := &Document{}
	seen := map[string]bool{}
	for i, f := range *file.Rows {
		row, err := f.row()
		if err == nil && doc.Config.Mode == "" {
			doc.Config.Mode = Prefill
			if _, e := panelCase(row.Panel, Decode); e == nil {
				doc.Config.Mode = Decode
			}
		}
		if err == nil {
			row.Work, err = row.work(doc.Config.Mode)
		}
		if err == nil && seen[row.Panel] {
			err = fmt.Errorf("panel %q stands there twice", row.Panel)
		}
		if err != nil {
			return nil, fmt.Errorf("sweep: document: row %d: %w", i, err)
		}
		seen[row.Panel] = true
		doc.Rows = append(doc.Rows, row)
	}
	return doc, nil
}

func (f *rowFile) row() (Row, error) {
	var r Row
	if f.Summary == nil {
		return r, fmt.Errorf("key %q is missing", "op_log_summary")
	}
	for _, k := range []struct {
		key     string
		missing bool
	}{{"panel", f.Panel == nil}, {"latency_ns", f.LatencyNS == nil}, {"S_kv", f.SKV == nil}, {"T_q", f.TQ == nil}, {"h_kv", f.KVHeads == nil},
		{"d_head", f.HeadDim == nil}, {"C", f.C == nil}, {"P", f.P == nil}, {"op_log_summary.ipcq_copy_count", f.Summary.Copies == nil},
		{"op_log_summary.dma_read_count", f.Summary.Reads == nil}, {"op_log_summary.dma_write_count", f.Summary.Writes == nil}} {
		if k.missing {
			return r, fmt.Errorf("key %q is missing", k.key)
		}
	}
	r = Row{Panel: *f.Panel, LatencyNS: *f.LatencyNS, SKV: *f.SKV, TQ: *f.TQ, KVHeads: *f.KVHeads, HeadDim: *f.HeadDim, C: *f.C, P: *f.P,
		Summary: Counts{*f.Summary.Copies, *f.Summary.Reads, *f.Summary.Writes}}
	if !(r.LatencyNS > 0 && r.LatencyNS <= 1e18) {
		return r, fmt.Errorf("latency_ns is %v, want above 0 and at most 1e18", r.LatencyNS)
	}
	for _, n := range []int64{r.Summary.Copies, r.Summary.Reads, r.Summary.Writes} {
		if n < 0 {
			return r, fmt.Errorf("op_log_summary has a count of %d", n)
		}
	}
	return r, nil
}

// work computes the row's figures from its sizes; the number of query heads is not in them.
func (r *Row) work(mode string) (Work, error) {
	k, err := panelCase(r.Panel, mode)
	if err != nil {
		return Work{}, err
	}
	return k.Work(&Config{Mode: mode, SKV: r.SKV, TQ: r.TQ, KVHeads: r.KVHeads, HeadDim: r.HeadDim, Group: 1, C: r.C, P: r.P})
}
