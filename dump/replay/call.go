package replay

import (
	"fmt"
	"slices"

	"sluice/moe/store"
)

// layerCall is one layer call, put together from its cells.
type layerCall struct {
	layer, phase, tokens int
	line                 int     // of its first row
	open                 bool    // it has cells
	short                bool    // its last cell has fewer rows than n_expert_used
	experts              []int32 // distinct, those that the caller adds
	touched              []bool  // by expert: in experts
	last                 []int32 // the last token's experts, in slot order
	ahead                []int32 // asked for ahead, as recorded
	aheadBytes           int64   // what of them the run read
}

func newLayerCall(g *geometry) layerCall { return layerCall{touched: make([]bool, g.nExpert)} }

// begin empties the call for the one that begins with c.
func (l *layerCall) begin(c *cell) {
	for _, e := range l.experts {
		l.touched[e] = false
	}
	l.layer, l.phase, l.tokens, l.line, l.open, l.experts = c.layer, c.phase, 0, c.line, true, l.experts[:0]
	l.ahead, l.aheadBytes = l.ahead[:0], 0
}

// cell adds what every replay wants of a cell, which is not its experts.
func (l *layerCall) cell(c *cell, k int) {
	l.tokens++
	l.short = len(c.expert) < k
	l.last = append(l.last[:0], c.expert...)
	l.ahead, l.aheadBytes = append(l.ahead, c.ahead...), l.aheadBytes+c.aheadBytes
}

// want adds an expert.
func (l *layerCall) want(e int32) {
	if !l.touched[e] {
		l.touched[e] = true
		l.experts = append(l.experts, e)
	}
}

// checkAhead refuses ids that the model does not have.
func (l *layerCall) checkAhead(g *geometry) error {
	for _, e := range l.ahead {
		if int(e) >= g.nExpert {
			return fmt.Errorf("line %d: expert %d read ahead, the preamble's n_expert is %d", l.line, e, g.nExpert)
		}
	}
	return nil
}

// liveCache is the engine's cache, driven by recorded calls.
type liveCache struct {
	*store.Cache
	g      *geometry
	budget int64
}

// liveCount is what one call did.
type liveCount struct {
	hits, misses, ahead int64 // experts
	bytes, aheadBytes   int64 // logical
}

// run does one layer call as the engine does it: the experts, ascending, as many at a time as fit, and with the last of
// them in hand what the call asks for ahead of the next layer's. read, if not nil, is told of each expert that missed.
func (c *liveCache) run(l *layerCall, experts []int32, a *prefetch, next int, asked []int32, read func(e int32)) (n liveCount, err error) {
	for len(experts) > 0 {
		held, err := c.Demand(l.layer, experts)
		if err != nil {
			return n, err
		}
		for i, missed := range c.Missed() {
			if !missed {
				n.hits++
				continue
			}
			n.misses++
			if read != nil {
				read(experts[i])
			}
		}
		if experts = experts[held:]; len(experts) == 0 && len(asked) > 0 {
			if err := c.Prefetch(next, asked, a.bound(next, l.tokens, c.budget)); err != nil {
				return n, err
			}
			n.ahead = int64(len(c.Ahead()))
			n.aheadBytes = n.ahead * c.g.size[next]
		}
		c.Release()
	}
	n.bytes = n.misses * c.g.size[l.layer]
	return n, nil
}

// sorted puts the call's experts into the order in which the engine demands them.
func (l *layerCall) sorted() []int32 {
	slices.Sort(l.experts)
	return l.experts
}
