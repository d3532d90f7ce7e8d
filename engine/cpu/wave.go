package cpu

import (
	"context"
	"fmt"

	"sluice/engine/model"
	"sluice/moe/store"
)

// wave takes the experts that the source holds together from their arrival in memory to the residual
// stream. Hidden rows are computed in the order of arrival, for all that have arrived at a time as one
// pool of work; down projections are added in ascending order, each as soon as all lower ones are, so
// that a token's sum has the same bits whatever arrived first. An expert that is early waits as hidden
// rows, as far as there is room for them.
type wave struct {
	f       *Backend
	experts []waveExpert // of the wave, ascending
	next    int          // the first whose results are not all added
	early   int          // rows [0, early) of the hidden buffers are, or were, of experts behind next ...
	waiting int          // ... and so many of them are still to be added
	limit   int          // of early
}

type waveExpert struct {
	weights store.Expert
	state   waveState
	read    int // 1: it had to be read
	rows    int // tokens that go to it
	done    int // of them, in the residual stream
	row0    int // of its hidden rows, when waveHidden
}

type waveState uint8

const (
	waveAway   waveState = iota // not handed out yet
	waveHere                    // its weights are in memory
	waveHidden                  // its hidden rows are computed
)

func (w *wave) init(f *Backend, nExpert int) {
	w.f, w.experts = f, make([]waveExpert, 0, nExpert)
}

// run computes the experts that the source holds. start is when they were asked for.
func (w *wave) run(ctx context.Context, il int, e *model.MoE, ids []int32, start int64) error {
	f, s, src := w.f, &w.f.ffn, w.f.cfg.Source
	s.il, s.op, s.ff, s.act = il, model.OpGateUp, e.Width, &s.hidden
	w.begin(ids)
	for left := len(ids); w.next < len(ids); {
		for left > 0 && src.Ready() {
			if err := w.take(ctx, ids); err != nil {
				return err
			}
			left--
		}
		row0, rows := w.plan(e, ids)
		if rows == 0 { // nothing to compute: the team sleeps meanwhile
			if err := w.take(ctx, ids); err != nil {
				return err
			}
			left--
			continue
		}
		read, mem := s.origin(s.units)
		f.rec.EndExperts(start, model.OpFetch, il, rows, len(s.units), read, mem)
		s.hide(row0, rows)
		if len(s.sums) > 0 {
			s.addUp()
		}
		start = f.rec.Now()
	}
	return nil
}

func (w *wave) begin(ids []int32) {
	t, total := w.f.table, 0
	w.experts = w.experts[:0]
	for _, e := range ids {
		n := int(t.Offsets[e+1] - t.Offsets[e])
		w.experts = append(w.experts, waveExpert{rows: n})
		total += n
	}
	w.next, w.early, w.waiting = 0, 0, 0
	// Half of the buffers is kept for the expert whose turn it is, unless there is room for all.
	if w.limit = w.f.ffn.hidden.rows; total > w.limit {
		w.limit /= 2
	}
}

// take receives one expert from the source.
func (w *wave) take(ctx context.Context, ids []int32) error {
	f, src := w.f, w.f.cfg.Source
	i, weights, err := src.Next(ctx)
	if err != nil {
		if i >= 0 {
			return fmt.Errorf("expert %d: %w", ids[i], err)
		}
		return err
	}
	x := &w.experts[i]
	x.weights, x.state = weights, waveHere
	if n := src.ReadBytes(i); n > 0 {
		x.read = 1
		if f.read != nil {
			f.read[ids[i]] += n
		}
	}
	return nil
}

// plan chooses what is computed next from what is here: s.units, whose hidden rows are row0 to
// row0+rows, and s.sums. No rows: nothing can be computed before the next arrival.
func (w *wave) plan(e *model.MoE, ids []int32) (row0, rows int) {
	s := &w.f.ffn
	s.units, s.sums = s.units[:0], s.sums[:0]
	turn := w.next // experts up to here have had, or have, their turn
	for turn < len(w.experts) && w.experts[turn].state != waveAway {
		turn++
	}
	if w.waiting == 0 {
		w.early = 0
	}
	row0 = w.early
	for i := turn; i < len(w.experts); i++ {
		x := &w.experts[i]
		if x.state == waveHere && w.early+x.rows <= w.limit {
			x.state, x.row0 = waveHidden, w.early
			s.units = append(s.units, w.unit(e, ids, i, 0, x.rows, x.row0))
			w.early += x.rows
			w.waiting += x.rows
		}
	}
	top := w.early
	for ; w.next < turn; w.next++ {
		x := &w.experts[w.next]
		if x.state == waveHidden {
			s.sums = append(s.sums, w.unit(e, ids, w.next, 0, x.rows, x.row0))
			w.waiting -= x.rows
			continue
		}
		n := min(x.rows-x.done, s.hidden.rows-top)
		if n == 0 {
			break
		}
		u := w.unit(e, ids, w.next, x.done, n, top)
		s.units, s.sums = append(s.units, u), append(s.sums, u)
		x.done += n
		top += n
		if x.done < x.rows {
			break
		}
	}
	return row0, top - row0
}

// unit is n of an expert's tokens from t0 on, with their hidden rows at row0.
func (w *wave) unit(e *model.MoE, ids []int32, i, t0, n, row0 int) ffnUnit {
	x := &w.experts[i]
	tokens, weight := w.f.table.Rows(int(ids[i]))
	u := ffnUnit{gate: e.Gate.Of(x.weights.Gate), up: e.Up.Of(x.weights.Up), down: e.Down.Of(x.weights.Down),
		tokens: tokens[t0 : t0+n], weight: weight[t0 : t0+n], row0: row0}
	if t0 == 0 {
		u.read = x.read
	}
	return u
}
