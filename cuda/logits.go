//go:build cuda

package cuda

import (
	"errors"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
)

// eachLogits is the memory for the logits of several rows, taken when they are first asked for.
type eachLogits struct {
	device dev.Ptr
	host   *driver.Pinned
}

// EachLogits implements model.Backend.
func (w *walk) EachLogits(n int, visit func(i int, logits []float32) error) error {
	nv := w.m.NVocab
	for i0 := 0; i0 < n; i0 += logitRows {
		rows := min(logitRows, n-i0)
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
		n := 4 * int64(h.NVocab) * int64(min(logitRows, w.cfg.Batch))
		if err := errors.Join(w.alloc(&w.each.device, n, "logits of several rows"), w.pinBytes(&w.each.host, n, "logits of several rows")); err != nil {
			return err
		}
	}
	x := b.x.At(4 * int64(i0) * int64(h.NEmbd))
	p := w.heads[rows]
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
		w.heads[rows] = p
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
