package model

import "sluice/moe"

// Mixtral (arXiv:2401.04088), whose files say "llama": a softmax over the selected logits, which equals a renormalised
// softmax. Old files have one tensor per expert, and some bring factors of the rotary frequencies.
var mixtral = Arch{
	Name: "llama", Eps: 1e-5, RopeBase: 1e6,
	Read: readWholeWidth,
	Declare: func(d *Decl) {
		d.Ends(true)
		d.Vector(&d.m.RopeFactor, OpRotary, "rope_freqs.weight", d.H.NRot/2).May().As(RoleFactor)
		d.Each(func(y *Layer) {
			d.Attention(y, QKNormNone, false, Biases{})
			f := d.RoutedExperts(y, moe.GatingSoftmaxTopK)
			for _, e := range []*Experts{&f.Gate, &f.Up, &f.Down} {
				d.Singles(d.m.Slots[e.ID])
			}
		})
	},
	Keys: func(g *Geometry, put func(string, any)) {
		put("feed_forward_length", uint32(g.FF))
		put("rope.dimension_count", uint32(g.HeadDim))
		put("vocab_size", uint32(g.Vocab))
	},
}
