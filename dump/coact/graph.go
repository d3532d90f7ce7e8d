package coact

import (
	"cmp"
	"slices"
)

// graph is a layer's experts with, between two, the number of fit tokens that picked both.
type graph struct {
	n       int
	w       []int32     // n x n, symmetric
	vectors [][]float64 // of length n: orders in which experts that belong together stand close
}

func newGraph(pairs []uint32, n, cards int) *graph {
	g := &graph{n: n, w: make([]int32, len(pairs))}
	for i, c := range pairs {
		g.w[i] = int32(c) // the survey refuses more than 2^31 tokens
	}
	for e := range n {
		g.w[e*n+e] = 0
	}
	g.vectors = spectral(g, max(4, cards))
	return g
}

func (g *graph) row(v int) []int32 { return g.w[v*g.n : (v+1)*g.n] }

// cut is the weight between two sets of vertices.
func (g *graph) cut(a, b []int) int64 {
	c := int64(0)
	for _, v := range a {
		row := g.row(v)
		for _, u := range b {
			c += int64(row[u])
		}
	}
	return c
}

// partition splits verts into as many parts as cards, with sizes that differ by at most one, so that little weight
// runs between the parts.
func (g *graph) partition(verts []int, cards int) [][]int {
	parts := make([][]int, 0, cards)
	for c := range cards {
		parts = append(parts, make([]int, partStart(len(verts), cards, c+1)-partStart(len(verts), cards, c)))
	}
	g.divide(verts, parts)
	const rounds = 4
	for round := 0; cards > 2 && round < rounds; round++ {
		better := false
		for i := range parts {
			for j := range i {
				better = g.refine(parts[j], parts[i]) || better
			}
		}
		if !better {
			break
		}
	}
	return parts
}

// partStart is where part c of n things begins when they are dealt out evenly and in order.
func partStart(n, cards, c int) int { return n * c / cards }

// divide fills the parts by halving their number.
func (g *graph) divide(verts []int, parts [][]int) {
	if len(parts) == 1 {
		copy(parts[0], verts)
		return
	}
	half := len(parts) / 2
	size := 0
	for _, p := range parts[:half] {
		size += len(p)
	}
	a, b := g.bisect(verts, size)
	g.divide(a, parts[:half])
	g.divide(b, parts[half:])
}

// bisect returns size of the vertices and the others. It refines two starts, the best order by an eigenvector and the
// order of the ids, and takes the better end.
func (g *graph) bisect(verts []int, size int) (a, b []int) {
	order := slices.Clone(verts)
	best := int64(-1)
	for _, v := range g.vectors {
		slices.SortFunc(order, func(x, y int) int { return cmp.Or(cmp.Compare(v[x], v[y]), cmp.Compare(x, y)) })
		if c := g.cut(order[:size], order[size:]); best < 0 || c < best {
			best = c
			a, b = slices.Clone(order[:size]), slices.Clone(order[size:])
		}
	}
	slices.Sort(order)
	a2, b2 := order[:size], order[size:]
	g.refine(a2, b2)
	if best < 0 {
		return a2, b2
	}
	g.refine(a, b)
	if g.cut(a2, b2) < g.cut(a, b) {
		return a2, b2
	}
	return a, b
}
