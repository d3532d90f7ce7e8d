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
		switch {
		case a.KeyLen != a.ValueLen:
			return fmt.Sprintf("%s with keys of %d and values of %d", a.Kind(), a.KeyLen, a.ValueLen)
		case !a.Sinks.Absent():
			return a.Kind() + " with sinks"
		case a.Gate != model.GateNone:
			return a.Kind() + " with an output gate"
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
	case *model.Dense:
		return checkAct(f.Act)
	case *model.MoE:
		switch {
		case f.Beyond() != "":
			return f.Beyond()
		case f.Shared != nil && checkAct(f.Shared.Act) != "":
			return checkAct(f.Shared.Act)
		}
		return checkAct(f.Act)
	case nil:
		return "a layer without feed-forward"
	default:
		return x.Kind()
	}
}

func checkAct(a model.Activation) string {
	if a != model.SiLU {
		return "activation " + a.String()
	}
	return ""
}
