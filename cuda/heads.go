//go:build cuda

package cuda

import (
	"encoding/binary"
	"errors"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine/model"
)

// headRows is how many rows' logits there is memory for on the device: a pass that wants more computes them in turns.
// eachRows is how many EachLogits computes at a time.
const (
	headRows = 64
	eachRows = 16
)

// headKey is what the launches behind the layers depend on.
type headKey struct {
	rows int
	move bool // they are all rows of the pass, and become those of the next step
}

// head is the launches that make logits of rows of the residual stream, and choose.
type head struct {
	prog   *driver.Program
	output int // behind the norm
	used   int64
}

// maxHeads bounds the programs of heads; a run of few sequences meets as many numbers of rows as it has sequences.
const maxHeads = 64

// head returns the launches for so many rows.
func (w *walk) head(key headKey) (*head, error) {
	w.uses++
	if h, ok := w.heads[key]; ok {
		h.used = w.uses
		return h, nil
	}
	if len(w.heads) >= maxHeads {
		oldest := key
		for k, h := range w.heads {
			if oldest == key || h.used < w.heads[oldest].used {
				oldest = k
			}
		}
		if err := w.heads[oldest].prog.Close(); err != nil {
			return nil, err
		}
		delete(w.heads, oldest)
	}
	m, b, n := &w.m.Hparams, &w.b, key.rows
	h := &head{used: w.uses}
	g, norm := w.guard(m.NLayer-1, dev.WhereExperts), w.s.vec(&w.m.OutNorm)
	ls, move := []dev.Launch{dev.RMSNormOf(b.head, b.x, b.status.At(w.at.wanted), norm, n, m.NEmbd, m.NormEps, g)}, dev.Ptr(0)
	if key.move {
		ls[0], move = dev.RMSNorm(b.head, b.x, norm, n, m.NEmbd, m.NormEps, g), b.status.At(w.at.rows)
	}
	if quantised(&w.s.output) {
		ls = append(ls, dev.Quantize(b.headQ, b.head, n, m.NEmbd, 0))
	}
	h.output = len(ls)
	next := b.status.At(nextAt)
	ls = append(ls, w.s.output.product(b.logits, b.head, b.headQ, n, dev.Out{}), dev.ArgMaxPart(b.argmax, b.logits, n, m.NVocab),
		dev.ArgMaxStep(b.argmax, next, move, n, m.NVocab), dev.ChoiceCheck(b.logits, next, move, n, m.NVocab))
	var err error
	if h.prog, err = w.d.drv.NewProgram(ls); err != nil {
		return nil, err
	}
	w.heads[key] = h
	return h, nil
}

// run launches it for the wanted rows from one of them on.
func (h *head) run(w *walk, key headKey, from int) error {
	if !key.move {
		list, next := w.b.status.At(w.at.wanted+4*int64(from)), w.b.status.At(nextAt+4*int64(from))
		h.prog.Set(0, dev.NormListArg, list.Cell())
		h.prog.Set(h.output+2, dev.ArgMaxNextArg, next.Cell())
		h.prog.Set(h.output+3, dev.ChoiceNextArg, next.Cell())
	}
	if w.rec != nil {
		w.timer.part = &layerCount{entries: key.rows}
		defer func() { w.timer.part = nil }()
	}
	if err := w.timer.op(w, model.OpOutNorm, -1, func() error { return h.prog.Run(w.compute, 0, h.output) }); err != nil {
		return err
	}
	return w.timer.op(w, model.OpOutput, -1, func() error { return h.prog.Run(w.compute, h.output, h.prog.Len()) })
}

// choose launches the heads of all wanted rows, and the copies of the logits that the host wants.
func (w *walk) choose() error {
	p := &w.pass
	for from := 0; from < p.wanted; from += headRows {
		key := headKey{min(headRows, p.wanted-from), p.moves()}
		h, err := w.head(key)
		if err == nil {
			err = h.run(w, key, from)
		}
		if err == nil {
			err = w.copyLogits(from, key.rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyLogits starts the copies of those logits that are the device's now, of n wanted rows from one on, which spans want in
// full.
func (w *walk) copyLogits(from, n int) error {
	p := &w.pass
	if !p.logits {
		return nil
	}
	size := 4 * w.m.NVocab
	for i, to := range p.want {
		if to < from || to >= from+n || p.Spans[i].Head != model.HeadLogits {
			continue
		}
		if err := w.compute.CopyOut(w.pin.logits.Bytes[to*size:(to+1)*size], w.b.logits.At(int64(to-from)*int64(size))); err != nil {
			return err
		}
	}
	return nil
}

// roomForLogits sees to it that the host has memory for those of the pass.
func (w *walk) roomForLogits() error {
	size := 4 * int64(w.m.NVocab)
	if !w.pass.logits || int64(len(w.pin.logits.Bytes)) >= size*int64(w.pass.wanted) {
		return nil
	}
	return w.pinBytes(&w.pin.logits, size*int64(w.c.Seqs), "logits of all sequences")
}

// Logits implements model.Backend.
func (w *walk) Logits(span int) []float32 {
	at, n := w.pass.want[span], w.m.NVocab
	return float32s(w.pin.logits.Bytes)[at*n : (at+1)*n]
}

// Next implements model.Backend.
func (w *walk) Next(span int) (int32, error) {
	if id := w.chosen(w.pass.want[span]); id >= 0 {
		return id, nil
	}
	return 0, model.ErrNotFinite
}

// chosen is the id of the i-th wanted row, -1 if it has none.
func (w *walk) chosen(i int) int32 {
	return int32(binary.LittleEndian.Uint32(w.pin.status.Bytes[nextAt+4*i:]))
}

// eachLogits is the memory for the logits of several rows, taken when they are first asked for.
type eachLogits struct {
	device dev.Ptr
	host   *driver.Pinned
	progs  map[int]*driver.Program // by rows
}

// EachLogits implements model.Backend.
func (w *walk) EachLogits(n int, visit func(i int, logits []float32) error) error {
	nv := w.m.NVocab
	for i0 := 0; i0 < n; i0 += eachRows {
		rows := min(eachRows, n-i0)
		if err := w.d.drv.Do(func() error { return w.someLogits(i0, rows) }); err != nil {
			return err
		}
		all := float32s(w.each.host.Bytes)
		for j := range rows {
			if err := visit(i0+j, all[j*nv:(j+1)*nv]); err != nil {
				return err
			}
		}
	}
	return nil
}

// someLogits computes the logits of rows rows of the last pass from row i0 on.
func (w *walk) someLogits(i0, rows int) error {
	h, b := &w.m.Hparams, &w.b
	if w.each.host == nil {
		n := 4 * int64(h.NVocab) * int64(min(eachRows, w.cfg.Batch))
		if err := errors.Join(w.alloc(&w.each.device, n, "logits of several rows"), w.pinBytes(&w.each.host, n, "logits of several rows")); err != nil {
			return err
		}
		w.each.progs = map[int]*driver.Program{}
	}
	x := b.x.At(4 * int64(i0) * int64(h.NEmbd))
	p := w.each.progs[rows]
	if p == nil {
		ls := []dev.Launch{dev.RMSNorm(b.head, x, w.s.vec(&w.m.OutNorm), rows, h.NEmbd, h.NormEps, dev.Guard{})}
		if quantised(&w.s.output) {
			ls = append(ls, dev.Quantize(b.headQ, b.head, rows, h.NEmbd, 0))
		}
		ls = append(ls, w.s.output.product(w.each.device, b.head, b.headQ, rows, dev.Out{}))
		var err error
		if p, err = w.d.drv.NewProgram(ls); err != nil {
			return err
		}
		w.each.progs[rows] = p
	}
	p.Set(0, 1, x.Cell())
	if err := p.Run(w.compute, 0, p.Len()); err != nil {
		return err
	}
	if err := w.compute.CopyOut(w.each.host.Bytes[:4*rows*h.NVocab], w.each.device); err != nil {
		return err
	}
	w.countOutput()
	return w.compute.Sync()
}
