package engine_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/moe"
)

// TestKinds walks every kind of layer through the processor: computed, or refused by name.
func TestKinds(t *testing.T) {
	for _, arm := range []model.Arm{"host", "table"} {
		enginetest.WalkKinds(t, func(m *model.Model) (*engine.Session, error) {
			return engine.NewSession(m, engine.Config{Arm: arm, Threads: 2})
		}, []string{"layer.MixerIn", "layer.MixerOut", "layer.FFNIn", "layer.FFNOut",
			"mixer.nil", "mixer.Latent", "mixer.DeltaNet", "ffn.nil", "ffn.Beside",
			"attention.ValueLen", "attention.Gate", "attention.Sinks", "attention.Heads",
			"experts.Act gelu", "experts.Act clamped", "experts.BGate", "experts.BUp", "experts.BDown", "experts.Scale",
			"shared.Act", "router.InScale"})
	}
}

// TestChangesAreAll: a field that a layer gains is in the list that backends are walked with.
func TestChangesAreAll(t *testing.T) {
	var names []string
	for _, c := range enginetest.Changes() {
		names = append(names, c.Name)
	}
	// Weights that a kind cannot do without, and what other fields stand for.
	without := []string{"attention.Q", "attention.K", "attention.V", "attention.O", "attention.OutGate", "attention.QNorm", "attention.KNorm",
		"attention.KVHeads", "attention.KeyLen", "layer.Index", "layer.Mixer", "layer.FFN", "experts.Router", "experts.Width", "experts.Gate",
		"experts.Up", "experts.Down", "experts.Shared", "shared.Dense", "router.W", "router.Rule", "router.NExpert", "router.NUsed",
		"router.NGroupUsed", "router.Bias", "router.NGroup"}
	for prefix, v := range map[string]any{"layer": model.Layer{}, "attention": model.Attention{}, "experts": model.MoE{}, "shared": model.Shared{},
		"router": model.Router{}, "router ": moe.Router{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			name := strings.TrimSpace(prefix) + "." + typ.Field(i).Name
			if !slices.Contains(without, name) && !slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, name) }) {
				t.Errorf("%s: no change of it is walked through the backends", name)
			}
		}
	}
}
