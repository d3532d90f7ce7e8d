package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"sluice/dump"
	"sluice/moe/store"
)

// Order is how layer calls meet the cache; see the package comment.
type Order string

// The orders.
const (
	OrderBatch Order = "batch"
	OrderLive  Order = "live"
)

// CacheConfig says what Cache replays.
type CacheConfig struct {
	Budgets  []int64  // bytes, each above 0; nil: a sweep around what one token touches
	Policies []string // nil: all that the order has
	Order    Order    // "": OrderBatch
	Seed     uint64   // of the policy "random"
	Start    *Start   // OrderLive: what the caches begin with; nil: empty
	OnDemand bool     // OrderLive: what is demanded is read and nothing else, though the run read ahead
}

// CacheReport is the answer to "how big a cache?" for one trace.
type CacheReport struct {
	Scan
	File       string `json:"file"`
	Model      string `json:"model"`
	Arch       string `json:"arch"`
	NLayer     int    `json:"n_layer"`
	MoELayers  int    `json:"moe_layers"` // with rows
	NExpert    int    `json:"n_expert"`
	K          int    `json:"n_expert_used"`
	Order      Order  `json:"order"`
	Seed       uint64 `json:"seed"`
	TotalBytes int64  `json:"total_bytes"` // of all experts: no budget above it does anything
	TokenBytes int64  `json:"token_bytes"` // what one token touches at most: k experts in every layer with rows
	// SlotTokenBytes is the same with the padding of the engine's slots: the smallest budget that a run takes unforced.
	SlotTokenBytes int64 `json:"slot_token_bytes"`
	SlotsKnown     bool  `json:"slot_bytes_known"` // false: SlotTokenBytes is TokenBytes

	Batches        int64       `json:"batches"`
	PrefillBatches int64       `json:"prefill_batches"`
	DecodeBatches  int64       `json:"decode_batches"`
	Cells          []CacheCell `json:"cells"` // by budget, then by policy
	Budgets        []int64     `json:"budgets"`
	Policies       []string    `json:"policies"`

	Recorded    *Recorded `json:"recorded"`
	Curve       *Curve    `json:"curve,omitempty"` // OrderBatch
	UnequalSize bool      `json:"unequal_sizes"`
	Notes       []string  `json:"notes,omitempty"`

	// OrderLive: what is read ahead, as the run did, the file that caches begin with, and the cell with the run's budget and
	// policy held against the run; nil where NotReproduced says why, or where there is no such cell.
	Prefetch      string        `json:"prefetch,omitempty"`
	NoPrefetch    string        `json:"no_prefetch,omitempty"` // what the run read ahead and the replay does not
	Start         string        `json:"cache_state,omitempty"`
	Reproduction  *Reproduction `json:"reproduction,omitempty"`
	NotReproduced string        `json:"not_reproduced,omitempty"`

	expertBytes int64 // of the first layer, as the format's script prints it
}

// Cache replays one trace. open returns the trace from its beginning: it is called once, and once more when belady looks
// ahead. name is how the report calls it. Errors as for Drop.
func Cache(name string, open func() (io.ReadCloser, error), c CacheConfig) (*CacheReport, error) {
	rep, err := cache(name, open, &c)
	if err != nil {
		return nil, fmt.Errorf("replay: %s: %w", name, err)
	}
	return rep, nil
}

func cache(name string, open func() (io.ReadCloser, error), c *CacheConfig) (*CacheReport, error) {
	known := CachePolicies()
	switch c.Order {
	case "":
		c.Order = OrderBatch
	case OrderBatch:
	case OrderLive:
		known = store.Policies()
	default:
		return nil, fmt.Errorf("order %q: want %s or %s", c.Order, OrderBatch, OrderLive)
	}
	if len(c.Policies) == 0 {
		c.Policies = known
	}
	if err := checkPolicies(c.Policies, known); err != nil {
		return nil, err
	}
	for _, b := range c.Budgets {
		if b <= 0 {
			return nil, fmt.Errorf("budget of %d bytes: want more than 0", b)
		}
	}
	if c.Start != nil && c.Order != OrderLive {
		return nil, fmt.Errorf("a cache state to begin with is for order %s", OrderLive)
	}
	if c.OnDemand && c.Order != OrderLive {
		return nil, fmt.Errorf("only order %s reads ahead: there is nothing to leave out", OrderLive)
	}
	var look *lookahead
	if slices.Contains(c.Policies, "belady") {
		err := withTrace(open, func(tr *dump.TraceReader, g *geometry) error {
			look = newLookahead(g.ids)
			b := newBatcher(g, tr.Seqs(), look.add)
			var s Scan
			if err := scan(tr, g.k, &s, g.checked(b.cell)); err != nil {
				return err
			}
			return b.finish()
		})
		if err != nil {
			return nil, err
		}
	}
	rep := &CacheReport{File: name, Order: c.Order, Seed: c.Seed, Policies: c.Policies, Budgets: c.Budgets}
	err := withTrace(open, func(tr *dump.TraceReader, g *geometry) error { return rep.replay(tr, g, look, c) })
	return rep, err
}

// withTrace runs fn over the trace from its beginning.
func withTrace(open func() (io.ReadCloser, error), fn func(*dump.TraceReader, *geometry) error) (err error) {
	f, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	tr, err := dump.NewTraceReader(f)
	if err != nil {
		return err
	}
	m := tr.Meta()
	g, err := newGeometry(&m)
	if err != nil {
		return err
	}
	return fn(tr, g)
}

// checked refuses cells of layers without a size before fn has them.
func (g *geometry) checked(fn func(*cell) error) func(*cell) error {
	return func(c *cell) error {
		if err := g.check(c); err != nil {
			return err
		}
		return fn(c)
	}
}

// consumer is what a pass over the trace feeds.
type consumer struct {
	cell   func(*cell) error
	finish func() error
}

func (r *CacheReport) replay(tr *dump.TraceReader, g *geometry, look *lookahead, c *CacheConfig) error {
	m := tr.Meta()
	r.Model, r.Arch, r.NLayer, r.NExpert, r.K = m.Model, m.Arch, m.NLayer, g.nExpert, g.k
	r.TotalBytes, r.SlotsKnown, r.UnequalSize = g.total, g.slotsKnown, g.unequal()
	for _, s := range g.size {
		if s > 0 {
			r.expertBytes = s
			break
		}
	}
	if len(r.Budgets) == 0 {
		r.Budgets = sweep(g)
	}
	var con consumer
	var collect func()
	var err error
	if r.Order == OrderLive {
		con, collect, err = r.live(g, &m, columnsOf(tr), c)
	} else {
		con, collect, err = r.batched(g, tr.Seqs(), look)
	}
	if err != nil {
		return err
	}
	rec := newRecorder(g, &m)
	rows := make([]bool, len(g.size)) // layers with rows
	err = scan(tr, g.k, &r.Scan, g.checked(func(c *cell) error {
		rows[c.layer] = true
		rec.cell(c)
		return con.cell(c)
	}))
	if err == nil {
		err = con.finish()
	}
	if err != nil {
		return err
	}
	if r.Rows == 0 {
		return errors.New("no rows")
	}
	collect()
	r.Batches = r.PrefillBatches + r.DecodeBatches
	size, slot := slices.Clone(g.size), slices.Clone(g.slot)
	for i, has := range rows {
		if has {
			r.MoELayers++
		} else {
			size[i], slot[i] = 0, 0
		}
	}
	r.TokenBytes, r.SlotTokenBytes = g.tokenBytes(size), g.tokenBytes(slot)
	r.Recorded = rec.done(r.File)
	r.notes(g)
	return nil
}

// batched sets up OrderBatch: every policy at every budget, and the curve.
func (r *CacheReport) batched(g *geometry, seqs bool, look *lookahead) (consumer, func(), error) {
	var sims []*sim
	var runners []func(*block) error
	for _, b := range r.Budgets {
		for _, p := range r.Policies {
			s, err := newSim(g, p, b, r.NLayer, r.Seed)
			if err != nil {
				return consumer{}, nil, err
			}
			sims, runners = append(sims, s), append(runners, s.run)
		}
	}
	curve := newCurveRun(g)
	runners = append(runners, curve.run)
	b := newBatcher(g, seqs, func(b *block) error {
		for _, sp := range b.spans {
			if sp.phase == dump.Decode {
				r.DecodeBatches++
			} else {
				r.PrefillBatches++
			}
		}
		if look != nil {
			if err := look.fill(b); err != nil {
				return err
			}
		}
		return runAll(b, runners)
	})
	return consumer{b.cell, b.finish}, func() {
		for _, s := range sims {
			r.Cells = append(r.Cells, s.cell)
		}
		r.Curve = &curve.curve
	}, nil
}

// notes says what a reader of the figures must know.
func (r *CacheReport) notes(g *geometry) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if r.UnequalSize && slices.Contains(r.Policies, "belady") {
		note("belady: experts have different sizes by layer, so that the furthest next use is near the best hit rate, not a bound of it")
	}
	for _, p := range r.Policies {
		var over []string
		for _, c := range r.Cells {
			if share := percent(c.OverBudget, r.DecodeBatches); c.Policy == p && share > 1 {
				over = append(over, fmt.Sprintf("%s (%.0f %%)", mib(c.BudgetBytes), share))
			}
		}
		if over != nil {
			note("%s held more than its budget, because a call's own experts stay, at %s of decode calls: too good to be true there",
				p, strings.Join(over, ", "))
		}
	}
	if d := r.Recorded.Decode.Dropped + r.Recorded.Prefill.Dropped; d > 0 && r.Order == OrderBatch {
		note("%d routings that the recorded run dropped are looked up here like all others", d)
	}
	if what := r.Recorded.began(); what != "" && r.Order == OrderBatch {
		note("the recorded run %s: not so here, --live does what it did", what)
	}
	if r.ShortCells > 0 {
		note("%d cells with fewer than %d rows: is the trace complete and in the order it was written?", r.ShortCells, r.K)
	}
	if rec := r.Recorded; r.Order == OrderLive && rec.Frac == 0 && rec.Device == "" {
		if r.Prefetch == "" {
			note("nothing is read ahead here: a run that reads ahead, as runs that drop nothing do by default where not all experts fit, hits more often and reads more bytes")
		} else if all := g.allSlots(); slices.ContainsFunc(r.Budgets, func(b int64) bool { return b >= all }) {
			note("from %s on all experts fit, and a run reads nothing ahead there by default: it hits less often than this while the cache fills", mib(all))
		}
	}
	if r.Order == OrderLive && !g.slotsKnown {
		note("the preamble states no %s: experts are taken to need no padding, a run's cache holds somewhat fewer", dump.FactSlotBytes)
	}
	if r.Torn != nil {
		note("torn: the figures are of the %d whole rows before byte %d", r.Torn.Records, r.Torn.Offset)
	}
}

// sweep is the budgets tried when none are asked for: around what one token touches over all layers, up to all experts.
func sweep(g *geometry) []int64 {
	token := float64(g.tokenBytes(g.size))
	unit := float64(1 << 20)
	for unit > 1024 && token < 64*unit {
		unit /= 16
	}
	var out []int64
	for _, f := range []float64{0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8} {
		b := int64(math.Ceil(f*token/unit) * unit)
		if b >= g.total {
			return append(out, g.total)
		}
		if !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}
