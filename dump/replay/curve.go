package replay

import "sluice/dump"

// Curve is the LRU hit rate at every budget, from one pass: the distance of a lookup is the smallest budget at which LRU
// still holds its expert, that is, the bytes of all experts used since its last use, its own included (Mattson, Gecsei,
// Slutz, Traiger: Evaluation techniques for storage hierarchies, 1970, with bytes for page counts). Under OrderBatch.
type Curve struct {
	UnitBytes int64       `json:"unit_bytes"` // distances are rounded up to multiples of it
	Exact     bool        `json:"exact"`      // the unit divides all sizes: nothing was rounded
	Decode    CurveCounts `json:"decode"`
	Prefill   CurveCounts `json:"prefill"`
	// KeepBytes is the smallest budget at which whatever a decoded token used is still there when the next token asks for
	// it again; 0 when no token did.
	KeepBytes int64 `json:"keep_bytes"`
}

// CurveCounts are one phase's lookups by distance.
type CurveCounts struct {
	Lookups int64   `json:"lookups"`
	Cold    int64   `json:"cold"` // first ever: misses at every budget
	hits    []int64 // by distance in units
}

// Hits is how many lookups hit under LRU with that budget.
func (c *Curve) Hits(phase int, budget int64) int64 {
	n := c.phase(phase)
	hits := int64(0)
	for i, h := range n.hits {
		if int64(i)*c.UnitBytes > budget {
			break
		}
		hits += h
	}
	return hits
}

// BudgetFor is the smallest budget at which the share of hits is at least rate; ok is false when none reaches it.
func (c *Curve) BudgetFor(phase int, rate float64) (budget int64, ok bool) {
	n := c.phase(phase)
	hits := int64(0)
	for i, h := range n.hits {
		if hits += h; n.Lookups > 0 && ratio(float64(hits), float64(n.Lookups)) >= rate {
			return int64(i) * c.UnitBytes, true
		}
	}
	return 0, false
}

// Points returns at most n (budget, hit rate) pairs, ascending, the last one being where the curve ends.
func (c *Curve) Points(phase, n int) [][2]float64 {
	k := c.phase(phase)
	used := 0
	for i, h := range k.hits {
		if h > 0 {
			used = i
		}
	}
	step := (used + n - 1) / max(n-1, 1)
	var out [][2]float64
	hits := int64(0)
	for i := 0; i <= used && k.Lookups > 0; i++ {
		hits += k.hits[i]
		if i == used || step > 0 && i%step == 0 {
			out = append(out, [2]float64{float64(int64(i) * c.UnitBytes), ratio(float64(hits), float64(k.Lookups))})
		}
	}
	return out
}

func (c *Curve) phase(p int) *CurveCounts {
	if p == dump.Decode {
		return &c.Decode
	}
	return &c.Prefill
}

// maxUnits bounds the histogram of distances.
const maxUnits = 1 << 20

// curveRun computes a Curve. Experts lie on a line in order of last use, the latest at the end; a Fenwick tree (A new data
// structure for cumulative frequency tables, 1994) over the places sums their bytes in O(log n).
type curveRun struct {
	g     *geometry
	curve Curve
	tree  []int64 // over places, from 1
	order []int32 // by place: id, -1 for an empty place
	place []int32 // by id; 0: never used
	top   int32   // last place taken
	sum   int64   // of all bytes in the tree
	batch []uint64
	token []uint64 // by id: the token that used it last, 0: a prompt
	tok   uint64   // current token, a prompt counting as one
	layer int32    // of the batch before
}

func newCurveRun(g *geometry) *curveRun {
	unit := int64(0)
	for _, s := range g.size {
		unit = gcd(unit, s)
	}
	c := &curveRun{g: g, place: make([]int32, g.ids), batch: make([]uint64, g.ids), token: make([]uint64, g.ids), layer: 1 << 30}
	c.curve.Exact = g.total/unit < maxUnits
	if !c.curve.Exact {
		unit = g.total/maxUnits + 1
	}
	c.curve.UnitBytes = unit
	c.tree, c.order = make([]int64, 2*g.ids+1), make([]int32, 2*g.ids+1)
	return c
}

func (c *curveRun) run(b *block) error {
	for i, sp := range b.spans {
		now := b.first + uint64(i) + 1
		if sp.layer <= c.layer { // layers come in ascending order within a token
			c.tok++
		}
		c.layer = sp.layer
		n := c.curve.phase(int(sp.phase))
		n.Lookups += int64(sp.to - sp.from)
		// The whole batch is looked up before any of it counts as used.
		for _, id := range b.ids[sp.from:sp.to] {
			if c.place[id] == 0 {
				n.Cold++
				continue
			}
			distance := int64(0)
			// What the batch just before had was never evicted since.
			if c.batch[id] != now-1 {
				distance = c.sum - c.prefix(c.place[id]-1)
				if sp.phase == dump.Decode && c.token[id] == c.tok-1 {
					c.curve.KeepBytes = max(c.curve.KeepBytes, distance)
				}
			}
			n.count(int((distance + c.curve.UnitBytes - 1) / c.curve.UnitBytes))
		}
		size := c.g.size[sp.layer]
		for _, id := range b.last[sp.from:sp.to] {
			c.use(id, size)
			c.batch[id], c.token[id] = now, 0
			if sp.phase == dump.Decode {
				c.token[id] = c.tok
			}
		}
	}
	return nil
}

// count counts a hit at a distance in units.
func (n *CurveCounts) count(units int) {
	if units >= len(n.hits) {
		n.hits = append(n.hits, make([]int64, units+1-len(n.hits))...)
	}
	n.hits[units]++
}

// use moves id to the end of the line.
func (c *curveRun) use(id int32, size int64) {
	if int(c.top) == len(c.order)-1 {
		c.compact()
	}
	if p := c.place[id]; p != 0 {
		c.order[p] = -1
		c.add(p, -size)
		c.sum -= size
	}
	c.top++
	c.place[id], c.order[c.top] = c.top, id
	c.add(c.top, size)
	c.sum += size
}

// compact takes the empty places out. There are twice as many places as experts, so that it happens once in at least as
// many uses as there are experts.
func (c *curveRun) compact() {
	n := int32(0)
	for p := int32(1); p <= c.top; p++ {
		if id := c.order[p]; id >= 0 {
			n++
			c.order[n], c.place[id] = id, n
		}
	}
	c.top = n
	clear(c.tree)
	for p := int32(1); p <= n; p++ {
		c.add(p, c.g.sizeOf(c.order[p]))
	}
}

func (c *curveRun) add(p int32, v int64) {
	for ; int(p) < len(c.tree); p += p & -p {
		c.tree[p] += v
	}
}

// prefix is the sum over the places 1..p.
func (c *curveRun) prefix(p int32) int64 {
	s := int64(0)
	for ; p > 0; p -= p & -p {
		s += c.tree[p]
	}
	return s
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
