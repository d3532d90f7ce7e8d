package engine

import (
	"math"

	"sluice/kernels"
)

// attention adds the attention of one layer to the residual stream of n tokens and appends their
// keys and values to the cache.
func (f *forward) attention(il int, ly *layer, n int) error {
	kinds := kindOf(f.in.kind(ly.wq.Type)) | kindOf(f.in.kind(ly.wk.Type)) | kindOf(f.in.kind(ly.wv.Type))
	t := f.rec.begin()
	f.norm.run(n, ly.attnNorm, kinds, nil)
	t = f.rec.end(t, OpAttnNorm, il, n)
	f.qkv.run(ly, n)
	t = f.rec.end(t, OpQKV, il, n)
	f.place.run(il, ly, n)
	t = f.rec.end(t, OpRotary, il, n)
	f.attend.run(il, n)
	t = f.rec.end(t, OpAttend, il, n)
	f.quant.run(n, f.att, &f.attIn, kindOf(f.attIn.kind(ly.wo.Type)))
	t = f.rec.end(t, OpAttnActs, il, n)
	f.proj.run(ly, n)
	f.rec.end(t, OpAttnOut, il, n)
	f.touched += f.touch[il].attn
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
	j.f.team.Run(j.nbQ+j.nbK+blocks(ly.wv.Rows), 1, j)
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
	j.f.team.Run(n, 1, j)
}

func (j *placeJob) Do(_, lo, hi int) {
	f, ly, h := j.f, j.ly, &j.f.m.Hparams
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
		cos, sin := f.rope.Cos(pos), f.rope.Sin(pos)
		j.heads(q, ly.qNorm, cos, sin)
		j.heads(k, ly.kNorm, cos, sin)
		f.kv.put(j.il, pos, k, v)
	}
}

// heads normalises and rotates the heads of one token's queries or keys, in place.
func (j *placeJob) heads(x, norm, cos, sin []float32) {
	h, a := &j.f.m.Hparams, j.f.m.arch
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

// attendTokens is how many tokens share one pass over the keys of a head in prefill: a tile of keys is
// widened once for all of them.
const attendTokens = 16

// attendJob computes the attention of a block of tokens and one key/value head an item.
type attendJob struct {
	f     *forward
	il, n int
}

func (j *attendJob) run(il, n int) {
	j.il, j.n = il, n
	j.f.team.Run((n+attendTokens-1)/attendTokens*j.f.m.NKVHead, 1, j)
}

func (j *attendJob) Do(_, lo, hi int) {
	f, h, c := j.f, &j.f.m.Hparams, &j.f.kv
	nQ, heads := h.NHead*h.HeadDim, h.NHead/h.NKVHead
	scale := float32(1 / math.Sqrt(float64(h.HeadDim)))
	for i := lo; i < hi; i++ {
		t, head := i/h.NKVHead*attendTokens, i%h.NKVHead
		n := min(attendTokens, j.n-t)
		o, pos := t*nQ+head*heads*h.HeadDim, f.pos+t
		from, to := c.at(head, 0), c.at(head, pos+n)
		out, q := f.att[o:], f.q[o:]
		switch {
		case c.k32 != nil:
			kernels.AttendBlockF32(out, q, n, nQ, c.k32[j.il][from:to], c.v32[j.il][from:to], h.HeadDim, h.HeadDim, pos, heads, scale)
		case c.k8 != nil:
			kernels.AttendBlockQ8(out, q, n, nQ, c.k8[j.il].Slice(from, to), c.v8[j.il].Slice(from, to), h.HeadDim, h.HeadDim, pos, heads, scale)
		default:
			kernels.AttendBlockF16(out, q, n, nQ, c.k16[j.il][from:to], c.v16[j.il][from:to], h.HeadDim, h.HeadDim, pos, heads, scale)
		}
	}
}

// put stores one token's keys and values (nKVHead x headDim each).
func (c *kvCache) put(il, pos int, k, v []float32) {
	for head := range c.nKV {
		o, s := c.at(head, pos), head*c.hd
		switch {
		case c.k32 != nil:
			copy(c.k32[il][o:o+c.hd], k[s:])
			copy(c.v32[il][o:o+c.hd], v[s:])
		case c.k8 != nil:
			c.k8[il].Set(o, k[s:s+c.hd])
			c.v8[il].Set(o, v[s:s+c.hd])
		default:
			kernels.RowToF16(c.k16[il][o:o+c.hd], k[s:s+c.hd])
			kernels.RowToF16(c.v16[il][o:o+c.hd], v[s:s+c.hd])
		}
	}
}

// quantJob turns rows of src into activations.
type quantJob struct {
	f     *forward
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
	f  *forward
	ly *layer
	n  int
}

func (j *projJob) run(ly *layer, n int) {
	j.ly, j.n = ly, n
	j.f.team.Run(blocks(ly.wo.Rows), 1, j)
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
