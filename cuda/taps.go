//go:build cuda

package cuda

import (
	"slices"

	"sluice/moe"
)

// taps bring what the device routed back to the host's recordings: one copy of a whole pass, layer after layer. Disarmed
// they cost nothing.
type taps struct {
	w       *walk
	expert  []int32
	weight  []float32
	dropped []bool
	ones    []uint8   // the residency where everything is resident; nil where nobody looks at it
	reads   [][]int64 // by layer and expert, of the pass; nil without taps
	seen    moe.Observed
}

// tapped says whether anybody reads the selection back.
func (w *walk) tapped() bool { return len(w.c.Taps) > 0 || w.rec != nil }

func (t *taps) init(w *walk) {
	t.w = w
	if !w.tapped() {
		return
	}
	n := w.cfg.Batch * w.cfg.NExpertUsed
	t.expert, t.weight, t.dropped = make([]int32, n), make([]float32, n), make([]bool, n)
	if w.c.Watch {
		t.ones = slices.Repeat([]uint8{moe.Hit}, w.m.NExpert)
	}
	if len(w.c.Taps) == 0 {
		return
	}
	t.reads = make([][]int64, w.m.NLayer)
	for i := range t.reads {
		t.reads[i] = make([]int64, w.m.NExpert)
	}
}

// read notes what was read for an expert of the pass.
func (t *taps) read(il, e int, bytes int64) {
	if t.reads != nil {
		t.reads[il][e] += bytes
	}
}

// falls says whether taps or the recorder have to hear which slots fell. Nothing does without a policy.
func (t *taps) falls() bool { return t.w.c.Drop != nil || t.w.c.Watch || t.w.rec != nil }

// copyOut starts the copy of the table arm's selection.
func (t *taps) copyOut(st *steps) error {
	w := t.w
	if !w.tapped() || w.host {
		return nil
	}
	n := st.tap.Bytes()
	if t.falls() {
		n += int64(st.tap.Layers * st.rows * st.tap.K) // the drop flags lie behind it
	}
	return w.compute.CopyOut(w.pin.tap.Bytes[:n], st.tap.Base)
}

// record writes the first layers of a pass of the table arm whose copy has arrived.
func (t *taps) record(st *steps, layers int) error {
	w := t.w
	if !w.tapped() || w.host {
		return nil
	}
	n, k := st.rows, st.tap.K
	size := st.tap.Bytes()
	expert, weight, dropped := t.expert[:n*k], t.weight[:n*k], t.dropped[:n*k]
	for il := range layers {
		if err := st.tap.Decode(w.pin.tap.Bytes[:size], il, n, w.m.NExpert, expert, weight); err != nil {
			return err
		}
		if err := t.routed(il, expert, weight); err != nil {
			return err
		}
		if t.falls() {
			for i, d := range w.pin.tap.Bytes[size+int64(il*n*k):][:n*k] {
				dropped[i] = d != 0
			}
		}
		if w.rec != nil {
			w.timer.selected(il, expert, dropped)
		}
		if err := t.computed(il, dropped); err != nil {
			return err
		}
	}
	return nil
}

// rescue records what a pass that was given up had routed.
func (t *taps) rescue(st *steps, layers int) error {
	w := t.w
	if !w.tapped() || w.host || layers == 0 {
		return nil
	}
	if err := t.copyOut(st); err != nil {
		return err
	}
	if err := w.compute.Sync(); err != nil {
		return err
	}
	return t.record(st, layers)
}

// routed tells the taps what a layer call chose.
func (t *taps) routed(il int, expert []int32, weight []float32) error {
	w, o := t.w, &t.seen
	*o = moe.Observed{Layer: il, T: w.n, K: w.c.NExpertUsed, Pass: w.pass.Number, Rows: w.pass.Rows, Expert: expert, Weight: weight}
	if t.reads != nil {
		o.Read = t.reads[il]
	}
	if o.Resident = t.ones; w.watched {
		o.Resident = w.resident(il)
	}
	for _, tap := range w.c.Taps {
		if err := tap.Routed(o); err != nil {
			return err
		}
	}
	return nil
}

// computed tells them what became of it.
func (t *taps) computed(il int, dropped []bool) error {
	if t.reads == nil {
		return nil
	}
	t.seen.Dropped = dropped
	for _, tap := range t.w.c.Taps {
		if err := tap.Computed(&t.seen); err != nil {
			return err
		}
	}
	clear(t.reads[il])
	return nil
}
