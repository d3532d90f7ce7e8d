package model

import "sluice/moe"

// Qwen3 MoE: heads are normalised, the selected weights renormalised.
var qwen3moe = Arch{
	Name: "qwen3moe", Eps: 1e-6, RopeBase: 1e6,
	Read: func(k *Keys, h *Hparams) {
		k.Transformer(h)
		k.Weighing(h, true)
		k.ExpertWidth(h, h.NFF/max(1, h.NExpertUsed)) // older files hold only the dense width
		k.NoShared(h)
		k.Plain()
		k.Rope(h)
	},
	Declare: func(d *Decl) {
		d.Ends(true)
		d.Each(func(y *Layer) {
			d.Attention(y, QKNormHead, true, Biases{})
			d.RoutedExperts(y, moe.GatingSoftmax)
		})
	},
	Keys: qwenKeys,
}

// Qwen2 MoE: biases, and a shared expert with its own gate.
var qwen2moe = Arch{
	Name: "qwen2moe", Shared: true, Eps: 1e-6, RopeBase: 1e6,
	Read: func(k *Keys, h *Hparams) {
		k.Transformer(h)
		k.Weighing(h, false)
		k.ExpertWidth(h, h.NFF/max(1, h.NExpertUsed))
		if h.NFFShared == 0 {
			h.NFFShared = h.NFF
		}
		k.Plain()
		k.Rope(h)
	},
	Declare: func(d *Decl) {
		d.Ends(false)
		d.Each(func(y *Layer) {
			d.Attention(y, QKNormNone, true, Biases{QKV: true})
			d.SharedExpert(d.RoutedExperts(y, moe.GatingSoftmax))
		})
	},
	Bend: func(asked Geometry, preset *Geometry) { // four experts wide unless said otherwise
		if preset.SharedFF == 0 {
			ff := preset.FF
			if asked.FF != 0 {
				ff = asked.FF
			}
			preset.SharedFF = 4 * ff
		}
	},
	Fits: squareQuery("qwen2moe"),
	Keys: func(g *Geometry, put func(string, any)) {
		qwenKeys(g, put)
		put("expert_shared_feed_forward_length", uint32(g.SharedFF))
	},
}

func qwenKeys(g *Geometry, put func(string, any)) {
	put("feed_forward_length", uint32(g.DenseFF))
	put("expert_feed_forward_length", uint32(g.FF))
}
