package replay

import (
	"runtime"
	"sync"
	"sync/atomic"

	"sluice/dump"
)

// CacheCell is what one policy makes of one budget.
type CacheCell struct {
	Policy      string     `json:"policy"`
	BudgetBytes int64      `json:"budget_bytes"`
	Decode      CacheCount `json:"decode"`
	Prefill     CacheCount `json:"prefill"`
	// PeakBytes is the most that stayed resident after a batch. Above the budget: a batch's own experts, which are never
	// evicted, did not fit in what the policy may fill.
	PeakBytes int64 `json:"peak_bytes"`
	// OverBudget is the number of decode batches after which more than the budget was resident. Where they are many, the
	// hit rate is too good for the budget.
	OverBudget int64 `json:"decode_batches_over_budget"`
}

// CacheCount counts lookups of distinct experts in layer calls.
type CacheCount struct {
	Lookups   int64 `json:"lookups"`
	Hits      int64 `json:"hits"`
	BytesRead int64 `json:"bytes_read"`            // on demand
	Ahead     int64 `json:"ahead_bytes,omitempty"` // before it (OrderLive)
}

// HitRate is Hits/Lookups, 0 to 1.
func (c CacheCount) HitRate() float64 { return ratio(float64(c.Hits), float64(c.Lookups)) }

func (c *CacheCell) phase(p int) *CacheCount {
	if p == dump.Decode {
		return &c.Decode
	}
	return &c.Prefill
}

// sim is one policy at one budget under OrderBatch.
type sim struct {
	g        *geometry
	cell     CacheCell
	parts    []part // one, or one by layer
	resident []bool // by id
	used     int64
	byLast   bool // the policy's order is that of the calls: recency is of the last occurrence in a prompt
}

// part is a share of the budget with what competes for it.
type part struct {
	e            evictor
	used, budget int64
}

func newSim(g *geometry, policy string, budget int64, nLayer int, seed uint64) (*sim, error) {
	s := &sim{g: g, cell: CacheCell{Policy: policy, BudgetBytes: budget}, resident: make([]bool, g.ids)}
	n, ids := 1, g.ids
	if policy == "layer" || policy == "layerlfu" {
		n, ids = len(g.size), g.nExpert
		budget /= int64(max(nLayer, 1))
	}
	for range n {
		e, err := newEvictor(policy, ids, budget, seed)
		if err != nil {
			return nil, err
		}
		s.parts = append(s.parts, part{e: e, budget: budget})
		_, s.byLast = e.(*liveEvictor)
	}
	return s, nil
}

func (s *sim) run(b *block) error {
	for _, sp := range b.spans {
		size := s.g.size[sp.layer]
		p, base := &s.parts[0], int32(0)
		if len(s.parts) > 1 {
			p, base = &s.parts[sp.layer], s.g.base[sp.layer]
		}
		ids := b.ids
		if s.byLast {
			ids = b.last
		}
		count := s.cell.phase(int(sp.phase))
		count.Lookups += int64(sp.to - sp.from)
		for i := sp.from; i < sp.to; i++ {
			id := ids[i]
			l := lookup{id: id - base, bytes: size}
			if !s.byLast {
				l.freq, l.stamp = b.freq[i], b.stamp[i]
				if b.next != nil {
					l.next = b.next[i]
				}
			}
			if s.resident[id] {
				count.Hits++
				p.e.hit(&l)
				continue
			}
			s.resident[id] = true
			s.used += size
			p.used += size
			count.BytesRead += size
			p.e.miss(&l)
		}
		for p.used > p.budget {
			id := p.e.victim()
			if id < 0 {
				break
			}
			s.resident[id+base] = false
			gone := size
			if len(s.parts) == 1 {
				gone = s.g.sizeOf(id)
			}
			s.used -= gone
			p.used -= gone
		}
		p.e.endBatch()
		s.cell.PeakBytes = max(s.cell.PeakBytes, s.used)
		if s.used > s.cell.BudgetBytes && sp.phase == dump.Decode {
			s.cell.OverBudget++
		}
	}
	return nil
}

// runAll takes every runner through the block, as many at a time as there are processors. They share nothing but the
// block, which none of them changes.
func runAll(b *block, runners []func(*block) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(runners))
	for range min(len(runners), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(runners) {
					return
				}
				errs[i] = runners[i](b)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
