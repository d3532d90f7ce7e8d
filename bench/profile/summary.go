package profile

import (
	"bytes"
	"encoding/json"
	"slices"
)

// topN is the length of the lists of single ops and of gaps.
const topN = 10

// Summary is one section's figures. Times are microseconds, rounded as the field says nothing else: to 0.1.
type Summary struct {
	Ops         int            `json:"ops"`
	KernelUS    Sum            `json:"kernel_sum_us"`
	FWUS        Sum            `json:"fw_sum_us"`
	GapUS       Sum            `json:"op2op_sum_us"`    // without the first op's, which reaches back across the section's begin
	GapMedianUS *Float         `json:"op2op_median_us"` // of the gaps above 0, to 0.01; nil: there is none
	SpanUS      *Float         `json:"span_us"`         // first firmware start to last firmware end; nil: no cycles
	FreqMHz     Float          `json:"freq_mhz"`        // of those cycles
	CoresMedian *Float         `json:"cores_median"`    // nil: no op
	FewCores    int            `json:"ops_below_120_cores"`
	Fidelity    Counts         `json:"fidelity"` // ops by MATH FIDELITY, where stated
	ByOp        []Group        `json:"by_op"`    // each list by falling kernel time, then by first appearance
	ByCategory  []Group        `json:"by_category"`
	ByBlock     []Group        `json:"by_block"` // "?": no block
	ByLayer     []Group        `json:"by_layer"` // "[<block> glue]": between layers
	TopOps      []TopOp        `json:"top_ops"`
	TopGaps     []TopGap       `json:"top_gaps"`
	Split       PrecisionSplit `json:"precision_split"`
}

// Group is the ops that share a key.
type Group struct {
	Key      string `json:"key"`
	Ops      int    `json:"ops"`
	KernelUS Float  `json:"kernel_us"`
	Share    Float  `json:"share"` // of the section's kernel time, to 0.0001
	GapUS    Float  `json:"gap_us"`

	kernel, gap float64 // unrounded
}

// TopOp is one of the longest ops.
type TopOp struct {
	Index    int    `json:"index"` // position in the section
	Op       string `json:"op"`
	Block    string `json:"block"`
	Layer    string `json:"layer"`
	KernelUS Float  `json:"kernel_us"`
	FWUS     Float  `json:"fw_us"`
	Cores    int    `json:"cores"`
	Fidelity string `json:"fidelity"`
	Input0   string `json:"input0"` // logical sizes, WxZxYxX
	In0Mem   string `json:"in0_mem"`
	Out0Mem  string `json:"out0_mem"`
}

// TopGap is one of the longest gaps before an op.
type TopGap struct {
	Index int    `json:"index"`
	Op    string `json:"op"`
	After string `json:"after"`
	GapUS Float  `json:"gap_us"`
	Block string `json:"block"`
	Layer string `json:"layer"`
}

// Counts are named counts in order of first appearance.
type Counts []Count

// Count is one of them.
type Count struct {
	Name string
	N    int
}

// MarshalJSON writes an object that keeps the order.
func (c Counts) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, e := range c {
		if i > 0 {
			b = append(b, ',')
		}
		var k bytes.Buffer
		enc := json.NewEncoder(&k)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(e.Name); err != nil {
			return nil, err
		}
		b = append(append(b, bytes.TrimSpace(k.Bytes())...), ':')
		b = appendInt(b, e.N)
	}
	return append(b, '}'), nil
}

// summariser holds one section's ops, times in microseconds.
type summariser struct {
	p                *Profile
	ops              []*op
	kernel, fw, gaps []float64
	total            float64
}

// summarize makes the figures of a section from its ops in order.
func (p *Profile) summarize(ops []*op, freqMHz float64) Summary {
	s := &summariser{p: p, ops: ops, kernel: make([]float64, len(ops)), fw: make([]float64, len(ops)), gaps: make([]float64, len(ops))}
	var starts, ends, fw, gaps float64
	haveStart, haveEnd := false, false
	cores := make([]float64, len(ops))
	sum := Summary{Ops: len(ops), FreqMHz: Float(freqMHz), Fidelity: Counts{}}
	fid := map[uint32]int{}
	for i, o := range ops {
		s.kernel[i], s.fw[i], cores[i] = o.kernel/1e3, o.fw/1e3, o.cor
		if i > 0 {
			s.gaps[i] = o.gap / 1e3
		}
		s.total += s.kernel[i]
		fw += s.fw[i]
		gaps += s.gaps[i]
		if o.start > 0 && (!haveStart || o.start < starts) {
			starts, haveStart = o.start, true
		}
		if o.end > 0 && (!haveEnd || o.end > ends) {
			ends, haveEnd = o.end, true
		}
		if 0 < o.cor && o.cor < 120 {
			sum.FewCores++
		}
		if o.fidelity != 0 {
			at, ok := fid[o.fidelity]
			if !ok {
				at = len(sum.Fidelity)
				fid[o.fidelity] = at
				sum.Fidelity = append(sum.Fidelity, Count{Name: p.names.text[o.fidelity]})
			}
			sum.Fidelity[at].N++
		}
	}
	empty := len(ops) == 0
	sum.KernelUS, sum.FWUS, sum.GapUS = Sum{round(s.total, 1), empty}, Sum{round(fw, 1), empty}, Sum{round(gaps, 1), empty}
	if s.total == 0 {
		s.total = 1 // the shares of a section without time are 0
	}
	if haveStart && haveEnd {
		if span := (ends - starts) / freqMHz; span != 0 {
			sum.SpanUS = ptr(round(span, 1))
		}
	}
	if !empty {
		sum.CoresMedian = ptr(Float(median(cores)))
		above := []float64{}
		for _, g := range s.gaps[1:] {
			if g > 0 {
				above = append(above, g)
			}
		}
		if len(above) > 0 {
			sum.GapMedianUS = ptr(round(median(above), 2))
		}
	}
	text, names := p.names.text, &p.names
	sum.ByOp = s.group(func(o *op) uint32 { return o.code })
	categories := map[uint32]uint32{}
	sum.ByCategory = s.group(func(o *op) uint32 {
		id, ok := categories[o.code]
		if !ok {
			id = names.add(Category(text[o.code]))
			categories[o.code] = id
		}
		return id
	})
	block := func(o *op) uint32 {
		if o.block == 0 {
			return names.add("?")
		}
		return o.block
	}
	sum.ByBlock = s.group(block)
	glue := map[uint32]uint32{}
	sum.ByLayer = s.group(func(o *op) uint32 {
		if o.layer != 0 {
			return o.layer
		}
		id, ok := glue[o.block]
		if !ok {
			id = names.add("[" + names.text[block(o)] + " glue]")
			glue[o.block] = id
		}
		return id
	})
	sum.TopOps = s.topOps()
	sum.TopGaps = s.topGaps()
	sum.Split = s.split()
	return sum
}

// group adds up the ops by key.
func (s *summariser) group(key func(*op) uint32) []Group {
	place := map[uint32]int{}
	gs := []Group{}
	last, at := uint32(0), -1
	for i, o := range s.ops {
		if k := key(o); at < 0 || k != last {
			var ok bool
			if at, ok = place[k]; !ok {
				at = len(gs)
				place[k] = at
				gs = append(gs, Group{Key: s.p.names.text[k]})
			}
			last = k
		}
		g := &gs[at]
		g.Ops++
		g.kernel += s.kernel[i]
		g.gap += s.gaps[i]
	}
	slices.SortStableFunc(gs, func(a, b Group) int { return falling(a.kernel, b.kernel) })
	for i := range gs {
		g := &gs[i]
		g.KernelUS, g.Share, g.GapUS = round(g.kernel, 1), round(g.kernel/s.total, 4), round(g.gap, 1)
	}
	return gs
}

// falling orders larger numbers first. All are finite.
func falling(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// largest returns the places of the n largest values from place from on, larger first, then earlier.
func largest(v []float64, from, n int) []int {
	var top []int
	for i := from; i < len(v); i++ {
		if len(top) == n && v[i] <= v[top[n-1]] {
			continue
		}
		at := len(top)
		for at > 0 && v[top[at-1]] < v[i] {
			at--
		}
		top = slices.Insert(top, at, i)
		top = top[:min(len(top), n)]
	}
	return top
}

func (s *summariser) topOps() []TopOp {
	out := []TopOp{}
	text := s.p.names.text
	for _, i := range largest(s.kernel, 0, topN) {
		o := s.ops[i]
		out = append(out, TopOp{Index: i, Op: text[o.code], Block: text[o.block], Layer: text[o.layer], KernelUS: round(s.kernel[i], 1),
			FWUS: round(s.fw[i], 1), Cores: int(o.cor), Fidelity: text[o.fidelity], Input0: text[o.shape], In0Mem: text[o.inMem], Out0Mem: text[o.outMem]})
	}
	return out
}

func (s *summariser) topGaps() []TopGap {
	out := []TopGap{}
	text := s.p.names.text
	for _, i := range largest(s.gaps, 1, topN) {
		o := s.ops[i]
		out = append(out, TopGap{Index: i, Op: text[o.code], After: text[s.ops[i-1].code], GapUS: round(s.gaps[i], 1), Block: text[o.block], Layer: text[o.layer]})
	}
	return out
}

// median of a non-empty list, which it sorts.
func median(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func ptr(f Float) *Float { return &f }
