//go:build cuda

package cuda

// graphed says whether the pass is a replay: a decoded token in which nothing can be missing, that nobody times op by op.
// The first one runs kernel by kernel, which also brings every kernel's code to the device before it is captured.
func (w *walk) graphed(st *steps) bool {
	return !w.d.opt.NoGraph && st.decode && st.runs > 0 && !w.host && !w.ahead && w.rec == nil && w.alone()
}

// replay launches the captured token: the step, the choice and the copy of its 4 bytes, and where a selection is recorded
// the copy of it, in a graph of its own. Logits, where they are wanted, are copied behind it.
func (w *walk) replay(st *steps) error {
	g := &st.graph
	if w.tapped() {
		g = &st.tapGraph
	}
	if *g == nil {
		var err error
		*g, err = w.d.drv.Capture(w.compute, func() error {
			if err := st.prog.Run(w.compute, 0, st.check); err != nil {
				return err
			}
			if err := st.prog.Run(w.compute, st.head, st.end); err != nil {
				return err
			}
			return w.results(st)
		})
		if err != nil {
			return err
		}
		w.stats.Graph = true
	}
	return (*g).Launch(w.compute)
}
