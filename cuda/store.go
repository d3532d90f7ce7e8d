//go:build cuda

package cuda

import (
	"errors"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine/model"
	"sluice/kernels"
)

// matrix is a matrix on the device.
type matrix struct {
	ptr        dev.Ptr
	typ        kernels.Type
	rows, cols int
}

// product multiplies n rows of activations: f in float32 or q in Q8_1, as the type reads them.
func (w *matrix) product(y, f, q dev.Ptr, n int, o dev.Out) dev.Launch {
	act := f
	if dev.Quantised(w.typ) {
		act = q
	}
	return dev.Product(w.typ, y, w.ptr, act, w.rows, w.cols, n, o)
}

// quantised says whether any of the matrices reads Q8_1 activations.
func quantised(ms ...*matrix) bool {
	for _, m := range ms {
		if m.ptr != 0 && dev.Quantised(m.typ) {
			return true
		}
	}
	return false
}

// weights is a model on the device. Backends share it: nothing in it but the experts' slots changes, and those only inside
// Device.Do.
type weights struct {
	d     *Device
	model *model.Model
	mems  []*driver.Mem
	bytes int64 // of the dense weights

	mats    []matrix  // by slot of the model
	vecs    []dev.Ptr // by slot; 0: absent
	tokEmbd dev.Ptr   // as in the file
	output  matrix

	experts *experts // nil before the first session
	walks   int      // open backends
}

// mat is a matrix of the model on the device.
func (s *weights) mat(m *model.Matrix) *matrix { return &s.mats[m.ID] }

// vec is a vector of the model on the device, 0 if it is absent.
func (s *weights) vec(v *model.Vector) dev.Ptr {
	if v.Absent() {
		return 0
	}
	return s.vecs[v.ID]
}

func loadStore(d *Device, m *model.Model) (*weights, error) {
	if err := checkModel(m); err != nil {
		return nil, err
	}
	s := &weights{d: d, model: m, mats: make([]matrix, len(m.Slots)), vecs: make([]dev.Ptr, len(m.Slots))}
	err := m.Guard(s.load)
	if err == nil {
		err = d.stage.trim()
	}
	if err != nil {
		return nil, errors.Join(err, s.free())
	}
	return s, nil
}

// load copies the dense weights, slot by slot. The embedding stays as it is in the file: rows of it are read, and products
// only where it is the output matrix too.
func (s *weights) load() (err error) {
	m := s.model
	for _, slot := range m.Slots {
		switch {
		case slot.Bytes == 0 || slot.Experts() != nil:
		case slot.Vector() != nil:
			s.vecs[slot.ID], err = s.vector(slot.Name, slot.Vector().X)
		case slot.Role == model.RoleEmbedding:
			s.tokEmbd, err = s.plain(slot.Name, slot.Matrix().Mat)
		case slot.Role == model.RoleRouter:
			s.mats[slot.ID], err = s.matrix(slot.Name, floatRouter(slot.Matrix().Mat))
		default:
			s.mats[slot.ID], err = s.matrix(slot.Name, slot.Matrix().Mat)
		}
		if err != nil {
			return err
		}
	}
	switch w := &m.Output; {
	case !m.Tied():
		s.output = s.mats[w.ID]
	case !dev.NeedsRepack(w.Type):
		s.output = matrix{s.tokEmbd, w.Type, w.Rows, w.Cols}
	default:
		if s.output, err = s.matrix(m.Slots[w.ID].Name, w.Mat); err != nil {
			return err
		}
	}
	return s.d.stage.stream.Sync()
}

// floatRouter is the router in a type whose products take float32 activations: logits are never computed from quantised
// ones.
func floatRouter(t kernels.Mat) kernels.Mat {
	if dev.Supported(t.Type) && !dev.Quantised(t.Type) {
		return t
	}
	f := make([]float32, t.Rows*t.Cols)
	kernels.Dequantize(t.Type, f, t.Data)
	t.Type, t.Data = kernels.F32, float32Bytes(f)
	return t
}

func (s *weights) alloc(n int64, what string) (dev.Ptr, error) {
	m, err := s.d.drv.Alloc(n, what)
	if err != nil {
		return 0, err
	}
	s.mems = append(s.mems, m)
	s.bytes += n
	return m.Ptr, nil
}

func (s *weights) matrix(name string, t kernels.Mat) (matrix, error) {
	ptr, err := s.alloc(dev.DeviceBytes(t.Type, t.Rows, t.Cols), name)
	if err == nil {
		err = s.d.stage.matrix(t.Type, ptr, t.Rows, t.Cols, t.Data)
	}
	return matrix{ptr, t.Type, t.Rows, t.Cols}, err
}

// plain copies a matrix as it is in the file.
func (s *weights) plain(name string, t kernels.Mat) (dev.Ptr, error) {
	ptr, err := s.alloc(int64(len(t.Data)), name)
	if err == nil {
		err = s.d.stage.send(ptr, t.Data)
	}
	return ptr, err
}

func (s *weights) vector(name string, x []float32) (dev.Ptr, error) {
	ptr, err := s.alloc(4*int64(len(x)), name)
	if err == nil {
		err = s.d.stage.send(ptr, float32Bytes(x))
	}
	return ptr, err
}

func (s *weights) free() error {
	err := s.dropExperts()
	for _, m := range s.mems {
		err = errors.Join(err, m.Free())
	}
	s.mems = nil
	return err
}

func (s *weights) dropExperts() error {
	if s.experts == nil {
		return nil
	}
	x := s.experts
	s.experts = nil
	return x.free()
}
