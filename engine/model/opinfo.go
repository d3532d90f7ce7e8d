package model

import "sluice/kernels"

// rowBlock is how many rows of a weight matrix a worker takes at a time: large enough that claiming
// a block costs nothing beside computing it, small enough that all workers end together.
const rowBlock = 32

// Blocks is the number of row blocks of a matrix with that many rows: the pieces that a worker team shares.
func Blocks(rows int) int { return (rows + rowBlock - 1) / rowBlock }

// BlockRows turns blocks lo..hi into rows.
func BlockRows(lo, hi, rows int) (r0, r1 int) { return lo * rowBlock, min(hi*rowBlock, rows) }

// DefaultActs is the form of activations that weights of a type read where nothing else is asked for.
func DefaultActs(t kernels.Type) kernels.ActKind { return t.ActKind() }

// Describe writes down what the ops of the layers work on: team workers, and activations in the form that acts says for a
// type of weights. A backend calls it before its first pass; nil: nothing.
func (r *Recorder) Describe(m *Model, team int, acts func(kernels.Type) kernels.ActKind) {
	if r == nil {
		return
	}
	r.team = team
	r.info = make([][nOpKinds]OpInfo, len(m.Layers))
	for i := range m.Layers {
		y, d := &m.Layers[i], &r.info[i]
		m.describeWeights(i, d, acts)
		if a, ok := y.Mixer.(*Attention); ok {
			d[OpRotary].Rows, d[OpRotary].Cols = a.Heads+a.KVHeads, a.KeyLen
			d[OpAttend] = OpInfo{Rows: a.Heads, Cols: a.ValueLen, items: a.KVHeads, per: perToken}
			d[OpAttnActs] = OpInfo{Rows: 1, Cols: a.O.Cols, Acts: acts(a.O.Type), items: 1, per: perToken}
		}
		d[OpRotary].items, d[OpRotary].per = 1, perToken
		f := y.Experts()
		if f == nil {
			continue
		}
		d[OpRouter].Acts = kernels.ActF32
		d[OpRoute] = OpInfo{Rows: 1, Cols: f.Router.W.Rows, items: 1}
		gu, down := &d[OpGateUp], &d[OpDown]
		d[OpFetch] = OpInfo{Rows: gu.Rows + down.Cols, Cols: gu.Cols, Types: append(append([]kernels.Type{}, gu.Types...), down.Types...),
			Bytes: gu.Bytes + down.Bytes, items: 1}
		gu.items, gu.per = Blocks(f.Gate.Rows), perExpert
		d[OpHidden] = OpInfo{Rows: 1, Cols: f.Down.Cols, Acts: acts(f.Down.Type), items: 1, per: perToken}
		if s := f.Shared; s != nil {
			d[OpSharedGateUp].items = Blocks(s.Gate.Rows)
			d[OpSharedHidden] = OpInfo{Rows: 1, Cols: s.Down.Cols, Acts: acts(s.Down.Type), items: 1, per: perToken}
		}
	}
	m.describeWeights(-1, &r.outer, acts)
	r.outer[OpEmbed] = OpInfo{Rows: m.NVocab, Cols: m.NEmbd, Types: []kernels.Type{m.TokEmbd.Type}, items: 1}
	if m.Tied() {
		r.outer[OpOutput].matrix(&m.Output.Mat, acts)
	}
	r.outer[OpOutNorm].per = perPass
}

// describeWeights adds the slots of a layer to the ops that read them.
func (m *Model) describeWeights(il int, info *[nOpKinds]OpInfo, acts func(kernels.Type) kernels.ActKind) {
	for _, s := range m.LayerSlots(il) {
		if s.Bytes == 0 {
			continue
		}
		d := &info[s.Op]
		switch {
		case s.mat != nil:
			d.matrix(&s.mat.Mat, acts)
		case s.exp != nil:
			one := kernels.Mat{Type: s.exp.Type, Rows: s.exp.Rows, Cols: s.exp.Cols}
			d.matrix(&one, acts)
			d.Bytes += s.Bytes
		case len(d.Types) == 0 && d.Bytes == 0: // an op that begins with a vector works on rows of its length
			*d = OpInfo{Rows: 1, Cols: s.Dims[0], Bytes: s.Bytes, items: 1, per: perToken}
		default:
			d.Bytes += s.Bytes
		}
	}
}

// matrix adds a matrix to an op. All matrices of an op read the same activations.
func (d *OpInfo) matrix(m *kernels.Mat, acts func(kernels.Type) kernels.ActKind) {
	if len(d.Types) == 0 {
		d.Cols, d.Acts = m.Cols, acts(m.Type)
	}
	d.Rows += m.Rows
	d.Types = append(d.Types, m.Type)
	d.Bytes += int64(len(m.Data))
	d.items += Blocks(m.Rows)
}
