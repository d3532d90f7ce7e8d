package replay

import (
	"errors"
	"fmt"
	"slices"

	"sluice/dump"
	"sluice/moe"
)

// Dynamic is the replay that runs the engine's cache while it drops, under one policy and budget.
type Dynamic struct {
	Policy      string `json:"policy"`
	BudgetBytes int64  `json:"budget_bytes"`
	SlotsKnown  bool   `json:"slot_bytes_known"` // false: experts are taken to need no padding in the cache
	InPrefill   bool   `json:"drop_in_prefill"`

	Rows []DynamicRow `json:"rows"` // threshold 0 first: the same cache without dropping
	// Check holds the row of a recorded run's threshold against that run; nil where there is none to compare with.
	Check *DynamicCheck `json:"check,omitempty"`
	// NoCheck says why Check is nil.
	NoCheck string `json:"no_check,omitempty"`
}

// DynamicRow is one threshold.
type DynamicRow struct {
	Frac    float64      `json:"frac"`
	Decode  DynamicPhase `json:"decode"`
	Prefill DynamicPhase `json:"prefill"`
}

// DynamicPhase counts as RecordedPhase does.
type DynamicPhase struct {
	Lookups   int64   `json:"lookups"`
	Hits      int64   `json:"hits"`
	Misses    int64   `json:"misses"`
	BytesRead int64   `json:"bytes_read"`
	Dropped   int64   `json:"dropped"`
	MassLost  float64 `json:"mass_lost"` // share of the mass of known weights
	IOSaved   float64 `json:"io_saved"`  // share of what the same cache reads without dropping: a prediction
	// IOSavedStatic is the same share for drops that change nothing in what the cache holds afterwards. It is meant as the
	// upper bound of IOSaved, since what is dropped must be read later, yet IOSaved can be above it: what is not read
	// evicts nothing either, and an expert that stays cold can be dropped again and again.
	IOSavedStatic float64 `json:"io_saved_static"`
}

// DynamicCheck is a prediction beside what a run did. Errors are (predicted-recorded)/recorded.
type DynamicCheck struct {
	File       string        `json:"file"`
	Predicted  DynamicRow    `json:"predicted"`
	Decode     RecordedPhase `json:"recorded_decode"`
	Prefill    RecordedPhase `json:"recorded_prefill"`
	DecodeErr  float64       `json:"decode_bytes_error"`
	PrefillErr float64       `json:"prefill_bytes_error"`
	// The recorded reads as a share saved of what the same cache reads of the replayed routing without dropping: what
	// IOSaved predicts.
	DecodeIOSaved  float64 `json:"recorded_decode_io_saved"`
	PrefillIOSaved float64 `json:"recorded_prefill_io_saved"`
	SameRouting    bool    `json:"same_routing"` // the run's own routing was replayed, not that of another run
}

// verdicts applies the drop rule to one layer call, row by row: an expert falls if it is a miss and every row that
// selected it would do without (moe.Drop, step 2). State by expert; clear after the call.
type verdicts struct {
	share    float64
	resident []uint8
	needed   []bool
	rows     []int32   // that would fall
	mass     []float64 // of those
}

func newVerdicts(share float64, nExpert int) *verdicts {
	return &verdicts{share: share, resident: make([]uint8, nExpert), needed: make([]bool, nExpert), rows: make([]int32, nExpert), mass: make([]float64, nExpert)}
}

// row takes the known rows of one cell.
func (v *verdicts) row(c *cell, miss, fall []bool) {
	for i, e := range c.expert {
		miss[i] = v.resident[e] == 0
	}
	n := len(c.expert)
	moe.MarkRow(v.share, c.weight, miss[:n], fall[:n])
	for i, e := range c.expert {
		if fall[i] {
			v.rows[e]++
			v.mass[e] += c.weight[i]
		} else {
			v.needed[e] = true
		}
	}
}

// falls tells whether the call does without expert e.
func (v *verdicts) falls(e int32) bool { return v.resident[e] == 0 && !v.needed[e] }

func (v *verdicts) clear(e int32) { v.needed[e], v.rows[e], v.mass[e] = false, 0, 0 }

// dropRun is one threshold under one cache.
type dropRun struct {
	cache   *moe.Cache
	v       *verdicts
	row     DynamicRow
	dropped [2]float64 // mass by phase
	shadow  *verdicts  // the same threshold on the residency of the run that drops nothing
	saved   [2]int64   // bytes that shadow drops, by phase
}

func (r *DynamicRow) phase(p int) *DynamicPhase {
	if p == dump.Decode {
		return &r.Decode
	}
	return &r.Prefill
}

// dynamics drives the runs of all caches and thresholds through a trace.
type dynamics struct {
	g     *geometry
	sets  []Dynamic
	runs  [][]*dropRun // by set; [0] drops nothing
	inPre bool

	// the current call
	layer, phase int
	open         bool
	drops        bool
	experts      []int32 // routed, distinct
	touched      []bool  // by expert
	kept         []int32
	known        cell
	miss, fall   []bool
	mass         [2]float64
}

// newDynamics returns a replay of no caches when none is named anywhere.
func newDynamics(rep *DropReport, c *DropConfig, g *geometry, m *dump.TraceMeta) (*dynamics, error) {
	d := &dynamics{g: g, inPre: c.InPrefill, touched: make([]bool, g.nExpert), miss: make([]bool, g.k), fall: make([]bool, g.k)}
	own := newRecorder(g, m).rec
	from := &own
	if c.Against != nil {
		from = c.Against
		d.inPre = d.inPre || from.Prefill.Dropped > 0
	}
	budgets, policies := c.Budgets, c.Policies
	if len(budgets) == 0 && from.BudgetBytes > 0 {
		budgets = []int64{from.BudgetBytes}
	}
	if len(budgets) == 0 {
		if c.Against != nil {
			return nil, fmt.Errorf("%s names no cache_bytes in its preamble: give the budget of that run", from.File)
		}
		rep.Notes = append(rep.Notes, "no dynamic replay: the preamble names no cache_bytes, and no budget is given")
		return d, nil
	}
	if len(policies) == 0 {
		policies = []string{moe.Policies()[0]}
		if from.Policy != "" {
			policies = []string{from.Policy}
		}
	}
	fracs := []float64{0}
	for _, f := range append(slices.Clone(c.Fracs), from.Frac) {
		if !slices.Contains(fracs, f) {
			fracs = append(fracs, f)
		}
	}
	slices.Sort(fracs)
	for _, p := range policies {
		for _, b := range budgets {
			var runs []*dropRun
			for _, f := range fracs {
				cache, err := g.newLiveCache(p, b)
				if err != nil {
					return nil, err
				}
				share := moe.Drop{Frac: f}.Share(g.k)
				r := &dropRun{cache: cache, v: newVerdicts(share, g.nExpert), row: DynamicRow{Frac: f}}
				if f > 0 {
					r.shadow = newVerdicts(share, g.nExpert)
				}
				runs = append(runs, r)
			}
			d.runs = append(d.runs, runs)
			d.sets = append(d.sets, Dynamic{Policy: p, BudgetBytes: b, SlotsKnown: g.slotsKnown})
		}
	}
	return d, nil
}

func (d *dynamics) cell(c *cell) error {
	if d == nil || len(d.runs) == 0 {
		return nil
	}
	if c.newCall {
		if err := d.finish(); err != nil {
			return err
		}
		d.begin(c)
	}
	for _, e := range c.expert {
		if !d.touched[e] {
			d.touched[e] = true
			d.experts = append(d.experts, e)
		}
	}
	known := c.known(&d.known)
	for _, w := range known.weight {
		d.mass[d.phase] += w
	}
	for _, runs := range d.runs {
		for _, r := range runs {
			if !d.drops || r.shadow == nil {
				continue
			}
			r.v.row(known, d.miss, d.fall)
			r.shadow.row(known, d.miss, d.fall)
			if c.unknown == 0 {
				continue
			}
			for i, e := range c.expert { // no threshold applies to an unknown weight: it needs its expert
				if w := c.weight[i]; w-w != 0 {
					r.v.needed[e], r.shadow.needed[e] = true, true
				}
			}
		}
	}
	return nil
}

func (d *dynamics) begin(c *cell) {
	d.layer, d.phase, d.open = c.layer, c.phase, true
	d.drops = c.phase == dump.Decode || d.inPre
	for _, runs := range d.runs {
		for _, r := range runs {
			r.cache.Residency(c.layer, r.v.resident)
			if r.shadow != nil {
				copy(r.shadow.resident, runs[0].v.resident)
			}
		}
	}
}

// finish demands what the open call keeps, as the engine does: ascending, as many at a time as fit.
func (d *dynamics) finish() error {
	if d == nil || !d.open {
		return nil
	}
	d.open = false
	slices.Sort(d.experts)
	size := d.g.size[d.layer]
	for _, runs := range d.runs {
		for _, r := range runs {
			if err := d.demand(r, size); err != nil {
				return err
			}
		}
	}
	for _, e := range d.experts {
		d.touched[e] = false
	}
	d.experts = d.experts[:0]
	return nil
}

func (d *dynamics) demand(r *dropRun, size int64) error {
	p := r.row.phase(d.phase)
	d.kept = d.kept[:0]
	for _, e := range d.experts {
		if d.drops && r.shadow != nil {
			if r.shadow.falls(e) {
				r.saved[d.phase] += size
			}
			r.shadow.clear(e)
			if r.v.falls(e) {
				p.Dropped += int64(r.v.rows[e])
				r.dropped[d.phase] += r.v.mass[e]
				r.v.clear(e)
				continue
			}
			r.v.clear(e)
		}
		d.kept = append(d.kept, e)
	}
	hits, misses, err := demandAll(r.cache, d.layer, d.kept)
	p.Hits += hits
	p.Misses += misses
	p.Lookups += hits + misses
	p.BytesRead += misses * size
	return err
}

// demandAll runs one layer call through a live cache.
func demandAll(c *moe.Cache, layer int, experts []int32) (hits, misses int64, err error) {
	before := c.Stats()
	for len(experts) > 0 {
		n, err := c.Demand(layer, experts)
		if err != nil {
			return 0, 0, err
		}
		c.Release()
		experts = experts[n:]
	}
	after := c.Stats()
	return after.Hits - before.Hits, after.Misses - before.Misses, nil
}

// report closes the sums. own is the trace's recorded run, against another one or nil.
func (d *dynamics) report(own, against *Recorded) []Dynamic {
	for i := range d.sets {
		s := &d.sets[i]
		s.InPrefill = d.inPre
		for _, r := range d.runs[i] {
			for ph := range 2 {
				p, base := r.row.phase(ph), d.runs[i][0].row.phase(ph)
				p.MassLost = ratio(r.dropped[ph], d.mass[ph])
				p.IOSaved = ratio(float64(base.BytesRead-p.BytesRead), float64(base.BytesRead))
				p.IOSavedStatic = ratio(float64(r.saved[ph]), float64(base.BytesRead))
			}
			s.Rows = append(s.Rows, r.row)
		}
		rec := own
		if against != nil {
			rec = against
		}
		if err := s.check(rec, against == nil); err != nil {
			s.NoCheck = err.Error()
		}
	}
	return d.sets
}

func (s *Dynamic) check(rec *Recorded, same bool) error {
	policy := rec.Policy
	if policy == "" {
		policy = moe.Policies()[0]
	}
	switch {
	case !rec.FracKnown:
		return errors.New("the recorded run dropped, but its preamble does not say below what (drop_frac)")
	case rec.BudgetBytes == 0:
		return errors.New("the recorded run's preamble names no cache_bytes")
	case rec.BudgetBytes != s.BudgetBytes || policy != s.Policy:
		return fmt.Errorf("the recorded run's cache was another: %d bytes, %s", rec.BudgetBytes, policy)
	case rec.Prefill.Dropped > 0 && !s.InPrefill:
		return errors.New("the recorded run dropped in prompts, this replay does not")
	}
	i := slices.IndexFunc(s.Rows, func(r DynamicRow) bool { return r.Frac == rec.Frac })
	if i < 0 {
		return fmt.Errorf("the recorded run's threshold %v was not replayed", rec.Frac)
	}
	c := &DynamicCheck{File: rec.File, Predicted: s.Rows[i], Decode: rec.Decode, Prefill: rec.Prefill, SameRouting: same}
	c.DecodeErr = relative(c.Predicted.Decode.BytesRead, rec.Decode.BytesRead)
	c.PrefillErr = relative(c.Predicted.Prefill.BytesRead, rec.Prefill.BytesRead)
	c.DecodeIOSaved = 1 - ratio(float64(rec.Decode.BytesRead), float64(s.Rows[0].Decode.BytesRead))
	c.PrefillIOSaved = 1 - ratio(float64(rec.Prefill.BytesRead), float64(s.Rows[0].Prefill.BytesRead))
	s.Check = c
	return nil
}

// relative is (got-want)/want, 0 where both are 0, and 1 where only want is.
func relative(got, want int64) float64 {
	switch {
	case got == want:
		return 0
	case want == 0:
		return 1
	}
	return float64(got-want) / float64(want)
}
