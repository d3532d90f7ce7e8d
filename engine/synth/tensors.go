package synth

import (
	"bytes"
	"fmt"
	"math"

	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/kernels"
)

// tensor is one tensor of the file to be written.
type tensor struct {
	name   string
	typ    kernels.Type
	dims   []int     // ggml's order: dims[0] is the row length
	spread float64   // standard deviation of the weights; 0: all ones
	mean   float64   // of the weights
	rows   []float32 // added to the weights of each row, F32 only; nil: nothing
	// Where the weights come from. The parts of a merged expert tensor are dealt one by one under its own name and the
	// expert's number, and so are the same experts' single tensors.
	source string
	first  int // number of the first part
	parts  int // how many parts of equal size, at least 1
}

func (t *tensor) elements() int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

func (t *tensor) bytes() int64 {
	return int64(t.typ.RowBytes(t.dims[0])) * int64(t.elements()/t.dims[0])
}

const biasSpread = 0.1

// list is the model's tensors in file order: the slots that the engine would load from such a file.
func (m *plan) list(extra []model.Arch, perExpert bool) ([]tensor, error) {
	slots, err := m.slots(extra)
	if err != nil {
		return nil, err
	}
	var list []tensor
	singles := false
	for _, s := range slots {
		if !s.Usual {
			continue
		}
		typ, spread := m.weights(s)
		if s.Experts() == nil {
			list = append(list, tensor{name: s.Name, typ: typ, dims: s.Dims, spread: spread, source: s.Name, parts: 1})
			continue
		}
		single := perExpert && s.Single != nil
		singles = singles || single
		first := 0
		s.Tensors(single, func(name string, dims []int) {
			t := tensor{name: name, typ: typ, dims: dims, spread: spread, source: s.Name, first: first, parts: 1}
			if !single {
				t.parts = dims[2]
			}
			first++
			list = append(list, t)
		})
	}
	if perExpert && !singles {
		return nil, fmt.Errorf("synth: %s files never had one tensor per expert, only llama", m.arch.Name)
	}
	return list, nil
}

// slots are the weights that the engine asks for when it reads the metadata that is about to be written.
func (m *plan) slots(extra []model.Arch) ([]*model.Slot, error) {
	w := gguf.NewWriter(3)
	m.addGeneral(w)
	m.addArch(w)
	var head bytes.Buffer
	if _, err := w.WriteTo(&head); err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	f, err := gguf.Parse(m.preset, head.Bytes())
	if err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	h, arch, err := model.Read(f, extra)
	if err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	h.NVocab = m.g.Vocab
	return model.Declare(arch, h).Slots, nil
}

// weights are the type and the spread of what a slot is filled with.
func (m *plan) weights(s *model.Slot) (kernels.Type, float64) {
	spread := 1 / math.Sqrt(float64(s.Dims[0]))
	switch s.Role {
	case model.RoleNorm, model.RoleFactor:
		return kernels.F32, 0
	case model.RoleBias:
		return kernels.F32, biasSpread
	case model.RoleRouter, model.RoleVector:
		return kernels.F32, spread
	case model.RoleEmbedding:
		return m.mix.base, 1
	case model.RoleOutput:
		return m.mix.output, spread
	case model.RoleDown:
		return m.mix.down(s.Layer), spread
	}
	return m.mix.base, spread
}

// checkRows says which tensor's rows do not divide into its type's blocks.
func checkRows(list []tensor) error {
	for i := range list {
		t := &list[i]
		if n := t.typ.BlockLen(); t.dims[0]%n != 0 {
			return fmt.Errorf("synth: tensor %q: row length %d is no multiple of %s's block of %d", t.name, t.dims[0], t.typ, n)
		}
	}
	return nil
}
