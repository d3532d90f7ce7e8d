package cpu

import "sluice/kernels"

// kindSet is a set of activation forms, a bit per kernels.ActKind.
type kindSet uint8

func kindOf(k kernels.ActKind) kindSet { return 1 << k }

// actSet is one matrix of activations in every form that the matrices reading it want. A form is
// allocated at its first planned use.
type actSet struct {
	n, rows int
	form    [8]*kernels.Acts
	exact   bool // float32 only
}

// plan makes room for the form that weights of type t read, and returns that form's bit.
func (a *actSet) plan(t kernels.Type) kindSet {
	k := a.kind(t)
	if a.form[k] == nil {
		a.form[k] = kernels.NewActs(k, a.n, a.rows)
	}
	return kindOf(k)
}

func (a *actSet) kind(t kernels.Type) kernels.ActKind {
	if a.exact {
		return kernels.ActF32
	}
	return t.ActKind()
}

// of is the form that weights of type t read.
func (a *actSet) of(t kernels.Type) *kernels.Acts { return a.form[a.kind(t)] }

// set writes row i in all forms of ks.
func (a *actSet) set(ks kindSet, i int, x []float32) {
	for k := range a.form {
		if ks&(1<<k) != 0 {
			a.form[k].SetRow(i, x)
		}
	}
}
