package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"sluice/dump"
	"sluice/moe"
	"sluice/moe/store"
)

// Dynamic is the replay that runs the engine's cache while it drops, under one policy and budget.
type Dynamic struct {
	Policy      string `json:"policy"`
	BudgetBytes int64  `json:"budget_bytes"`
	SlotsKnown  bool   `json:"slot_bytes_known"` // false: experts are taken to need no padding in the cache
	InPrefill   bool   `json:"drop_in_prefill"`
	Prefetch    string `json:"prefetch,omitempty"`    // what is read ahead, as the run did
	NoPrefetch  string `json:"no_prefetch,omitempty"` // what the run read ahead and the replay does not
	Start       string `json:"cache_state,omitempty"` // the file that the cache begins with

	Rows []DynamicRow `json:"rows"` // threshold 0 first: the same cache without dropping
	// Check holds the row of a recorded run's threshold against that run; nil where there is none to compare with.
	Check *DynamicCheck `json:"check,omitempty"`
	// NoCheck says why Check is nil.
	NoCheck string `json:"no_check,omitempty"`
	// Reproduction holds the same row against the trace's own run row by row; nil where NotReproduced says why.
	Reproduction  *Reproduction `json:"reproduction,omitempty"`
	NotReproduced string        `json:"not_reproduced,omitempty"`
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
	BytesRead int64   `json:"bytes_read"`            // on demand
	Ahead     int64   `json:"ahead_bytes,omitempty"` // before it
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
	// Device is the recorded run's, if it held experts of its own: the recorded bytes are then not those of the cache.
	Device string `json:"device,omitempty"`
}

// verdicts applies the drop rule to one layer call, row by row: an expert falls if it is a miss and every row that
// selected it would do without (moe.Drop, step 2). State by expert; clear after the call.
type verdicts struct {
	share    float64
	recorded bool  // the run's own decision counts where six digits of a weight leave it open ...
	open     int64 // ... in so many rows
	resident []uint8
	needed   []bool
	rows     [2][]int32   // by phase: that would fall
	mass     [2][]float64 // of those
}

func newVerdicts(share float64, nExpert int) *verdicts {
	v := &verdicts{share: share, resident: make([]uint8, nExpert), needed: make([]bool, nExpert)}
	for ph := range 2 {
		v.rows[ph], v.mass[ph] = make([]int32, nExpert), make([]float64, nExpert)
	}
	return v
}

// row takes the known rows of one cell.
func (v *verdicts) row(c *cell, miss, fall []bool) {
	for i, e := range c.expert {
		miss[i] = v.resident[e] == moe.Miss
	}
	n := len(c.expert)
	moe.MarkRow(v.share, c.weight, miss[:n], fall[:n])
	for i, e := range c.expert {
		if v.recorded && miss[i] && openWeight(c.weight[i], v.share) {
			fall[i] = c.dropped[i]
			v.open++
		}
		if fall[i] {
			v.rows[c.phase][e]++
			v.mass[c.phase][e] += c.weight[i]
		} else {
			v.needed[e] = true
		}
	}
}

// falls tells whether the call does without expert e.
func (v *verdicts) falls(e int32) bool { return v.resident[e] == moe.Miss && !v.needed[e] }

func (v *verdicts) clear(e int32) {
	v.needed[e] = false
	for ph := range 2 {
		v.rows[ph][e], v.mass[ph][e] = 0, 0
	}
}

// dropRun is one threshold under one cache.
type dropRun struct {
	cache   *liveCache
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

	ahead  *prefetch
	own    *dropRun    // the one that does what the trace's run did, if there is one ...
	ownSet int         // ... in this set ...
	rep    *reproducer // ... held against it; nil: it is not
	notRep string      // why

	call       layerCall // the current one
	drops      bool      // it has rows that may drop
	exempt     []bool    // by expert: a row that may not has chosen it
	kept       []int32
	known      cell
	miss, fall []bool
	mass       [2]float64
}

// newDynamics returns a replay of no caches when none is named anywhere.
func newDynamics(rep *DropReport, c *DropConfig, g *geometry, m *dump.TraceMeta, cols columns) (*dynamics, error) {
	d := &dynamics{g: g, inPre: c.InPrefill, call: newLayerCall(g, cols), exempt: make([]bool, g.nExpert), miss: make([]bool, g.k), fall: make([]bool, g.k)}
	own := newRecorder(g, m).rec
	from := &own
	if c.Against != nil {
		from = c.Against
		d.inPre = d.inPre || from.Prefill.Dropped > 0
	} else {
		d.inPre = d.inPre || m.Fact(dump.FactDropInPrefill) == "true"
	}
	budgets, policies := c.Budgets, c.Policies
	if len(budgets) == 0 && from.BudgetBytes > 0 {
		budgets = []int64{from.BudgetBytes}
	}
	if len(budgets) == 0 {
		if c.Against != nil {
			return nil, fmt.Errorf("%s names no cache_bytes in its preamble: give the budget of that run", from.File)
		}
		if c.Start != nil {
			return nil, fmt.Errorf("the preamble names no cache_bytes, and no budget is given: there is no cache to begin with %s", c.Start.Name)
		}
		rep.Notes = append(rep.Notes, "no dynamic replay: the preamble names no cache_bytes, and no budget is given")
		return d, nil
	}
	if len(policies) == 0 {
		policies = []string{store.Policies()[0]}
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
	var err error
	if d.ahead, err = newPrefetch(g, m, cols, c.OnDemand || from.Prefetch == ""); err != nil {
		return nil, err
	}
	if own.Prefetch != "" && own.Frac == 0 {
		note := fmt.Sprintf("the run read ahead (%s), and the static tables count that as hits; runs that drop do not unless told to: record with --prefetch off", own.Prefetch)
		if d.ahead.left == "" {
			note += ", or leave it out of the dynamic replay with --prefetch off"
		}
		rep.Notes = append(rep.Notes, note)
	}
	start := ""
	if c.Start != nil {
		note, err := c.Start.check(m)
		if err != nil {
			return nil, err
		}
		if start = c.Start.Name; note != "" {
			rep.Notes = append(rep.Notes, note)
		}
	}
	if d.ahead.why != "" {
		rep.Notes = append(rep.Notes, "nothing is read ahead in the dynamic replay: "+d.ahead.why)
	}
	if d.notRep = notTheRun(g, m, cols, d.ahead, c.Start); d.notRep == "" && c.InPrefill && m.Fact(dump.FactDropInPrefill) != "true" {
		d.notRep = "the run did not drop in prompts, the replay does"
	}
	for _, p := range policies {
		for _, b := range budgets {
			var runs []*dropRun
			for _, f := range fracs {
				cache, err := g.newLiveCache(p, b, c.Start)
				if err != nil {
					return nil, err
				}
				share := moe.Drop{Frac: f}.Share(g.k)
				r := &dropRun{cache: cache, v: newVerdicts(share, g.nExpert), row: DynamicRow{Frac: f}}
				if f > 0 {
					r.shadow = newVerdicts(share, g.nExpert)
				}
				runs = append(runs, r)
				if c.Against == nil && d.notRep == "" && f == own.Frac && b == own.BudgetBytes && p == own.policy() {
					d.own, d.ownSet, d.rep = r, len(d.sets), newReproducer(g, m, d.ahead)
					r.v.recorded = true
				}
			}
			d.runs = append(d.runs, runs)
			d.sets = append(d.sets, Dynamic{Policy: p, BudgetBytes: b, SlotsKnown: g.slotsKnown, Prefetch: string(d.ahead.mode), NoPrefetch: string(d.ahead.left), Start: start})
		}
	}
	return d, nil
}

func (d *dynamics) cell(c *cell) error {
	if d == nil || len(d.runs) == 0 {
		return nil
	}
	if c.newCall {
		if err := d.finish(false); err != nil {
			return err
		}
		d.begin(c)
	}
	d.call.cell(c, d.g.k)
	drops := c.phase == dump.Decode || d.inPre
	d.drops = d.drops || drops
	for _, e := range c.expert {
		d.call.want(e, c.phase)
		if !drops { // such a row needs all of its experts
			d.exempt[e] = true
		}
	}
	if d.rep != nil {
		d.rep.cell(c)
	}
	known := c.known(&d.known)
	for _, w := range known.weight {
		d.mass[c.phase] += w
	}
	for _, runs := range d.runs {
		for _, r := range runs {
			if !drops || r.shadow == nil {
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
	for _, e := range d.call.experts {
		d.exempt[e] = false
	}
	d.call.begin(c)
	if d.rep != nil {
		d.rep.before(d.own.cache, c.layer)
	}
	d.drops = false
	for _, runs := range d.runs {
		for _, r := range runs {
			r.cache.Residency(c.layer, r.v.resident)
			if r.shadow != nil {
				copy(r.shadow.resident, runs[0].v.resident)
			}
		}
	}
}

// finish demands what the open call keeps, as the engine does. cut: the trace may end within it.
func (d *dynamics) finish(cut bool) error {
	if d == nil || !d.call.open {
		return nil
	}
	l := &d.call
	l.open = false
	if err := l.checkAhead(d.g); err != nil {
		return err
	}
	l.sorted()
	ask := d.ahead.asks(l)
	for _, runs := range d.runs {
		for _, r := range runs {
			rep := d.rep
			if r != d.own {
				rep = nil
			}
			ahead, err := d.demand(r, rep, ask)
			if err != nil {
				return err
			}
			if rep != nil && !(cut && l.cut()) {
				rep.end(l, ahead)
			}
		}
	}
	return nil
}

// demand is one call of one run; it returns what was read ahead.
func (d *dynamics) demand(r *dropRun, rep *reproducer, ask asked) (ahead int64, err error) {
	l, size := &d.call, d.g.size[d.call.layer]
	d.kept = d.kept[:0]
	for _, e := range l.experts {
		if d.drops && r.shadow != nil {
			if r.shadow.falls(e) && !d.exempt[e] {
				r.saved[l.phase[e]] += size
			}
			r.shadow.clear(e)
			fell := r.v.falls(e) && !d.exempt[e]
			if fell {
				for ph := range 2 {
					r.row.phase(ph).Dropped += int64(r.v.rows[ph][e])
					r.dropped[ph] += r.v.mass[ph][e]
				}
				if rep != nil {
					rep.dropped(e, r.v.rows[0][e]+r.v.rows[1][e])
				}
			}
			r.v.clear(e)
			if fell {
				continue
			}
		}
		d.kept = append(d.kept, e)
	}
	var read func(int32)
	if rep != nil {
		read = func(e int32) { rep.read(e, size) }
	}
	n, err := r.cache.run(l, d.kept, d.ahead, ask, read)
	for ph := range 2 {
		p := r.row.phase(ph)
		p.Hits += n.hits[ph]
		p.Misses += n.misses[ph]
		p.Lookups += n.hits[ph] + n.misses[ph]
		p.BytesRead += n.bytes[ph]
	}
	r.row.phase(l.first).Ahead += n.aheadBytes
	return n.aheadBytes, err
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
				p.IOSaved = ratio(float64(base.read()-p.read()), float64(base.read()))
				p.IOSavedStatic = ratio(float64(r.saved[ph]), float64(base.read()))
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
		switch {
		case s.Check == nil || against != nil:
		case d.rep != nil && i == d.ownSet:
			d.rep.r.Open = d.own.v.open
			s.Reproduction = &d.rep.r
		default:
			s.NotReproduced = d.notRep
		}
	}
	return d.sets
}

// read is all that was read.
func (p *DynamicPhase) read() int64 { return p.BytesRead + p.Ahead }

func (s *Dynamic) check(rec *Recorded, same bool) error {
	switch {
	case !rec.FracKnown:
		return errors.New("the recorded run dropped, but its preamble does not say below what (drop_frac)")
	case rec.BudgetBytes == 0:
		return errors.New("the recorded run's preamble names no cache_bytes")
	case rec.BudgetBytes != s.BudgetBytes || rec.policy() != s.Policy:
		return fmt.Errorf("the recorded run's cache was another: %d bytes, %s", rec.BudgetBytes, rec.policy())
	case rec.Prefetch != s.Prefetch:
		return fmt.Errorf("what the recorded run read ahead (%s) is not what is read ahead here (%s)", cmp.Or(rec.Prefetch, "nothing"), cmp.Or(s.Prefetch, "nothing"))
	case rec.Load != "" && s.Start == "":
		return fmt.Errorf("the recorded run began with a loaded cache (cache_load=%s): name that file with --cache-state", rec.Load)
	case rec.Load == "" && s.Start != "":
		return errors.New("the recorded run began with an empty cache")
	case rec.Prefill.Dropped > 0 && !s.InPrefill:
		return errors.New("the recorded run dropped in prompts, this replay does not")
	}
	i := slices.IndexFunc(s.Rows, func(r DynamicRow) bool { return r.Frac == rec.Frac })
	if i < 0 {
		return fmt.Errorf("the recorded run's threshold %v was not replayed", rec.Frac)
	}
	c := &DynamicCheck{File: rec.File, Predicted: s.Rows[i], Decode: rec.Decode, Prefill: rec.Prefill, SameRouting: same, Device: rec.Device}
	c.DecodeErr = relative(c.Predicted.Decode.read(), rec.Decode.read())
	c.PrefillErr = relative(c.Predicted.Prefill.read(), rec.Prefill.read())
	c.DecodeIOSaved = 1 - ratio(float64(rec.Decode.read()), float64(s.Rows[0].Decode.read()))
	c.PrefillIOSaved = 1 - ratio(float64(rec.Prefill.read()), float64(s.Rows[0].Prefill.read()))
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
