package cpu

import (
	"slices"
	"time"

	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// aheadRows bounds the tokens of a chunk that a prediction looks at, its last ones: of so many, nearly
// every expert that the others choose is chosen by one too.
const aheadRows = 64

// prefetcher asks the source for experts that the next layer will probably want, while this layer's
// are read and computed. What it asks for follows from the tokens and the configuration alone, so that
// residency, and with it dropping, stays deterministic.
type prefetcher struct {
	f        *Backend
	mode     moe.Prefetch
	maxBytes int64   // a layer call; 0: as many experts as tokens, at most a quarter of the budget
	slot     []int64 // by layer: what one expert takes of the budget
	budget   int64
	ids      []int32 // most wanted first
	asked    []int32 // by the last layer call, for the route trace
	read     int64   // bytes of those that were not resident

	// next-layer
	rows   int
	in     *kernels.Acts
	logits []float32
	arm    moe.Arm
	call   moe.Call
	table  *moe.Table
	score  []float32 // by expert
	weight []float32 // of the norm
	router *model.Router
	t0     int // first row of the residual stream that is looked at
	norm   aheadNorm
	route  aheadRoute
}

func (p *prefetcher) init(f *Backend, T int) {
	m, c := f.m, &f.cfg
	p.f, p.mode, p.maxBytes, p.budget = f, c.Prefetch, c.PrefetchBytes, c.Source.Stats().BudgetBytes
	if p.mode != moe.PrefetchOff {
		p.slot = m.SlotBytes()
	}
	switch p.mode {
	case moe.PrefetchLastToken:
		f.pool.lastK = c.NExpertUsed
		p.ids = make([]int32, 0, c.NExpertUsed*c.Seqs)
	case moe.PrefetchNextLayer:
		p.rows = min(T, aheadRows)
		p.in = kernels.NewActs(kernels.ActF32, m.NEmbd, p.rows)
		p.logits = make([]float32, p.rows*m.NExpert)
		p.arm = moe.NewHostArm(m.NExpert, c.NExpertUsed, p.rows)
		p.table = moe.NewTable(m.NExpert, c.NExpertUsed, p.rows)
		p.score = make([]float32, m.NExpert)
		p.ids = make([]int32, 0, m.NExpert)
		p.norm.p, p.route.p = p, p
	}
}

// prefetch asks for experts of the layer after il, the first one's after the last; the source has this
// layer's in hand. n rows are in the call, or ask.
func (f *Backend) prefetch(il, n int) error {
	p := &f.ahead
	next := (il + 1) % len(f.m.Layers)
	switch p.mode {
	case moe.PrefetchLastToken:
		if n = p.lastTokens(il, next); n == 0 {
			return nil
		}
	case moe.PrefetchNextLayer:
		if next == 0 || f.m.Layers[next].Experts() == nil { // the next token is not known
			return nil
		}
		start := time.Now()
		ok := p.predict(next, n)
		f.cfg.Meter.AddManage(time.Since(start))
		if !ok {
			return nil
		}
	default:
		return nil
	}
	return p.ask(next, n)
}

// lastTokens notes what the last row of each sequence chose, and fills ids with what those of the sequences that decode
// chose in the next layer the last time: in the order of the spans, each in slot order. decoding is how many do.
func (p *prefetcher) lastTokens(il, next int) (decoding int) {
	f, k := p.f, p.f.cfg.NExpertUsed
	p.ids = p.ids[:0]
	for i := range f.p.Spans {
		sp := &f.p.Spans[i]
		end := sp.From + sp.N
		last := sp.State.(*state).last
		last[il] = append(last[il][:0], f.sel.Expert[(end-1)*k:end*k]...)
		if f.p.Rows[sp.From].Phase != moe.Decode {
			continue
		}
		decoding++
		for _, e := range last[next] {
			if !slices.Contains(p.ids, e) {
				p.ids = append(p.ids, e)
			}
		}
	}
	return decoding
}

// ask asks for the experts in ids, and notes for the taps what came of it.
func (p *prefetcher) ask(il, n int) error {
	src := p.f.cfg.Source
	before := src.Stats().BytesWanted
	err := src.Prefetch(il, p.ids, moe.PrefetchBound(p.maxBytes, p.slot[il], p.budget, n))
	p.asked, p.read = p.ids, src.Stats().BytesWanted-before
	return err
}

// predict fills ids with the experts that the layer's router would choose for the residual stream as it is
// now, those with the largest sum of weights first, and only the first half of as many as the call can
// have: the others come true less often, and what a wrong one costs in reads a right one does not save in
// waiting. Without an answer, which the router itself will say when its turn comes, it returns false.
func (p *prefetcher) predict(il, n int) bool {
	f := p.f
	y, rows := &f.m.Layers[il], min(n, p.rows)
	p.weight, p.router, p.t0 = y.FFNIn.X, &y.Experts().Router, n-rows
	f.team.Run(rows, 1, &p.norm)
	p.route.n = rows
	f.team.Run(model.Blocks(p.router.W.Rows), 1, &p.route)
	p.call = moe.Call{Layer: il, T: rows, Pos0: p.t0, Router: f.routers[il], Logits: p.logits[:rows*f.m.NExpert], Table: p.table}
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
	routerLogits(j.p.logits, j.p.router, lo, hi, j.p.in, j.n)
}
