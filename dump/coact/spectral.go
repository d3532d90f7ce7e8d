package coact

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

// spectral returns up to count orders of the vertices: the eigenvectors of I + D^-1/2 W D^-1/2 with the largest
// eigenvalues after the trivial one, each divided by the square root of the degree (the relaxed normalised cut).
//
// They come from subspace iteration with a Rayleigh-Ritz step at its end, not from a full decomposition, which costs
// seconds at 512 experts. Where eigenvalues lie close, as in a graph without structure, the vectors have not
// converged; they are starting points of a refinement, so that costs quality and nothing else.
func spectral(g *graph, count int) [][]float64 {
	n := g.n
	cols := min(n, count+1)
	root := make([]float64, n) // of the degree
	for v := range n {
		d := 0.0
		for _, w := range g.row(v) {
			d += float64(w)
		}
		root[v] = math.Sqrt(d)
	}
	s := mat.NewSymDense(n, nil)
	for v := range n {
		for u := v; u < n; u++ {
			x := 0.0
			if w := g.w[v*n+u]; w > 0 {
				x = float64(w) / (root[v] * root[u])
			}
			if u == v {
				x++ // the shift makes all eigenvalues positive
			}
			s.SetSym(v, u, x)
		}
	}
	x := mat.NewDense(n, cols, nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	for v := range n {
		x.Set(v, 0, root[v])
		for c := 1; c < cols; c++ {
			x.Set(v, c, rnd.Float64()-0.5)
		}
	}
	const steps = 40
	y := mat.NewDense(n, cols, nil)
	orthonormal(x)
	for range steps {
		y.Mul(s, x)
		x, y = y, x
		orthonormal(x)
	}
	y.Mul(s, x)
	t := mat.NewDense(cols, cols, nil)
	t.Mul(x.T(), y)
	ts := mat.NewSymDense(cols, nil)
	for i := range cols {
		for j := i; j < cols; j++ {
			ts.SetSym(i, j, (t.At(i, j)+t.At(j, i))/2)
		}
	}
	var eig mat.EigenSym
	if !eig.Factorize(ts, true) {
		return nil // no start; the order of the ids is the other one
	}
	var ev mat.Dense
	eig.VectorsTo(&ev) // ascending
	y.Mul(x, &ev)
	var orders [][]float64
	for c := cols - 2; c >= 0; c-- { // the last one is the trivial vector
		o := make([]float64, n)
		for v := range o {
			if root[v] > 0 {
				o[v] = y.At(v, c) / root[v]
			}
		}
		orders = append(orders, o)
	}
	return orders
}

// orthonormal makes the columns of x orthonormal, in order (Gram-Schmidt, twice for its rounding). A column that
// depends on those before it becomes zero.
func orthonormal(x *mat.Dense) {
	n, cols := x.Dims()
	raw := x.RawMatrix()
	at := func(v, c int) *float64 { return &raw.Data[v*raw.Stride+c] }
	for c := range cols {
		for range 2 {
			for p := range c {
				dot := 0.0
				for v := range n {
					dot += *at(v, c) * *at(v, p)
				}
				for v := range n {
					*at(v, c) -= dot * *at(v, p)
				}
			}
		}
		norm := 0.0
		for v := range n {
			norm += *at(v, c) * *at(v, c)
		}
		norm = math.Sqrt(norm)
		for v := range n {
			if norm > 1e-12 {
				*at(v, c) /= norm
			} else {
				*at(v, c) = 0
			}
		}
	}
}
