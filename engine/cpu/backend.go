// Package cpu computes forward passes on this processor: mixers, feed-forward, and the states of sequences. It is a peer of
// package cuda behind model.Backend.
//
//	backend.go   one pass over rows of several sequences, layer by layer
//	attention.go grouped-query attention; state.go: the tiles it reads
//	ffn.go, wave.go  experts as they arrive, the shared one, dense feed-forward
//	prefetch.go  which experts of the next layer are asked for ahead
//	check.go     what is not computed here, refused by name
//
// Every result row is computed from its own inputs in one fixed order, so that it depends neither on the rows beside it nor
// on threads; see docs/design/exactness.md.
package cpu

import (
	"context"
	"errors"
	"fmt"

	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// Name is the backend's in messages.
const Name = "the processor"

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

// Backend is the scratch memory of an engine and the jobs that compute a pass with it. Everything is allocated by New, but
// for logits of several rows. T is Config.Batch, n the rows of the current pass, A the rows that attention takes at a time.
type Backend struct {
	m       *model.Model
	cfg     model.Config
	team    *kernels.Team
	pool    *pool
	arm     moe.Arm
	routers []*moe.Router // by layer
	drops   model.DropCount
	rec     *model.Recorder // nil: off
	touched int64           // see WeightBytes
	touch   []layerBytes    // by layer

	expertMem model.OpMemory // of experts that no read was needed for

	p *model.Pass // that runs

	// The rows that attention works on: all of them, but for its parts. See window.
	row0 int       // the first
	x    []float32 // NEmbd each, the residual stream

	rows   []float32 // T x NEmbd, the residual stream of the whole pass
	xn     []float32 // T x NEmbd, its normalised rows, which are in's float32 form
	in     actSet    // the same as activations
	q      []float32 // A x queries
	k, v   []float32 // A x keys, values
	att    []float32 // A x attention output
	attIn  actSet    // the same as activations
	rlog   []float32 // T x NExpert, router logits
	ident  []int32   // 0..T-1
	ones   []float32 // T ones
	shared []float32 // T, the shared expert's gate
	out    []float32 // logits: one row a span; EachLogits grows it to logitRows
	outRow []int     // by span: its row of out, -1: none

	resident []uint8 // NExpert, before the layer call
	read     []int64 // NExpert, bytes read by the layer call; nil without taps
	ids      []int32 // experts of the layer call, ascending
	call     moe.Call
	table    *moe.Table
	sel      *moe.Selection // nil while no tap is armed
	seen     moe.Observed
	ffn      ffnScratch
	ahead    prefetcher

	norm   normJob
	qkv    qkvJob
	rotary rotaryJob
	attend attendJob
	quant  quantJob
	proj   projJob
	route  routeJob
	vocab  vocabJob
}

var _ model.Backend = (*Backend)(nil)

// layerBytes are the dense weight bytes that one pass of a layer's parts reads; those of a dense feed-forward or a shared
// expert are not among them.
type layerBytes struct{ mixer, routing int64 }

// New is the backend of this processor for one engine. Memory of states is backed with pages as positions are written. A
// layer that asks for something else than is computed here is an error that names it.
func New(c model.Config) (*Backend, error) {
	if err := check(&c); err != nil {
		return nil, err
	}
	routers, err := c.Routers()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	f := &Backend{m: c.Model, cfg: c, routers: routers, rec: c.Recorder}
	m, T := f.m, c.Batch
	switch c.Arm {
	case model.ArmTable:
		f.arm = moe.NewTableArm(m.NExpert, c.NExpertUsed, T)
	default:
		f.arm = moe.NewHostArm(m.NExpert, c.NExpertUsed, T)
	}
	f.pool = newPool(&c)
	f.in = actSet{n: m.NEmbd, rows: max(T, min(logitRows, c.Ctx)), exact: c.ExactActs}
	f.in.plan(kernels.F32) // the router reads float32
	f.xn = f.in.form[kernels.ActF32].F
	f.in.plan(m.Output.Type)
	wide := f.planAttention(T)
	ffShared := 0
	for i := range m.Layers {
		f.touch = append(f.touch, layerBytes{m.MixerBytes(i), m.RoutingBytes(i)})
		if e := m.Layers[i].Experts(); e != nil {
			f.in.plan(e.Gate.Type)
			f.in.plan(e.Up.Type)
		}
		if d, _ := every(&m.Layers[i]); d != nil {
			f.in.plan(d.Gate.Type)
			f.in.plan(d.Up.Type)
			ffShared = max(ffShared, d.Width)
		}
	}
	f.q = make([]float32, f.attIn.rows*wide.q)
	f.k = make([]float32, f.attIn.rows*wide.k)
	f.v = make([]float32, f.attIn.rows*wide.v)
	f.att = make([]float32, f.attIn.rows*wide.out)
	f.rows = make([]float32, T*m.NEmbd)
	f.rlog = make([]float32, T*m.NExpert)
	f.out = make([]float32, c.Seqs*m.NVocab)
	f.outRow = make([]int, 0, c.Seqs)
	f.ident = make([]int32, T)
	f.ones = make([]float32, T)
	for i := range f.ident {
		f.ident[i], f.ones[i] = int32(i), 1
	}
	f.resident = make([]uint8, m.NExpert)
	f.ids = make([]int32, 0, m.NExpert)
	f.table = moe.NewTable(m.NExpert, c.NExpertUsed, T)
	if len(c.Taps) > 0 || c.Prefetch == moe.PrefetchLastToken {
		f.sel = moe.NewSelection(c.NExpertUsed, T)
	}
	if len(c.Taps) > 0 {
		f.read = make([]int64, m.NExpert)
	}
	if ffShared > 0 {
		f.shared = make([]float32, T)
	}
	f.ffn.init(f, T, ffShared)
	f.ahead.init(f, T)
	f.norm.f, f.qkv.f, f.rotary.f, f.attend.f = f, f, f, f
	f.quant.f, f.proj.f, f.route.f, f.vocab.f = f, f, f, f
	if c.Source.Stats().BudgetBytes > 0 {
		f.expertMem = model.OpCache
	}
	f.rec.Describe(m, c.Threads, f.in.kind)
	f.team = kernels.NewTeam(c.Threads)
	return f, nil
}

// Close stops the worker team.
func (f *Backend) Close() error {
	f.team.Close()
	return nil
}

// Drops implements model.Backend.
func (f *Backend) Drops() model.DropCount { return f.drops }

// WeightBytes implements model.Backend.
func (f *Backend) WeightBytes() int64 { return f.touched }

// Notes implements model.Backend.
func (f *Backend) Notes() []string { return nil }

// WrapArm puts something around the routing arm: it sees the router logits of every layer call to come, before they are
// routed.
func (f *Backend) WrapArm(wrap func(moe.Arm) moe.Arm) { f.arm = wrap(f.arm) }

// NewState implements model.Backend.
func (f *Backend) NewState() (model.State, error) { return f.pool.take() }

// Run implements model.Backend: it leaves the residual stream in f.rows.
func (f *Backend) Run(ctx context.Context, p *model.Pass) (err error) {
	f.p = p
	defer func() { f.p = nil }()
	n := len(p.IDs)
	for i := range p.Spans {
		s := &p.Spans[i]
		if err := s.State.(*state).grow(s.N); err != nil {
			return err
		}
	}
	f.window(0)
	f.rec.BeginPass(int(p.Rows[0].Step), p.Decode())
	if err := f.embed(n); err != nil {
		return err
	}
	for il := range f.m.Layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		y := &f.m.Layers[il]
		for t, part := 0, f.attIn.rows; t < n; t += part {
			f.window(t)
			if err := f.attention(y, min(part, n-t)); err != nil {
				return err
			}
		}
		f.window(0)
		if err := f.feedForward(ctx, y, n); err != nil {
			return err
		}
	}
	for i := range p.Spans {
		p.Spans[i].State.(*state).advance(p.Spans[i].N)
	}
	f.heads()
	return nil
}

// embed puts the rows' embeddings into the residual stream.
func (f *Backend) embed(n int) error {
	m, p := f.m, f.p
	t := f.rec.Now()
	rowBytes := m.TokEmbd.Type.RowBytes(m.NEmbd)
	for i, id := range p.IDs {
		if id < 0 || int(id) >= m.NVocab {
			return fmt.Errorf("engine: token id %d at position %d: want 0..%d", id, p.Rows[i].Step, m.NVocab-1)
		}
		src := m.TokEmbd.Data[int(id)*rowBytes:]
		kernels.Dequantize(m.TokEmbd.Type, f.x[i*m.NEmbd:(i+1)*m.NEmbd], src[:rowBytes])
	}
	f.touched += int64(n * rowBytes)
	f.rec.End(t, model.OpEmbed, -1, n)
	return f.checkFinite(n, 0, "the token's embedding")
}

// window makes the pass's rows from t on the ones that are worked on. Attention takes a pass in
// parts: a later one finds the keys of the earlier ones in the state, like those of earlier passes.
func (f *Backend) window(t int) {
	f.row0, f.x = t, f.rows[t*f.m.NEmbd:]
}

// heads computes the logits that the spans want, as many together as there is room for.
func (f *Backend) heads() {
	f.outRow = f.outRow[:0]
	rows := 0
	for i := range f.p.Spans {
		at := -1
		if f.p.Spans[i].Head != model.HeadNone {
			at = rows
			rows++
		}
		f.outRow = append(f.outRow, at)
	}
	for r0 := 0; r0 < rows; r0 += f.in.rows {
		t := f.rec.Now()
		n := min(f.in.rows, rows-r0)
		for i, at := range f.outRow {
			if s := &f.p.Spans[i]; at >= r0 && at < r0+n {
				f.headNorm(s.From+s.N-1, at-r0)
			}
		}
		f.rec.End(t, model.OpOutNorm, -1, n)
		f.vocab.run(r0, n)
	}
}

// Logits implements model.Backend.
func (f *Backend) Logits(span int) []float32 {
	at := f.outRow[span]
	return f.out[at*f.m.NVocab : (at+1)*f.m.NVocab]
}

// Next implements model.Backend.
func (f *Backend) Next(span int) (int32, error) { return model.Greatest(f.Logits(span)) }

// EachLogits implements model.Backend.
func (f *Backend) EachLogits(n int, visit func(row int, logits []float32) error) error {
	nv := f.m.NVocab
	block := min(logitRows, f.in.rows)
	if len(f.out) < block*nv {
		f.out = make([]float32, block*nv)
	}
	for i0 := 0; i0 < n; i0 += block {
		b := min(block, n-i0)
		t := f.rec.Now()
		for j := range b {
			f.headNorm(i0+j, j)
		}
		f.rec.End(t, model.OpOutNorm, -1, b)
		f.vocab.run(0, b)
		for j := range b {
			if err := visit(i0+j, f.out[j*nv:(j+1)*nv]); err != nil {
				return err
			}
		}
	}
	return nil
}

// headNorm puts the normalised row i of the residual stream into row j of the activations.
func (f *Backend) headNorm(i, j int) {
	E := f.m.NEmbd
	row := f.xn[j*E : (j+1)*E]
	kernels.RMSNorm(row, f.rows[i*E:(i+1)*E], f.m.OutNorm.X, f.m.NormEps)
	f.in.set(kindOf(f.in.kind(f.m.Output.Type)), j, row)
}

// checkFinite names the first token whose row of the residual stream is not finite. It is called where
// the blame can still be told: after each addition to the stream.
func (f *Backend) checkFinite(n int, il int, where string) error {
	E := f.m.NEmbd
	for t := range n {
		if !finite(f.x[t*E : (t+1)*E]) {
			return fmt.Errorf("engine: layer %d: %s is not finite (token at position %d)", il, where, f.p.Rows[f.row0+t].Step)
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

// routeError names the row's position where the arm could only count rows.
func (f *Backend) routeError(err error) error {
	var e *moe.LogitError
	if errors.As(err, &e) {
		e.Position = int(f.p.Rows[e.Position-f.call.Pos0].Step)
	}
	return fmt.Errorf("engine: %w", err)
}

// normJob normalises rows of the residual stream and prepares them as activations, once for every
// matrix that reads them.
type normJob struct {
	f      *Backend
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

// vocabJob multiplies rows 0..n-1 of the activations with the output matrix into f.out, from row r0 of it on.
type vocabJob struct {
	f     *Backend
	r0, n int
}

func (j *vocabJob) run(r0, n int) {
	j.r0, j.n = r0, n
	t := j.f.rec.Now()
	j.f.team.Run(model.Blocks(j.f.m.NVocab), 1, j)
	j.f.rec.End(t, model.OpOutput, -1, n)
	j.f.touched += int64(len(j.f.m.Output.Data) + 4*len(j.f.m.OutNorm.X))
}

func (j *vocabJob) Do(_, lo, hi int) {
	w := &j.f.m.Output.Mat
	r0, r1 := model.BlockRows(lo, hi, w.Rows)
	kernels.MulRows(j.f.out[j.r0*w.Rows:], w.Rows, w, r0, r1, j.f.in.of(w.Type), nil, j.n)
}
