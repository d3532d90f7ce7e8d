package replay

import (
	"errors"
	"fmt"
	"math"

	"sluice/dump"
	"sluice/moe"
)

// Reproduction holds the replay of a run's own trace, with the run's cache, against what the run recorded: drops row by
// row, bytes expert by expert and call by call, what was read ahead included. A run on a device did not read what the device
// held, which the trace does not say: there residency stands for the bytes, row by row. Anything but equality is a fault of
// the replay or of the trace.
type Reproduction struct {
	Drops       int64 `json:"drops"`        // rows that the run dropped
	DropsAgreed int64 `json:"drops_agreed"` // those of them that the replay drops
	DropsExtra  int64 `json:"drops_extra"`  // rows that only the replay drops
	Bytes       int64 `json:"bytes"`        // that the run read; not compared where Device is stated
	BytesAgreed int64 `json:"bytes_agreed"` // of those, for the same experts in the same calls
	BytesExtra  int64 `json:"bytes_extra"`  // that only the replay reads
	// Open are the rows whose weight's six digits do not tell on which side of the threshold it is: there the replay takes
	// the run's decision.
	Open int64 `json:"drops_open"`
	// DropsTaken: the replay drops what the run dropped, and was held against its bytes alone.
	DropsTaken bool `json:"drops_taken,omitempty"`
	// AheadUnknown: the trace does not say what was read ahead, so that Bytes are those read on demand.
	AheadUnknown bool `json:"ahead_unknown,omitempty"`
	// Device computed and held experts of its own; "": the processor, and bytes are compared instead of residency.
	Device     string `json:"device,omitempty"`
	Rows       int64  `json:"residency_rows,omitempty"`
	RowsAgreed int64  `json:"residency_agreed,omitempty"` // those of them that the replay's cache holds, or not, as the run's did
	First      string `json:"first_difference,omitempty"`
}

// Exact reports whether the replay did what the run did.
func (r *Reproduction) Exact() bool {
	return r.Drops == r.DropsAgreed && r.DropsExtra == 0 && r.Rows == r.RowsAgreed &&
		(r.Device != "" || r.Bytes == r.BytesAgreed && r.BytesExtra == 0)
}

// String is the sentence that a report prints.
func (r *Reproduction) String() string {
	what := fmt.Sprintf("%d of %d bytes", r.BytesAgreed, r.Bytes)
	if r.Device != "" {
		what = fmt.Sprintf("residency of %d of %d rows", r.RowsAgreed, r.Rows)
	}
	s := fmt.Sprintf("reproduced: %d of %d drops, %s", r.DropsAgreed, r.Drops, what)
	if r.DropsTaken {
		s = "reproduced: " + what
		if r.Drops > 0 {
			s += fmt.Sprintf(" (the run's %d drops taken as they are)", r.Drops)
		}
	}
	if r.Open > 0 {
		s += fmt.Sprintf(" (%d rows within six digits of the threshold: the run's decision taken)", r.Open)
	}
	if r.Device != "" {
		s += fmt.Sprintf(" (bytes not compared: %s)", heldByDevice(r.Device))
	} else if r.AheadUnknown {
		s += " (what was read ahead is not in the trace)"
	}
	switch {
	case r.Exact():
		return s
	case r.Device != "":
		return "NOT " + s + fmt.Sprintf("; %d drops of the replay alone; first difference: %s", r.DropsExtra, r.First)
	}
	return "NOT " + s + fmt.Sprintf("; %d drops and %d bytes of the replay alone; first difference: %s", r.DropsExtra, r.BytesExtra, r.First)
}

// heldByDevice says why the bytes of a run on a device are fewer than, or others than, those of its cache's misses.
func heldByDevice(device string) string {
	return fmt.Sprintf("%s=%s held experts of its own, which the run did not have to read", dump.FactDevice, device)
}

// errNotReproduced is what a failed Reproduction comes to.
var errNotReproduced = errors.New("the replay does not do what the run did")

func (r *Reproduction) err(file string) error {
	if r == nil || r.Exact() {
		return nil
	}
	return fmt.Errorf("replay: %s: %w: %s", file, errNotReproduced, r)
}

// Reproduced is nil unless the report holds the trace against the run that recorded it, and they differ.
func (r *DropReport) Reproduced() error {
	for i := range r.Dynamic {
		if err := r.Dynamic[i].Reproduction.err(r.File); err != nil {
			return err
		}
	}
	return nil
}

// Reproduced is DropReport's, of the cell with the run's budget and policy.
func (r *CacheReport) Reproduced() error { return r.Reproduction.err(r.File) }

// reproducer makes a Reproduction of the calls of one replay.
type reproducer struct {
	r Reproduction

	// The current call, by expert; the call's experts are those with rows.
	rows               []int32 // experts with rows, distinct
	there              []bool  // in rows
	drops, bytes       []int64 // recorded
	simDrops, simBytes []int64 // the replay's

	resident   []uint8 // by expert, of the replay before the call; nil: not compared
	seen, same int64   // rows of the call, those of them whose residency is the replay's
	other      string  // the first that is not
}

func newReproducer(g *geometry, m *dump.TraceMeta, a *prefetch) *reproducer {
	n := g.nExpert
	device := m.Fact(dump.FactDevice)
	var resident []uint8
	if device != "" {
		resident = make([]uint8, n)
	}
	return &reproducer{resident: resident, r: Reproduction{Device: device, AheadUnknown: a.mode != "" && !a.recorded}, there: make([]bool, n), drops: make([]int64, n), bytes: make([]int64, n), simDrops: make([]int64, n), simBytes: make([]int64, n)}
}

// before begins a call: c has not been asked for it yet.
func (p *reproducer) before(c *liveCache, layer int) {
	if p.resident == nil {
		return
	}
	c.Residency(layer, p.resident)
	p.seen, p.same, p.other = 0, 0, ""
}

// cell takes what the run recorded.
func (p *reproducer) cell(c *cell) {
	for i, e := range c.expert {
		if p.resident != nil {
			p.seen++
			if missed := p.resident[e] == moe.Miss; missed == c.miss[i] {
				p.same++
			} else if p.other == "" {
				p.other = fmt.Sprintf("expert %d: a miss of the run: %t, of the replay: %t", e, c.miss[i], missed)
			}
		}
		if !p.there[e] {
			p.there[e] = true
			p.rows = append(p.rows, e)
		}
		if c.dropped[i] {
			p.drops[e]++
		}
		p.bytes[e] += c.bytes[i]
	}
}

// dropped and read take what the replay does with an expert of the call.
func (p *reproducer) dropped(e int32, rows int32) { p.simDrops[e] = int64(rows) }
func (p *reproducer) read(e int32, bytes int64)   { p.simBytes[e] = bytes }

// end compares the call. sim is what the replay read ahead for it.
func (p *reproducer) end(l *layerCall, sim int64) {
	r := &p.r
	differ := func(format string, args ...any) {
		if r.First == "" {
			r.First = fmt.Sprintf("line %d: layer %d: ", l.line, l.layer) + fmt.Sprintf(format, args...)
		}
	}
	for _, e := range p.rows {
		if run, here := p.drops[e], p.simDrops[e]; run != here {
			differ("expert %d: the run dropped %d rows, the replay %d", e, run, here)
		}
		if run, here := p.bytes[e], p.simBytes[e]; run != here && p.resident == nil {
			differ("expert %d: the run read %d bytes, the replay %d", e, run, here)
		}
		agree(&r.Drops, &r.DropsAgreed, &r.DropsExtra, p.drops[e], p.simDrops[e])
		if p.resident == nil {
			agree(&r.Bytes, &r.BytesAgreed, &r.BytesExtra, p.bytes[e], p.simBytes[e])
		} else {
			r.Bytes += p.bytes[e]
		}
		p.there[e], p.drops[e], p.bytes[e], p.simDrops[e], p.simBytes[e] = false, 0, 0, 0, 0
	}
	p.rows = p.rows[:0]
	r.Rows, r.RowsAgreed = r.Rows+p.seen, r.RowsAgreed+p.same
	if p.other != "" {
		differ("%s", p.other)
	}
	if r.AheadUnknown || p.resident != nil {
		return
	}
	if l.aheadBytes != sim {
		differ("the run read %d bytes ahead, the replay %d", l.aheadBytes, sim)
	}
	agree(&r.Bytes, &r.BytesAgreed, &r.BytesExtra, l.aheadBytes, sim)
}

// agree adds one count of the run and the replay's beside it.
func agree(all, agreed, extra *int64, run, here int64) {
	*all += run
	*agreed += min(run, here)
	*extra += max(0, here-run)
}

// openWeight tells whether a weight of six digits is so near the threshold that the one it was printed from may have been
// on the other side.
func openWeight(w, share float64) bool {
	if w <= 0 {
		return false
	}
	unit := math.Pow(10, math.Floor(math.Log10(w))-5)
	return math.Abs(w-share) <= 0.500001*unit
}
