package replay

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"sluice/dump"
	"sluice/moe/store"
)

// Recorded is what a run really did, by its own trace.
type Recorded struct {
	File        string        `json:"file"`
	BudgetBytes int64         `json:"cache_bytes"`  // 0: no cache, or not stated
	Policy      string        `json:"cache_policy"` // "": not stated
	Frac        float64       `json:"drop_frac"`
	FracKnown   bool          `json:"drop_frac_known"` // stated, or nothing was dropped
	Prefetch    string        `json:"prefetch,omitempty"`
	Load        string        `json:"cache_load,omitempty"` // the cache state that it began with
	Device      string        `json:"device,omitempty"`     // what computed, and held experts of its own; "": the processor
	Decode      RecordedPhase `json:"decode"`
	Prefill     RecordedPhase `json:"prefill"`
}

// RecordedPhase counts over layer calls, where an expert counts once however many rows want it.
type RecordedPhase struct {
	Routed      int64   `json:"routed"` // rows
	Lookups     int64   `json:"lookups"`
	Hits        int64   `json:"hits"`
	Misses      int64   `json:"misses"`                // experts read: misses that were not dropped
	BytesRead   int64   `json:"bytes_read"`            // on demand
	Ahead       int64   `json:"ahead_bytes,omitempty"` // before it
	Dropped     int64   `json:"dropped"`               // rows
	Mass        float64 `json:"mass"`                  // of known weights
	MassDropped float64 `json:"mass_dropped"`
}

// read is all that was read.
func (p *RecordedPhase) read() int64 { return p.BytesRead + p.Ahead }

// began says what beside budget and policy made the run's reads, "" for nothing.
func (r *Recorded) began() string {
	var did []string
	if r.Prefetch != "" {
		did = append(did, "read ahead ("+r.Prefetch+")")
	}
	if r.Load != "" {
		did = append(did, "began with a loaded cache ("+r.Load+")")
	}
	return strings.Join(did, " and ")
}

// policy is the run's, or the one of a run that does not say.
func (r *Recorded) policy() string {
	if r.Policy == "" {
		return store.Policies()[0]
	}
	return r.Policy
}

// recorder counts a Recorded. Lookups are of experts that at least one row kept.
type recorder struct {
	rec  Recorded
	call uint32
	seen []uint32 // by expert: the call in which it was counted
}

func newRecorder(g *geometry, m *dump.TraceMeta) *recorder {
	r := &recorder{seen: make([]uint32, g.nExpert)}
	r.rec.Policy, r.rec.Prefetch, r.rec.Load, r.rec.Device = m.Fact(dump.FactCachePolicy), m.Fact(dump.FactPrefetch), m.Fact(dump.FactCacheLoad), m.Fact(dump.FactDevice)
	if n, err := strconv.ParseInt(m.Fact(dump.FactCacheBytes), 10, 64); err == nil && n > 0 {
		r.rec.BudgetBytes = n
	}
	if f, err := strconv.ParseFloat(m.Fact(dump.FactDropFrac), 64); err == nil && f >= 0 && f <= 1 {
		r.rec.Frac, r.rec.FracKnown = f, true
	}
	return r
}

func (r *recorder) cell(c *cell) {
	if c.newCall {
		r.call++
	}
	p := &r.rec.Prefill
	if c.phase == dump.Decode {
		p = &r.rec.Decode
	}
	p.Routed += int64(len(c.expert))
	p.Ahead += c.aheadBytes
	for i, e := range c.expert {
		w := c.weight[i]
		if w-w == 0 {
			p.Mass += w
		}
		if c.dropped[i] {
			p.Dropped++
			if w-w == 0 {
				p.MassDropped += w
			}
			continue
		}
		p.BytesRead += c.bytes[i]
		if r.seen[e] == r.call {
			continue
		}
		r.seen[e] = r.call
		p.Lookups++
		if c.miss[i] {
			p.Misses++
		} else {
			p.Hits++
		}
	}
}

func (r *recorder) done(name string) *Recorded {
	r.rec.File = name
	if r.rec.Decode.Dropped+r.rec.Prefill.Dropped == 0 && !r.rec.FracKnown {
		r.rec.FracKnown = true
	}
	return &r.rec
}

// ReadRecorded reads what a run did, for DropConfig.Against.
func ReadRecorded(name string, r io.Reader) (*Recorded, error) {
	tr, err := dump.NewTraceReader(r)
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	m := tr.Meta()
	g, err := newGeometry(&m)
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	rec := newRecorder(g, &m)
	var s Scan
	err = scan(tr, g.k, &s, func(c *cell) error { rec.cell(c); return nil })
	if err == nil && s.Torn != nil {
		err = s.Torn
	}
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	return rec.done(name), nil
}
