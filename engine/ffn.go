package engine

import (
	"context"
	"fmt"

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

// ffnScratch holds the hidden rows of the experts computed in one pass: hidden.rows of routed
// experts or shared.rows of the shared one.
type ffnScratch struct {
	f      *forward
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
	op  OpKind // OpGateUp or OpSharedGateUp: the first of its ops

	gateUp gateUpJob
	down   downJob
}

func (s *ffnScratch) init(f *forward, T, ffShared int) {
	m := f.m
	s.f = f
	const bytes = 10 // of a hidden value: two float32 and its quantised form
	s.hidden = actSet{n: m.NFFExpert, rows: rowsIn(hiddenBytes, bytes*m.NFFExpert, T*f.cfg.NExpertUsed), exact: f.cfg.ExactActs}
	s.shared = actSet{n: ffShared, rows: rowsIn(hiddenBytes, bytes*max(1, ffShared), T), exact: f.cfg.ExactActs}
	size := max(s.hidden.rows*m.NFFExpert, s.shared.rows*ffShared)
	s.gate, s.up = make([]float32, size), make([]float32, size)
	s.units, s.sums = make([]ffnUnit, 0, m.NExpert), make([]ffnUnit, 0, m.NExpert)
	s.wave.init(f, m.NExpert)
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
func (f *forward) moeLayer(ctx context.Context, il int, ly *layer, n int, ph phase) error {
	kinds := kindOf(kernels.ActF32) | kindOf(f.in.kind(ly.gate.typ)) | kindOf(f.in.kind(ly.up.typ))
	if ly.sharedGate != nil {
		kinds |= kindOf(f.in.kind(ly.sharedG.Type)) | kindOf(f.in.kind(ly.sharedUp.Type))
	}
	t := f.rec.begin()
	f.norm.run(n, ly.ffnNorm, kinds, ly.sharedGate)
	t = f.rec.end(t, OpMoENorm, il, n)
	f.route.run(ly, n)
	t = f.rec.end(t, OpRouter, il, n)
	f.touched += f.touch[il].moe
	if err := f.selectExperts(il, n, ph); err != nil {
		return err
	}
	f.rec.end(t, OpRoute, il, n)
	if err := f.runExperts(ctx, il, ly, n, ph); err != nil {
		return err
	}
	if err := f.checkFinite(n, il, "the expert output"); err != nil {
		return err
	}
	return f.record(il, n, ph)
}

// selectExperts runs the arm and the selection dump's tap, and counts what was dropped.
func (f *forward) selectExperts(il, n int, ph phase) error {
	c := &f.call
	f.residency(il)
	*c = moe.Call{Layer: il, T: n, Pos0: f.pos, Router: f.router, Logits: f.rlog[:n*f.m.NExpert],
		Resident: f.resident, Sel: f.sel, Table: f.table}
	if ph == phaseDecode || f.cfg.DropInPrefill {
		c.Drop = f.drop
	}
	if err := f.arm.Route(c); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	f.drops.add(c)
	if f.cfg.SelDump != nil {
		k := f.cfg.NExpertUsed
		return f.cfg.SelDump.Record(il, n, k, f.sel.Expert[:n*k], f.sel.Weight[:n*k])
	}
	return nil
}

// runExperts computes the kept experts of the layer call, as many at a time as the source can hold, then
// the shared one, and adds their weighted results to the residual stream in ascending order, the shared
// one last. The order is the same for every source, so the sum's bits are too. What needs no expert
// that has to be read is computed while the first reads are under way.
func (f *forward) runExperts(ctx context.Context, il int, ly *layer, n int, ph phase) error {
	t, s := f.table, &f.ffn
	f.ids = f.ids[:0]
	for e := range f.m.NExpert {
		if t.Offsets[e+1] > t.Offsets[e] {
			f.ids = append(f.ids, int32(e))
		}
	}
	clear(f.read)
	start, held, err := f.rec.begin(), 0, error(nil)
	if len(f.ids) > 0 {
		held, err = f.demand(il, f.ids)
	}
	// The shared expert's hidden rows have a place of their own where one pass holds them.
	sharedFirst := ly.sharedGate != nil && n <= s.shared.rows
	if err == nil && sharedFirst {
		f.rec.endExperts(start, OpFetch, il, 0, 0, 0, f.expertMem)
		s.sharedHidden(il, ly, 0, n)
		start = f.rec.begin()
	}
	if len(f.ids) == 0 {
		f.rec.noExperts(il)
	}
	for rest := f.ids; len(rest) > 0; {
		if err == nil {
			// A wave that is not the last would lose what is prefetched to the next one.
			if held == len(rest) {
				err = f.lookAhead(il, n, ph)
			}
			if err == nil {
				err = s.wave.run(ctx, il, ly, rest[:held], start)
			}
			f.release()
		}
		if err != nil {
			return fmt.Errorf("engine: layer %d: %w", il, err)
		}
		if rest = rest[held:]; len(rest) > 0 {
			start = f.rec.begin()
			held, err = f.demand(il, rest)
		}
	}
	switch {
	case ly.sharedGate == nil:
	case sharedFirst:
		s.sharedUnit(il, ly, 0, n)
		s.addUp()
	default:
		for t, pass := 0, s.shared.rows; t < n; t += pass {
			s.sharedHidden(il, ly, t, min(t+pass, n))
			s.addUp()
		}
	}
	return nil
}

// sharedUnit makes the shared expert, for the tokens t0 to t1, the only unit of the pass and of its sum.
func (s *ffnScratch) sharedUnit(il int, ly *layer, t0, t1 int) {
	f := s.f
	s.il, s.op, s.ff, s.act = il, OpSharedGateUp, f.m.NFFShared, &s.shared
	s.units = append(s.units[:0], ffnUnit{gate: ly.sharedG, up: ly.sharedUp, down: ly.sharedDownM,
		tokens: f.ident[t0:t1], weight: f.shared[t0:t1]})
	s.sums = append(s.sums[:0], s.units[0])
}

// sharedHidden computes the shared expert's hidden rows.
func (s *ffnScratch) sharedHidden(il int, ly *layer, t0, t1 int) {
	s.sharedUnit(il, ly, t0, t1)
	s.hide(0, t1-t0)
}

func (e *expertMat) of(data []byte) kernels.Mat {
	return kernels.Mat{Type: e.typ, Rows: e.rows, Cols: e.cols, Data: data}
}

// record writes the layer call to the route trace.
func (f *forward) record(il, n int, ph phase) error {
	if f.cfg.Trace == nil {
		return nil
	}
	k := f.cfg.NExpertUsed
	c := &f.trace
	c.Turn, c.Phase, c.Pos0, c.Layer, c.T, c.K = f.turn, int(ph), f.pos, il, n, k
	c.Expert, c.Weight, c.Dropped = f.sel.Expert[:n*k], f.sel.Weight[:n*k], f.sel.Dropped[:n*k]
	c.Resident, c.ReadBytes = f.resident, f.read
	c.Ahead, c.AheadBytes = f.ahead.asked, f.ahead.read
	return f.cfg.Trace.Call(c)
}

// routeJob computes router logits, always from float32 activations.
type routeJob struct {
	f  *forward
	ly *layer
	n  int
}

func (j *routeJob) run(ly *layer, n int) {
	j.ly, j.n = ly, n
	j.f.team.Run(blocks(ly.router.Rows), 1, j)
}

func (j *routeJob) Do(_, lo, hi int) {
	w := &j.ly.router
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulRows(j.f.rlog, w.Rows, w, r0, r1, j.f.in.form[kernels.ActF32], nil, j.n)
}

// hide computes the units' hidden rows, which are those from row0 on: all their gate and up rows as one
// pool of work, then the hidden rows as activations.
func (s *ffnScratch) hide(row0, rows int) {
	f, units := s.f, len(s.units)
	read, mem := s.origin(s.units)
	t := f.rec.begin()
	f.team.Run(units*blocks(s.ff), 1, &s.gateUp)
	f.rec.endExperts(t, s.op, s.il, rows, units, read, mem)
	t = f.rec.begin()
	f.quant.runFrom(row0, rows, s.gate, s.act, kindOf(s.act.kind(s.units[0].down.Type)))
	f.rec.endExperts(t, s.op+1, s.il, rows, units, read, mem)
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
	t := f.rec.begin()
	f.team.Run(blocks(f.m.NEmbd), 1, &s.down)
	f.rec.endExperts(t, s.op+2, s.il, rows, len(s.sums), read, mem)
	f.touched += int64(len(s.sums) * len(s.sums[0].down.Data))
}

// origin is how many of the units were read for the call, and the memory that the recorder files them under.
func (s *ffnScratch) origin(units []ffnUnit) (read int, mem OpMemory) {
	if s.op == OpSharedGateUp {
		return 0, OpDRAM
	}
	for i := range units {
		read += units[i].read
	}
	if read > 0 {
		return read, OpFlash
	}
	return 0, s.f.expertMem
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

// downJob adds a block of rows of the down projections to the residual stream, unit after unit: the order
// of the sum does not depend on who computes it.
type downJob struct{ s *ffnScratch }

func (j *downJob) Do(_, lo, hi int) {
	s, f := j.s, j.s.f
	E := f.m.NEmbd
	r0, r1 := blockRows(lo, hi, E)
	for i := range s.sums {
		u := &s.sums[i]
		kernels.MulAddRows(f.x, E, &u.down, r0, r1, s.act.of(u.down.Type), u.row0, u.tokens, u.weight)
	}
}
