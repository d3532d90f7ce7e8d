//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/engine"
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

// layer is a layer's dense weights; 0: absent.
type layer struct {
	attnNorm, ffnNorm, bq, bk, bv, bo, qNorm, kNorm, sharedGate dev.Ptr

	wq, wk, wv, wo, router      matrix
	sharedG, sharedUp, sharedDn matrix
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

// weights is a model on the device. Sessions share it: nothing in it but the experts' slots changes, and those only inside
// Device.Do.
type weights struct {
	d     *Device
	model *model.Model
	view  engine.WeightView
	mems  []*driver.Mem
	bytes int64 // of the dense weights

	tokEmbd dev.Ptr // as in the file
	output  matrix
	outNorm dev.Ptr
	layers  []layer

	experts *experts // nil before the first session
	walks   int      // open sessions
}

// denseMatrices are the matrices that products read, but for the routers.
func denseMatrices(v *engine.WeightView) []engine.Tensor {
	all := []engine.Tensor{v.TokEmbd, v.Output}
	for i := range v.Layers {
		ly := &v.Layers[i]
		all = append(all, ly.Wq, ly.Wk, ly.Wv, ly.Wo)
		if ly.SharedGate != nil {
			all = append(all, ly.SharedGateW, ly.SharedUp, ly.SharedDown)
		}
	}
	return all
}

func loadStore(d *Device, m *model.Model) (*weights, error) {
	s := &weights{d: d, model: m, view: m.Weights()}
	if err := checkModel(m, &s.view); err != nil {
		return nil, err
	}
	err := m.Guard(s.load)
	if err == nil {
		err = d.stage.trim()
	}
	if err != nil {
		return nil, errors.Join(err, s.free())
	}
	return s, nil
}

// load copies the dense weights.
func (s *weights) load() error {
	v := &s.view
	var err error
	put := func(dst *matrix, t engine.Tensor) {
		if err == nil {
			*dst, err = s.matrix(t)
		}
	}
	vec := func(dst *dev.Ptr, what string, layer int, x []float32) {
		if err == nil && x != nil {
			*dst, err = s.vector(fmt.Sprintf("blk.%d.%s", layer, what), x)
		}
	}
	if s.tokEmbd, err = s.plain(v.TokEmbd); err != nil {
		return err
	}
	if v.Output.Name == v.TokEmbd.Name && !dev.NeedsRepack(v.Output.Type) {
		s.output = matrix{s.tokEmbd, v.Output.Type, v.Output.Rows, v.Output.Cols}
	} else {
		put(&s.output, v.Output)
	}
	if err == nil {
		s.outNorm, err = s.vector("output_norm", v.OutNorm)
	}
	s.layers = make([]layer, len(v.Layers))
	for i := range v.Layers {
		from, to := &v.Layers[i], &s.layers[i]
		vec(&to.attnNorm, "attn_norm", i, from.AttnNorm)
		put(&to.wq, from.Wq)
		put(&to.wk, from.Wk)
		put(&to.wv, from.Wv)
		put(&to.wo, from.Wo)
		vec(&to.bq, "attn_q.bias", i, from.Bq)
		vec(&to.bk, "attn_k.bias", i, from.Bk)
		vec(&to.bv, "attn_v.bias", i, from.Bv)
		vec(&to.bo, "attn_output.bias", i, from.Bo)
		vec(&to.qNorm, "attn_q_norm", i, from.QNorm)
		vec(&to.kNorm, "attn_k_norm", i, from.KNorm)
		vec(&to.ffnNorm, "ffn_norm", i, from.FFNNorm)
		put(&to.router, floatRouter(from.Router))
		if from.SharedGate != nil {
			vec(&to.sharedGate, "ffn_gate_inp_shexp", i, from.SharedGate)
			put(&to.sharedG, from.SharedGateW)
			put(&to.sharedUp, from.SharedUp)
			put(&to.sharedDn, from.SharedDown)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(err, s.d.stage.stream.Sync())
}

// floatRouter is the router in a type whose products take float32 activations: logits are never computed from quantised
// ones.
func floatRouter(t engine.Tensor) engine.Tensor {
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

func (s *weights) matrix(t engine.Tensor) (matrix, error) {
	ptr, err := s.alloc(dev.DeviceBytes(t.Type, t.Rows, t.Cols), t.Name)
	if err == nil {
		err = s.d.stage.matrix(t.Type, ptr, t.Rows, t.Cols, t.Data)
	}
	return matrix{ptr, t.Type, t.Rows, t.Cols}, err
}

// plain copies a matrix as it is in the file.
func (s *weights) plain(t engine.Tensor) (dev.Ptr, error) {
	ptr, err := s.alloc(int64(len(t.Data)), t.Name)
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
