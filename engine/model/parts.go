package model

import (
	"math"

	"sluice/moe"
)

// The parts that architectures are made of, with the tensor names that they have in all of them.

// Ends declares what stands before and behind the layers. tied: output.weight may be absent, and the embedding then
// serves both ends.
func (d *Decl) Ends(tied bool) {
	h, m := d.H, d.m
	d.Matrix(&m.TokEmbd, OpEmbed, "token_embd.weight", h.NVocab, h.NEmbd).As(RoleEmbedding)
	d.Norm(&m.OutNorm, OpOutNorm, "output_norm.weight", h.NEmbd)
	out := d.Matrix(&m.Output, OpOutput, "output.weight", h.NVocab, h.NEmbd).As(RoleOutput)
	if tied {
		out.Often()
	}
}

// Biases says which of an attention's biases files of an architecture usually have; any file may have any.
type Biases struct{ QKV, Out bool }

// Attention declares grouped-query attention over everything before, with its norm. What usual leaves out may be there.
func (d *Decl) Attention(y *Layer, norm QKNorm, neox bool, usual Biases) {
	h := d.H
	nQ, nKV := h.NHead*h.HeadDim, h.NKVHead*h.HeadDim
	a := &Attention{Heads: h.NHead, KVHeads: h.NKVHead, KeyLen: h.HeadDim, ValueLen: h.HeadDim,
		Scale: float32(1 / math.Sqrt(float64(h.HeadDim))), Neox: neox, QKNorm: norm}
	y.Mixer = a
	d.Norm(&y.MixerIn, OpAttnNorm, "attn_norm.weight", h.NEmbd)
	d.Matrix(&a.Q, OpQKV, "attn_q.weight", nQ, h.NEmbd)
	d.Matrix(&a.K, OpQKV, "attn_k.weight", nKV, h.NEmbd)
	d.Matrix(&a.V, OpQKV, "attn_v.weight", nKV, h.NEmbd)
	d.Matrix(&a.O, OpAttnOut, "attn_output.weight", h.NEmbd, nQ)
	switch norm {
	case QKNormHead:
		d.Norm(&a.QNorm, OpRotary, "attn_q_norm.weight", h.HeadDim)
		d.Norm(&a.KNorm, OpRotary, "attn_k_norm.weight", h.HeadDim)
	case QKNormRow:
		d.Norm(&a.QNorm, OpRotary, "attn_q_norm.weight", nQ)
		d.Norm(&a.KNorm, OpRotary, "attn_k_norm.weight", nKV)
	}
	bias := func(dst *Vector, op OpKind, name string, n int, usual bool) {
		if s := d.Vector(dst, op, name, n); usual {
			s.Often()
		} else {
			s.May()
		}
	}
	bias(&a.BQ, OpRotary, "attn_q.bias", nQ, usual.QKV)
	bias(&a.BK, OpRotary, "attn_k.bias", nKV, usual.QKV)
	bias(&a.BV, OpRotary, "attn_v.bias", nKV, usual.QKV)
	bias(&a.BO, OpAttnOut, "attn_output.bias", h.NEmbd, usual.Out)
}

// RoutedExperts declares a feed-forward of experts, with its norm and its router.
func (d *Decl) RoutedExperts(y *Layer, gating moe.Gating) *MoE {
	h := d.H
	f := &MoE{Width: h.NFFExpert}
	f.Router.Rule = moe.Router{NExpert: h.NExpert, NUsed: h.NExpertUsed, Gating: gating, Norm: h.NormWeight, Scale: h.WeightScale}
	y.FFN = f
	d.Norm(&y.FFNIn, OpMoENorm, "ffn_norm.weight", h.NEmbd)
	d.Matrix(&f.Router.W, OpRouter, "ffn_gate_inp.weight", h.NExpert, h.NEmbd).As(RoleRouter)
	d.Experts(&f.Gate, OpGateUp, ProjGate, h.NFFExpert, h.NEmbd)
	d.Experts(&f.Up, OpGateUp, ProjUp, h.NFFExpert, h.NEmbd)
	d.Experts(&f.Down, OpDown, ProjDown, h.NEmbd, h.NFFExpert)
	return f
}

// SharedExpert declares the expert that every row takes, behind a sigmoid gate of its own.
func (d *Decl) SharedExpert(f *MoE) {
	h := d.H
	s := &Shared{Dense: Dense{Width: h.NFFShared}}
	f.Shared = s
	d.Vector(&s.GateV, OpMoENorm, "ffn_gate_inp_shexp.weight", h.NEmbd).As(RoleVector)
	d.Matrix(&s.Gate, OpSharedGateUp, "ffn_gate_shexp.weight", h.NFFShared, h.NEmbd)
	d.Matrix(&s.Up, OpSharedGateUp, "ffn_up_shexp.weight", h.NFFShared, h.NEmbd)
	d.Matrix(&s.Down, OpSharedDown, "ffn_down_shexp.weight", h.NEmbd, h.NFFShared).As(RoleDown)
}
