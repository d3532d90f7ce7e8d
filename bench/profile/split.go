package profile

import (
	"slices"
	"strings"
)

// PrecisionSplit is the cost structure of the layers, the glue after a layer (|post) left out. The ops of a layer before
// its first product (convolution or matmul) prepare the operands, as a split of float32 into bfloat16 terms does; those
// between the first and the last product move data; those after the last one add up, add the bias and cast.
type PrecisionSplit struct {
	Layers     int         `json:"layers"` // layers with a product
	ComputeUS  Float       `json:"compute_us"`
	MovementUS Float       `json:"movement_us"`
	SplitUS    Float       `json:"split_us"`
	FinishUS   Float       `json:"finish_us"`
	ComputeOps int         `json:"compute_ops"`
	Ops        int         `json:"ops"`
	PerLayer   []LayerCost `json:"per_layer"` // by falling sum of the four rounded times
}

// LayerCost is one layer of it.
type LayerCost struct {
	Layer      string `json:"layer"`
	Ops        int    `json:"ops"`
	ComputeOps int    `json:"compute_ops"`
	ComputeUS  Sum    `json:"compute_us"`
	MovementUS Sum    `json:"movement_us"`
	SplitUS    Sum    `json:"split_us"`
	FinishUS   Sum    `json:"finish_us"`
}

// part is a sum that remembers whether anything was added.
type part struct {
	v float64
	n int
}

func (p *part) add(v float64) { p.v += v; p.n++ }

func (p *part) sum() Sum { return Sum{round(p.v, 1), p.n == 0} }

func (s *summariser) split() PrecisionSplit {
	text := s.p.names.text
	var order []uint32
	layers := map[uint32][]int{}
	for i, o := range s.ops {
		if o.layer == 0 || strings.HasSuffix(text[o.layer], PostSuffix) {
			continue
		}
		if layers[o.layer] == nil {
			order = append(order, o.layer)
		}
		layers[o.layer] = append(layers[o.layer], i)
	}
	out := PrecisionSplit{PerLayer: []LayerCost{}}
	var compute, movement, split, finish float64
	for _, l := range order {
		idx := layers[l]
		product := func(i int) bool { return isCompute(text[s.ops[i].code]) }
		first := slices.IndexFunc(idx, product)
		if first < 0 {
			continue
		}
		last := first
		for k := first; k < len(idx); k++ {
			if product(idx[k]) {
				last = k
			}
		}
		c := LayerCost{Layer: text[l], Ops: len(idx)}
		var com, mov, spl, fin part
		for k, i := range idx {
			switch {
			case k < first:
				spl.add(s.kernel[i])
			case k > last:
				fin.add(s.kernel[i])
			case product(i):
				com.add(s.kernel[i])
				c.ComputeOps++
			default:
				mov.add(s.kernel[i])
			}
		}
		c.ComputeUS, c.MovementUS, c.SplitUS, c.FinishUS = com.sum(), mov.sum(), spl.sum(), fin.sum()
		out.PerLayer = append(out.PerLayer, c)
		compute += com.v
		movement += mov.v
		split += spl.v
		finish += fin.v
		out.Layers++
		out.ComputeOps += c.ComputeOps
		out.Ops += c.Ops
	}
	out.ComputeUS, out.MovementUS, out.SplitUS, out.FinishUS = round(compute, 1), round(movement, 1), round(split, 1), round(finish, 1)
	cost := func(c LayerCost) float64 {
		return float64(c.ComputeUS.Value + c.MovementUS.Value + c.SplitUS.Value + c.FinishUS.Value)
	}
	slices.SortStableFunc(out.PerLayer, func(a, b LayerCost) int { return falling(cost(a), cost(b)) })
	return out
}
