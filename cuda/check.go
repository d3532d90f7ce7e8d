//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"strings"

	dev "sluice/cuda/kernels"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// Name is the backend's in messages.
const Name = "a device"

// checkModel refuses a model that the device's kernels do not compute, naming the layer and what it asks for, or the tensor
// and its type or the number.
func checkModel(m *model.Model) error {
	for i := range m.Layers {
		y := &m.Layers[i]
		for _, what := range []string{y.BeyondNorms(), checkMixer(y.Mixer, m), checkFFN(y.FFN)} {
			if what != "" {
				return m.Refuse(Name, i, what)
			}
		}
	}
	name := m.File.Name()
	for _, s := range m.Slots {
		if s.Bytes == 0 || s.Vector() != nil {
			continue
		}
		var typ kernels.Type
		switch {
		case s.Role == model.RoleRouter: // multiplied in float32 whatever its type
			typ = kernels.F32
		case s.Matrix() != nil:
			typ = s.Matrix().Type
		default:
			typ = s.Experts().Type
		}
		switch cols := s.Dims[0]; {
		case !dev.Supported(typ):
			return fmt.Errorf("cuda: %s: tensor %q: type %s has no device kernel (have %s)", name, s.Name, typ, deviceTypes())
		case !dev.Fits(typ, cols):
			return fmt.Errorf("cuda: %s: tensor %q: rows of %d, want a multiple of %d up to 2^24 for %s on a device", name, s.Name, cols, max(32, typ.BlockLen()), typ)
		}
	}
	if !dev.HeadFits(m.HeadDim) {
		return fmt.Errorf("cuda: %s: heads of %d values: want a multiple of 8 up to %d on a device", name, m.HeadDim, dev.MaxHeadDim)
	}
	return nil
}

func checkMixer(x model.Mixer, m *model.Model) string {
	switch a := x.(type) {
	case *model.Attention:
		h := &m.Hparams
		switch {
		case a.Beyond() != "":
			return a.Beyond()
		case a.Heads != h.NHead || a.KVHeads != h.NKVHead || a.KeyLen != h.HeadDim:
			return fmt.Sprintf("%s of %d heads over %d of %d beside others of %d over %d of %d", a.Kind(), a.Heads, a.KVHeads, a.KeyLen, h.NHead, h.NKVHead, h.HeadDim)
		case a.Scale != float32(1/math.Sqrt(float64(a.KeyLen))):
			return a.Kind() + " with a scale of its own"
		case a.Window > 0:
			return a.Kind() + " over a window"
		case a.Rope != 0:
			return a.Kind() + " with a rotary embedding of its own"
		}
		return ""
	case nil:
		return "a layer without mixer"
	default:
		return x.Kind()
	}
}

func checkFFN(x model.FFN) string {
	switch f := x.(type) {
	case *model.MoE:
		switch {
		case f.Beyond() != "":
			return f.Beyond()
		case !f.Router.BLogit.Absent():
			return "a router with biased logits"
		case f.Shared != nil && f.Shared.GateV.Absent():
			return "a shared expert without a gate"
		}
		return ""
	case nil:
		return "a layer without feed-forward"
	default:
		return x.Kind() + " feed-forward"
	}
}

// checkRouter refuses what the table arm cannot follow.
func checkRouter(m *model.Model, il int, r *moe.Router) error {
	if err := dev.Routable(r); err != nil {
		return fmt.Errorf("cuda: %s: layer %d: %w (the host arm can)", m.File.Name(), il, err)
	}
	return nil
}

func deviceTypes() string {
	var names []string
	for t := kernels.Type(0); t < 64; t++ {
		if dev.Supported(t) {
			names = append(names, t.String())
		}
	}
	return strings.Join(names, ", ")
}
