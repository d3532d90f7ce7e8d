package replay

import (
	"sluice/dump"
)

// live sets up OrderLive: the engine's own cache, driven by the recorded calls.
func (r *CacheReport) live(g *geometry, m *dump.TraceMeta, cols columns, c *CacheConfig) (consumer, func(), error) {
	l, err := newLive(r, g, m, cols, c)
	if err != nil {
		return consumer{}, nil, err
	}
	return consumer{l.cell, l.finish}, l.collect, nil
}

type liveRun struct {
	cache *liveCache
	cell  CacheCell
}

// liveReplay drives one cache for each budget and policy.
type liveReplay struct {
	r      *CacheReport
	g      *geometry
	runs   []*liveRun
	ahead  *prefetch
	own    *liveRun    // the run's budget and policy ...
	rep    *reproducer // ... held against it; nil: it is not
	notRep string
	call   layerCall
}

func newLive(r *CacheReport, g *geometry, m *dump.TraceMeta, cols columns, conf *CacheConfig) (*liveReplay, error) {
	start, l := conf.Start, &liveReplay{r: r, g: g, call: newLayerCall(g, cols)}
	var err error
	if l.ahead, err = newPrefetch(g, m, cols, conf.OnDemand); err != nil {
		return nil, err
	}
	if r.Prefetch, r.NoPrefetch = string(l.ahead.mode), string(l.ahead.left); l.ahead.why != "" {
		r.Notes = append(r.Notes, "nothing is read ahead here: "+l.ahead.why)
	}
	if start != nil {
		note, err := start.check(m)
		if err != nil {
			return nil, err
		}
		if r.Start = start.Name; note != "" {
			r.Notes = append(r.Notes, note)
		}
	}
	rec := newRecorder(g, m).rec
	notRep := notTheRun(g, m, cols, l.ahead, start)
	for _, b := range r.Budgets {
		for _, p := range r.Policies {
			c, err := g.newLiveCache(p, b, start)
			if err != nil {
				return nil, err
			}
			run := &liveRun{cache: c, cell: CacheCell{Policy: p, BudgetBytes: b}}
			l.runs = append(l.runs, run)
			if b != rec.BudgetBytes || p != rec.policy() {
				continue
			}
			if l.notRep = notRep; notRep == "" {
				l.own, l.rep = run, newReproducer(g, m, l.ahead)
				l.rep.r.DropsTaken = true
			}
		}
	}
	return l, nil
}

func (l *liveReplay) cell(c *cell) error {
	if c.newCall {
		if err := l.end(false); err != nil {
			return err
		}
		l.call.begin(c)
		if l.rep != nil {
			l.rep.before(l.own.cache, c.layer)
		}
	}
	l.call.cell(c, l.g.k)
	for i, e := range c.expert {
		if !c.dropped[i] { // what was dropped was not asked for
			l.call.want(e, c.phase)
		} else if l.rep != nil {
			l.rep.simDrops[e]++
		}
	}
	if l.rep != nil {
		l.rep.cell(c)
	}
	return nil
}

func (l *liveReplay) finish() error { return l.end(true) }

// end runs the open call. cut: the trace may end within it.
func (l *liveReplay) end(cut bool) error {
	c := &l.call
	if !c.open {
		return nil
	}
	c.open = false
	if err := c.checkAhead(l.g); err != nil {
		return err
	}
	if c.decodes {
		l.r.DecodeBatches++
	} else {
		l.r.PrefillBatches++
	}
	ask := l.ahead.asks(c)
	experts := c.sorted()
	for _, x := range l.runs {
		var read func(int32)
		if x == l.own {
			read = func(e int32) { l.rep.read(e, l.g.size[c.layer]) }
		}
		done, err := x.cache.run(c, experts, l.ahead, ask, read)
		if err != nil {
			return err
		}
		for ph := range 2 {
			n := x.cell.phase(ph)
			n.Lookups += done.hits[ph] + done.misses[ph]
			n.Hits += done.hits[ph]
			n.BytesRead += done.bytes[ph]
		}
		x.cell.phase(c.first).Ahead += done.aheadBytes
		x.cell.PeakBytes = max(x.cell.PeakBytes, x.cache.Stats().UsedBytes)
		if x == l.own && !(cut && c.cut()) {
			l.rep.end(c, done.aheadBytes)
		}
	}
	return nil
}

func (l *liveReplay) collect() {
	for _, x := range l.runs {
		l.r.Cells = append(l.r.Cells, x.cell)
	}
	if l.r.NotReproduced = l.notRep; l.rep != nil {
		l.r.Reproduction = &l.rep.r
	}
}
