package profile

import (
	"io"
	"slices"
	"strconv"
)

// DefaultFreqMHz is the chip frequency of a file without any.
const DefaultFreqMHz = 1350

// Report is a profile's summary. The JSON fields and their order are fixed by the readers of such reports; Whole and
// Against are there only when asked for.
type Report struct {
	CSV            string      `json:"csv"`
	Columns        []string    `json:"columns"`
	FreqMHz        Float       `json:"freq_mhz"`
	Matches        bool        `json:"trace_matches_eager_op_sequence"`
	TraceIDs       []string    `json:"trace_ids"` // distinct METAL TRACE ID of the trace section, sorted
	ReplaySessions []string    `json:"replay_sessions"`
	Eager          Summary     `json:"eager"`
	Trace          Summary     `json:"trace"`
	Whole          *Summary    `json:"whole,omitempty"`
	Against        *Comparison `json:"against,omitempty"`

	// Facts that the JSON does not carry.
	Format  Format   `json:"-"`
	Arch    string   `json:"-"`
	Devices []string `json:"-"`
	Notes   []string `json:"-"`
}

// ReportOptions say what to summarise.
type ReportOptions struct {
	FreqMHz float64 // of the cycle counters; 0: DefaultFreqMHz. It sets the spans only: durations are nanoseconds in the file
	Whole   bool    // also all ops of the file as one section, those outside the sections too
}

// Report summarises the sections. Calls on one Profile must not run at once.
func (p *Profile) Report(o ReportOptions) *Report {
	if o.FreqMHz == 0 {
		o.FreqMHz = DefaultFreqMHz
	}
	var secs [3][]*op
	for i := range p.ops {
		s := p.ops[i].section
		secs[s] = append(secs[s], &p.ops[i])
	}
	eager, trace := secs[1], secs[2]
	r := &Report{CSV: cleanPath(p.Name), Columns: p.Columns, FreqMHz: Float(o.FreqMHz), TraceIDs: p.trace.sorted(&p.names),
		ReplaySessions: p.session.sorted(&p.names), Format: p.Format, Arch: p.Arch, Devices: p.Devices, Notes: slices.Clone(p.Notes)}
	r.Matches = slices.EqualFunc(eager, trace, func(a, b *op) bool { return a.code == b.code })
	if r.Matches {
		for i, t := range trace {
			t.block, t.layer = eager[i].block, eager[i].layer
		}
	}
	r.Eager, r.Trace = p.summarize(eager, o.FreqMHz), p.summarize(trace, o.FreqMHz)
	if o.Whole {
		all := make([]*op, len(p.ops))
		for i := range p.ops {
			all[i] = &p.ops[i]
		}
		w := p.summarize(all, o.FreqMHz)
		r.Whole = &w
	}
	return r
}

// sectionOf is a summary with its name.
type sectionOf struct {
	Name string
	*Summary
}

// sections lists the summaries, the one that the tables are about first: the whole file where that was asked for,
// else the trace.
func (r *Report) sections() []sectionOf {
	s := []sectionOf{{SectionTrace, &r.Trace}, {SectionEager, &r.Eager}}
	if r.Whole != nil {
		s = slices.Insert(s, 0, sectionOf{"whole", r.Whole})
	}
	return s
}

// WriteJSON writes the report as Python's json.dumps(indent=1) would, with a newline at the end.
func (r *Report) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }
