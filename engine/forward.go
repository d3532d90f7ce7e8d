package engine

import (
	"context"
	"fmt"

	"sluice/dump"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
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

// attendBytes and hiddenBytes bound the scratch memory of attention and of the experts' hidden rows:
// rows that do not fit are computed in several passes, of passRows rows at least, so that reading the
// weights again stays cheap beside the arithmetic. Unbounded, a chunk of 512 tokens of a wide model
// would need more memory here than for everything else.
const (
	attendBytes = 4 << 20
	hiddenBytes = 8 << 20
	passRows    = 64
)

// rowsIn is how many of want rows one pass takes, when a row needs that many bytes of a bound.
func rowsIn(bound, rowBytes, want int) int { return min(want, max(passRows, bound/rowBytes)) }

// forward is the scratch memory of one session and the jobs that compute one chunk of tokens with
// it. Everything is allocated by init. T is the largest chunk, n the tokens of the current one, A
// the rows of one pass of attention.
type forward struct {
	m      *Model
	cfg    SessionConfig
	team   *kernels.Team
	kv     kvCache
	rope   *kernels.RopeTable
	arm    moe.Arm
	router *moe.Router
	src    store.Source
	drop   *moe.Drop // nil: never drops
	drops  DropCount

	rec       *Recorder // nil: off
	expertMem OpMemory  // of experts that no read was needed for
	base      int       // position of the chunk's first token
	turn      int

	touch   []layerBytes // by layer
	touched int64        // see Session.WeightBytes

	// The rows that attention works on: the whole chunk, but for its passes. See window.
	pos int       // position of the first
	x   []float32 // nEmbd each, the residual stream

	chunk  []float32 // T x nEmbd, the residual stream of the whole chunk
	xn     []float32 // T x nEmbd, its normalised rows, which are in's float32 form
	in     actSet    // the same as activations
	q      []float32 // A x nHead*headDim
	k, v   []float32 // A x nKVHead*headDim
	att    []float32 // A x nHead*headDim, attention output
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
	ahead    prefetcher

	norm   normJob
	qkv    qkvJob
	place  placeJob
	attend attendJob
	quant  quantJob
	proj   projJob
	route  routeJob
	vocab  vocabJob
}

var _ Walk = (*forward)(nil)

// newForward is the walk of this processor. Memory for keys and values is backed with pages as positions are written.
func newForward(w WalkConfig) *forward {
	f := &forward{m: w.Model, cfg: w.Session, rope: w.Rope, router: w.Router, src: w.Source, drop: w.Drop, rec: w.Session.Recorder}
	m, h, c := f.m, &f.m.Hparams, &f.cfg
	T := c.Batch
	switch c.Arm {
	case "host":
		f.arm = moe.NewHostArm(m.NExpert, c.NExpertUsed, T)
	case "table":
		f.arm = moe.NewTableArm(m.NExpert, c.NExpertUsed, T)
	}
	f.kv = newKVCache(m, c.Ctx, c.KV)
	nQ, nKV := h.NHead*h.HeadDim, h.NKVHead*h.HeadDim
	A := rowsIn(attendBytes, 4*(3*nQ+2*nKV), T) // q, k, v, att and its activations
	f.chunk = make([]float32, T*h.NEmbd)
	f.q = make([]float32, A*nQ)
	f.k = make([]float32, A*nKV)
	f.v = make([]float32, A*nKV)
	f.att = make([]float32, A*nQ)
	f.rlog = make([]float32, T*h.NExpert)
	f.out = make([]float32, h.NVocab)
	f.ident = make([]int32, T)
	f.ones = make([]float32, T)
	for i := range f.ident {
		f.ident[i], f.ones[i] = int32(i), 1
	}
	f.resident = make([]uint8, h.NExpert)
	f.ids = make([]int32, 0, h.NExpert)
	f.table = moe.NewTable(h.NExpert, c.NExpertUsed, T)
	if c.SelDump != nil || c.Trace != nil || c.Prefetch == PrefetchLastToken {
		f.sel = moe.NewSelection(c.NExpertUsed, T)
	}
	if c.Trace != nil {
		f.read = make([]int64, h.NExpert)
	}
	f.in = actSet{n: h.NEmbd, rows: max(T, min(logitRows, c.Ctx)), exact: c.ExactActs}
	f.attIn = actSet{n: nQ, rows: A, exact: c.ExactActs}
	f.in.plan(kernels.F32) // the router reads float32
	f.xn = f.in.form[kernels.ActF32].F
	f.in.plan(m.w.output.Type)
	ffShared := 0
	for i := range m.w.layers {
		ly := &m.w.layers[i]
		f.touch = append(f.touch, ly.bytes())
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
	f.ahead.init(f, T)
	f.norm.f, f.qkv.f, f.place.f, f.attend.f = f, f, f, f
	f.quant.f, f.proj.f, f.route.f, f.vocab.f = f, f, f, f
	if f.src.Stats().BudgetBytes > 0 {
		f.expertMem = OpCache
	}
	f.rec.Describe(m, c.Threads, f.in.kind)
	f.team = kernels.NewTeam(c.Threads)
	return f
}

// Close stops the worker team.
func (f *forward) Close() error {
	f.team.Close()
	return nil
}

func (f *forward) Drops() DropCount   { return f.drops }
func (f *forward) WeightBytes() int64 { return f.touched }
func (f *forward) Notes() []string    { return nil }

// Run implements Walk: it leaves the residual stream in f.x.
func (f *forward) Run(ctx context.Context, p Pass) error {
	m, ids, ph := f.m, p.IDs, p.phase()
	n := len(ids)
	f.base, f.turn = p.Pos, p.Turn
	f.window(0)
	f.rec.forward(f.pos, n, ph)
	t := f.rec.begin()
	rowBytes := m.w.tokEmbd.Type.RowBytes(m.NEmbd)
	for i, id := range ids {
		if id < 0 || int(id) >= m.NVocab {
			return fmt.Errorf("engine: token id %d at position %d: want 0..%d", id, f.pos+i, m.NVocab-1)
		}
		src := m.w.tokEmbd.Data[int(id)*rowBytes:]
		kernels.Dequantize(m.w.tokEmbd.Type, f.x[i*m.NEmbd:(i+1)*m.NEmbd], src[:rowBytes])
	}
	f.touched += int64(n * rowBytes)
	f.rec.end(t, OpEmbed, -1, n)
	if err := f.checkFinite(n, 0, "the token's embedding"); err != nil {
		return err
	}
	for il := range m.w.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		ly := &m.w.layers[il]
		for t, pass := 0, f.attIn.rows; t < n; t += pass {
			f.window(t)
			if err := f.attention(il, ly, min(pass, n-t)); err != nil {
				return err
			}
		}
		f.window(0)
		if err := f.moeLayer(ctx, il, ly, n, ph); err != nil {
			return err
		}
	}
	if p.Head != HeadNone {
		f.logits(n - 1)
	}
	return nil
}

// window makes the chunk's rows from t on the ones that are worked on. Attention takes a chunk in
// passes: a later one finds the keys of the earlier ones in the cache, like those of earlier chunks.
func (f *forward) window(t int) {
	f.pos, f.x = f.base+t, f.chunk[t*f.m.NEmbd:]
}

// logits computes the logits of row i of the chunk just run.
func (f *forward) logits(i int) {
	t := f.rec.begin()
	f.headNorm(i, 0)
	f.rec.end(t, OpOutNorm, -1, 1)
	f.vocab.run(1)
}

// Logits implements Walk.
func (f *forward) Logits() []float32 { return f.out[:f.m.NVocab] }

// Next implements Walk.
func (f *forward) Next() (int32, error) { return greatest(f.Logits()) }

// EachLogits implements Walk.
func (f *forward) EachLogits(n int, visit func(i int, logits []float32) error) error {
	nv := f.m.NVocab
	block := min(logitRows, f.in.rows)
	if len(f.out) < block*nv {
		f.out = make([]float32, block*nv)
	}
	for i0 := 0; i0 < n; i0 += block {
		b := min(block, n-i0)
		t := f.rec.begin()
		for j := range b {
			f.headNorm(i0+j, j)
		}
		f.rec.end(t, OpOutNorm, -1, b)
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
	E := f.m.NEmbd
	row := f.xn[j*E : (j+1)*E]
	kernels.RMSNorm(row, f.x[i*E:(i+1)*E], f.m.w.outNorm, f.m.NormEps)
	f.in.set(kindOf(f.in.kind(f.m.w.output.Type)), j, row)
}

// checkFinite names the first token whose row of the residual stream is not finite. It is called where
// the blame can still be told: after each addition to the stream.
func (f *forward) checkFinite(n int, il int, where string) error {
	E := f.m.NEmbd
	for t := range n {
		if !finite(f.x[t*E : (t+1)*E]) {
			return fmt.Errorf("engine: layer %d: %s is not finite (token at position %d)", il, where, f.pos+t)
		}
	}
	return nil
}

// finite reports whether x has neither NaN nor infinity: only those differ from zero after v-v.
func finite(x []float32) bool {
	var s float32
	for _, v := range x {
		s += v - v
	}
	return s == 0
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
	j.f.team.Run(n, 1, j)
}

func (j *normJob) Do(_, lo, hi int) {
	f := j.f
	E := f.m.NEmbd
	for t := lo; t < hi; t++ {
		row := f.xn[t*E : (t+1)*E]
		kernels.RMSNorm(row, f.x[t*E:(t+1)*E], j.weight, f.m.NormEps)
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
	t := j.f.rec.begin()
	j.f.team.Run(blocks(j.f.m.NVocab), 1, j)
	j.f.rec.end(t, OpOutput, -1, n)
	j.f.touched += int64(len(j.f.m.w.output.Data) + 4*len(j.f.m.w.outNorm))
}

func (j *vocabJob) Do(_, lo, hi int) {
	w := &j.f.m.w.output
	r0, r1 := blockRows(lo, hi, w.Rows)
	kernels.MulRows(j.f.out, w.Rows, w, r0, r1, j.f.in.of(w.Type), nil, j.n)
}

// blocks is the number of row blocks of a matrix with that many rows.
func blocks(rows int) int { return (rows + rowBlock - 1) / rowBlock }

// blockRows turns blocks lo..hi into rows.
func blockRows(lo, hi, rows int) (r0, r1 int) { return lo * rowBlock, min(hi*rowBlock, rows) }
