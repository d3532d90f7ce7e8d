package moe

import "math"

// hostArm takes the plain steps over a Selection: Router.selectRow, Drop.apply, Table.group.
type hostArm struct {
	limits
	sel         *Selection // where the selection goes when no tap wants it
	applied     []float32  // maxT x nUsed
	prob, score []float32  // nExpert
	group       []int32    // nExpert: groups kept
	groupScore  []float32  // nExpert
	fill        []int32    // nExpert
	miss        []bool     // nUsed
	needed      []bool     // nExpert
}

// NewHostArm returns the arm that routes in plain steps, for routers of up to nExpert experts and nUsed of them a token,
// and calls of up to maxT rows. It panics on numbers outside the package's limits.
func NewHostArm(nExpert, nUsed, maxT int) Arm {
	return &hostArm{
		limits:     newLimits(nExpert, nUsed, maxT),
		sel:        NewSelection(nUsed, maxT),
		applied:    make([]float32, nUsed*maxT),
		prob:       make([]float32, nExpert),
		score:      make([]float32, nExpert),
		group:      make([]int32, nExpert),
		groupScore: make([]float32, nExpert),
		fill:       make([]int32, nExpert),
		miss:       make([]bool, nUsed),
		needed:     make([]bool, nExpert),
	}
}

func (h *hostArm) Name() string { return "host" }

func (h *hostArm) Route(c *Call) error {
	if err := h.check(c); err != nil {
		return err
	}
	r := c.Router
	n, k := r.NExpert, r.NUsed
	sel := c.Sel
	if sel == nil {
		sel = h.sel
	}
	sel.resize(c.T, k)
	for t := range c.T {
		row := c.Logits[t*n : t*n+n]
		if e, ok := checkRow(row); !ok {
			return c.badLogit(t, e)
		}
		i := t * k
		r.selectRow(row, h.prob[:n], h.score[:n], h.group[:r.NGroupUsed], h.groupScore[:r.NGroup], sel.Expert[i:i+k], sel.Weight[i:i+k])
	}
	applied := h.applied[:c.T*k]
	if c.Drop != nil {
		c.Drop.apply(sel, c.Resident, c.Exempt, applied, h.miss[:k], h.needed[:n])
	} else {
		copy(applied, sel.Weight)
		clear(sel.Dropped)
	}
	c.Table.group(sel, applied, n, h.fill[:n])
	c.Routed = len(sel.Expert)
	for i, w := range sel.Weight {
		c.Mass += float64(w)
		if sel.Dropped[i] {
			c.Dropped++
			c.MassDropped += float64(w)
		}
	}
	return nil
}

// checkRow is step 1 of the recipe: the expert of the first NaN or +Inf, or -1 if the row is -Inf only.
func checkRow(logits []float32) (expert int, ok bool) {
	finite := false
	for i, l := range logits {
		if !(l <= math.MaxFloat32) {
			return i, false
		}
		finite = finite || l >= -math.MaxFloat32
	}
	return -1, finite
}
