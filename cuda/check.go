//go:build cuda

package cuda

import (
	"fmt"
	"strings"

	dev "sluice/cuda/kernels"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// checkModel refuses a model that the device's kernels do not compute, naming the tensor and its type or the number.
func checkModel(m *model.Model, v *engine.WeightView) error {
	name := m.File.Name()
	matrix := func(tensor string, t kernels.Type, cols int) error {
		switch {
		case tensor == "":
			return nil
		case !dev.Supported(t):
			return fmt.Errorf("cuda: %s: tensor %q: type %s has no device kernel (have %s)", name, tensor, t, deviceTypes())
		case !dev.Fits(t, cols):
			return fmt.Errorf("cuda: %s: tensor %q: rows of %d, want a multiple of %d up to 2^24 for %s on a device", name, tensor, cols, max(32, t.BlockLen()), t)
		}
		return nil
	}
	for _, w := range denseMatrices(v) {
		if err := matrix(w.Name, w.Type, w.Cols); err != nil {
			return err
		}
	}
	for i := range v.Layers {
		ly := &v.Layers[i]
		for _, w := range []engine.ExpertTensor{ly.Gate, ly.Up, ly.Down} {
			if err := matrix(w.Name, w.Type, w.Cols); err != nil {
				return err
			}
		}
		// The router is multiplied in float32 whatever its type.
		if err := matrix(ly.Router.Name, kernels.F32, ly.Router.Cols); err != nil {
			return err
		}
	}
	if !dev.HeadFits(m.HeadDim) {
		return fmt.Errorf("cuda: %s: heads of %d values: want a multiple of 8 up to %d on a device", name, m.HeadDim, dev.MaxHeadDim)
	}
	return nil
}

// checkRouter refuses what the table arm cannot follow.
func checkRouter(m *model.Model, r *moe.Router) error {
	if err := dev.Routable(r); err != nil {
		return fmt.Errorf("cuda: %s: %w (the host arm can)", m.File.Name(), err)
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
