package cpu

import (
	"context"
	"fmt"

	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// ffnUnit is one expert with tokens that go to it.
type ffnUnit struct {
	gate, up, down kernels.Mat
	tokens         []int32   // rows of the input and of the residual stream
	weight         []float32 // applied to each token's result
	row0           int       // first row in the hidden buffers
	read           int       // 1: it was read for this call
}

// every is what each row of a layer takes without a choice: its dense feed-forward, or its shared expert with the vector of
// that one's gate. nil: there is none.
func every(y *model.Layer) (d *model.Dense, gate []float32) {
	switch f := y.FFN.(type) {
	case *model.Dense:
		return f, nil
	case *model.MoE:
		if f.Shared != nil {
			return &f.Shared.Dense, f.Shared.GateV.X
		}
	}
	return nil, nil
}

// ffnScratch holds the hidden rows of the experts computed in one pass: hidden.rows of routed
// experts or shared.rows of what every row takes.
type ffnScratch struct {
	f      *Backend
	units  []ffnUnit // whose gate and up projections are computed
	sums   []ffnUnit // whose down projections are added, in this order
	wave   wave
	gate   []float32 // rows x ff; after gateUp: silu(gate)*up
	up     []float32 // rows x ff
	hidden actSet    // the same as activations, routed experts
	shared actSet    // the same, shared expert

	// current pass
	ff  int
	act *actSet
	il  int
	op  model.OpKind // OpGateUp or OpSharedGateUp: the first of its ops

	gateUp gateUpJob
	down   downJob
}

func (s *ffnScratch) init(f *Backend, T, ffShared int) {
	m := f.m
	s.f = f
	const bytes = 10 // of a hidden value: two float32 and its quantised form
	s.hidden = actSet{n: m.NFFExpert, rows: rowsIn(hiddenBytes, bytes*m.NFFExpert, T*f.cfg.NExpertUsed), exact: f.cfg.ExactActs}
	s.shared = actSet{n: ffShared, rows: rowsIn(hiddenBytes, bytes*max(1, ffShared), T), exact: f.cfg.ExactActs}
	size := max(s.hidden.rows*m.NFFExpert, s.shared.rows*ffShared)
	s.gate, s.up = make([]float32, size), make([]float32, size)
	s.units, s.sums = make([]ffnUnit, 0, m.NExpert), make([]ffnUnit, 0, m.NExpert)
	s.wave.init(f, m.NExpert)
	for i := range m.Layers {
		if e := m.Layers[i].Experts(); e != nil {
			s.hidden.plan(e.Down.Type)
		}
		if d, _ := every(&m.Layers[i]); d != nil {
			s.shared.plan(d.Down.Type)
		}
	}
	s.gateUp.s, s.down.s = s, s
}

// feedForward adds a layer's feed-forward to the residual stream of n rows: route, drop, fetch, compute.
func (f *Backend) feedForward(ctx context.Context, y *model.Layer, n int) error {
	il, e := y.Index, y.Experts()
	d, gate := every(y)
	var kinds kindSet
	if e != nil {
		kinds = kindOf(kernels.ActF32) | kindOf(f.in.kind(e.Gate.Type)) | kindOf(f.in.kind(e.Up.Type))
	}
	if d != nil {
		kinds |= kindOf(f.in.kind(d.Gate.Type)) | kindOf(f.in.kind(d.Up.Type))
	}
	t := f.rec.Now()
	f.norm.run(n, y.FFNIn.X, kinds, gate)
	t = f.rec.End(t, model.OpMoENorm, il, n)
	if e == nil {
		f.touched += f.touch[il].routing
		f.ffn.everyRow(il, d, nil, n)
		return f.checkFinite(n, il, "the feed-forward output")
	}
	f.route.run(&e.Router, n)
	f.rec.End(t, model.OpRouter, il, n)
	f.touched += f.touch[il].routing
	f.cfg.Source.Residency(il, f.resident)
	t = f.rec.Now()
	if err := f.selectExperts(il, n); err != nil {
		return err
	}
	f.rec.End(t, model.OpRoute, il, n)
	if err := f.runExperts(ctx, y, e, n); err != nil {
		return err
	}
	if err := f.checkFinite(n, il, "the expert output"); err != nil {
		return err
	}
	return f.tellComputed()
}

// selectExperts runs the arm, counts what was dropped, and tells the taps what was routed.
func (f *Backend) selectExperts(il, n int) error {
	c, p := &f.call, f.p
	*c = moe.Call{Layer: il, T: n, Pos0: int(p.Rows[0].Step), Router: f.routers[il], Logits: f.rlog[:n*f.m.NExpert], Resident: f.resident, Sel: f.sel, Table: f.table}
	c.Drop, c.Exempt = p.Drops(f.cfg.Drop)
	if err := f.arm.Route(c); err != nil {
		return f.routeError(err)
	}
	f.drops.Add(c)
	if len(f.cfg.Taps) == 0 {
		return nil
	}
	k := f.cfg.NExpertUsed
	f.seen = moe.Observed{Layer: il, T: n, K: k, Pass: p.Number, Rows: p.Rows, Expert: f.sel.Expert[:n*k], Weight: f.sel.Weight[:n*k], Resident: f.resident}
	for _, tap := range f.cfg.Taps {
		if err := tap.Routed(&f.seen); err != nil {
			return err
		}
	}
	return nil
}

// tellComputed tells the taps what became of the layer call.
func (f *Backend) tellComputed() error {
	o := &f.seen
	for _, tap := range f.cfg.Taps {
		o.Dropped, o.Read = f.sel.Dropped[:o.T*o.K], f.read
		o.Ahead, o.AheadBytes = f.ahead.asked, f.ahead.read
		if err := tap.Computed(o); err != nil {
			return err
		}
	}
	return nil
}

// runExperts computes the kept experts of the layer call, as many at a time as the source can hold, then
// the shared one, and adds their weighted results to the residual stream in ascending order, the shared
// one last. The order is the same for every source, so the sum's bits are too. What needs no expert
// that has to be read is computed while the first reads are under way.
func (f *Backend) runExperts(ctx context.Context, y *model.Layer, e *model.MoE, n int) error {
	t, s, il, src := f.table, &f.ffn, y.Index, f.cfg.Source
	f.ids = f.ids[:0]
	for e := range f.m.NExpert {
		if t.Offsets[e+1] > t.Offsets[e] {
			f.ids = append(f.ids, int32(e))
		}
	}
	clear(f.read)
	start, held, err := f.rec.Now(), 0, error(nil)
	if len(f.ids) > 0 {
		held, err = src.Demand(il, f.ids)
	}
	// The shared expert's hidden rows have a place of their own where one pass holds them.
	d, gate := every(y)
	sharedFirst := d != nil && n <= s.shared.rows
	if err == nil && sharedFirst {
		f.rec.EndExperts(start, model.OpFetch, il, 0, 0, 0, f.expertMem)
		s.everyHidden(il, d, gate, 0, n)
		start = f.rec.Now()
	}
	if len(f.ids) == 0 {
		f.rec.NoExperts(il)
	}
	f.ahead.asked, f.ahead.read = nil, 0
	for rest := f.ids; len(rest) > 0; {
		if err == nil {
			// A wave that is not the last would lose what is prefetched to the next one.
			if held == len(rest) {
				err = f.prefetch(il, n)
			}
			if err == nil {
				err = s.wave.run(ctx, il, e, rest[:held], start)
			}
			src.Release()
		}
		if err != nil {
			return fmt.Errorf("engine: layer %d: %w", il, err)
		}
		if rest = rest[held:]; len(rest) > 0 {
			start = f.rec.Now()
			held, err = src.Demand(il, rest)
		}
	}
	switch {
	case d == nil:
	case sharedFirst:
		s.everyUnit(il, d, gate, 0, n)
		s.addUp()
	default:
		s.everyRow(il, d, gate, n)
	}
	return nil
}

// everyRow computes what every row takes, in as many passes as its hidden rows need, and adds it to the residual stream.
func (s *ffnScratch) everyRow(il int, d *model.Dense, gate []float32, n int) {
	for t, pass := 0, s.shared.rows; t < n; t += pass {
		s.everyHidden(il, d, gate, t, min(t+pass, n))
		s.addUp()
	}
}

// everyUnit makes what every row takes, for the rows t0 to t1, the only unit of the pass and of its sum.
func (s *ffnScratch) everyUnit(il int, d *model.Dense, gate []float32, t0, t1 int) {
	f := s.f
	s.il, s.op, s.ff, s.act = il, model.OpSharedGateUp, d.Width, &s.shared
	weight := f.ones
	if gate != nil {
		weight = f.shared
	}
	s.units = append(s.units[:0], ffnUnit{gate: d.Gate.Mat, up: d.Up.Mat, down: d.Down.Mat, tokens: f.ident[t0:t1], weight: weight[t0:t1]})
	s.sums = append(s.sums[:0], s.units[0])
}

// everyHidden computes its hidden rows.
func (s *ffnScratch) everyHidden(il int, d *model.Dense, gate []float32, t0, t1 int) {
	s.everyUnit(il, d, gate, t0, t1)
	s.hide(0, t1-t0)
}

// routeJob computes router logits, always from float32 activations.
type routeJob struct {
	f *Backend
	r *model.Router
	n int
}

func (j *routeJob) run(r *model.Router, n int) {
	j.r, j.n = r, n
	j.f.team.Run(model.Blocks(r.W.Rows), 1, j)
}

func (j *routeJob) Do(_, lo, hi int) {
	routerLogits(j.f.rlog, j.r, lo, hi, j.f.in.form[kernels.ActF32], j.n)
}

// routerLogits computes blocks lo..hi of n rows of router logits.
func routerLogits(dst []float32, r *model.Router, lo, hi int, in *kernels.Acts, n int) {
	w := &r.W.Mat
	r0, r1 := model.BlockRows(lo, hi, w.Rows)
	kernels.MulRows(dst, w.Rows, w, r0, r1, in, nil, n)
	if r.BLogit.Absent() {
		return
	}
	for t := range n {
		kernels.Add(dst[t*w.Rows+r0:t*w.Rows+r1], r.BLogit.X[r0:r1])
	}
}

// hide computes the units' hidden rows, which are those from row0 on: all their gate and up rows as one
// pool of work, then the hidden rows as activations.
func (s *ffnScratch) hide(row0, rows int) {
	f, units := s.f, len(s.units)
	read, mem := s.origin(s.units)
	t := f.rec.Now()
	f.team.Run(units*model.Blocks(s.ff), 1, &s.gateUp)
	f.rec.EndExperts(t, s.op, s.il, rows, units, read, mem)
	t = f.rec.Now()
	f.quant.runFrom(row0, rows, s.gate, s.act, kindOf(s.act.kind(s.units[0].down.Type)))
	f.rec.EndExperts(t, s.op+1, s.il, rows, units, read, mem)
	u := &s.units[0]
	f.touched += int64(units * (len(u.gate.Data) + len(u.up.Data)))
}

// addUp adds the down projections of the hidden rows of s.sums to the residual stream.
func (s *ffnScratch) addUp() {
	f, rows := s.f, 0
	for i := range s.sums {
		rows += len(s.sums[i].tokens)
	}
	read, mem := s.origin(s.sums)
	t := f.rec.Now()
	f.team.Run(model.Blocks(f.m.NEmbd), 1, &s.down)
	f.rec.EndExperts(t, s.op+2, s.il, rows, len(s.sums), read, mem)
	f.touched += int64(len(s.sums) * len(s.sums[0].down.Data))
}

// origin is how many of the units were read for the call, and the memory that the recorder files them under.
func (s *ffnScratch) origin(units []ffnUnit) (read int, mem model.OpMemory) {
	if s.op == model.OpSharedGateUp {
		return 0, model.OpDRAM
	}
	for i := range units {
		read += units[i].read
	}
	if read > 0 {
		return read, model.OpFlash
	}
	return 0, s.f.expertMem
}

// gateUpJob computes silu(gate)*up for a block of hidden values of one unit.
type gateUpJob struct{ s *ffnScratch }

func (j *gateUpJob) Do(_, lo, hi int) {
	s, f := j.s, j.s.f
	nb := model.Blocks(s.ff)
	for i := lo; i < hi; i++ {
		u := &s.units[i/nb]
		r0, r1 := model.BlockRows(i%nb, i%nb+1, s.ff)
		n := len(u.tokens)
		gate, up := s.gate[u.row0*s.ff:], s.up[u.row0*s.ff:]
		kernels.MulRows(gate, s.ff, &u.gate, r0, r1, f.in.of(u.gate.Type), u.tokens, n)
		kernels.MulRows(up, s.ff, &u.up, r0, r1, f.in.of(u.up.Type), u.tokens, n)
		for t := range n {
			g := gate[t*s.ff+r0 : t*s.ff+r1]
			kernels.SiluMul(g, g, up[t*s.ff+r0:t*s.ff+r1])
		}
	}
}

// downJob adds a block of rows of the down projections to the residual stream, unit after unit: the order
// of the sum does not depend on who computes it.
type downJob struct{ s *ffnScratch }

func (j *downJob) Do(_, lo, hi int) {
	s, f := j.s, j.s.f
	E := f.m.NEmbd
	r0, r1 := model.BlockRows(lo, hi, E)
	for i := range s.sums {
		u := &s.sums[i]
		kernels.MulAddRows(f.x, E, &u.down, r0, r1, s.act.of(u.down.Type), u.row0, u.tokens, u.weight)
	}
}
