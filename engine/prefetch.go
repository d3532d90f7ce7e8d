package engine

import (
	"slices"

	"sluice/kernels"
	"sluice/moe"
)

// The modes of SessionConfig.Prefetch.
const (
	PrefetchOff       = "off"
	PrefetchNextLayer = "next-layer" // what the next layer's router says of this layer's input
	PrefetchLastToken = "last-token" // what the next layer's router chose for the token before, decode only
)

// PrefetchModes are the modes, the default first.
func PrefetchModes() []string { return []string{PrefetchOff, PrefetchNextLayer, PrefetchLastToken} }

// aheadRows bounds the tokens of a chunk that a prediction looks at, its last ones: of so many, nearly
// every expert that the others choose is chosen by one too.
const aheadRows = 64

// prefetcher asks the source for experts that the next layer will probably want, while this layer's
// are read and computed. What it asks for follows from the tokens and the configuration alone, so that
// residency, and with it dropping, stays deterministic.
type prefetcher struct {
	f        *forward
	mode     string
	maxBytes int64   // a layer call; 0: as many experts as tokens, at most a quarter of the budget
	slot     []int64 // by layer: what one expert takes of the budget
	budget   int64
	ids      []int32 // most wanted first
	asked    []int32 // by the last layer call, for the route trace
	read     int64   // bytes of those that were not resident

	last [][]int32 // by layer: experts of the last token, in slot order (last-token)

	// next-layer
	rows   int
	in     *kernels.Acts
	logits []float32
	arm    moe.Arm
	call   moe.Call
	table  *moe.Table
	score  []float32 // by expert
	weight []float32 // of the norm
	router *kernels.Mat
	t0     int // first row of the residual stream that is looked at
	norm   aheadNorm
	route  aheadRoute
}

func (p *prefetcher) init(f *forward, T int) {
	h, c := &f.m.Hparams, &f.cfg
	p.f, p.mode, p.maxBytes, p.budget = f, c.Prefetch, c.PrefetchBytes, f.src.Stats().BudgetBytes
	if p.mode != PrefetchOff {
		p.slot = f.m.SlotBytes()
	}
	switch p.mode {
	case PrefetchLastToken:
		p.last = make([][]int32, h.NLayer)
		for i := range p.last {
			p.last[i] = make([]int32, 0, c.NExpertUsed)
		}
	case PrefetchNextLayer:
		p.rows = min(T, aheadRows)
		p.in = kernels.NewActs(kernels.ActF32, h.NEmbd, p.rows)
		p.logits = make([]float32, p.rows*h.NExpert)
		p.arm = moe.NewHostArm(h.NExpert, c.NExpertUsed, p.rows)
		p.table = moe.NewTable(h.NExpert, c.NExpertUsed, p.rows)
		p.score = make([]float32, h.NExpert)
		p.ids = make([]int32, 0, h.NExpert)
		p.norm.p, p.route.p = p, p
	}
}

// prefetch asks for experts of the layer after il, the first one's after the last; the source has this
// layer's in hand. n tokens are in the call.
func (f *forward) prefetch(il, n int, ph phase) error {
	p := &f.ahead
	p.asked, p.read = nil, 0
	next := (il + 1) % len(f.m.w.layers)
	switch p.mode {
	case PrefetchLastToken:
		k := f.cfg.NExpertUsed
		p.last[il] = append(p.last[il][:0], f.sel.Expert[(n-1)*k:n*k]...)
		if ph != phaseDecode {
			return nil
		}
		return p.ask(next, p.last[next], n)
	case PrefetchNextLayer:
		if next == 0 || !p.predict(next, n) { // the next token is not known
			return nil
		}
		return p.ask(next, p.ids, n)
	}
	return nil
}

// ask asks for experts, and notes for the route trace what came of it.
func (p *prefetcher) ask(il int, ids []int32, n int) error {
	f := p.f
	if !f.cfg.Trace.TakesAhead() {
		return f.src.Prefetch(il, ids, p.bound(il, n))
	}
	before := f.src.Stats().BytesWanted
	err := f.src.Prefetch(il, ids, p.bound(il, n))
	p.asked, p.read = ids, f.src.Stats().BytesWanted-before
	return err
}

// bound is how many bytes a call of n tokens may ask for. Most of a token's prediction is right for its first
// expert and less so for each further one, and a wrong one costs a read.
func (p *prefetcher) bound(il, n int) int64 {
	if p.maxBytes > 0 {
		return p.maxBytes
	}
	return min(p.slot[il]*int64(n), p.budget/4)
}

// predict fills ids with the experts that the layer's router would choose for the residual stream as it is
// now, those with the largest sum of weights first, and only the first half of as many as the call can
// have: the others come true less often, and what a wrong one costs in reads a right one does not save in
// waiting. Without an answer, which the router itself will say when its turn comes, it returns false.
func (p *prefetcher) predict(il, n int) bool {
	f := p.f
	ly, rows := &f.m.w.layers[il], min(n, p.rows)
	p.weight, p.router, p.t0 = ly.ffnNorm, &ly.router, n-rows
	f.team.Run(rows, 1, &p.norm)
	p.route.n = rows
	f.team.Run(blocks(ly.router.Rows), 1, &p.route)
	p.call = moe.Call{Layer: il, T: rows, Pos0: f.pos + p.t0, Router: f.router, Logits: p.logits[:rows*f.m.NExpert], Table: p.table}
	if p.arm.Route(&p.call) != nil {
		return false
	}
	p.ids = p.ids[:0]
	for e := range p.score {
		p.score[e] = 0
		_, weight := p.table.Rows(e)
		for _, w := range weight {
			p.score[e] += w
		}
		if len(weight) > 0 {
			p.ids = append(p.ids, int32(e))
		}
	}
	slices.SortStableFunc(p.ids, p.byScore) // stable: the lower id first among equals
	p.ids = p.ids[:min(len(p.ids), n*((f.cfg.NExpertUsed+1)/2))]
	return true
}

func (p *prefetcher) byScore(a, b int32) int {
	switch sa, sb := p.score[a], p.score[b]; {
	case sa > sb:
		return -1
	case sa < sb:
		return 1
	}
	return 0
}

// aheadNorm normalises rows of the residual stream as the next layer's router reads them.
type aheadNorm struct{ p *prefetcher }

func (j *aheadNorm) Do(_, lo, hi int) {
	p, f := j.p, j.p.f
	E := f.m.NEmbd
	for i := lo; i < hi; i++ {
		row, t := p.in.F[i*E:(i+1)*E], p.t0+i
		kernels.RMSNorm(row, f.x[t*E:(t+1)*E], p.weight, f.m.NormEps)
		p.in.SetRow(i, row)
	}
}

// aheadRoute computes the next layer's router logits.
type aheadRoute struct {
	p *prefetcher
	n int
}

func (j *aheadRoute) Do(_, lo, hi int) {
	w := j.p.router
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulRows(j.p.logits, w.Rows, w, r0, r1, j.p.in, nil, j.n)
}
