package replay

import (
	"fmt"
	"slices"

	"sluice/dump"
	"sluice/moe/store"
)

// layerCall is one layer call, put together from its cells.
type layerCall struct {
	layer, tokens int
	line          int        // of its first row
	open          bool       // it has cells
	short         bool       // its last cell has fewer rows than n_expert_used
	seqs          bool       // the trace says which rows are one call; in a pass every call has the same
	pass          int64      // seqs
	rows          int        // seqs: tokens of the pass's call before; 0: it is the first
	experts       []int32    // distinct, those that the caller adds
	touched       []bool     // by expert: in experts
	phase         []uint8    // by expert: of the first row that wants it, which its lookup and its bytes are counted to
	first         int        // phase of the first row, which what is read ahead is counted to
	decodes       bool       // it has decoded rows
	spans         []callSpan // of sequences, in row order
	last          []int32    // experts of each span's last token
	ahead         []int32    // asked for ahead, as recorded
	aheadBytes    int64      // what of them the run read
}

// callSpan is the rows of one sequence in a call.
type callSpan struct {
	seq, phase int   // phase of the first of them
	from, to   int32 // of layerCall.last: the last row's experts, in slot order
}

func newLayerCall(g *geometry, cols columns) layerCall {
	return layerCall{seqs: cols.seqs, touched: make([]bool, g.nExpert), phase: make([]uint8, g.nExpert)}
}

// begin empties the call for the one that begins with c.
func (l *layerCall) begin(c *cell) {
	for _, e := range l.experts {
		l.touched[e] = false
	}
	if l.rows = 0; c.pass == l.pass {
		l.rows = l.tokens
	}
	l.pass = c.pass
	l.layer, l.tokens, l.line, l.open, l.experts = c.layer, 0, c.line, true, l.experts[:0]
	l.first, l.decodes, l.spans, l.last = c.phase, false, l.spans[:0], l.last[:0]
	l.ahead, l.aheadBytes = l.ahead[:0], 0
}

// cell adds what every replay wants of a cell, which is not its experts.
func (l *layerCall) cell(c *cell, k int) {
	l.tokens++
	l.short = len(c.expert) < k
	l.decodes = l.decodes || c.phase == dump.Decode
	n := len(l.spans)
	if n == 0 || l.spans[n-1].seq != c.seq {
		l.spans = append(l.spans, callSpan{seq: c.seq, phase: c.phase, from: int32(len(l.last))})
		n++
	}
	sp := &l.spans[n-1]
	l.last = append(l.last[:sp.from], c.expert...)
	sp.to = int32(len(l.last))
	l.ahead, l.aheadBytes = append(l.ahead, c.ahead...), l.aheadBytes+c.aheadBytes
}

// cut tells whether the trace may have been cut off within the call, if it is the last one.
func (l *layerCall) cut() bool { return l.short || l.seqs && l.tokens != l.rows }

// want adds an expert that a row of the phase wants.
func (l *layerCall) want(e int32, phase int) {
	if !l.touched[e] {
		l.touched[e], l.phase[e] = true, uint8(phase)
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
	hits, misses, bytes [2]int64 // by phase: experts, and logical bytes of those that missed
	aheadBytes          int64    // logical
}

// run does one layer call as the engine does it: the experts, ascending, as many at a time as fit, and with the last of
// them in hand what the call asks for ahead of the next layer's. read, if not nil, is told of each expert that missed.
func (c *liveCache) run(l *layerCall, experts []int32, a *prefetch, ask asked, read func(e int32)) (n liveCount, err error) {
	size := c.g.size[l.layer]
	for len(experts) > 0 {
		held, err := c.Demand(l.layer, experts)
		if err != nil {
			return n, err
		}
		for i, missed := range c.Missed() {
			ph := l.phase[experts[i]]
			if !missed {
				n.hits[ph]++
				continue
			}
			n.misses[ph]++
			n.bytes[ph] += size
			if read != nil {
				read(experts[i])
			}
		}
		if experts = experts[held:]; len(experts) == 0 && len(ask.experts) > 0 {
			if err := c.Prefetch(ask.layer, ask.experts, a.bound(ask, c.budget)); err != nil {
				return n, err
			}
			n.aheadBytes = int64(len(c.Ahead())) * c.g.size[ask.layer]
		}
		c.Release()
	}
	return n, nil
}

// sorted puts the call's experts into the order in which the engine demands them.
func (l *layerCall) sorted() []int32 {
	slices.Sort(l.experts)
	return l.experts
}
