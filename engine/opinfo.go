package engine

import "sluice/kernels"

// Describe writes down what the ops of a session's layers work on: team workers, and activations in the form that acts
// says for a type of weights. A device's walk calls it before its first pass; nil: nothing.
func (r *Recorder) Describe(m *Model, team int, acts func(kernels.Type) kernels.ActKind) {
	if r == nil {
		return
	}
	h := &m.Hparams
	r.team = team
	r.info = make([][nOpKinds]OpInfo, len(m.w.layers))
	for i := range m.w.layers {
		ly, d := &m.w.layers[i], &r.info[i]
		d[OpAttnNorm] = vector(h.NEmbd, perToken)
		d[OpQKV] = matrices(acts, ly.wq, ly.wk, ly.wv)
		d[OpRotary] = OpInfo{Rows: h.NHead + h.NKVHead, Cols: h.HeadDim, items: 1, per: perToken,
			Bytes: int64(4 * (len(ly.bq) + len(ly.bk) + len(ly.bv) + len(ly.qNorm) + len(ly.kNorm)))}
		d[OpAttend] = OpInfo{Rows: h.NHead, Cols: h.HeadDim, items: h.NKVHead, per: perToken}
		d[OpAttnActs] = OpInfo{Rows: 1, Cols: h.NHead * h.HeadDim, Acts: acts(ly.wo.Type), items: 1, per: perToken}
		d[OpAttnOut] = matrices(acts, ly.wo)
		d[OpAttnOut].Bytes += int64(4 * len(ly.bo))
		d[OpMoENorm] = vector(h.NEmbd, perToken)
		d[OpMoENorm].Bytes += int64(4 * len(ly.sharedGate))
		d[OpRouter] = matrices(acts, ly.router)
		d[OpRouter].Acts = kernels.ActF32
		d[OpRoute] = OpInfo{Rows: 1, Cols: h.NExpert, items: 1}
		gu, down := ly.gate.info(acts), ly.down.info(acts)
		gu.Rows, gu.Types, gu.Bytes = 2*gu.Rows, append(gu.Types, ly.up.typ), gu.Bytes+ly.up.info(acts).Bytes
		d[OpFetch] = OpInfo{Rows: gu.Rows + down.Cols, Cols: gu.Cols, Types: append(append([]kernels.Type{}, gu.Types...), down.Types...),
			Bytes: gu.Bytes + down.Bytes, items: 1}
		gu.items, gu.per = blocks(ly.gate.rows), perExpert
		d[OpGateUp] = gu
		d[OpHidden] = OpInfo{Rows: 1, Cols: ly.down.cols, Acts: acts(ly.down.typ), items: 1, per: perToken}
		d[OpDown] = down
		if ly.sharedGate != nil {
			d[OpSharedGateUp] = matrices(acts, ly.sharedG, ly.sharedUp)
			d[OpSharedGateUp].items = blocks(ly.sharedG.Rows)
			d[OpSharedHidden] = OpInfo{Rows: 1, Cols: ly.sharedDownM.Cols, Acts: acts(ly.sharedDownM.Type), items: 1, per: perToken}
			d[OpSharedDown] = matrices(acts, ly.sharedDownM)
		}
	}
	r.outer[OpEmbed] = OpInfo{Rows: h.NVocab, Cols: h.NEmbd, Types: []kernels.Type{m.w.tokEmbd.Type}, items: 1}
	r.outer[OpOutNorm] = vector(h.NEmbd, perPass)
	r.outer[OpOutput] = matrices(acts, m.w.output)
}

// vector is an op whose only weights are one float32 vector.
func vector(n, per int) OpInfo {
	return OpInfo{Rows: 1, Cols: n, Bytes: int64(4 * n), items: 1, per: per}
}

// matrices is a product with matrices that read the same activations.
func matrices(acts func(kernels.Type) kernels.ActKind, ms ...kernels.Mat) OpInfo {
	d := OpInfo{Cols: ms[0].Cols, Acts: acts(ms[0].Type)}
	for _, m := range ms {
		d.Rows += m.Rows
		d.Types = append(d.Types, m.Type)
		d.Bytes += int64(len(m.Data))
		d.items += blocks(m.Rows)
	}
	return d
}

// info is the product with one projection of one expert.
func (e *expertMat) info(acts func(kernels.Type) kernels.ActKind) OpInfo {
	return OpInfo{Rows: e.rows, Cols: e.cols, Types: []kernels.Type{e.typ}, Acts: acts(e.typ),
		Bytes: int64(e.rows) * int64(e.typ.RowBytes(e.cols)), items: blocks(e.rows)}
}

// layerBytes are the dense weight bytes that one pass of a layer's parts reads; a shared expert's are not among them.
type layerBytes struct{ attn, moe int64 }

func (y *layer) bytes() (b layerBytes) {
	shared := int64(len(y.sharedG.Data) + len(y.sharedUp.Data) + len(y.sharedDownM.Data))
	b.moe = int64(4*(len(y.ffnNorm)+len(y.sharedGate)) + len(y.router.Data))
	b.attn = y.denseBytes - b.moe - shared
	return b
}

// WeightBytes is how many bytes of weights the session's forward passes have read so far, from memory or from the file's
// mapping: every matrix once per pass over it, experts only where they were computed.
func (s *Session) WeightBytes() int64 { return s.walk.WeightBytes() }
