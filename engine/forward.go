package engine

import (
	"context"
	"fmt"
	"math"

	"sluice/dump"
	"sluice/kernels"
	"sluice/moe"
)

type phase uint8

const (
	phasePrefill phase = 0 // the numbers are the route trace's
	phaseDecode  phase = 1
)

// rowBlock is how many rows of a weight matrix a worker takes at a time: large enough that claiming
// a block costs nothing beside computing it, small enough that all workers end together.
const rowBlock = 32

// logitRows is how many tokens' logits are computed in one pass over the output matrix when every
// token's are wanted.
const logitRows = 16

// hiddenBytes bounds the scratch memory of the experts' hidden rows. A layer call with more rows
// than fit is computed in several passes.
const hiddenBytes = 16 << 20

// forward is the scratch memory of one session and the jobs that compute one chunk of tokens with
// it. Everything is allocated by init. T is the largest chunk, n the tokens of the current one.
type forward struct {
	s   *Session
	one [1]int32
	pos int // position of the chunk's first token

	x      []float32 // T x nEmbd, the residual stream
	xn     []float32 // T x nEmbd, its normalised rows
	in     actSet    // the same as activations
	q      []float32 // T x nHead*headDim
	k, v   []float32 // T x nKVHead*headDim
	att    []float32 // T x nHead*headDim, attention output
	attIn  actSet    // the same as activations
	rlog   []float32 // T x nExpert, router logits
	ident  []int32   // 0..T-1
	ones   []float32 // T ones
	shared []float32 // T, the shared expert's gate
	out    []float32 // logits, one row; PrefillAll grows it to logitRows

	resident []uint8 // nExpert, before the layer call
	read     []int64 // nExpert, bytes read by the layer call; kept only for the trace
	ids      []int32 // experts of the layer call, ascending
	call     moe.Call
	table    *moe.Table
	sel      *moe.Selection // nil while no tap is armed
	trace    dump.TraceCall
	ffn      ffnScratch

	norm   normJob
	qkv    qkvJob
	place  placeJob
	attend attendJob
	quant  quantJob
	proj   projJob
	route  routeJob
	vocab  vocabJob
}

func (f *forward) init(s *Session) {
	m, h := s.m, &s.m.Hparams
	T := s.cfg.Batch
	nQ, nKV := h.NHead*h.HeadDim, h.NKVHead*h.HeadDim
	f.s = s
	f.x = make([]float32, T*h.NEmbd)
	f.xn = make([]float32, T*h.NEmbd)
	f.q = make([]float32, T*nQ)
	f.k = make([]float32, T*nKV)
	f.v = make([]float32, T*nKV)
	f.att = make([]float32, T*nQ)
	f.rlog = make([]float32, T*h.NExpert)
	f.out = make([]float32, h.NVocab)
	f.ident = make([]int32, T)
	f.ones = make([]float32, T)
	for i := range f.ident {
		f.ident[i], f.ones[i] = int32(i), 1
	}
	f.resident = make([]uint8, h.NExpert)
	f.ids = make([]int32, 0, h.NExpert)
	f.table = moe.NewTable(h.NExpert, s.cfg.NExpertUsed, T)
	if s.cfg.SelDump != nil || s.cfg.Trace != nil {
		f.sel = moe.NewSelection(s.cfg.NExpertUsed, T)
	}
	if s.cfg.Trace != nil {
		f.read = make([]int64, h.NExpert)
	}
	f.in = actSet{n: h.NEmbd, rows: max(T, min(logitRows, s.cfg.Ctx)), exact: s.cfg.ExactActs}
	f.attIn = actSet{n: nQ, rows: T, exact: s.cfg.ExactActs}
	f.in.plan(kernels.F32) // the router reads float32
	f.in.plan(m.w.output.Type)
	ffShared := 0
	for i := range m.w.layers {
		ly := &m.w.layers[i]
		f.in.plan(ly.wq.Type)
		f.in.plan(ly.wk.Type)
		f.in.plan(ly.wv.Type)
		f.in.plan(ly.gate.typ)
		f.in.plan(ly.up.typ)
		f.attIn.plan(ly.wo.Type)
		if ly.sharedGate != nil {
			f.in.plan(ly.sharedG.Type)
			f.in.plan(ly.sharedUp.Type)
			ffShared = h.NFFShared
		}
	}
	if ffShared > 0 {
		f.shared = make([]float32, T)
	}
	f.ffn.init(f, T, ffShared)
	f.norm.f, f.qkv.f, f.place.f, f.attend.f = f, f, f, f
	f.quant.f, f.proj.f, f.route.f, f.vocab.f = f, f, f, f
}

// run computes one chunk at the session's position and leaves the residual stream in f.x. The
// caller advances the position.
func (f *forward) run(ctx context.Context, ids []int32, ph phase) error {
	m := f.s.m
	n := len(ids)
	f.pos = f.s.Pos()
	rowBytes := m.w.tokEmbd.Type.RowBytes(m.NEmbd)
	for i, id := range ids {
		if id < 0 || int(id) >= m.NVocab {
			return fmt.Errorf("engine: token id %d at position %d: want 0..%d", id, f.pos+i, m.NVocab-1)
		}
		src := m.w.tokEmbd.Data[int(id)*rowBytes:]
		kernels.Dequantize(m.w.tokEmbd.Type, f.x[i*m.NEmbd:(i+1)*m.NEmbd], src[:rowBytes])
	}
	for il := range m.w.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		ly := &m.w.layers[il]
		if err := f.attention(il, ly, n); err != nil {
			return err
		}
		if err := f.moeLayer(il, ly, n, ph); err != nil {
			return err
		}
	}
	return nil
}

// logits computes the logits of row i of the chunk just run.
func (f *forward) logits(i int) []float32 {
	f.headNorm(i, 0)
	f.vocab.run(1)
	return f.out[:f.s.m.NVocab]
}

// eachLogits hands out the logits of all n rows of the chunk just run.
func (f *forward) eachLogits(n int, visit func(i int, logits []float32) error) error {
	nv := f.s.m.NVocab
	block := min(logitRows, f.in.rows)
	if len(f.out) < block*nv {
		f.out = make([]float32, block*nv)
	}
	for i0 := 0; i0 < n; i0 += block {
		b := min(block, n-i0)
		for j := range b {
			f.headNorm(i0+j, j)
		}
		f.vocab.run(b)
		for j := range b {
			if err := visit(i0+j, f.out[j*nv:(j+1)*nv]); err != nil {
				return err
			}
		}
	}
	return nil
}

// headNorm puts the normalised row i of the residual stream into row j of the activations.
func (f *forward) headNorm(i, j int) {
	E := f.s.m.NEmbd
	row := f.xn[i*E : (i+1)*E]
	kernels.RMSNorm(row, f.x[i*E:(i+1)*E], f.s.m.w.outNorm, f.s.m.NormEps)
	f.in.set(kindOf(f.in.kind(f.s.m.w.output.Type)), j, row)
}

// checkFinite names the first place where the residual stream stopped being finite. A row with a
// NaN or an infinity makes its norm NaN in every element that matters, so one look per row is enough.
func (f *forward) checkFinite(n int, il int, where string) error {
	E := f.s.m.NEmbd
	for t := range n {
		if v := f.xn[t*E]; math.IsNaN(float64(v)) {
			return fmt.Errorf("engine: layer %d: %s is not finite (token at position %d)", il, where, f.pos+t)
		}
	}
	return nil
}

// normJob normalises rows of the residual stream and prepares them as activations, once for every
// matrix that reads them.
type normJob struct {
	f      *forward
	weight []float32
	kinds  kindSet
	shared []float32 // gate vector of the shared expert, nil: none
}

func (j *normJob) run(n int, weight []float32, kinds kindSet, shared []float32) {
	j.weight, j.kinds, j.shared = weight, kinds, shared
	j.f.s.team.Run(n, 1, j)
}

func (j *normJob) Do(_, lo, hi int) {
	f := j.f
	E := f.s.m.NEmbd
	for t := lo; t < hi; t++ {
		row := f.xn[t*E : (t+1)*E]
		kernels.RMSNorm(row, f.x[t*E:(t+1)*E], j.weight, f.s.m.NormEps)
		f.in.set(j.kinds, t, row)
		if j.shared != nil {
			f.shared[t] = 1 / (1 + kernels.Exp(-kernels.Dot(j.shared, row)))
		}
	}
}

// vocabJob multiplies rows 0..n-1 of the activations with the output matrix into f.out.
type vocabJob struct {
	f *forward
	n int
}

func (j *vocabJob) run(n int) {
	j.n = n
	j.f.s.team.Run(blocks(j.f.s.m.NVocab), 1, j)
}

func (j *vocabJob) Do(_, lo, hi int) {
	w := &j.f.s.m.w.output
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulRows(j.f.out, w.Rows, w, r0, r1, j.f.in.of(w.Type), nil, j.n)
}

// blocks is the number of row blocks of a matrix with that many rows.
func blocks(rows int) int { return (rows + rowBlock - 1) / rowBlock }

// blockRows turns blocks lo..hi into rows.
func blockRows(lo, hi, rows int) (r0, r1 int) { return lo * rowBlock, min(hi*rowBlock, rows) }
