package cpu

import (
	"slices"

	"sluice/engine/model"
	"sluice/kernels"
)

// widths are the most that any layer's rows have.
type widths struct{ q, k, v, out int }

// planAttention makes room for the activations that attention reads and makes, over its rows of one pass.
func (f *Backend) planAttention(T int) (wide widths) {
	for i := range f.m.Layers {
		a := f.m.Layers[i].Mixer.(*model.Attention)
		wide.q, wide.k = max(wide.q, a.Q.Rows), max(wide.k, a.K.Rows)
		wide.v, wide.out = max(wide.v, a.V.Rows), max(wide.out, a.O.Cols)
	}
	rowBytes := 4 * (wide.q + wide.k + wide.v + 2*wide.out) // q, k, v, att and its activations
	f.attIn = actSet{n: wide.out, rows: rowsIn(attendBytes, rowBytes, T), exact: f.cfg.ExactActs}
	for i := range f.m.Layers {
		a := f.m.Layers[i].Mixer.(*model.Attention)
		f.in.plan(a.Q.Type)
		f.in.plan(a.K.Type)
		f.in.plan(a.V.Type)
		f.attIn.plan(a.O.Type)
	}
	f.attend.blocks = make([]attendBlock, 0, f.attIn.rows)
	return wide
}

// attention adds the attention of one layer to the residual stream of n rows and puts their keys and values into their
// sequences' states.
func (f *Backend) attention(y *model.Layer, n int) error {
	a, il := y.Mixer.(*model.Attention), y.Index
	kinds := kindOf(f.in.kind(a.Q.Type)) | kindOf(f.in.kind(a.K.Type)) | kindOf(f.in.kind(a.V.Type))
	t := f.rec.Now()
	f.norm.run(n, y.MixerIn.X, kinds, nil)
	t = f.rec.End(t, model.OpAttnNorm, il, n)
	f.qkv.run(a, n)
	t = f.rec.End(t, model.OpQKV, il, n)
	f.rotary.run(il, a, n)
	t = f.rec.End(t, model.OpRotary, il, n)
	f.attend.run(il, a, n)
	t = f.rec.End(t, model.OpAttend, il, n)
	f.quant.run(n, f.att, &f.attIn, kindOf(f.attIn.kind(a.O.Type)))
	t = f.rec.End(t, model.OpAttnActs, il, n)
	f.proj.run(a, n)
	f.rec.End(t, model.OpAttnOut, il, n)
	f.touched += f.touch[il].mixer
	return f.checkFinite(n, il, "the attention output")
}

// qkvJob computes queries, keys and values as one pool of row blocks.
type qkvJob struct {
	f        *Backend
	a        *model.Attention
	n        int
	nbQ, nbK int
}

func (j *qkvJob) run(a *model.Attention, n int) {
	j.a, j.n = a, n
	j.nbQ, j.nbK = model.Blocks(a.Q.Rows), model.Blocks(a.K.Rows)
	j.f.team.Run(j.nbQ+j.nbK+model.Blocks(a.V.Rows), 1, j)
}

func (j *qkvJob) Do(_, lo, hi int) {
	for b := lo; b < hi; b++ {
		switch {
		case b < j.nbQ:
			j.block(j.f.q, &j.a.Q.Mat, b)
		case b < j.nbQ+j.nbK:
			j.block(j.f.k, &j.a.K.Mat, b-j.nbQ)
		default:
			j.block(j.f.v, &j.a.V.Mat, b-j.nbQ-j.nbK)
		}
	}
}

func (j *qkvJob) block(dst []float32, w *kernels.Mat, b int) {
	r0, r1 := model.BlockRows(b, b+1, w.Rows)
	kernels.MulRows(dst, w.Rows, w, r0, r1, j.f.in.of(w.Type), nil, j.n)
}

// rotaryJob finishes queries and keys of a row (bias, norm, rotary embedding) and puts its keys and values into the state
// of its sequence.
type rotaryJob struct {
	f  *Backend
	a  *model.Attention
	il int
}

func (j *rotaryJob) run(il int, a *model.Attention, n int) {
	j.il, j.a = il, a
	j.f.team.Run(n, 1, j)
}

func (j *rotaryJob) Do(_, lo, hi int) {
	f, a := j.f, j.a
	span := f.spanOf(f.row0 + lo)
	for t := lo; t < hi; t++ {
		row := f.row0 + t
		if s := &f.p.Spans[span]; row >= s.From+s.N {
			span++
		}
		pos := int(f.p.Rows[row].Step)
		q, k, v := f.q[t*a.Q.Rows:(t+1)*a.Q.Rows], f.k[t*a.K.Rows:(t+1)*a.K.Rows], f.v[t*a.V.Rows:(t+1)*a.V.Rows]
		if !a.BQ.Absent() {
			kernels.Add(q, a.BQ.X)
		}
		if !a.BK.Absent() {
			kernels.Add(k, a.BK.X)
		}
		if !a.BV.Absent() {
			kernels.Add(v, a.BV.X)
		}
		j.heads(q, a.QNorm.X, pos)
		j.heads(k, a.KNorm.X, pos)
		f.p.Spans[span].State.(*state).put(j.il, pos, k, v)
	}
}

// spanOf is the span that a row of the pass belongs to.
func (f *Backend) spanOf(row int) int {
	i, ok := slices.BinarySearchFunc(f.p.Spans, row, func(s model.Span, row int) int { return s.From - row })
	if !ok {
		i--
	}
	return i
}

// heads normalises and rotates the heads of one row's queries or keys, in place.
func (j *rotaryJob) heads(x, norm []float32, pos int) {
	f, a := j.f, j.a
	if a.QKNorm == model.QKNormRow {
		kernels.RMSNorm(x, x, norm, f.m.NormEps)
	}
	for o := 0; o < len(x); o += a.KeyLen {
		head := x[o : o+a.KeyLen]
		if a.QKNorm == model.QKNormHead {
			kernels.RMSNorm(head, head, norm, f.m.NormEps)
		}
		if a.Rope >= 0 {
			rope := f.cfg.Ropes[a.Rope]
			kernels.Rope(head, rope.Cos(pos), rope.Sin(pos), a.Neox)
		}
	}
}

// attendTokens is how many tokens share one pass over the keys of a head in prefill: a tile of keys is
// widened once for all of them.
const attendTokens = 16

// attendBlock is neighbouring rows of one sequence.
type attendBlock struct {
	s    *state
	t, n int // rows of the current part of the pass
	pos  int // position of the first
}

// attendJob computes the attention of a block of rows and one key/value head an item.
type attendJob struct {
	f      *Backend
	a      *model.Attention
	il     int
	blocks []attendBlock
}

func (j *attendJob) run(il int, a *model.Attention, n int) {
	f := j.f
	j.il, j.a, j.blocks = il, a, j.blocks[:0]
	span := f.spanOf(f.row0)
	for t := 0; t < n; {
		s := &f.p.Spans[span]
		end := min(n, s.From+s.N-f.row0) // of the span's rows in this part
		b := attendBlock{s: s.State.(*state), t: t, n: min(attendTokens, end-t), pos: int(f.p.Rows[f.row0+t].Step)}
		j.blocks = append(j.blocks, b)
		if t += b.n; t == end {
			span++
		}
	}
	f.team.Run(len(j.blocks)*a.KVHeads, 1, j)
}

func (j *attendJob) Do(_, lo, hi int) {
	f, a := j.f, j.a
	group := a.Heads / a.KVHeads
	for i := lo; i < hi; i++ {
		b, head := &j.blocks[i/a.KVHeads], i%a.KVHeads
		kv := b.s.head(j.il, head)
		o := b.t*a.Q.Rows + head*group*a.KeyLen
		kernels.AttendTiles(f.att[o:], f.q[o:], b.n, a.Q.Rows, &kv, a.KeyLen, b.pos, group, a.Window, a.Scale)
	}
}

// quantJob turns rows of src into activations.
type quantJob struct {
	f     *Backend
	src   []float32
	dst   *actSet
	kinds kindSet
	row0  int
}

func (j *quantJob) run(n int, src []float32, dst *actSet, kinds kindSet) {
	j.runFrom(0, n, src, dst, kinds)
}

// runFrom is run for the n rows from row0 on.
func (j *quantJob) runFrom(row0, n int, src []float32, dst *actSet, kinds kindSet) {
	j.src, j.dst, j.kinds, j.row0 = src, dst, kinds, row0
	j.f.team.Run(n, 1, j)
}

func (j *quantJob) Do(_, lo, hi int) {
	for i := j.row0 + lo; i < j.row0+hi; i++ {
		j.dst.set(j.kinds, i, j.src[i*j.dst.n:(i+1)*j.dst.n])
	}
}

// projJob adds the attention's output projection to the residual stream.
type projJob struct {
	f *Backend
	a *model.Attention
	n int
}

func (j *projJob) run(a *model.Attention, n int) {
	j.a, j.n = a, n
	j.f.team.Run(model.Blocks(a.O.Rows), 1, j)
}

func (j *projJob) Do(_, lo, hi int) {
	f, w := j.f, &j.a.O.Mat
	r0, r1 := model.BlockRows(lo, hi, w.Rows)
	kernels.MulAddRows(f.x, w.Rows, w, r0, r1, f.attIn.of(w.Type), 0, f.ident[:j.n], f.ones[:j.n])
	if !j.a.BO.Absent() {
		for t := range j.n {
			kernels.Add(f.x[t*w.Rows+r0:t*w.Rows+r1], j.a.BO.X[r0:r1])
		}
	}
}
