package synth

import (
	"bytes"
	"fmt"
	"strings"

	"sluice/engine/model"
)

// Config says what to write. The zero value with a Type is the preset "tiny".
type Config struct {
	Preset    string   // one of Presets; "" is "tiny"
	Arch      string   // one of Archs; "" is the preset's
	Geometry  Geometry // fields that are not zero replace the preset's
	Type      string   // one of Types, case aside
	Seed      uint64
	PerExpert bool // one tensor per expert and projection, as old Mixtral files have; llama only

	Extra []model.Arch // architectures that Arch may name beside the supported ones

	// RouterSkew makes each layer's router favour some experts: the one of rank r is wanted about r^-RouterSkew as often as
	// the first, which 1 makes Zipf's law. 0 adds nothing to what random weights favour. 0 to MaxRouterSkew.
	RouterSkew float64
}

// Info describes a model: what was written, or would be.
type Info struct {
	Arch     string   `json:"arch"`
	Preset   string   `json:"preset"`
	Type     string   `json:"type"`
	Seed     uint64   `json:"seed"`
	Skew     float64  `json:"router_skew"`
	Geometry Geometry `json:"geometry"`
	Tensors  int      `json:"tensors"`
	Params   int64    `json:"params"`
	// WeightBytes is the sum over all tensors; ActiveBytes what one decoded token reads of it: everything but the
	// experts that were not chosen and the embedding rows of other tokens.
	WeightBytes       int64 `json:"weight_bytes"`
	ActiveBytes       int64 `json:"active_bytes_per_token"`
	ActiveExpertBytes int64 `json:"active_expert_bytes_per_token"`
	ExpertBytes       int64 `json:"expert_bytes"` // one expert of the first layer: gate, up and down
}

// plan is a resolved Config.
type plan struct {
	arch    *model.Arch
	preset  string
	g       Geometry
	mix     mix
	seed    uint64
	skew    float64
	tensors []tensor
}

// resolve fills in what c leaves open and checks the whole.
func (c Config) resolve() (*plan, error) {
	name := c.Preset
	if name == "" {
		name = presets[0].name
	}
	p, err := findPreset(name)
	if err != nil {
		return nil, err
	}
	m := &plan{preset: name, seed: c.Seed, skew: c.RouterSkew}
	arch := c.Arch
	if arch == "" {
		arch = p.arch
	}
	if m.arch, err = model.FindArch(arch, c.Extra); err != nil {
		return nil, fmt.Errorf("synth: architecture %q: want one of %s", arch, strings.Join(Archs(), ", "))
	}
	if m.mix, err = findMix(c.Type); err != nil {
		return nil, err
	}
	if !(c.RouterSkew >= 0 && c.RouterSkew <= MaxRouterSkew) { // written so that NaN fails
		return nil, fmt.Errorf("synth: router skew %v: want 0 to %d", c.RouterSkew, MaxRouterSkew)
	}
	m.g = fitPreset(m.arch, c.Geometry, p.g)
	if err := validate(m.g, m.arch); err != nil {
		return nil, err
	}
	if m.tensors, err = m.list(c.Extra, c.PerExpert); err != nil {
		return nil, err
	}
	if m.skew > 0 {
		skewRouters(m.tensors, m.g, m.seed, m.skew)
	}
	params := 0.0
	for i := range m.tensors {
		n := 1.0
		for _, d := range m.tensors[i].dims {
			n *= float64(d)
		}
		params += n
	}
	if params > maxParams {
		return nil, fmt.Errorf("synth: %.3g parameters, at most %.3g", params, maxParams)
	}
	return m, checkRows(m.tensors)
}

// fitPreset lays g over the preset's sizes, after bending those that the architecture has no choice about.
func fitPreset(arch *model.Arch, g, base Geometry) Geometry {
	if arch.Bend != nil {
		arch.Bend(g, &base)
	}
	if !arch.Shared {
		base.SharedFF = 0
	}
	return over(g, base)
}

func (m *plan) info() Info {
	in := Info{Arch: m.arch.Name, Preset: m.preset, Type: m.mix.name, Seed: m.seed, Skew: m.skew, Geometry: m.g, Tensors: len(m.tensors)}
	experts := int64(0)
	for i := range m.tensors {
		t := &m.tensors[i]
		n := t.bytes()
		in.Params += int64(t.elements())
		in.WeightBytes += n
		switch {
		case strings.Contains(t.source, "_exps."):
			experts += n
			if strings.HasPrefix(t.source, "blk.0.") {
				in.ExpertBytes += n
			}
		case t.name == "token_embd.weight":
			in.ActiveBytes += n / int64(m.g.Vocab)
		default:
			in.ActiveBytes += n
		}
	}
	in.ExpertBytes /= int64(m.g.Experts)
	in.ActiveExpertBytes = experts / int64(m.g.Experts) * int64(m.g.Used)
	in.ActiveBytes += in.ActiveExpertBytes
	return in
}

// Describe returns what Write would write, without writing.
func Describe(c Config) (Info, error) {
	m, err := c.resolve()
	if err != nil {
		return Info{}, err
	}
	return m.info(), nil
}

// Write writes the model to path, under its final name only once it is complete. Memory use is a few megabytes whatever
// the model's size.
func Write(path string, c Config) (Info, error) {
	m, err := c.resolve()
	if err != nil {
		return Info{}, err
	}
	if err := m.writer().WriteFile(path); err != nil {
		return Info{}, fmt.Errorf("synth: %w", err)
	}
	return m.info(), nil
}

// Build returns the model's file as bytes: for small models in tests.
func Build(c Config) ([]byte, error) {
	m, err := c.resolve()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if _, err := m.writer().WriteTo(&buf); err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	return buf.Bytes(), nil
}
