package engine

import (
	"math"

	"sluice/kernels"
)

// attention adds the attention of one layer to the residual stream of n tokens and appends their
// keys and values to the cache.
func (f *forward) attention(il int, ly *layer, n int) error {
	kinds := kindOf(f.in.kind(ly.wq.Type)) | kindOf(f.in.kind(ly.wk.Type)) | kindOf(f.in.kind(ly.wv.Type))
	f.norm.run(n, ly.attnNorm, kinds, nil)
	f.qkv.run(ly, n)
	f.place.run(il, ly, n)
	f.attend.run(il, n)
	f.quant.run(n, f.att, &f.attIn, kindOf(f.attIn.kind(ly.wo.Type)))
	f.proj.run(ly, n)
	return f.checkFinite(n, il, "the attention output")
}

// qkvJob computes queries, keys and values as one pool of row blocks.
type qkvJob struct {
	f        *forward
	ly       *layer
	n        int
	nbQ, nbK int
}

func (j *qkvJob) run(ly *layer, n int) {
	j.ly, j.n = ly, n
	j.nbQ, j.nbK = blocks(ly.wq.Rows), blocks(ly.wk.Rows)
	j.f.s.team.Run(j.nbQ+j.nbK+blocks(ly.wv.Rows), 1, j)
}

func (j *qkvJob) Do(_, lo, hi int) {
	for b := lo; b < hi; b++ {
		switch {
		case b < j.nbQ:
			j.block(j.f.q, &j.ly.wq, b)
		case b < j.nbQ+j.nbK:
			j.block(j.f.k, &j.ly.wk, b-j.nbQ)
		default:
			j.block(j.f.v, &j.ly.wv, b-j.nbQ-j.nbK)
		}
	}
}

func (j *qkvJob) block(dst []float32, w *kernels.Mat, b int) {
	r0, r1 := blockRows(b, b+1, w.Rows)
	kernels.MulRows(dst, w.Rows, w, r0, r1, j.f.in.of(w.Type), nil, j.n)
}

// placeJob finishes queries and keys of a token (bias, norm, rotary embedding) and puts its keys
// and values into the cache.
type placeJob struct {
	f  *forward
	ly *layer
	il int
}

func (j *placeJob) run(il int, ly *layer, n int) {
	j.il, j.ly = il, ly
	j.f.s.team.Run(n, 1, j)
}

func (j *placeJob) Do(_, lo, hi int) {
	f, ly, h := j.f, j.ly, &j.f.s.m.Hparams
	nQ, nKV := h.NHead*h.HeadDim, h.NKVHead*h.HeadDim
	for t := lo; t < hi; t++ {
		pos := f.pos + t
		q, k, v := f.q[t*nQ:(t+1)*nQ], f.k[t*nKV:(t+1)*nKV], f.v[t*nKV:(t+1)*nKV]
		if ly.bq != nil {
			kernels.Add(q, ly.bq)
		}
		if ly.bk != nil {
			kernels.Add(k, ly.bk)
		}
		if ly.bv != nil {
			kernels.Add(v, ly.bv)
		}
		cos, sin := f.s.rope.Cos(pos), f.s.rope.Sin(pos)
		j.heads(q, ly.qNorm, cos, sin)
		j.heads(k, ly.kNorm, cos, sin)
		f.s.kv.put(j.il, pos, k, v)
	}
}

// heads normalises and rotates the heads of one token's queries or keys, in place.
func (j *placeJob) heads(x, norm, cos, sin []float32) {
	h, a := &j.f.s.m.Hparams, j.f.s.m.arch
	if a.qkNorm == qkNormRow {
		kernels.RMSNorm(x, x, norm, h.NormEps)
	}
	for o := 0; o < len(x); o += h.HeadDim {
		head := x[o : o+h.HeadDim]
		if a.qkNorm == qkNormHead {
			kernels.RMSNorm(head, head, norm, h.NormEps)
		}
		kernels.Rope(head, cos, sin, a.ropeNeox)
	}
}

// attendJob computes the attention of one token and one key/value head an item.
type attendJob struct {
	f  *forward
	il int
}

func (j *attendJob) run(il, n int) {
	j.il = il
	j.f.s.team.Run(n*j.f.s.m.NKVHead, 1, j)
}

func (j *attendJob) Do(_, lo, hi int) {
	f, h, c := j.f, &j.f.s.m.Hparams, &j.f.s.kv
	nQ := h.NHead * h.HeadDim
	group := nQ / h.NKVHead // values of the query heads that share one key/value head
	scale := float32(1 / math.Sqrt(float64(h.HeadDim)))
	for i := lo; i < hi; i++ {
		t, head := i/h.NKVHead, i%h.NKVHead
		o := t*nQ + head*group
		from, n := c.at(head, 0), f.pos+t+1
		to := from + n*h.HeadDim
		if c.k32 != nil {
			kernels.AttendF32(f.att[o:o+group], f.q[o:o+group], c.k32[j.il][from:to], c.v32[j.il][from:to], h.HeadDim, h.HeadDim, n, scale)
		} else {
			kernels.AttendF16(f.att[o:o+group], f.q[o:o+group], c.k16[j.il][from:to], c.v16[j.il][from:to], h.HeadDim, h.HeadDim, n, scale)
		}
	}
}

// put stores one token's keys and values (nKVHead x headDim each).
func (c *kvCache) put(il, pos int, k, v []float32) {
	for head := range c.nKV {
		o, s := c.at(head, pos), head*c.hd
		if c.k32 != nil {
			copy(c.k32[il][o:o+c.hd], k[s:])
			copy(c.v32[il][o:o+c.hd], v[s:])
			continue
		}
		k16, v16 := c.k16[il][o:o+c.hd], c.v16[il][o:o+c.hd]
		for i := range k16 {
			k16[i] = kernels.F32ToF16(k[s+i])
			v16[i] = kernels.F32ToF16(v[s+i])
		}
	}
}

// quantJob turns rows of src into activations.
type quantJob struct {
	f     *forward
	src   []float32
	dst   *actSet
	kinds kindSet
}

func (j *quantJob) run(n int, src []float32, dst *actSet, kinds kindSet) {
	j.src, j.dst, j.kinds = src, dst, kinds
	j.f.s.team.Run(n, 1, j)
}

func (j *quantJob) Do(_, lo, hi int) {
	for i := lo; i < hi; i++ {
		j.dst.set(j.kinds, i, j.src[i*j.dst.n:(i+1)*j.dst.n])
	}
}

// projJob adds the attention's output projection to the residual stream.
type projJob struct {
	f  *forward
	ly *layer
	n  int
}

func (j *projJob) run(ly *layer, n int) {
	j.ly, j.n = ly, n
	j.f.s.team.Run(blocks(ly.wo.Rows), 1, j)
}

func (j *projJob) Do(_, lo, hi int) {
	f, w := j.f, &j.ly.wo
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulAddRows(f.x, w.Rows, w, r0, r1, f.attIn.of(w.Type), 0, f.ident[:j.n], f.ones[:j.n])
	if j.ly.bo != nil {
		for t := range j.n {
			kernels.Add(f.x[t*w.Rows+r0:t*w.Rows+r1], j.ly.bo[r0:r1])
		}
	}
}
