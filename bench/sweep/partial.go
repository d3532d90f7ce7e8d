package sweep

import (
	"math"
	"slices"

	"sluice/kernels"
)

// partial is the state of a softmax over part of the positions, for rows x heads query heads: the largest score, the sum
// of exponentials relative to it, and the sum of values weighted by them. Two partials over different positions merge to
// that of both; order and grouping change rounding only.
//
// attend takes the steps of kernels.AttendF16 in the same order for each query head: with the portable kernels one partial
// over all positions gives the same bits.
type partial struct {
	max, sum []float32 // rows*heads
	out      []float32 // rows*heads*headDim
	pairs    int64     // pairs of query and position attended

	ktile, vtile []float32 // kernels.KVTile x headDim, widened
	score, ones  []float32 // kernels.KVTile
}

func newPartial(rows, heads, headDim int) *partial {
	p := &partial{max: make([]float32, rows*heads), sum: make([]float32, rows*heads), out: make([]float32, rows*heads*headDim)}
	for i := range p.max {
		p.max[i] = float32(math.Inf(-1))
	}
	return p
}

// attend adds n positions. q is rows x KVHeads*Group x HeadDim, k and v are n x KVHeads x HeadDim. read is called before
// each tile of keys and of values is taken from memory; after reports each finished tile and may stop the work.
func (p *partial) attend(c *Config, q []float32, k, v []uint16, n int, read func(), after func() error) error {
	d, heads, stride := c.HeadDim, c.qHeads(), c.kvRow()
	if p.ktile == nil {
		p.ktile, p.vtile, p.score = make([]float32, kernels.KVTile*d), make([]float32, kernels.KVTile*d), make([]float32, kernels.KVTile)
		p.ones = slices.Repeat([]float32{1}, kernels.KVTile)
	}
	rows := len(p.max) / heads
	scale := c.scale()
	for kv := range c.KVHeads {
		for p0 := 0; p0 < n; p0 += kernels.KVTile {
			tile := min(kernels.KVTile, n-p0)
			read()
			widen(p.ktile, k[p0*stride+kv*d:], d, stride, tile)
			read()
			widen(p.vtile, v[p0*stride+kv*d:], d, stride, tile)
			for row := range rows {
				for h := kv * c.Group; h < (kv+1)*c.Group; h++ {
					i := row*heads + h
					p.fold(i, q[i*d:(i+1)*d], p.out[i*d:(i+1)*d], tile, scale)
				}
			}
			if err := after(); err != nil {
				return err
			}
		}
	}
	p.pairs += int64(rows) * int64(n)
	return nil
}

// fold adds the tile at hand to query head i.
func (p *partial) fold(i int, q, out []float32, tile int, scale float32) {
	d := len(q)
	score := p.score[:tile]
	m := p.max[i]
	for t := range score {
		score[t] = kernels.Dot(q, p.ktile[t*d:(t+1)*d]) * scale
		if score[t] > m {
			m = score[t]
		}
	}
	base := base(m)
	for t, x := range score {
		score[t] = kernels.Exp(x - base)
	}
	if f := kernels.Exp(p.max[i] - base); f != 1 {
		for j := range out {
			out[j] *= f
		}
		p.sum[i] *= f
	}
	p.sum[i] += kernels.Dot(score, p.ones[:tile]) // the kernel adds them in the lanes of Dot
	p.max[i] = m
	for t, e := range score {
		kernels.Axpy(out, e, p.vtile[t*d:(t+1)*d])
	}
}

// base is what scores are taken relative to: -Inf minus -Inf would poison what is still to come.
func base(m float32) float32 {
	if math.IsInf(float64(m), -1) {
		return 0
	}
	return m
}

// merge folds the partial of other positions into p.
func (p *partial) merge(o *partial) {
	d := len(p.out) / len(p.max)
	for i := range p.max {
		m := max(p.max[i], o.max[i])
		b := base(m)
		f, g := kernels.Exp(p.max[i]-b), kernels.Exp(o.max[i]-b)
		p.max[i] = m
		p.sum[i] = float32(p.sum[i]*f) + float32(o.sum[i]*g)
		out := p.out[i*d : (i+1)*d]
		for j, x := range o.out[i*d : (i+1)*d] {
			out[j] = float32(out[j]*f) + float32(x*g)
		}
	}
}

// finish writes the outputs, rows x heads x headDim.
func (p *partial) finish(dst []float32) {
	d := len(p.out) / len(p.max)
	for i, s := range p.sum {
		inv := 1 / s
		for j := i * d; j < (i+1)*d; j++ {
			dst[j] = p.out[j] * inv
		}
	}
}

// widen copies n rows of d half-precision values at stride to float32, without gaps.
func widen(dst []float32, src []uint16, d, stride, n int) {
	for r := range n {
		row := dst[r*d : (r+1)*d]
		for j, h := range src[r*stride : r*stride+d] {
			row[j] = kernels.F16ToF32(h)
		}
	}
}

// scale is attention's usual 1/sqrt(headDim).
func (c *Config) scale() float32 { return float32(1 / math.Sqrt(float64(c.HeadDim))) }
