//go:build cuda

package cuda_test

import (
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
)

// TestCUDAKinds walks every kind of layer through the device: computed, or refused by name.
func TestCUDAKinds(t *testing.T) {
	for _, arm := range []model.Arm{"table", "host"} {
		refused := []string{"layer.MixerIn", "layer.MixerOut", "layer.FFNIn", "layer.FFNOut",
			"mixer.nil", "mixer.Latent", "mixer.DeltaNet", "ffn.nil", "ffn.Dense", "ffn.Beside",
			"attention.ValueLen", "attention.Window", "attention.Scale", "attention.Rope none", "attention.Rope other",
			"attention.Gate", "attention.Sinks", "attention.Heads",
			"experts.Act gelu", "experts.Act clamped", "experts.BGate", "experts.BUp", "experts.BDown", "experts.Scale",
			"shared.Act", "shared.GateV", "router.BLogit", "router.InScale"}
		if arm == model.ArmTable { // the host arm routes whatever package moe does
			refused = append(refused, "router.Gating sqrt-softplus")
		}
		enginetest.WalkKinds(t, func(m *model.Model) (*engine.Session, error) {
			d := openDevice(t, cuda.Options{})
			return engine.NewSession(m, engine.Config{Device: d, Arm: arm, Ctx: 64, Batch: 32})
		}, refused)
	}
}
