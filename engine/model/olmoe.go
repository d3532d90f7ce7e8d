package model

import (
	"fmt"

	"sluice/moe"
)

// OLMoE (arXiv:2409.02060): rows of heads are normalised together, the selected weights are not renormalised.
var olmoe = Arch{
	Name: "olmoe", Eps: 1e-5, RopeBase: 1e4,
	Read: readWholeWidth,
	Declare: func(d *Decl) {
		d.Ends(false)
		d.Each(func(y *Layer) {
			d.Attention(y, QKNormRow, true, Biases{})
			d.RoutedExperts(y, moe.GatingSoftmax)
		})
	},
	Bend: func(asked Geometry, preset *Geometry) { // no shared kv heads
		preset.KVHeads = preset.Heads
		if asked.Heads != 0 {
			preset.KVHeads = asked.Heads
		}
	},
	Fits: func(g *Geometry) error {
		if err := squareQuery("olmoe")(g); err != nil {
			return err
		}
		if g.KVHeads != g.Heads {
			return fmt.Errorf("olmoe: %d kv heads, want as many as heads, %d", g.KVHeads, g.Heads)
		}
		return nil
	},
	Keys: func(g *Geometry, put func(string, any)) { // their feed_forward_length is the experts'
		put("feed_forward_length", uint32(g.FF))
	},
}

// readWholeWidth is for files whose feed_forward_length is the width of an expert.
func readWholeWidth(k *Keys, h *Hparams) {
	k.Transformer(h)
	k.Weighing(h, false)
	k.ExpertWidth(h, h.NFF)
	k.NoShared(h)
	k.Plain()
	k.Rope(h)
}

// squareQuery refuses a query projection that is not square where no key of an architecture's files could say so.
func squareQuery(arch string) func(g *Geometry) error {
	return func(g *Geometry) error {
		if g.Heads*g.HeadDim != g.Embd {
			return fmt.Errorf("%s: heads x head dim = %d x %d = %d, want embd %d", arch, g.Heads, g.HeadDim, g.Heads*g.HeadDim, g.Embd)
		}
		return nil
	}
}
