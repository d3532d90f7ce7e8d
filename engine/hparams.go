package engine

import (
	"fmt"
	"math"

	"sluice/engine/gguf"
	"sluice/kernels"
	"sluice/moe"
)

// Limits on what a file may ask for. They are far above any real model and keep a broken file from
// asking for absurd memory before its tensors are looked at.
const (
	maxLayers  = 4096
	maxHeads   = 4096
	maxHeadDim = kernels.MaxHeadDim
	maxExperts = moe.MaxExperts
	maxWidth   = 1 << 20 // embedding or feed-forward width
)

// gatingSoftmax is the value of expert_gating_func that all of these architectures have.
const gatingSoftmax = 1

// Hparams are the numbers of one model. Field comments name the GGUF key behind the architecture's
// prefix.
type Hparams struct {
	Arch        string
	Name        string // general.name
	NLayer      int    // block_count
	NCtxTrain   int    // context_length
	NEmbd       int    // embedding_length
	NHead       int    // attention.head_count
	NKVHead     int    // attention.head_count_kv
	HeadDim     int    // attention.key_length, else NEmbd/NHead
	NRot        int    // rope.dimension_count, else HeadDim
	NFF         int    // feed_forward_length
	NExpert     int    // expert_count
	NExpertUsed int    // expert_used_count
	NFFExpert   int    // expert_feed_forward_length
	NFFShared   int    // expert_shared_feed_forward_length
	NVocab      int    // rows of token_embd.weight
	NormEps     float32
	NormWeight  bool    // expert_weights_norm, else the architecture's rule
	WeightScale float32 // expert_weights_scale, 1 when absent
	Rope        kernels.RopeConfig
}

// keyReader reads architecture-prefixed keys with a sticky error, so that the happy path below
// reads as a list of fields.
type keyReader struct {
	f      *gguf.File
	prefix string
	err    error
}

// need reads a number that every file must state.
func (k *keyReader) need(key string, lo, hi uint64) int {
	if k.err == nil {
		_, k.err = k.f.NeedUint(k.prefix + key)
	}
	return k.count(key, 0, lo, hi)
}

func (k *keyReader) count(key string, def, lo, hi uint64) int {
	if k.err != nil {
		return 0
	}
	full := k.prefix + key
	v, err := k.f.Uint(full, def)
	if err != nil {
		k.err = err
		return 0
	}
	if v < lo || v > hi {
		k.err = fmt.Errorf("%s: key %q: got %d, want %d..%d", k.f.Name(), full, v, lo, hi)
		return 0
	}
	return int(v)
}

func (k *keyReader) float(key string, def float64) float64 {
	if k.err != nil {
		return def
	}
	v, err := k.f.Float(k.prefix+key, def)
	if err == nil && !(math.Abs(v) <= math.MaxFloat32) { // NaN fails too
		err = fmt.Errorf("%s: key %q: got %g, want a finite float32", k.f.Name(), k.prefix+key, v)
	}
	if err != nil {
		k.err = err
	}
	return v
}

func (k *keyReader) positive(key string, def float64) float64 {
	v := k.float(key, def)
	if k.err == nil && !(v > 0) {
		k.err = fmt.Errorf("%s: key %q: got %g, want above 0", k.f.Name(), k.prefix+key, v)
	}
	return v
}

// eps reads what is added to a mean square before its root is taken.
func (k *keyReader) eps(key string) float32 {
	if k.err == nil {
		_, k.err = k.f.NeedFloat(k.prefix + key)
	}
	v := k.float(key, 0)
	if k.err == nil && !(v >= 0) {
		k.err = fmt.Errorf("%s: key %q: got %g, want 0 or more", k.f.Name(), k.prefix+key, v)
	}
	return float32(v)
}

func (k *keyReader) text(key, def string) string {
	if k.err != nil {
		return def
	}
	v, err := k.f.String(k.prefix+key, def)
	if err != nil {
		k.err = err
	}
	return v
}

// refuse fails when a key that would change the computation is present with another value than the
// neutral one: a wrong answer in silence is worse than no answer.
func (k *keyReader) refuse(key string, neutral float64) {
	if v := k.float(key, neutral); k.err == nil && v != neutral {
		k.err = k.variant(key, v, neutral)
	}
}

// refuseCount is refuse for keys that hold integers.
func (k *keyReader) refuseCount(key string, neutral uint64) {
	if k.err != nil {
		return
	}
	v, err := k.f.Uint(k.prefix+key, neutral)
	if k.err = err; err == nil && v != neutral {
		k.err = k.variant(key, v, neutral)
	}
}

func (k *keyReader) variant(key string, got, neutral any) error {
	return fmt.Errorf("%s: key %q: got %v, but architecture %q is computed here without it (want %v or absent)",
		k.f.Name(), k.prefix+key, got, k.prefix[:len(k.prefix)-1], neutral)
}

// heads reads a head count that may be stored per layer; all layers must agree.
func (k *keyReader) heads(key string, nLayer int, def uint64) int {
	if k.err != nil {
		return 0
	}
	full := k.prefix + key
	vs, err := k.f.UintOrArray(full, nLayer)
	if err != nil {
		k.err = err
		return 0
	}
	if vs == nil {
		return int(def)
	}
	for i, v := range vs {
		if v != vs[0] {
			k.err = fmt.Errorf("%s: key %q: layer %d has %d, layer 0 has %d: head counts that differ by layer are not supported",
				k.f.Name(), full, i, v, vs[0])
			return 0
		}
	}
	if vs[0] < 1 || vs[0] > maxHeads {
		k.err = fmt.Errorf("%s: key %q: got %d, want 1..%d", k.f.Name(), full, vs[0], maxHeads)
		return 0
	}
	return int(vs[0])
}

// readHparams reads and checks the model's numbers. Errors name the key, what it holds and what was
// wanted.
func readHparams(f *gguf.File) (*Hparams, *arch, error) {
	name, err := f.NeedString("general.architecture")
	if err != nil {
		return nil, nil, err
	}
	a, err := findArch(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	h := &Hparams{Arch: name}
	if h.Name, err = f.String("general.name", ""); err != nil {
		return nil, nil, err
	}
	k := &keyReader{f: f, prefix: name + "."}
	h.NLayer = k.need("block_count", 1, maxLayers)
	h.NCtxTrain = k.need("context_length", 1, 1<<31-1)
	h.NEmbd = k.need("embedding_length", 1, maxWidth)
	h.NHead = k.heads("attention.head_count", h.NLayer, 0)
	if k.err == nil && h.NHead == 0 {
		k.err = fmt.Errorf("%s: key %q is missing", f.Name(), k.prefix+"attention.head_count")
	}
	h.NKVHead = k.heads("attention.head_count_kv", h.NLayer, uint64(h.NHead))
	if k.err != nil {
		return nil, nil, k.err
	}
	if h.NHead%h.NKVHead != 0 {
		return nil, nil, fmt.Errorf("%s: %d query heads do not divide over %d key/value heads", f.Name(), h.NHead, h.NKVHead)
	}
	h.HeadDim = k.count("attention.key_length", uint64(h.NEmbd/h.NHead), 1, maxHeadDim)
	vDim := k.count("attention.value_length", uint64(h.HeadDim), 1, maxHeadDim)
	h.NRot = k.count("rope.dimension_count", uint64(h.HeadDim), 1, maxHeadDim)
	h.NExpert = k.need("expert_count", 1, maxExperts)
	h.NExpertUsed = k.need("expert_used_count", 1, maxExperts)
	h.NFF = k.count("feed_forward_length", 0, 0, maxWidth)
	h.NFFExpert = k.count("expert_feed_forward_length", 0, 0, maxWidth)
	h.NFFShared = k.count("expert_shared_feed_forward_length", 0, 0, maxWidth)
	h.NormEps = k.eps("attention.layer_norm_rms_epsilon")
	h.WeightScale = float32(k.float("expert_weights_scale", 1))
	if k.err != nil {
		return nil, nil, k.err
	}
	if vDim != h.HeadDim {
		return nil, nil, fmt.Errorf("%s: key length %d and value length %d differ: not supported for %s", f.Name(), h.HeadDim, vDim, name)
	}
	if h.NRot > h.HeadDim || h.NRot%2 != 0 {
		return nil, nil, fmt.Errorf("%s: key %q: got %d, want an even number up to the head's %d", f.Name(), k.prefix+"rope.dimension_count", h.NRot, h.HeadDim)
	}
	if h.NExpertUsed > h.NExpert {
		return nil, nil, fmt.Errorf("%s: key %q: got %d, want 1..%d (expert_count)", f.Name(), k.prefix+"expert_used_count", h.NExpertUsed, h.NExpert)
	}
	if h.NormWeight, err = f.Bool(k.prefix+"expert_weights_norm", a.normWeight); err != nil {
		return nil, nil, err
	}
	if h.WeightScale == 0 {
		h.WeightScale = 1 // writers store 0 for "not scaled"
	}
	if !(h.WeightScale > 0) {
		return nil, nil, fmt.Errorf("%s: key %q: got %g, want above 0", f.Name(), k.prefix+"expert_weights_scale", h.WeightScale)
	}
	h.NFFExpert = expertWidth(h, a)
	if h.NFFExpert == 0 {
		return nil, nil, fmt.Errorf("%s: expert width unknown: neither %q nor %q is set", f.Name(), k.prefix+"expert_feed_forward_length", k.prefix+"feed_forward_length")
	}
	if a.sharedGate && h.NFFShared == 0 {
		h.NFFShared = h.NFF
	}
	if !a.sharedGate && h.NFFShared != 0 {
		return nil, nil, fmt.Errorf("%s: key %q: got %d, but architecture %q is computed here without shared experts", f.Name(), k.prefix+"expert_shared_feed_forward_length", h.NFFShared, name)
	}
	if err := refuseVariants(k); err != nil {
		return nil, nil, err
	}
	if err := readRope(k, h); err != nil {
		return nil, nil, err
	}
	return h, a, nil
}

// refuseVariants looks for keys by which other models of these families ask for something else to be
// computed.
func refuseVariants(k *keyReader) error {
	for _, key := range []string{
		"attention.clamp_kqv", "attention.scale", "attention.max_alibi_bias", "attn_logit_softcapping",
		"final_logit_softcapping", "logit_scale", "residual_scale", "embedding_scale",
	} {
		k.refuse(key, 0)
	}
	for _, key := range []string{"attention.sliding_window", "expert_group_count", "nextn_predict_layers"} {
		k.refuseCount(key, 0)
	}
	k.refuseCount("expert_gating_func", gatingSoftmax)
	if k.err != nil {
		return k.err
	}
	causal, err := k.f.Bool(k.prefix+"attention.causal", true)
	if err == nil && !causal {
		err = fmt.Errorf("%s: key %q: got false, but only causal attention is computed here", k.f.Name(), k.prefix+"attention.causal")
	}
	return err
}

func expertWidth(h *Hparams, a *arch) int {
	switch {
	case h.NFFExpert != 0:
		return h.NFFExpert
	case a.ffFromFFN:
		return h.NFF
	default:
		return h.NFF / h.NExpertUsed // older qwen files hold only the dense width
	}
}

// readRope reads base and scaling. The rule for an absent or zero factor, for the old key
// rope.scale_linear and for yarn's attention factor is llama.cpp's.
func readRope(k *keyReader, h *Hparams) error {
	r := &h.Rope
	r.NRot = h.NRot
	r.Base = k.positive("rope.freq_base", 10000)
	r.ScalingType = k.text("rope.scaling.type", "linear")
	r.Factor = 1
	for _, key := range []string{"rope.scaling.factor", "rope.scale_linear"} {
		if k.float(key, 0) != 0 {
			r.Factor = k.positive(key, 1)
			break
		}
	}
	r.OrigCtx = k.count("rope.scaling.original_context_length", uint64(h.NCtxTrain), 1, 1<<31-1)
	r.AttnFactor = k.positive("rope.scaling.attn_factor", 1)
	r.BetaFast = k.positive("rope.scaling.yarn_beta_fast", 32)
	r.BetaSlow = k.positive("rope.scaling.yarn_beta_slow", 1)
	if k.err != nil {
		return k.err
	}
	switch r.ScalingType {
	case "none", "linear":
		if r.ScalingType == "none" {
			r.Factor = 1
		}
	case "yarn":
		r.ExtFactor = k.float("rope.scaling.yarn_ext_factor", 1)
		k.refuse("rope.scaling.yarn_log_multiplier", 0)
		// Files state either nothing, a neutral 1, or the very magnitude that follows from the factor.
		magnitude := kernels.YarnMagnitude(r.Factor, 1)
		if v := k.float("rope.scaling.yarn_attn_factor", 1); k.err == nil && v != 1 && !(math.Abs(v-magnitude) < 1e-3) {
			k.err = fmt.Errorf("%s: key %q: got %g, want 1 or the %.4f of scaling factor %g", k.f.Name(), k.prefix+"rope.scaling.yarn_attn_factor", v, magnitude, r.Factor)
		}
	default:
		return fmt.Errorf("%s: key %q: got %q, want none, linear or yarn", k.f.Name(), k.prefix+"rope.scaling.type", r.ScalingType)
	}
	return k.err
}
