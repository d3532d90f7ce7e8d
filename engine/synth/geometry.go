package synth

import (
	"fmt"
	"strings"

	"sluice/engine/model"
)

// Geometry holds a model's sizes. In Config a zero field means "as the preset says".
type Geometry = model.Geometry

type preset struct {
	name, arch string
	g          Geometry
}

// The large ones are the published sizes of the models they are named after.
var presets = [...]preset{
	{"tiny", "qwen3moe", Geometry{Layers: 2, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 8, Used: 2,
		FF: 256, DenseFF: 512, Vocab: 320, Context: 512}},
	{"small", "qwen3moe", Geometry{Layers: 6, Embd: 512, Heads: 8, KVHeads: 4, HeadDim: 64, Experts: 32, Used: 4,
		FF: 512, DenseFF: 2048, Vocab: 4096, Context: 8192}},
	{"mixtral-like", "llama", Geometry{Layers: 4, Embd: 512, Heads: 8, KVHeads: 2, HeadDim: 64, Experts: 8, Used: 2,
		FF: 1792, DenseFF: 1792, Vocab: 4096, Context: 8192}},
	{"qwen2moe-like", "qwen2moe", Geometry{Layers: 4, Embd: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Experts: 16, Used: 4,
		FF: 256, SharedFF: 1024, DenseFF: 1024, Vocab: 4096, Context: 8192}},
	{"olmoe-1b-7b", "olmoe", Geometry{Layers: 16, Embd: 2048, Heads: 16, KVHeads: 16, HeadDim: 128, Experts: 64, Used: 8,
		FF: 1024, DenseFF: 1024, Vocab: 50304, Context: 8192}},
	{"qwen3-30b-a3b", "qwen3moe", Geometry{Layers: 48, Embd: 2048, Heads: 32, KVHeads: 4, HeadDim: 128, Experts: 128, Used: 8,
		FF: 768, DenseFF: 6144, Vocab: 151936, Context: 8192}},
	{"qwen3-30b-a3b-slim", "qwen3moe", Geometry{Layers: 8, Embd: 2048, Heads: 32, KVHeads: 4, HeadDim: 128, Experts: 128, Used: 8,
		FF: 768, DenseFF: 6144, Vocab: 32000, Context: 8192}},
}

// Presets lists the names that Config.Preset takes.
func Presets() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return names
}

// Archs lists the architectures that Config.Arch takes, as general.architecture spells them.
func Archs() []string { return model.Architectures() }

func findPreset(name string) (preset, error) {
	for _, p := range presets {
		if p.name == name {
			return p, nil
		}
	}
	return preset{}, fmt.Errorf("synth: preset %q: want one of %s", name, strings.Join(Presets(), ", "))
}

// over returns g with its zero fields taken from base.
func over(g, base Geometry) Geometry {
	for _, f := range []struct{ dst, src *int }{
		{&g.Layers, &base.Layers}, {&g.Embd, &base.Embd}, {&g.Heads, &base.Heads}, {&g.KVHeads, &base.KVHeads},
		{&g.HeadDim, &base.HeadDim}, {&g.Experts, &base.Experts}, {&g.Used, &base.Used}, {&g.FF, &base.FF},
		{&g.SharedFF, &base.SharedFF}, {&g.DenseFF, &base.DenseFF}, {&g.Vocab, &base.Vocab}, {&g.Context, &base.Context},
	} {
		if *f.dst == 0 {
			*f.dst = *f.src
		}
	}
	return g
}

// Bounds that readers of such files put on them, and a total that no product of sizes below can wrap.
const (
	minVocab   = 300 // bytes, merges and the end-of-text token
	maxLayers  = 512
	maxExperts = 512
	maxSize    = 1 << 24
	maxParams  = 1e13
)

// validate says which size is wrong for arch.
func validate(g Geometry, arch *model.Arch) error {
	for _, s := range []struct {
		name        string
		v, min, max int
	}{
		{"layers", g.Layers, 1, maxLayers}, {"embd", g.Embd, 1, maxSize}, {"heads", g.Heads, 1, maxSize},
		{"kv heads", g.KVHeads, 1, maxSize}, {"head dim", g.HeadDim, 2, maxSize}, {"experts", g.Experts, 2, maxExperts},
		{"used", g.Used, 1, g.Experts}, {"ff", g.FF, 1, maxSize}, {"shared ff", g.SharedFF, 0, maxSize},
		{"dense ff", g.DenseFF, 1, maxSize}, {"vocab", g.Vocab, minVocab, maxSize}, {"context", g.Context, 1, 1 << 30},
	} {
		if s.v < s.min || s.v > s.max {
			return fmt.Errorf("synth: %s %d: want %d to %d", s.name, s.v, s.min, s.max)
		}
	}
	if g.Heads%g.KVHeads != 0 {
		return fmt.Errorf("synth: %d heads are no multiple of %d kv heads", g.Heads, g.KVHeads)
	}
	if g.HeadDim%2 != 0 {
		return fmt.Errorf("synth: head dim %d is odd: positions rotate pairs", g.HeadDim)
	}
	if arch.Fits != nil {
		if err := arch.Fits(&g); err != nil {
			return fmt.Errorf("synth: %w", err)
		}
	}
	if g.SharedFF > 0 && !arch.Shared {
		var have []string
		for _, a := range model.Archs() {
			if a.Shared {
				have = append(have, a.Name)
			}
		}
		return fmt.Errorf("synth: shared ff %d: %s has no shared expert, only %s", g.SharedFF, arch.Name, strings.Join(have, ", "))
	}
	return nil
}
