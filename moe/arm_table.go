package moe

import (
	"math"

	"sluice/kernels"
)

// tableArm goes from logits to the table as a device does. One block per row computes probabilities and turns scores into
// 64-bit keys, whose order is (score descending, id ascending); the next slot is a maximum over the keys below the last
// one, a reduction without branches or moves. The row's winners leave the block as 8-byte records, and bump two counters
// per expert: slots, and slots that want the read. Whether an expert falls can be told from its counters alone, so an
// exclusive scan over the experts is already the table's offsets, and a last pass scatters the records. No Selection is
// involved unless the call has one, which is then written on the way.
type tableArm struct {
	limits
	prob    []float32  // nExpert, one row's (a block's shared memory)
	key     []uint64   // nExpert, one row's
	groups  []float32  // nExpert, one row's group scores
	records []slotRec  // maxT x nUsed
	experts []expertCt // nExpert
}

// slotRec is one routed slot on its way to the table.
type slotRec struct {
	expert uint32
	weight float32 // as routed
}

// expertCt is what the call knows of one expert.
type expertCt struct {
	slots int32 // that selected it
	wants int32 // of them, slots that would not fall
	at    int32 // next place in the table; fallen if the expert was dropped
}

const fallen = -1

// NewTableArm returns the arm in the shape of a device, for routers of up to nExpert experts and nUsed of them a token,
// and calls of up to maxT rows. It panics on numbers outside the package's limits.
func NewTableArm(nExpert, nUsed, maxT int) Arm {
	return &tableArm{
		limits:  newLimits(nExpert, nUsed, maxT),
		prob:    make([]float32, nExpert),
		key:     make([]uint64, nExpert),
		groups:  make([]float32, nExpert),
		records: make([]slotRec, nUsed*maxT),
		experts: make([]expertCt, nExpert),
	}
}

func (a *tableArm) Name() string { return "table" }

func (a *tableArm) Route(c *Call) error {
	if err := a.check(c); err != nil {
		return err
	}
	r := c.Router
	experts := a.experts[:r.NExpert]
	clear(experts)
	if c.Sel != nil {
		c.Sel.resize(c.T, r.NUsed)
	}
	// Where nothing may fall, in the call or in a row of it, the bound is -Inf, which no weight is below.
	none := float32(math.Inf(-1))
	bound := none
	if c.Drop != nil && c.Resident != nil {
		bound = c.Drop.Threshold(r.NUsed)
	}
	for t := range c.T {
		b := bound
		if c.Exempt != nil && c.Exempt[t] {
			b = none
		}
		if err := a.row(c, t, b); err != nil {
			return err
		}
	}
	kept := scan(experts, c.Table.Offsets[:r.NExpert+1])
	a.scatter(c, kept)
	return nil
}

// row is the block of row t: logits to records and counters.
func (a *tableArm) row(c *Call, t int, bound float32) error {
	r := c.Router
	n, k := r.NExpert, r.NUsed
	logits, prob, key := c.Logits[t*n:t*n+n], a.prob[:n], a.key[:n]

	// Maximum and check in one reduction over ordered bits: NaN of either sign and +Inf order above every finite logit, or
	// (NaN with the sign set) below -Inf.
	lo, hi := uint32(math.MaxUint32), uint32(0)
	for _, l := range logits {
		o := ordered(l)
		lo, hi = min(lo, o), max(hi, o)
	}
	if hi >= orderedPosInf || lo < orderedNegInf || hi == orderedNegInf {
		return a.reject(c, t)
	}

	switch r.Gating {
	case GatingSoftmax:
		top, sum := unordered(hi), float32(0)
		for i, l := range logits {
			prob[i] = kernels.Exp(l - top)
			sum += prob[i]
		}
		for i := range prob {
			prob[i] /= sum
			key[i] = slotKey(prob[i], i)
		}
	case GatingSoftmaxTopK:
		for i, l := range logits {
			prob[i] = l
			key[i] = slotKey(l, i)
		}
	case GatingSigmoid:
		for i, l := range logits {
			prob[i] = 1 / (1 + kernels.Exp(-l))
			key[i] = slotKey(prob[i], i)
		}
	case GatingSqrtSoftplus:
		for i, l := range logits {
			prob[i] = kernels.SqrtSoftplus(l)
			key[i] = slotKey(prob[i], i)
		}
	}
	if r.Bias != nil {
		for i, b := range r.Bias {
			key[i] = slotKey(prob[i]+b, i)
		}
	}
	if r.grouped() {
		a.limitGroups(r, key)
	}

	rec := a.records[t*k : t*k+k]
	last := uint64(math.MaxUint64)
	for j := range rec {
		last = nextKey(key, last)
		e := keyID(last)
		rec[j] = slotRec{uint32(e), prob[e]}
	}
	a.weigh(r, rec)

	top := 0
	for j := 1; j < k; j++ {
		if rec[j].weight > rec[top].weight {
			top = j
		}
	}
	for j := range rec {
		e := rec[j].expert
		ct := &a.experts[e]
		ct.slots++
		if j == top || !(rec[j].weight < bound) || c.Resident[e] != Miss {
			ct.wants++
		}
		if c.Sel != nil {
			c.Sel.Expert[t*k+j] = int32(e)
			c.Sel.Weight[t*k+j] = rec[j].weight
		}
	}
	return nil
}

// reject finds what row t is refused for, out of the fast path.
func (a *tableArm) reject(c *Call, t int) error {
	n := c.Router.NExpert
	for i, l := range c.Logits[t*n : t*n+n] {
		if o := ordered(l); o >= orderedPosInf || o < orderedNegInf {
			return c.badLogit(t, i)
		}
	}
	return c.badLogit(t, -1)
}

// limitGroups masks the keys of the groups that are not among the best. A group's rank is the number of groups that beat
// it, so every group decides alone.
func (a *tableArm) limitGroups(r *Router, key []uint64) {
	n := r.NExpert / r.NGroup
	groups := a.groups[:r.NGroup]
	for g := range groups {
		in := key[g*n : g*n+n]
		best := nextKey(in, math.MaxUint64)
		groups[g] = keyScore(best)
		if r.Bias != nil && n > 1 {
			groups[g] += keyScore(nextKey(in, best))
		}
	}
	for g, s := range groups {
		rank := 0
		for h, o := range groups {
			if o > s || o == s && h < g {
				rank++
			}
		}
		if rank >= r.NGroupUsed {
			for i := g * n; i < g*n+n; i++ {
				key[i] = slotKey(float32(math.Inf(-1)), i)
			}
		}
	}
}

// weigh turns the records' probabilities into weights: steps 6 to 8 of the recipe.
func (a *tableArm) weigh(r *Router, rec []slotRec) {
	if r.Gating == GatingSoftmaxTopK {
		top, sum := rec[0].weight, float32(0)
		for j := range rec {
			rec[j].weight = kernels.Exp(rec[j].weight - top)
			sum += rec[j].weight
		}
		for j := range rec {
			rec[j].weight /= sum
		}
	}
	div := float32(1) // x/1 is x
	if r.Norm {
		div = rec[0].weight
		for _, s := range rec[1:] {
			div += s.weight
		}
		div = max(div, MinWeightSum)
	}
	for j := range rec {
		rec[j].weight = float32(rec[j].weight / div * r.Scale)
	}
}

// scan decides which experts fall and turns the counters into offsets: an exclusive prefix sum. It returns the number of
// kept slots.
func scan(experts []expertCt, offsets []int32) int {
	at := int32(0)
	for e := range experts {
		ct := &experts[e]
		offsets[e] = at
		ct.at = at
		if ct.wants == 0 { // an expert that nobody selected has no slots to lose
			ct.at = fallen
		} else {
			at += ct.slots
		}
	}
	offsets[len(experts)] = at
	return int(at)
}

// scatter places the records of the kept experts, rescaled, and adds up the call's results.
func (a *tableArm) scatter(c *Call, kept int) {
	k := c.Router.NUsed
	tab := c.Table
	tab.Offsets, tab.Token, tab.Weight = tab.Offsets[:c.Router.NExpert+1], tab.Token[:kept], tab.Weight[:kept]
	renorm := c.Drop != nil && c.Drop.Renorm
	for t := range c.T {
		rec := a.records[t*k : t*k+k]
		// Both sums run for every row; without a fallen slot they are the same number and the factor is exactly 1.
		var before, left float32
		for _, s := range rec {
			before += s.weight
			if a.experts[s.expert].at != fallen {
				left += s.weight
			}
		}
		f := float32(1)
		if renorm && left > 0 {
			f = before / left
		}
		for j, s := range rec {
			ct := &a.experts[s.expert]
			fell := ct.at == fallen
			c.Mass += float64(s.weight)
			if fell {
				c.Dropped++
				c.MassDropped += float64(s.weight)
			} else {
				tab.Token[ct.at] = int32(t)
				tab.Weight[ct.at] = float32(s.weight * f)
				ct.at++
			}
			if c.Sel != nil {
				c.Sel.Dropped[t*k+j] = fell
			}
		}
	}
	c.Routed = c.T * k
}

// ordered maps a float32 to a number whose unsigned order is the float's, with -0 taken for +0.
func ordered(x float32) uint32 {
	if x == 0 {
		return 1 << 31
	}
	b := math.Float32bits(x)
	if b>>31 != 0 {
		return ^b
	}
	return b | 1<<31
}

// unordered is the inverse of ordered, up to the sign of 0.
func unordered(o uint32) float32 {
	if o>>31 != 0 {
		return math.Float32frombits(o &^ (1 << 31))
	}
	return math.Float32frombits(^o)
}

const (
	orderedPosInf = 0x7f800000 | 1<<31
	orderedNegInf = 0xffffffff &^ 0xff800000
)

// slotKey orders by descending score first, then by ascending id. Keys of one row are distinct.
func slotKey(score float32, id int) uint64 { return uint64(ordered(score))<<32 | uint64(^uint32(id)) }

func keyID(key uint64) int        { return int(^uint32(key)) }
func keyScore(key uint64) float32 { return unordered(uint32(key >> 32)) }

// nextKey is the greatest key below last: the next slot.
func nextKey(key []uint64, last uint64) uint64 {
	var best uint64
	for _, x := range key {
		if x >= last {
			x = 0
		}
		best = max(best, x)
	}
	return best
}
