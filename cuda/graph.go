//go:build cuda

package cuda

// graphed says whether the pass is a replay: a step of a row a sequence, in which nothing can be missing and that nobody
// times op by op. The first one of so many rows runs kernel by kernel, which also brings every kernel's code to the device
// before it is captured.
func (w *walk) graphed(st *steps) bool {
	return !w.d.opt.NoGraph && w.pass.moves() && st.runs > 0 && !w.host && !w.ahead && w.rec == nil
}

// replay launches the captured step: the layers, the choices and the copy of their 4 bytes each, and where a selection is
// recorded the copy of it, in a graph of its own. Logits, where they are wanted, are copied behind it.
func (w *walk) replay(st *steps) error {
	g := &st.graph
	if w.tapped() {
		g = &st.tapGraph
	}
	if *g == nil {
		key := headKey{st.rows, true}
		h, err := w.head(key)
		if err != nil {
			return err
		}
		*g, err = w.d.drv.Capture(w.compute, func() error {
			if err := st.prog.Run(w.compute, 0, st.check); err != nil {
				return err
			}
			if err := h.run(w, key, 0); err != nil {
				return err
			}
			return w.results(st)
		})
		if err != nil {
			return err
		}
		w.stats.Graph = true
	}
	if err := (*g).Launch(w.compute); err != nil {
		return err
	}
	return w.copyLogits(0, st.rows)
}
