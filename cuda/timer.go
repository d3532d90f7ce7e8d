//go:build cuda

package cuda

import (
	"errors"
	"time"

	"sluice/cuda/driver"
	"sluice/engine/model"
)

// timer times a pass op by op for the session's Recorder, by events around each op's launches. Without a recorder none of
// it runs. The device's clock is laid beside the host's at the beginning of the pass.
type timer struct {
	events []*driver.Event // the first marks the beginning
	used   int
	list   []timed
	start  int64 // the recorder's clock at the beginning
	layers []layerCount
	part   *layerCount // what the ops work on that are launched now; nil: all that the layer call has
}

// timed is an op whose events have been recorded.
type timed struct {
	kind     model.OpKind
	layer    int
	from, to int // events
	count    layerCount
	whole    bool // count is the layer's, which is known at the end
}

// layerCount is what a layer call computed.
type layerCount struct{ entries, experts, brought int }

func (t *timer) event(w *walk) (int, error) {
	if t.used == len(t.events) {
		e, err := w.d.drv.NewEvent()
		if err != nil {
			return 0, err
		}
		t.events = append(t.events, e)
	}
	t.used++
	return t.used - 1, t.events[t.used-1].Record(w.compute)
}

func (t *timer) begin(w *walk) error {
	if w.rec == nil {
		return nil
	}
	if t.layers == nil {
		t.layers = make([]layerCount, w.m.NLayer)
	}
	clear(t.layers)
	t.used, t.list, t.part = 0, t.list[:0], nil
	w.rec.BeginPass(w.pass.position(0), w.pass.Decode())
	if err := w.compute.Sync(); err != nil { // idle: the mark is now
		return err
	}
	t.start = w.rec.Now()
	_, err := t.event(w)
	return err
}

// launch runs launches from up to but not including to, each op between two events if ops are timed.
func (w *walk) launch(st *steps, from, to int) error {
	if w.rec == nil {
		return st.prog.Run(w.compute, from, to)
	}
	for i, op := range st.ops {
		end := st.end
		if i+1 < len(st.ops) {
			end = st.ops[i+1].from
		}
		lo, hi := max(from, op.from), min(to, end)
		if lo >= hi && (op.from < from || op.from >= to || op.from != end) {
			continue // an op without a launch is there all the same
		}
		if err := w.timer.op(w, op.kind, op.layer, func() error { return st.prog.Run(w.compute, lo, max(lo, hi)) }); err != nil {
			return err
		}
	}
	return nil
}

// op puts f between two events.
func (t *timer) op(w *walk, kind model.OpKind, il int, f func() error) error {
	if w.rec == nil {
		return f()
	}
	from, err := t.event(w)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	to, err := t.event(w)
	o := timed{kind: kind, layer: il, from: from, to: to, whole: t.part == nil}
	if t.part != nil {
		o.count = *t.part
	}
	t.list = append(t.list, o)
	return err
}

// fetch is op for the compute stream's wait for experts.
func (t *timer) fetch(w *walk, il int, f func() error) error { return t.op(w, model.OpFetch, il, f) }

// route is op for the host's own routing, during which the device has nothing to do.
func (t *timer) route(w *walk, il int, f func() error) error { return t.op(w, model.OpRoute, il, f) }

func (t *timer) entries(il, entries, experts int) {
	if t.layers != nil {
		t.layers[il].entries, t.layers[il].experts = entries, experts
	}
}

func (t *timer) brought(il, n int) {
	if t.layers != nil {
		t.layers[il].brought += n
	}
}

// selected is entries for a selection that came back from the device.
func (t *timer) selected(il int, expert []int32, dropped []bool) {
	seen := map[int32]bool{}
	n := 0
	for i, e := range expert {
		if !dropped[i] {
			seen[e] = true
			n++
		}
	}
	t.entries(il, n, len(seen))
}

// end hands the pass's ops to the recorder. The device has done them all.
func (t *timer) end(w *walk) error {
	if w.rec == nil {
		return nil
	}
	for _, o := range t.list {
		var at [2]int64
		for i, e := range []int{o.from, o.to} {
			s, err := driver.Elapsed(t.events[0], t.events[e])
			if err != nil {
				return err
			}
			at[i] = t.start + int64(s*1e9)
		}
		tokens, experts, read, mem := w.n, 1, 0, model.OpDRAM
		if o.kind >= model.OpFetch && o.kind <= model.OpDown {
			c := o.count
			if o.whole {
				c = t.layers[o.layer]
			}
			tokens, experts = c.entries, c.experts
			switch {
			case c.brought > 0:
				mem, read = model.OpFlash, c.brought
			case !w.x.resident:
				mem = model.OpCache
			}
		}
		if o.layer < 0 && o.kind != model.OpEmbed {
			tokens = o.count.entries
		}
		w.rec.Add(o.kind, o.layer, tokens, experts, read, mem, at[0], at[1])
	}
	return nil
}

func (t *timer) close() error {
	var err error
	for _, e := range t.events {
		err = errors.Join(err, e.Close())
	}
	t.events = nil
	return err
}

// clock splits the time of a pass for the session's Telemetry: what the expert cache's own work took, and the rest less
// what the source waited for reads.
type clock struct {
	start, since time.Time
	waited, held float64 // the source's seconds at either
	inManage     time.Duration
}

func (c *clock) begin(w *walk) {
	if w.c.Meter != nil {
		c.start, c.waited, c.inManage = time.Now(), w.src.Stats().WaitSeconds, 0
	}
}

func (c *clock) manage(w *walk) {
	if w.c.Meter != nil {
		c.since, c.held = time.Now(), w.src.Stats().WaitSeconds
	}
}

func (c *clock) managed(w *walk) {
	if w.c.Meter != nil {
		c.inManage += time.Since(c.since) - seconds(w.src.Stats().WaitSeconds-c.held)
	}
}

func (c *clock) end(w *walk) {
	if w.c.Meter != nil {
		w.c.Meter.AddManage(c.inManage)
		w.c.Meter.AddCompute(time.Since(c.start) - c.inManage - seconds(w.src.Stats().WaitSeconds-c.waited))
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
