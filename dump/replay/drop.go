package replay

import (
	"fmt"
	"io"
	"math"

	"sluice/dump"
	"sluice/moe"
)

// DropConfig says what Drop replays.
type DropConfig struct {
	Fracs []float64 // thresholds as fractions of 1/k, each 0 to 1; nil: DefaultFracs

	// The caches of the dynamic replay. No Budgets: the recorded run's, where its preamble names one.
	Budgets  []int64  // bytes
	Policies []string // of store.Policies(); nil: the recorded run's, else the first of store.Policies()
	// InPrefill lets the dynamic replay drop in prompts too, as --drop-in-prefill does in a run.
	InPrefill bool
	// Against is a run of the same prompt recorded with dropping on, whose reads the dynamic replay of this one is held
	// against; nil: the trace itself, if it was recorded with dropping.
	Against *Recorded
	// Start is what the caches of the dynamic replay begin with; nil: empty.
	Start *Start
	// OnDemand: the dynamic replay reads what is demanded alone. Else it reads ahead as the trace's run did, unless Against
	// did not.
	OnDemand bool
}

// DefaultFracs are the thresholds that the format's own script tries.
func DefaultFracs() []float64 { return []float64{0.25, 0.5, 0.75, 1} }

// nearThreshold is how close to a threshold a printed weight can be on its wrong side: a trace has six digits.
const nearThreshold = 1e-6

// DropReport is the answer to "what would a threshold have saved and cost?" for one trace.
type DropReport struct {
	Scan
	File    string  `json:"file"`
	Model   string  `json:"model"`
	Arch    string  `json:"arch"`
	NExpert int     `json:"n_expert"`
	K       int     `json:"n_expert_used"`
	Uniform float64 `json:"uniform_share"` // 1/k

	// Decode and Prefill have no Cells where the trace has no such rows.
	Decode  DropPhase `json:"decode"`
	Prefill DropPhase `json:"prefill"`

	Recorded *Recorded `json:"recorded,omitempty"` // nil: the preamble has no sizes to tell bytes by
	Dynamic  []Dynamic `json:"dynamic,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // what was left out, and why
}

// DropPhase is the static replay of one phase. Rows of unknown weight are left out of everything in it. A static replay
// takes the recorded residency as it is, although a skipped read changes what the cache holds later: IOSaved is meant as
// an upper bound, and the dynamic replay says how good a bound it was.
type DropPhase struct {
	Cells     int64   `json:"cells"`
	Routed    int64   `json:"routed"`
	Misses    int64   `json:"misses"`
	MissBytes int64   `json:"miss_bytes"` // read in the recorded run
	Mass      float64 `json:"mass"`       // sum of weights

	// What the recorded run dropped.
	Dropped      int64   `json:"recorded_dropped"`
	DroppedMass  float64 `json:"recorded_mass_dropped"`
	DroppedBytes int64   `json:"recorded_bytes_not_read"` // by the preamble's sizes; 0 without them

	Fracs   []DropFrac `json:"thresholds"`
	StaticK []StaticK  `json:"static_k"` // keep = k-1 down to 1
}

// DropFrac is one threshold's static figures over the rows of one phase.
type DropFrac struct {
	Frac      float64 `json:"frac"`
	Threshold float64 `json:"threshold"` // Frac/k
	Dropped   int64   `json:"dropped"`
	Bytes     int64   `json:"bytes_saved"` // of the recorded reads
	Mass      float64 `json:"mass_lost"`
	Survivors []int64 `json:"survivors"` // cells by their number of surviving experts, 0..k
	Near      int64   `json:"near"`      // misses within 1e-6 of the threshold: six digits decide them, a run may differ
	Both      int64   `json:"both"`      // dropped here and in the recorded run
	// BytesNotRead are the bytes of the experts in Both, which the recorded run did not read: they are in no Bytes.
	BytesNotRead int64 `json:"bytes_not_read"`
}

// StaticK keeps the router's first Keep slots whatever the cache holds.
type StaticK struct {
	Keep  int     `json:"keep"`
	Bytes int64   `json:"bytes_saved"`
	Mass  float64 `json:"mass_lost"`
}

// IOSaved is the share of the recorded miss bytes that d never reads, 0 to 1.
func (p *DropPhase) IOSaved(d *DropFrac) float64 {
	return ratio(float64(d.Bytes), float64(p.MissBytes))
}

// Drop replays one trace. name is how the report calls it. A wrong preamble, a setting that cannot be replayed and a
// malformed row are errors that say where; a torn tail is in the report's Scan.
func Drop(name string, r io.Reader, c DropConfig) (*DropReport, error) {
	tr, err := dump.NewTraceReader(r)
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	m := tr.Meta()
	k, err := topK(&m)
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	if c.Fracs == nil {
		c.Fracs = DefaultFracs()
	}
	for _, f := range c.Fracs {
		if !(f >= 0 && f <= 1) { // written so that NaN fails
			return nil, fmt.Errorf("replay: threshold %v: want a fraction of 1/k, 0 to 1", f)
		}
	}
	rep := &DropReport{File: name, Model: m.Model, Arch: m.Arch, NExpert: m.NExpert, K: k, Uniform: 1 / float64(k)}
	g, geoErr := newGeometry(&m)
	a := newDropper(rep, c.Fracs, g)
	var d *dynamics
	var rec *recorder
	if geoErr == nil {
		rec = newRecorder(g, &m)
		if d, err = newDynamics(rep, &c, g, &m, columnsOf(tr)); err != nil {
			return nil, fmt.Errorf("replay: %s: %w", name, err)
		}
	} else if len(c.Budgets) > 0 || c.Against != nil || c.Start != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, geoErr)
	} else {
		rep.Notes = append(rep.Notes, fmt.Sprintf("static replay only: %v", geoErr))
	}
	err = scan(tr, k, &rep.Scan, func(c *cell) error {
		if geoErr == nil {
			if err := g.check(c); err != nil {
				return err
			}
			rec.cell(c)
		}
		a.cell(c)
		return d.cell(c)
	})
	if err == nil {
		err = d.finish(true)
	}
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	if geoErr == nil {
		rep.Recorded = rec.done(name)
		rep.Dynamic = d.report(rep.Recorded, c.Against)
	}
	if rep.Torn != nil {
		rep.Notes = append(rep.Notes, fmt.Sprintf("torn: the figures are of the %d whole rows before byte %d", rep.Torn.Records, rep.Torn.Offset))
	}
	return rep, nil
}

// dropper is the static replay.
type dropper struct {
	k      int
	shares []float64 // by threshold
	phase  [2]*DropPhase
	static [2][]StaticK // by keep
	known  cell
	fall   []bool
	g      *geometry // nil: sizes unknown
	call   uint32
	seen   []uint32 // by expert: the call whose dropped bytes were counted
}

func newDropper(rep *DropReport, fracs []float64, g *geometry) *dropper {
	a := &dropper{k: rep.K, fall: make([]bool, rep.K), phase: [2]*DropPhase{dump.Prefill: &rep.Prefill, dump.Decode: &rep.Decode}, g: g}
	if g != nil {
		a.seen = make([]uint32, g.nExpert)
	}
	for _, f := range fracs {
		a.shares = append(a.shares, moe.Drop{Frac: f}.Share(rep.K))
	}
	for i, p := range a.phase {
		for j, f := range fracs {
			p.Fracs = append(p.Fracs, DropFrac{Frac: f, Threshold: a.shares[j], Survivors: make([]int64, rep.K+1)})
		}
		p.StaticK = make([]StaticK, rep.K-1)
		a.static[i] = make([]StaticK, rep.K)
		for keep := rep.K - 1; keep > 0; keep-- {
			p.StaticK[rep.K-1-keep].Keep = keep
		}
	}
	return a
}

func (a *dropper) cell(whole *cell) {
	if whole.newCall {
		a.call++
	}
	c := whole.known(&a.known)
	n := len(c.weight)
	if n == 0 {
		return
	}
	p := a.phase[c.phase]
	static := p.StaticK
	top, misses, least := 0, 0, math.Inf(1) // least: the smallest weight of a miss
	for i, w := range c.weight {
		p.Mass += w
		if w > c.weight[top] {
			top = i
		}
		b := int64(0)
		if c.miss[i] {
			misses++
			least = min(least, w)
			b = c.bytes[i]
			p.MissBytes += b
		}
		// Sums go row by row in file order, as everybody's do who replays this format: the last digits agree.
		for keep := 1; keep <= int(c.slot[i]); keep++ {
			s := &static[a.k-1-keep]
			s.Mass += w
			s.Bytes += b
		}
	}
	p.Cells++
	p.Routed += int64(n)
	p.Misses += int64(misses)
	if c.drops > 0 {
		a.recorded(p, c)
	}
	for j, share := range a.shares {
		d := &p.Fracs[j]
		if least > share+nearThreshold { // nothing falls, and nothing is near
			d.Survivors[n]++
			continue
		}
		fallen := moe.MarkRow(share, c.weight, c.miss, a.fall)
		d.Survivors[n-fallen]++
		d.Dropped += int64(fallen)
		for i, w := range c.weight {
			if c.miss[i] && i != top && math.Abs(w-share) <= nearThreshold {
				d.Near++
			}
			if a.fall[i] {
				d.Bytes += c.bytes[i]
				d.Mass += w
				if c.dropped[i] {
					d.Both++
				}
			}
		}
	}
}

// recorded counts what the run dropped in one cell, and what of it every threshold drops too. The bytes of an expert
// stand on its first row of a call, of dropped ones as of read ones.
func (a *dropper) recorded(p *DropPhase, c *cell) {
	for i, dropped := range c.dropped {
		if !dropped {
			continue
		}
		p.Dropped++
		p.DroppedMass += c.weight[i]
		if e := c.expert[i]; a.g != nil && a.seen[e] != a.call {
			a.seen[e] = a.call
			p.DroppedBytes += a.g.size[c.layer]
			for j, share := range a.shares {
				if moe.MarkRow(share, c.weight, c.miss, a.fall); a.fall[i] {
					p.Fracs[j].BytesNotRead += a.g.size[c.layer]
				}
			}
		}
	}
}

// ratio is a/b, and 0 where b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
