//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine/model"
	"sluice/moe"
)

// buffers are the walk's device memory, for up to Batch rows.
type buffers struct {
	status dev.Ptr // see status

	x, xn, xq           dev.Ptr // residual stream, its normalised rows, those in Q8_1
	q, k, v, att, attQ  dev.Ptr
	scratch             dev.Ptr // of attention, a row a sequence
	angles              dev.Ptr
	rlog                dev.Ptr
	table, sums, tally  dev.Ptr
	tap                 dev.Ptr
	flag                dev.Ptr // that the compute stream waits for
	numbers             dev.Ptr // int32 0, 1, 2, ...: counts for kernels that read one from memory
	hidden, hiddenUp    dev.Ptr
	hiddenQ, y          dev.Ptr
	sg, su, sq, so, ggt dev.Ptr // shared expert: gate, up, hidden in Q8_1, output, sigmoid gate
	head, headQ, logits dev.Ptr
	argmax              dev.Ptr
}

// pinned is the walk's pinned host memory.
type pinned struct {
	status *driver.Pinned // as on the device
	logits *driver.Pinned
	posts  *driver.Pinned // a message a layer; nil: nothing is posted
	rlog   *driver.Pinned // host arm
	table  *driver.Pinned
	resid  *driver.Pinned // residency, a row a layer; nil: not watched
	counts *driver.Pinned // offsets of a layer call that takes several waves
	tap    *driver.Pinned
}

// own takes something that is given back when the walk closes.
func own[T any](w *walk, take func() (T, error), free func(T) error) (T, error) {
	v, err := take()
	if err == nil {
		w.frees = append(w.frees, func() error { return free(v) })
	}
	return v, err
}

func (w *walk) alloc(p *dev.Ptr, n int64, what string) error {
	if n == 0 {
		return nil
	}
	m, err := own(w, func() (*driver.Mem, error) { return w.d.drv.Alloc(n, what) }, (*driver.Mem).Free)
	if err == nil {
		*p = m.Ptr
	}
	return err
}

func (w *walk) pinBytes(p **driver.Pinned, n int64, what string) (err error) {
	if n > 0 {
		*p, err = own(w, func() (*driver.Pinned, error) { return w.d.drv.Pin(n, what) }, (*driver.Pinned).Free)
	}
	return err
}

// takeMemory takes what does not depend on where the experts are.
func (w *walk) takeMemory() error {
	h, b := &w.m.Hparams, &w.b
	T, k := int64(w.cfg.Batch), int64(w.cfg.NExpertUsed)
	E, nQ, nKV := int64(h.NEmbd), int64(h.NHead*h.HeadDim), int64(h.NKVHead*h.HeadDim)
	ff, rows := int64(h.NFFExpert), T*k
	tiles := int64(tilesFor(w.cfg.Ctx)) * int64(w.c.Seqs)
	for il := range h.NLayer {
		var c dev.Cache
		n := tiles * dev.TileBytes(h.NKVHead, h.HeadDim)
		if err := w.alloc(&c.Keys, n, fmt.Sprintf("keys of layer %d", il)); err != nil {
			return err
		}
		if err := w.alloc(&c.Values, n, fmt.Sprintf("values of layer %d", il)); err != nil {
			return err
		}
		w.cache = append(w.cache, c)
	}
	q8 := func(on bool, rows int64, n int) int64 {
		if !on {
			return 0
		}
		return dev.Q8Bytes(int(rows), n)
	}
	need := w.quantisedInputs()
	ffs := int64(0)
	if need.shared {
		ffs = int64(h.NFFShared)
	}
	tapLayers := int64(1)
	if w.tapped() {
		tapLayers = int64(h.NLayer)
	}
	seqs, heads := w.c.Seqs, int64(min(headRows, w.c.Seqs))
	atOnce := max(heads, eachRows)
	hiddenUp := int64(0)
	if need.mixed {
		hiddenUp = 4 * rows * ff
	}
	for _, a := range []struct {
		p    *dev.Ptr
		n    int64
		what string
	}{
		{&b.status, w.at.bytes, "rows of a pass"},
		{&b.x, 4 * T * E, "residual stream"},
		{&b.xn, 4 * T * E, "normalised rows"},
		{&b.xq, q8(need.in, T, h.NEmbd), "activations"},
		{&b.q, 4 * T * nQ, "queries"},
		{&b.k, 4 * T * nKV, "keys"},
		{&b.v, 4 * T * nKV, "values"},
		{&b.att, 4 * T * nQ, "attention output"},
		{&b.attQ, q8(need.att, T, int(nQ)), "attention activations"},
		{&b.scratch, dev.AttendScratch(seqs, h.NHead, h.HeadDim, w.cfg.Ctx), "partial attention"},
		{&b.angles, dev.AnglesBytes(h.NRot, w.cfg.Ctx), "rotary angles"},
		{&b.rlog, 4 * T * int64(h.NExpert), "router logits"},
		{&b.table, dev.TableBytes(h.NExpert, int(k), int(T)), "work table"},
		{&b.sums, int64(h.NLayer) * dev.SumsBytes, "drop sums"},
		{&b.tally, 8, "weight bytes"},
		{&b.tap, tapLayers * rows * 9, "selections"},
		{&b.hidden, 4 * rows * ff, "hidden rows"},
		{&b.hiddenUp, hiddenUp, "hidden rows of the up projection"},
		{&b.hiddenQ, q8(need.hidden, rows, int(ff)), "hidden activations"},
		{&b.y, 4 * rows * E, "expert outputs"},
		{&b.sg, 4 * T * ffs, "shared gate rows"},
		{&b.su, 4 * T * ffs, "shared up rows"},
		{&b.sq, q8(need.sharedHidden, T, int(ffs)), "shared activations"},
		{&b.so, 4 * T * min(1, ffs) * E, "shared outputs"},
		{&b.ggt, 4 * T * min(1, ffs), "shared gates"},
		{&b.head, 4 * atOnce * E, "last rows"},
		{&b.headQ, q8(quantised(&w.s.output), atOnce, h.NEmbd), "last activations"},
		{&b.logits, 4 * heads * int64(h.NVocab), "logits"},
		{&b.argmax, heads * dev.ArgMaxScratch, "greatest logits"},
	} {
		if err := w.alloc(a.p, a.n, a.what); err != nil {
			return err
		}
	}
	for il := range w.cache {
		w.cache[il].Tables = b.status.At(w.at.tables)
	}
	for _, z := range []struct {
		p dev.Ptr
		n int64
	}{{b.status, w.at.bytes}, {b.sums, int64(h.NLayer) * dev.SumsBytes}, {b.tally, 8}} {
		if err := w.compute.Zero(z.p, z.n); err != nil {
			return err
		}
	}
	return w.putAngles()
}

// putAngles copies the rotary angles of the whole context.
func (w *walk) putAngles() error {
	const chunk = 1024
	nRot := w.m.NRot
	buf := make([]byte, dev.AnglesBytes(nRot, min(chunk, w.cfg.Ctx)))
	for pos := 0; pos < w.cfg.Ctx; pos += chunk {
		n := min(chunk, w.cfg.Ctx-pos)
		part := buf[:dev.AnglesBytes(nRot, n)]
		dev.PutAngles(part, w.c.Ropes[0], pos, n)
		if err := w.d.stage.send(w.b.angles.At(dev.AnglesBytes(nRot, pos)), part); err != nil {
			return err
		}
	}
	w.c.Ropes = nil // the device's are enough
	return w.d.stage.stream.Sync()
}

// inputs says which activations are wanted in Q8_1.
type inputs struct{ in, att, hidden, sharedHidden, shared, mixed bool }

func (w *walk) quantisedInputs() (n inputs) {
	for i := range w.m.Layers {
		a, f := w.parts(i)
		n.in = n.in || quantised(w.s.mat(&a.Q), w.s.mat(&a.K), w.s.mat(&a.V)) || dev.Quantised(f.Gate.Type) || dev.Quantised(f.Up.Type)
		n.att = n.att || quantised(w.s.mat(&a.O))
		n.hidden = n.hidden || dev.Quantised(f.Down.Type)
		n.mixed = n.mixed || f.Gate.Type != f.Up.Type
		if s := f.Shared; s != nil {
			n.in = n.in || quantised(w.s.mat(&s.Gate), w.s.mat(&s.Up))
			n.sharedHidden = n.sharedHidden || quantised(w.s.mat(&s.Down))
			n.shared = true
		}
	}
	return n
}

// parts are a layer's attention and experts: what checkModel lets through has both.
func (w *walk) parts(il int) (*model.Attention, *model.MoE) {
	y := &w.m.Layers[il]
	return y.Mixer.(*model.Attention), y.Experts()
}

// takeRest takes what depends on the arm and on where the experts are.
func (w *walk) takeRest() error {
	h, b, p := &w.m.Hparams, &w.b, &w.pin
	T, k, n := w.cfg.Batch, w.cfg.NExpertUsed, int64(h.NExpert)
	full := dev.NewTable(b.table, h.NExpert, k, T)
	w.fixed = dev.Table{Err: b.status.At(routeAt)}
	var hostRlog, hostTable, posts, resid, counts, tap int64
	if w.host {
		hostRlog, hostTable = 4*int64(T)*n, full.EncodedBytes()
		w.arm = moe.NewHostArm(h.NExpert, k, T)
		w.table = moe.NewTable(h.NExpert, k, T)
		w.sel = moe.NewSelection(k, T)
	} else if w.ahead {
		posts = postStride(h.NExpert) * int64(h.NLayer)
	}
	if w.watched {
		resid = n * int64(h.NLayer)
	}
	if w.ahead {
		counts = 4 * (n + 1)
	}
	if w.tapped() && !w.host {
		tap = 9 * int64(h.NLayer) * int64(T) * int64(k)
	}
	for _, a := range []struct {
		p    **driver.Pinned
		n    int64
		what string
	}{
		{&p.status, w.at.bytes, "rows of a pass"},
		{&p.logits, 4 * int64(h.NVocab), "logits"},
		{&p.posts, posts, "messages"},
		{&p.rlog, hostRlog, "router logits"},
		{&p.table, hostTable, "work table"},
		{&p.resid, resid, "residency"},
		{&p.counts, counts, "offsets"},
		{&p.tap, tap, "selections"},
	} {
		if err := w.pinBytes(a.p, a.n, a.what); err != nil {
			return err
		}
	}
	w.pool = newPool(&w.c, p.status.Bytes[w.at.tables:][:tableBytes(&w.c)])
	w.ids = make([]int32, 0, h.NExpert)
	w.taps.init(w)
	if !w.ahead {
		return w.compute.Sync()
	}
	if err := errors.Join(w.alloc(&b.flag, 4, "flag"), w.alloc(&b.numbers, 4*int64(full.MaxTiles()+1), "numbers")); err != nil {
		return err
	}
	for _, e := range []**driver.Event{&w.came, &w.through} {
		var err error
		if *e, err = own(w, w.d.drv.NewEvent, (*driver.Event).Close); err != nil {
			return err
		}
	}
	numbers := make([]int32, full.MaxTiles()+1)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	if err := errors.Join(w.compute.Zero(b.flag, 4), w.d.stage.send(b.numbers, int32Bytes(numbers))); err != nil {
		return err
	}
	return errors.Join(w.compute.Sync(), w.d.stage.stream.Sync())
}

// postStride is the room for a layer's message: messages share no cache line.
func postStride(nExpert int) int64 { return (dev.PostBytes(nExpert) + 63) &^ 63 }
