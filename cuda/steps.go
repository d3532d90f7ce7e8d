//go:build cuda

package cuda

import (
	"errors"
	"slices"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine/model"
)

// progKey is what a pass's launches depend on.
type progKey struct {
	rows  int
	alone bool // every sequence has one row
}

// maxChunks and maxAlone bound the programs kept, of passes with prompt chunks and of those without: an engine sees its full
// chunk and the odd end of each prompt, and as many numbers of rows as sequences run.
const (
	maxChunks = 4
	maxAlone  = 32
)

// steps are the launches of a pass of n rows, laid out once, layer after layer.
type steps struct {
	progKey
	prog   *driver.Program
	ops    []opMark
	layers []layerMark
	check  int // the look at all rows of the last layer
	end    int
	used   int64

	table dev.Table // laid out for n rows
	tap   dev.Tap
	shape dev.Attention // of attention, the same in all layers
	runs  int

	graph, tapGraph *driver.Graph // nil until captured; where no expert can be missing
}

// opMark is where an op of the recorder begins.
type opMark struct {
	kind  model.OpKind
	layer int
	from  int
}

// layerMark is where the parts of a layer begin.
type layerMark struct {
	start   int
	attend  int // attention of single rows, two launches, and then of pieces; without chunks the first two alone
	route   int // selection, drop and table; the host arm's own work is here instead
	post    int // message to the host and release of the flag; none where nothing can be missing
	shared  int // the shared expert: needs no routed one
	experts int // a wait for those comes before
	combine int
	end     int
	tiled   []tiledLaunch
}

// tiledLaunch is a launch over the table's tiles, and the place of their address among its arguments; that of their number
// is the next.
type tiledLaunch struct{ launch, tiles int }

func (st *steps) close() error {
	var err error
	for _, g := range []*driver.Graph{st.graph, st.tapGraph} {
		if g != nil {
			err = errors.Join(err, g.Close())
		}
	}
	return errors.Join(err, st.prog.Close())
}

// builder lays a program out.
type builder struct {
	*steps
	w  *walk
	ls []dev.Launch
}

func (b *builder) op(kind model.OpKind, il int) {
	b.ops = append(b.ops, opMark{kind, il, len(b.ls)})
}

func (b *builder) add(l ...dev.Launch) { b.ls = append(b.ls, l...) }

// steps returns the program for a pass.
func (w *walk) steps(key progKey) (*steps, error) {
	w.uses++
	if st, ok := w.progs[key]; ok {
		st.used = w.uses
		return st, nil
	}
	if err := w.forget(key.alone); err != nil {
		return nil, err
	}
	b := &builder{steps: &steps{progKey: key, used: w.uses}, w: w}
	b.build()
	var err error
	if b.prog, err = w.d.drv.NewProgram(b.ls); err != nil {
		return nil, err
	}
	w.progs[key] = b.steps
	return b.steps, nil
}

// forget makes room for another program of a kind: of those that there are, the one that was not used for longest goes.
func (w *walk) forget(alone bool) error {
	n, most, oldest := 0, maxChunks, (*steps)(nil)
	if alone {
		most = maxAlone
	}
	for _, st := range w.progs {
		if st.alone == alone {
			if n++; oldest == nil || st.used < oldest.used {
				oldest = st
			}
		}
	}
	if n < most {
		return nil
	}
	delete(w.progs, oldest.progKey)
	return oldest.close()
}

// aim gives the launches of attention as many rows and pieces as the pass has.
func (st *steps) aim(w *walk) {
	if st.alone {
		return
	}
	p, a := &w.pass, &st.shape
	grids := [3][3]uint32{a.DecodeGrid(p.single), a.CombineGrid(p.single), a.PrefillGrid(p.pieces)}
	for il := range st.layers {
		for i, g := range grids {
			st.prog.SetGrid(st.layers[il].attend+i, g)
		}
	}
}

func (b *builder) build() {
	w, n := b.w, b.rows
	h, buf := &w.m.Hparams, &w.b
	b.table = dev.NewTable(buf.table, h.NExpert, w.cfg.NExpertUsed, n)
	b.table.Err = w.fixed.Err
	b.tap = dev.Tap{Layers: 1, K: w.cfg.NExpertUsed, MaxT: n, Base: buf.tap}
	if w.tapped() {
		b.tap.Layers = h.NLayer
	}
	b.op(model.OpEmbed, -1)
	b.add(dev.Embed(w.m.TokEmbd.Type, buf.x, w.s.tokEmbd, buf.status.At(w.at.rows), buf.status.At(faultAt), n, h.NEmbd, h.NVocab))
	for il := range w.m.Layers {
		b.layers = append(b.layers, layerMark{start: len(b.ls)})
		b.attention(il)
		b.experts(il)
		b.layers[il].end = len(b.ls)
	}
	b.check = len(b.ls)
	b.add(dev.Finite(buf.x, n, h.NEmbd, w.guard(h.NLayer-1, dev.WhereExperts)))
	b.end = len(b.ls)
}

func (w *walk) guard(il int, where dev.Where) dev.Guard {
	return dev.Guard{Word: w.b.status.At(faultAt), Layer: il, Where: where}
}

// acts makes the Q8_1 form of rows where one of the matrices reads it.
func (b *builder) acts(q, f dev.Ptr, n, k int, ms ...*matrix) {
	if quantised(ms...) {
		b.add(dev.Quantize(q, f, n, k, 0))
	}
}

// attention adds a layer's attention to the residual stream. What the stream was before it is looked at on the way: the
// norm names what put it wrong.
func (b *builder) attention(il int) {
	w, n := b.w, b.rows
	h, buf, y := &w.m.Hparams, &w.b, &w.m.Layers[il]
	a, _ := w.parts(il)
	wq, wk, wv, wo := w.s.mat(&a.Q), w.s.mat(&a.K), w.s.mat(&a.V), w.s.mat(&a.O)
	nQ := h.NHead * h.HeadDim
	g := w.guard(0, dev.WhereEmbedding)
	if il > 0 {
		g = w.guard(il-1, dev.WhereExperts)
	}
	b.op(model.OpAttnNorm, il)
	b.add(dev.RMSNorm(buf.xn, buf.x, w.s.vec(&y.MixerIn), n, h.NEmbd, h.NormEps, g))
	b.acts(buf.xq, buf.xn, n, h.NEmbd, wq, wk, wv)
	b.op(model.OpQKV, il)
	b.add(wq.product(buf.q, buf.xn, buf.xq, n, dev.Out{}),
		wk.product(buf.k, buf.xn, buf.xq, n, dev.Out{}),
		wv.product(buf.v, buf.xn, buf.xq, n, dev.Out{}))
	b.op(model.OpRotary, il)
	rows := buf.status.At(w.at.rows)
	b.add(dev.QKNormRopeKV(dev.QKV{Q: buf.q, K: buf.k, V: buf.v, BQ: w.s.vec(&a.BQ), BK: w.s.vec(&a.BK), BV: w.s.vec(&a.BV),
		Norm: dev.QKNorm(a.QKNorm), NormQ: w.s.vec(&a.QNorm), NormK: w.s.vec(&a.KNorm), Eps: h.NormEps,
		Angles: buf.angles, NRot: h.NRot, Neox: a.Neox, Cache: w.cache[il],
		Rows: rows, Fault: buf.status.At(faultAt), Layer: il,
		N: n, NHead: h.NHead, NKVHead: h.NKVHead, HeadDim: h.HeadDim, Ctx: w.cfg.Ctx}))
	b.op(model.OpAttend, il)
	b.layers[il].attend = len(b.ls)
	at := dev.Attention{Out: buf.att, Q: buf.q, Cache: w.cache[il], Rows: rows, Scratch: buf.scratch, N: n,
		NHead: h.NHead, NKVHead: h.NKVHead, HeadDim: h.HeadDim, Ctx: w.cfg.Ctx}
	b.shape = at
	if b.alone {
		b.add(dev.AttendDecode(at), dev.AttendCombine(at))
	} else {
		at.N, at.List = min(n, w.c.Seqs), buf.status.At(w.at.single)
		b.add(dev.AttendDecode(at), dev.AttendCombine(at))
		at.N, at.List = n, buf.status.At(w.at.pieces)
		b.add(dev.AttendPrefill(at))
	}
	b.op(model.OpAttnActs, il)
	b.acts(buf.attQ, buf.att, n, nQ, wo)
	b.op(model.OpAttnOut, il)
	b.add(wo.product(buf.x, buf.att, buf.attQ, n, dev.Out{Bias: w.s.vec(&a.BO), Add: true}))
}

// experts adds a layer's experts to the residual stream.
func (b *builder) experts(il int) {
	w, n := b.w, b.rows
	h, buf, y, mark := &w.m.Hparams, &w.b, &w.m.Layers[il], &b.layers[il]
	_, f := w.parts(il)
	k, t := w.cfg.NExpertUsed, b.table
	b.op(model.OpMoENorm, il)
	b.add(dev.RMSNorm(buf.xn, buf.x, w.s.vec(&y.FFNIn), n, h.NEmbd, h.NormEps, w.guard(il, dev.WhereAttention)))
	if dev.Quantised(f.Gate.Type) || dev.Quantised(f.Up.Type) || f.Shared != nil && quantised(w.s.mat(&f.Shared.Gate), w.s.mat(&f.Shared.Up)) {
		b.add(dev.Quantize(buf.xq, buf.xn, n, h.NEmbd, 0))
	}
	if f.Shared != nil {
		b.add(dev.SharedGate(buf.ggt, buf.xn, w.s.vec(&f.Shared.GateV), n, h.NEmbd))
	}
	b.op(model.OpRouter, il)
	b.add(w.s.mat(&f.Router.W).product(buf.rlog, buf.xn, 0, n, dev.Out{}))

	mark.route = len(b.ls)
	if !w.host {
		b.op(model.OpRoute, il)
		at := min(il, b.tap.Layers-1)
		ids, weights := b.tap.IDs(at), b.tap.Weights(at)
		t.Sums, t.Before = w.sums(il), w.sums((il+h.NLayer-1)%h.NLayer)
		t.Dropped = b.tap.Base.At(b.tap.Bytes() + int64(at)*int64(n)*int64(k))
		var resident, rows dev.Ptr
		drop := w.c.Drop
		if !w.watched {
			drop = nil
		}
		if drop != nil {
			resident, rows = w.pin.resid.Ptr.At(int64(il)*int64(h.NExpert)), buf.status.At(w.at.rows)
		}
		b.add(dev.Route(w.routers[il], ids, weights, t.Err, buf.rlog, w.s.vec(&f.Router.BSelect), il, n), t.DropTable(ids, weights, resident, drop, rows, n))
	}
	mark.post = len(b.ls)
	if w.ahead && !w.host {
		b.add(t.Post(w.pin.posts.Ptr.At(int64(il)*postStride(h.NExpert)), 0))
		if !w.watched {
			b.add(t.Release(buf.flag, w.x.row(il), 0))
		}
	} else if !w.host && n > 1 {
		b.add(t.Tally(buf.tally, w.m.Layout.ExpertBytes(il)))
	}
	mark.shared = len(b.ls)
	gate := dev.Ptr(0)
	if f.Shared != nil {
		b.sharedExpert(il)
		gate = buf.ggt
	}
	mark.experts = len(b.ls)
	b.routed(il, t)
	mark.combine = len(b.ls)
	shared := dev.Ptr(0)
	if gate != 0 {
		shared = buf.so
	}
	b.add(t.Combine(buf.x, buf.y, shared, gate, n, h.NEmbd)) // the last part of OpDown
}

// routed multiplies with the experts that the table names.
func (b *builder) routed(il int, t dev.Table) {
	w, n := b.w, b.rows
	h, buf := &w.m.Hparams, &w.b
	_, v := w.parts(il)
	ptrs, ff, k := w.x.row(il), h.NFFExpert, w.cfg.NExpertUsed
	form := t.FormOf(n)
	if n > 1 && w.crowded(il, n) {
		form = dev.ByTile // waves are stretches of tiles
	}
	act := func(e *model.Experts, f, q dev.Ptr) dev.Ptr {
		if dev.Quantised(e.Type) {
			return q
		}
		return f
	}
	first := len(b.ls)
	if !w.ahead { // nothing to wait for; the rows of a layer are the same everywhere
		b.op(model.OpFetch, il)
	}
	b.op(model.OpGateUp, il)
	if v.Gate.Type == v.Up.Type {
		b.add(t.ExpertGateUp(v.Gate.Type, buf.hidden, ptrs, act(&v.Gate, buf.xn, buf.xq), ff, h.NEmbd, n, form))
	} else {
		b.add(t.ExpertProduct(v.Gate.Type, buf.hidden, ptrs, dev.Gate, act(&v.Gate, buf.xn, buf.xq), ff, h.NEmbd, n, form),
			t.ExpertProduct(v.Up.Type, buf.hiddenUp, ptrs, dev.Up, act(&v.Up, buf.xn, buf.xq), ff, h.NEmbd, n, form),
			dev.SiluMul(buf.hidden, buf.hidden, buf.hiddenUp, n*k, ff))
	}
	b.op(model.OpHidden, il)
	if dev.Quantised(v.Down.Type) {
		b.add(dev.Quantize(buf.hiddenQ, buf.hidden, n*k, ff, t.Entries()))
	}
	b.op(model.OpDown, il)
	b.add(t.ExpertDown(v.Down.Type, buf.y, ptrs, act(&v.Down, buf.hidden, buf.hiddenQ), h.NEmbd, ff, n, form))
	for i := first; form == dev.ByTile && i < len(b.ls); i++ {
		if at := slices.Index(b.ls[i].Args, t.Tiles.Cell()); at >= 0 {
			b.layers[il].tiled = append(b.layers[il].tiled, tiledLaunch{i, at})
		}
	}
}

// sharedExpert leaves the shared expert's rows in so.
func (b *builder) sharedExpert(il int) {
	w, n := b.w, b.rows
	h, buf := &w.m.Hparams, &w.b
	_, f := w.parts(il)
	s := f.Shared
	b.op(model.OpSharedGateUp, il)
	b.add(w.s.mat(&s.Gate).product(buf.sg, buf.xn, buf.xq, n, dev.Out{}), w.s.mat(&s.Up).product(buf.su, buf.xn, buf.xq, n, dev.Out{}))
	b.op(model.OpSharedHidden, il)
	if quantised(w.s.mat(&s.Down)) {
		b.add(dev.SiluMulQuantize(buf.sq, buf.sg, buf.su, n, h.NFFShared))
	} else {
		b.add(dev.SiluMul(buf.sg, buf.sg, buf.su, n, h.NFFShared))
	}
	b.op(model.OpSharedDown, il)
	b.add(w.s.mat(&s.Down).product(buf.so, buf.sg, buf.sq, n, dev.Out{}))
}
