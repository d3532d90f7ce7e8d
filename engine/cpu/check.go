package cpu

import (
	"fmt"

	"sluice/engine/model"
)

// check refuses a model with a layer that asks for something else than is computed here.
func check(c *model.Config) error {
	m := c.Model
	for i := range m.Layers {
		y := &m.Layers[i]
		for _, what := range []string{y.BeyondNorms(), checkMixer(y.Mixer), checkFFN(y.FFN)} {
			if what != "" {
				return m.Refuse(Name, i, what)
			}
		}
		a, first := y.Mixer.(*model.Attention), m.Layers[0].Mixer.(*model.Attention)
		if a.O.Cols != first.O.Cols {
			return m.Refuse(Name, i, fmt.Sprintf("attention of %d values beside others of %d", a.O.Cols, first.O.Cols))
		}
		if c.KV == model.KVQ8 && a.KeyLen%32 != 0 {
			return model.Settingf("kv type q8_0: heads of %d are no multiple of its block of 32: want f16 or f32", a.KeyLen)
		}
	}
	return nil
}

func checkMixer(x model.Mixer) string {
	switch a := x.(type) {
	case *model.Attention:
		return a.Beyond()
	case nil:
		return "a layer without mixer"
	default:
		return x.Kind()
	}
}

func checkFFN(x model.FFN) string {
	switch f := x.(type) {
	case *model.Dense:
		return f.Act.Beyond()
	case *model.MoE:
		return f.Beyond()
	case nil:
		return "a layer without feed-forward"
	default:
		return x.Kind()
	}
}
