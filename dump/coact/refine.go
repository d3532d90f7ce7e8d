package coact

import "math"

const (
	refinePasses = 24 // a pass that gains nothing ends the refinement, mostly after three or four
	patience     = 48 // exchanges without a new best before a pass gives up
)

// refine exchanges vertices between a and b until a pass gains nothing, and reports whether it gained at all. The
// sizes stay.
func (g *graph) refine(a, b []int) bool {
	any := false
	for range refinePasses {
		if !g.pass(a, b) {
			break
		}
		any = true
	}
	return any
}

// side is one of the two sets during a pass.
type side struct {
	v      []int
	d      []int64 // what the cut loses if the vertex goes to the other side: weight to there minus weight to here
	locked []bool
}

func (g *graph) newSide(own, other []int) *side {
	s := &side{own, make([]int64, len(own)), make([]bool, len(own))}
	for i, v := range own {
		row := g.row(v)
		for _, u := range other {
			s.d[i] += int64(row[u])
		}
		for _, u := range own {
			s.d[i] -= int64(row[u])
		}
	}
	return s
}

// moved tells the side that vertex out left it and vertex in came.
func (s *side) moved(g *graph, out, in int) {
	ro, ri := g.row(out), g.row(in)
	for i, v := range s.v {
		s.d[i] += 2 * (int64(ro[v]) - int64(ri[v]))
	}
}

// pass is one pass of Kernighan and Lin: exchange the best pair, also at a loss, each vertex once, and keep the
// exchanges up to the best sum.
func (g *graph) pass(a, b []int) bool {
	sa, sb := g.newSide(a, b), g.newSide(b, a)
	var done [][2]int
	total, best, keep := int64(0), int64(0), 0
	for len(done) < min(len(a), len(b)) && len(done)-keep < patience {
		i, j, gain := g.bestPair(sa, sb)
		sa.locked[i], sb.locked[j] = true, true
		done = append(done, [2]int{i, j})
		if total += gain; total > best {
			best, keep = total, len(done)
		}
		sa.moved(g, a[i], b[j])
		sb.moved(g, b[j], a[i])
	}
	for _, x := range done[:keep] {
		a[x[0]], b[x[1]] = b[x[1]], a[x[0]]
	}
	return keep > 0
}

// bestPair returns the unlocked pair whose exchange takes most off the cut; the first one of equals.
func (g *graph) bestPair(a, b *side) (ai, bj int, gain int64) {
	top := int64(math.MinInt64 / 2)
	for j, d := range b.d {
		if !b.locked[j] {
			top = max(top, d)
		}
	}
	gain = math.MinInt64
	for i, v := range a.v {
		if a.locked[i] || a.d[i]+top <= gain { // no partner can make it better: weights are not negative
			continue
		}
		row := g.row(v)
		for j, u := range b.v {
			if s := a.d[i] + b.d[j] - 2*int64(row[u]); s > gain && !b.locked[j] {
				ai, bj, gain = i, j, s
			}
		}
	}
	return ai, bj, gain
}
