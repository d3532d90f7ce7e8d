package model

import (
	"fmt"
	"slices"
)

// Role is what a weight is for, where that matters to who makes one up (gguf synth).
type Role uint8

// The roles.
const (
	RoleMatrix    Role = iota // of a product
	RoleNorm                  // weights of a norm, near 1
	RoleBias                  // added
	RoleVector                // multiplied with a row, one product
	RoleEmbedding             // rows by token
	RoleOutput                // logits
	RoleRouter                // of a router: float32 in every mix
	RoleDown                  // second product of a feed-forward
	RoleFactor                // positive factors that a file may bring
)

// Projection is one of an expert's matrices.
type Projection uint8

// The projections, in the order of a store's extents.
const (
	ProjGate Projection = iota
	ProjUp
	ProjDown
)

// Slot is one weight, declared once: the tensor's name and shape, and where it goes. Loading, the check that no tensor is
// left over, byte counts, op records, a device's upload, placement in memory and gguf synth walk Model.Slots; nothing else
// lists a model's weights.
type Slot struct {
	ID       int    // place in the list
	Layer    int    // -1: outside the layers
	Op       OpKind // that reads it
	Role     Role
	Name     string // of the tensor
	Dims     []int  // in ggml's order: row length first
	Optional bool   // may be absent
	Usual    bool   // files of the architecture have it: synth writes it. Slots that are not optional are usual

	Proj   Projection              // of an expert tensor
	Single func(expert int) string // names of one tensor per expert, where files with those exist; nil: there are none

	// Bytes of the weights in memory, 0 while absent. Of an expert tensor, those of one expert.
	Bytes int64

	mat *Matrix
	vec *Vector
	exp *Experts
}

// Matrix is the slot's destination, nil where it is no dense matrix.
func (s *Slot) Matrix() *Matrix { return s.mat }

// Vector is Matrix for a vector.
func (s *Slot) Vector() *Vector { return s.vec }

// Experts is Matrix for the shape of an expert tensor.
func (s *Slot) Experts() *Experts { return s.exp }

// May makes the slot one that a file may lack.
func (s *Slot) May() *Slot {
	s.Optional, s.Usual = true, false
	return s
}

// Often is May for a slot that files usually have.
func (s *Slot) Often() *Slot {
	s.Optional, s.Usual = true, true
	return s
}

// As sets the role.
func (s *Slot) As(r Role) *Slot {
	s.Role = r
	return s
}

// Decl collects an architecture's layers and slots. Names given to it within Each are those of the layer's block, without
// "blk.N.".
type Decl struct {
	H *Hparams
	m *Model

	prefix string
	layer  int
}

// Each declares the layers one after the other.
func (d *Decl) Each(build func(y *Layer)) {
	d.m.Layers = make([]Layer, d.H.NLayer)
	for i := range d.m.Layers {
		d.layer, d.prefix = i, fmt.Sprintf("blk.%d.", i)
		y := &d.m.Layers[i]
		y.Index = i
		build(y)
	}
	d.layer, d.prefix = -1, ""
}

func (d *Decl) add(s *Slot) *Slot {
	s.ID, s.Layer, s.Name, s.Usual = len(d.m.Slots), d.layer, d.prefix+s.Name, true
	d.m.Slots = append(d.m.Slots, s)
	return s
}

// Matrix declares a dense matrix of rows rows of cols values.
func (d *Decl) Matrix(dst *Matrix, op OpKind, name string, rows, cols int) *Slot {
	s := d.add(&Slot{Op: op, Name: name, Dims: []int{cols, rows}, mat: dst})
	dst.ID = s.ID
	return s
}

// Vector declares a vector of n values, a bias unless As says otherwise.
func (d *Decl) Vector(dst *Vector, op OpKind, name string, n int) *Slot {
	s := d.add(&Slot{Op: op, Name: name, Dims: []int{n}, Role: RoleBias, vec: dst})
	dst.ID = s.ID
	return s
}

// Table declares small weights of several rows that are kept in float32, row after row: biases by expert.
func (d *Decl) Table(dst *Vector, op OpKind, name string, rows, cols int) *Slot {
	s := d.Vector(dst, op, name, cols)
	s.Dims = []int{cols, rows}
	return s
}

// Norm declares the weights of a norm over n values.
func (d *Decl) Norm(dst *Vector, op OpKind, name string, n int) *Slot {
	return d.Vector(dst, op, name, n).As(RoleNorm)
}

// Experts declares one projection of every expert of the layer, each of rows rows of cols values.
func (d *Decl) Experts(dst *Experts, op OpKind, proj Projection, rows, cols int) *Slot {
	name := [...]string{"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"}[proj]
	s := d.add(&Slot{Op: op, Proj: proj, Name: name, Dims: []int{cols, rows, d.H.NExpert}, exp: dst})
	if proj == ProjDown {
		s.Role = RoleDown
	}
	dst.ID, dst.Rows, dst.Cols = s.ID, rows, cols
	return s
}

// Singles says that files with one tensor per expert exist.
func (d *Decl) Singles(s *Slot) {
	blk, proj := d.prefix, [...]string{"gate", "up", "down"}[s.Proj]
	s.Single = func(e int) string { return fmt.Sprintf("%sffn_%s.%d.weight", blk, proj, e) }
}

// Tensors are the tensors that the slot stands for: one, or one for each of the layer's experts.
func (s *Slot) Tensors(single bool, visit func(name string, dims []int)) {
	if !single || s.Single == nil {
		visit(s.Name, s.Dims)
		return
	}
	for e := range s.Dims[2] {
		visit(s.Single(e), s.Dims[:2])
	}
}

// AddVector gives the model a weight that its file does not have, before a backend is opened: for who tries what a layer
// could ask for.
func (m *Model) AddVector(dst *Vector, x []float32) {
	s := &Slot{ID: len(m.Slots), Layer: m.NLayer, Name: fmt.Sprintf("added.%d", len(m.Slots)), Dims: []int{len(x)}, Bytes: 4 * int64(len(x)), vec: dst}
	*dst = Vector{X: x, ID: s.ID}
	m.Slots = append(m.Slots, s)
}

// LayerSlots are the slots of a layer, -1 for those outside.
func (m *Model) LayerSlots(il int) []*Slot {
	at := func(il int) int {
		i, _ := slices.BinarySearchFunc(m.Slots, il, func(s *Slot, il int) int { return s.Layer - il })
		return i
	}
	return m.Slots[at(il):at(il+1)]
}

// opBytes are the dense bytes that the ops from..to of a layer read in one pass.
func (m *Model) opBytes(il int, from, to OpKind) (n int64) {
	for _, s := range m.LayerSlots(il) {
		if s.exp == nil && s.Op >= from && s.Op <= to {
			n += s.Bytes
		}
	}
	return n
}

// MixerBytes are the weight bytes that one pass of a layer's mixer reads.
func (m *Model) MixerBytes(il int) int64 { return m.opBytes(il, OpAttnNorm, OpAttnOut) }

// RoutingBytes are those of what comes before its experts: norm, router, and the gate of a shared expert.
func (m *Model) RoutingBytes(il int) int64 { return m.opBytes(il, OpMoENorm, OpRouter) }

// DenseBytes is the number of weight bytes outside the routed experts.
func (m *Model) DenseBytes() (n int64) {
	for _, s := range m.Slots {
		if s.exp == nil {
			n += s.Bytes
		}
	}
	return n
}

// LayerDenseBytes is DenseBytes of one layer.
func (m *Model) LayerDenseBytes(il int) int64 { return m.opBytes(il, 0, nOpKinds) }

// StateBytes is the memory of a sequence of n positions: keys and values of this type, compressed rows, recurrences. A window
// is counted as far as its positions go.
func (m *Model) StateBytes(kv KV, n int) (bytes int64) {
	for i := range m.Layers {
		switch a := m.Layers[i].Mixer.(type) {
		case *Attention:
			seen := n
			if a.Window > 0 {
				seen = min(n, a.Window)
			}
			bytes += kv.Bytes(int64(a.KVHeads) * int64(seen) * int64(a.KeyLen+a.ValueLen))
		case *Latent:
			bytes += kv.Bytes(int64(n) * int64(a.Rank+a.RotLen))
		case *DeltaNet:
			bytes += 4 * a.StateValues()
		}
	}
	return bytes
}
