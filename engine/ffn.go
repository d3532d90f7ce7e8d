package engine

import (
	"fmt"

	"sluice/kernels"
	"sluice/moe"
)

// ffnUnit is one expert with the tokens that go to it.
type ffnUnit struct {
	gate, up, down kernels.Mat
	tokens         []int32   // rows of the input and of the residual stream
	weight         []float32 // applied to each token's result
	row0           int       // first row in the hidden buffers
}

// ffnScratch holds the hidden rows of the experts computed in one pass: hidden.rows of routed
// experts or shared.rows of the shared one.
type ffnScratch struct {
	f      *forward
	units  []ffnUnit
	gate   []float32 // rows x ff; after gateUp: silu(gate)*up
	up     []float32 // rows x ff
	hidden actSet    // the same as activations, routed experts
	shared actSet    // the same, shared expert

	// current pass
	ff  int
	act *actSet

	gateUp gateUpJob
	down   downJob
}

func (s *ffnScratch) init(f *forward, T, ffShared int) {
	m := f.s.m
	s.f = f
	const bytes = 10 // of a hidden value: two float32 and its quantised form
	s.hidden = actSet{n: m.NFFExpert, rows: rowsIn(hiddenBytes, bytes*m.NFFExpert, T*f.s.cfg.NExpertUsed), exact: f.s.cfg.ExactActs}
	s.shared = actSet{n: ffShared, rows: rowsIn(hiddenBytes, bytes*max(1, ffShared), T), exact: f.s.cfg.ExactActs}
	size := max(s.hidden.rows*m.NFFExpert, s.shared.rows*ffShared)
	s.gate, s.up = make([]float32, size), make([]float32, size)
	s.units = make([]ffnUnit, 0, m.NExpert)
	for i := range m.w.layers {
		ly := &m.w.layers[i]
		s.hidden.plan(ly.down.typ)
		if ly.sharedGate != nil {
			s.shared.plan(ly.sharedDownM.Type)
		}
	}
	s.gateUp.s, s.down.s = s, s
}

// moeLayer adds one MoE layer to the residual stream of n tokens: route, drop, fetch, compute.
func (f *forward) moeLayer(il int, ly *layer, n int, ph phase) error {
	kinds := kindOf(kernels.ActF32) | kindOf(f.in.kind(ly.gate.typ)) | kindOf(f.in.kind(ly.up.typ))
	if ly.sharedGate != nil {
		kinds |= kindOf(f.in.kind(ly.sharedG.Type)) | kindOf(f.in.kind(ly.sharedUp.Type))
	}
	f.norm.run(n, ly.ffnNorm, kinds, ly.sharedGate)
	f.route.run(ly, n)
	if err := f.selectExperts(il, n, ph); err != nil {
		return err
	}
	if err := f.runExperts(il, ly); err != nil {
		return err
	}
	if ly.sharedGate != nil {
		s := &f.ffn
		for t, pass := 0, s.shared.rows; t < n; t += pass {
			end := min(t+pass, n)
			s.units = append(s.units[:0], ffnUnit{gate: ly.sharedG, up: ly.sharedUp, down: ly.sharedDownM,
				tokens: f.ident[t:end], weight: f.shared[t:end]})
			s.run(end-t, f.s.m.NFFShared, &s.shared)
		}
	}
	if err := f.checkFinite(n, il, "the expert output"); err != nil {
		return err
	}
	return f.record(il, n, ph)
}

// selectExperts runs the arm and the selection dump's tap, and counts what was dropped.
func (f *forward) selectExperts(il, n int, ph phase) error {
	s, c := f.s, &f.call
	s.src.Residency(il, f.resident)
	*c = moe.Call{Layer: il, T: n, Pos0: f.pos, Router: s.router, Logits: f.rlog[:n*s.m.NExpert],
		Resident: f.resident, Sel: f.sel, Table: f.table}
	if ph == phaseDecode || s.cfg.DropInPrefill {
		c.Drop = s.drop
	}
	if err := s.arm.Route(c); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	s.drops.Routed += int64(c.Routed)
	s.drops.Dropped += int64(c.Dropped)
	s.drops.Mass += c.Mass
	s.drops.MassDropped += c.MassDropped
	if s.cfg.SelDump != nil {
		k := s.cfg.NExpertUsed
		return s.cfg.SelDump.Record(il, n, k, f.sel.Expert[:n*k], f.sel.Weight[:n*k])
	}
	return nil
}

// runExperts computes the kept experts of the layer call in ascending order, as many at a time as
// the source can hold, and adds their weighted results to the residual stream. The order is the
// same for every source, so the sum's bits are too.
func (f *forward) runExperts(il int, ly *layer) error {
	t, src := f.table, f.s.src
	f.ids = f.ids[:0]
	for e := range f.s.m.NExpert {
		if t.Offsets[e+1] > t.Offsets[e] {
			f.ids = append(f.ids, int32(e))
		}
	}
	clear(f.read)
	for rest := f.ids; len(rest) > 0; {
		n, err := src.Demand(il, rest)
		if err == nil {
			err = f.runWave(ly, rest[:n])
			src.Release()
		}
		if err != nil {
			return fmt.Errorf("engine: layer %d: %w", il, err)
		}
		rest = rest[n:]
	}
	return nil
}

// runWave computes experts that the source holds together, in passes of at most hidden.rows rows. An
// expert with more than that is cut; the order in which a token's results are added stays.
func (f *forward) runWave(ly *layer, ids []int32) error {
	s, t := &f.ffn, f.table
	s.units = s.units[:0]
	rows := 0
	flush := func() {
		s.run(rows, f.s.m.NFFExpert, &s.hidden)
		s.units, rows = s.units[:0], 0
	}
	for i, e := range ids {
		if rows+int(t.Offsets[e+1]-t.Offsets[e]) > s.hidden.rows {
			flush()
		}
		ex, err := f.s.src.Expert(i)
		if err != nil {
			return fmt.Errorf("expert %d: %w", e, err)
		}
		if f.read != nil {
			f.read[e] += f.s.src.ReadBytes(i)
		}
		for tokens, weight := t.Rows(int(e)); len(tokens) > 0; {
			if rows == s.hidden.rows {
				flush()
			}
			n := min(len(tokens), s.hidden.rows-rows)
			s.units = append(s.units, ffnUnit{gate: ly.gate.of(ex.Gate), up: ly.up.of(ex.Up), down: ly.down.of(ex.Down),
				tokens: tokens[:n], weight: weight[:n], row0: rows})
			tokens, weight, rows = tokens[n:], weight[n:], rows+n
		}
	}
	flush()
	return nil
}

func (e *expertMat) of(data []byte) kernels.Mat {
	return kernels.Mat{Type: e.typ, Rows: e.rows, Cols: e.cols, Data: data}
}

// record writes the layer call to the route trace.
func (f *forward) record(il, n int, ph phase) error {
	s := f.s
	if s.cfg.Trace == nil {
		return nil
	}
	k := s.cfg.NExpertUsed
	c := &f.trace
	c.Turn, c.Phase, c.Pos0, c.Layer, c.T, c.K = s.turn, int(ph), f.pos, il, n, k
	c.Expert, c.Weight, c.Dropped = f.sel.Expert[:n*k], f.sel.Weight[:n*k], f.sel.Dropped[:n*k]
	c.Resident, c.ReadBytes = f.resident, f.read
	return s.cfg.Trace.Call(c)
}

// routeJob computes router logits, always from float32 activations.
type routeJob struct {
	f  *forward
	ly *layer
	n  int
}

func (j *routeJob) run(ly *layer, n int) {
	j.ly, j.n = ly, n
	j.f.s.team.Run(blocks(ly.router.Rows), 1, j)
}

func (j *routeJob) Do(_, lo, hi int) {
	w := &j.ly.router
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulRows(j.f.rlog, w.Rows, w, r0, r1, j.f.in.form[kernels.ActF32], nil, j.n)
}

// run computes the units: all their gate and up rows as one pool of work, then the hidden rows as
// activations, then the down projections added to the residual stream.
func (s *ffnScratch) run(rows, ff int, act *actSet) {
	if len(s.units) == 0 {
		return
	}
	s.ff, s.act = ff, act
	team := s.f.s.team
	team.Run(len(s.units)*blocks(ff), 1, &s.gateUp)
	s.f.quant.run(rows, s.gate, act, kindOf(act.kind(s.units[0].down.Type)))
	team.Run(blocks(s.f.s.m.NEmbd), 1, &s.down)
}

// gateUpJob computes silu(gate)*up for a block of hidden values of one unit.
type gateUpJob struct{ s *ffnScratch }

func (j *gateUpJob) Do(_, lo, hi int) {
	s, f := j.s, j.s.f
	nb := blocks(s.ff)
	for i := lo; i < hi; i++ {
		u := &s.units[i/nb]
		r0, r1 := blockRows(i%nb, i%nb+1, s.ff)
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

// downJob adds a block of rows of every unit's down projection to the residual stream, unit after
// unit: the order of the sum does not depend on who computes it.
type downJob struct{ s *ffnScratch }

func (j *downJob) Do(_, lo, hi int) {
	s, f := j.s, j.s.f
	E := f.s.m.NEmbd
	r0, r1 := blockRows(lo, hi, E)
	for i := range s.units {
		u := &s.units[i]
		kernels.MulAddRows(f.x, E, &u.down, r0, r1, s.act.of(u.down.Type), u.row0, u.tokens, u.weight)
	}
}
