// Package chrometrace writes what an model.Recorder holds as a Chrome trace event file, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open. Tracks: the forward passes with their ops, one per I/O lane with the
// reads, the expert cache with its decisions, and its counters. Form: "Trace Event Format", JSON object form, complete
// events (X), instants (i), counters (C) and metadata (M); times are microseconds since the recorder's beginning.
package chrometrace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"sluice/engine/model"
	"sluice/internal/whole"
)

// Track numbers: a lane's is laneTrack + lane.
const (
	opTrack    = 1
	cacheTrack = 2
	laneTrack  = 10
)

// Trace is what was recorded; the three Lost say how many older entries the rings had no room for.
type Trace struct {
	Ops                             []model.Op
	Reads                           []model.ReadEvent
	Demands                         []model.DemandEvent
	LostOps, LostReads, LostDemands int
	Team                            int               // workers
	Facts                           map[string]string // model, machine, ...: shown as the trace's metadata
}

// Of takes what the recorder holds.
func Of(rec *model.Recorder, facts map[string]string) *Trace {
	t := &Trace{Team: rec.Team(), Facts: facts}
	t.Ops, t.LostOps = rec.Ops()
	t.Reads, t.LostReads = rec.Reads()
	t.Demands, t.LostDemands = rec.Demands()
	return t
}

// Save writes the file under a temporary name beside it first.
func (t *Trace) Save(path string) error { return whole.WriteFile(path, t.Write) }

type event struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	TS   micros         `json:"ts"`
	Dur  *micros        `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	S    string         `json:"s,omitempty"` // scope of an instant
	Args map[string]any `json:"args,omitempty"`
}

// micros is nanoseconds, written as microseconds without loss.
type micros int64

// MarshalJSON writes a decimal with three places.
func (m micros) MarshalJSON() ([]byte, error) {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	return fmt.Appendf(nil, "%s%d.%03d", sign, m/1000, m%1000), nil
}

// Write writes the JSON.
func (t *Trace) Write(to io.Writer) error {
	w := bufio.NewWriter(to)
	facts := map[string]any{"lost_ops": t.LostOps, "lost_reads": t.LostReads, "lost_cache_events": t.LostDemands}
	for k, v := range t.Facts {
		facts[k] = v
	}
	head, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[", head)
	sep := "\n"
	t.each(func(e *event) {
		if err != nil {
			return
		}
		var b []byte
		if b, err = json.Marshal(e); err == nil {
			w.WriteString(sep)
			w.Write(b)
			sep = ",\n"
		}
	})
	if err != nil {
		return err
	}
	w.WriteString("\n]}\n")
	return w.Flush()
}

func (t *Trace) each(emit func(*event)) {
	name := func(what string, tid int, name string) {
		emit(&event{Name: what, Ph: "M", PID: 1, TID: tid, Args: map[string]any{"name": name}})
	}
	span := func(name, cat string, tid int, start, end int64, args map[string]any) {
		d := micros(end - start)
		emit(&event{Name: name, Cat: cat, Ph: "X", TS: micros(start), Dur: &d, PID: 1, TID: tid, Args: args})
	}
	name("process_name", opTrack, "engine")
	name("thread_name", opTrack, fmt.Sprintf("forward pass (team of %d)", t.Team))
	for i := 0; i < len(t.Ops); {
		n := i
		for n < len(t.Ops) && t.Ops[n].Call == t.Ops[i].Call {
			n++
		}
		o := &t.Ops[i]
		what := "prefill"
		if o.Decode {
			what = "decode"
		}
		span(what, "pass", opTrack, o.Start, t.Ops[n-1].End, map[string]any{"position": o.Pos, "call": o.Call})
		for ; i < n; i++ {
			o := &t.Ops[i]
			args := map[string]any{"layer": o.Layer, "rows": o.Tokens, "workers": o.Workers, "weight_bytes": o.Bytes}
			if o.Kind >= model.OpFetch && o.Kind <= model.OpDown {
				args["experts"], args["experts_read"], args["memory"] = o.Experts, o.Read, o.Memory.String()
			}
			span(o.Kind.String(), "op", opTrack, o.Start, o.End, args)
		}
	}
	if len(t.Demands) > 0 {
		name("thread_name", cacheTrack, "expert cache")
	}
	var hits, misses, evicted int64
	for i := range t.Demands {
		d := &t.Demands[i]
		hits, misses, evicted = hits+int64(d.Hits), misses+int64(d.Misses), evicted+int64(d.Evicted)
		emit(&event{Name: fmt.Sprintf("layer %d: %d hits, %d misses, %d evicted", d.Layer, d.Hits, d.Misses, d.Evicted), Cat: "cache", Ph: "i",
			TS: micros(d.At), PID: 1, TID: cacheTrack, S: "t",
			Args: map[string]any{"layer": d.Layer, "hits": d.Hits, "misses": d.Misses, "evicted": d.Evicted}})
		emit(&event{Name: "experts", Cat: "cache", Ph: "C", TS: micros(d.At), PID: 1, TID: cacheTrack,
			Args: map[string]any{"hits": hits, "misses": misses, "evicted": evicted}})
	}
	lanes := map[int32]bool{}
	projections := [...]string{"gate", "up", "down"}
	for i := range t.Reads {
		r := &t.Reads[i]
		if !lanes[r.Lane] {
			lanes[r.Lane] = true
			name("thread_name", laneTrack+int(r.Lane), fmt.Sprintf("I/O lane %d", r.Lane))
		}
		args := map[string]any{"layer": r.Layer, "expert": r.Expert, "bytes": r.Bytes}
		if r.Failed {
			args["failed"] = true
		}
		span(fmt.Sprintf("blk.%d.%s.%d", r.Layer, projections[r.Projection], r.Expert), "read", laneTrack+int(r.Lane), r.Start, r.End, args)
	}
}
