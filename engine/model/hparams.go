package model

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
	NNextN      int     // nextn_predict_layers: layers of block_count behind the forward path's, not among NLayer

	Ropes []kernels.RopeConfig // the rotary embeddings; layers name theirs by its place
}

// Keys reads the architecture's own keys of a file. It keeps the first error, so that reading is a list of fields.
type Keys struct {
	f      *gguf.File
	prefix string
	err    error
}

// Fail keeps an error, unless there is one.
func (k *Keys) Fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf("%s: "+format, append([]any{k.f.Name()}, args...)...)
	}
}

// Need reads a number that every file must state.
func (k *Keys) Need(key string, lo, hi uint64) int {
	if k.err == nil {
		_, k.err = k.f.NeedUint(k.prefix + key)
	}
	return k.Count(key, 0, lo, hi)
}

// Count reads a whole number from lo to hi; def where the key is absent.
func (k *Keys) Count(key string, def, lo, hi uint64) int {
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

// Float reads a finite float32.
func (k *Keys) Float(key string, def float64) float64 {
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

// Positive is Float for a number above 0.
func (k *Keys) Positive(key string, def float64) float64 {
	v := k.Float(key, def)
	if k.err == nil && !(v > 0) {
		k.err = fmt.Errorf("%s: key %q: got %g, want above 0", k.f.Name(), k.prefix+key, v)
	}
	return v
}

// Eps reads what is added to a mean square before its root is taken.
func (k *Keys) Eps(key string) float32 {
	if k.err == nil {
		_, k.err = k.f.NeedFloat(k.prefix + key)
	}
	v := k.Float(key, 0)
	if k.err == nil && !(v >= 0) {
		k.err = fmt.Errorf("%s: key %q: got %g, want 0 or more", k.f.Name(), k.prefix+key, v)
	}
	return float32(v)
}

// Text reads a string.
func (k *Keys) Text(key, def string) string {
	if k.err != nil {
		return def
	}
	v, err := k.f.String(k.prefix+key, def)
	if err != nil {
		k.err = err
	}
	return v
}

// Refuse fails when a key that would change the computation is present with another value than the
// neutral one: a wrong answer in silence is worse than no answer.
func (k *Keys) Refuse(key string, neutral float64) {
	if v := k.Float(key, neutral); k.err == nil && v != neutral {
		k.err = k.variant(key, v, neutral)
	}
}

// RefuseCount is Refuse for keys that hold integers.
func (k *Keys) RefuseCount(key string, neutral uint64) {
	if k.err != nil {
		return
	}
	v, err := k.f.Uint(k.prefix+key, neutral)
	if k.err = err; err == nil && v != neutral {
		k.err = k.variant(key, v, neutral)
	}
}

func (k *Keys) variant(key string, got, neutral any) error {
	return fmt.Errorf("%s: key %q: got %v, but architecture %q is computed here without it (want %v or absent)",
		k.f.Name(), k.prefix+key, got, k.prefix[:len(k.prefix)-1], neutral)
}

// Heads reads a head count that may be stored per layer; all layers must agree.
func (k *Keys) Heads(key string, nLayer int, def uint64) int {
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
func readHparams(f *gguf.File, extra []Arch) (*Hparams, *Arch, error) {
	name, err := f.NeedString("general.architecture")
	if err != nil {
		return nil, nil, err
	}
	a, err := FindArch(name, extra)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	h := &Hparams{Arch: name}
	if h.Name, err = f.String("general.name", ""); err != nil {
		return nil, nil, err
	}
	k := &Keys{f: f, prefix: name + "."}
	a.Read(k, h)
	return h, a, k.err
}

// Transformer reads the sizes that every architecture here has.
func (k *Keys) Transformer(h *Hparams) {
	h.NLayer = k.Need("block_count", 1, maxLayers)
	h.NCtxTrain = k.Need("context_length", 1, 1<<31-1)
	h.NEmbd = k.Need("embedding_length", 1, maxWidth)
	h.NHead = k.Heads("attention.head_count", h.NLayer, 0)
	if h.NHead == 0 {
		k.Fail("key %q is missing", k.prefix+"attention.head_count")
	}
	h.NKVHead = k.Heads("attention.head_count_kv", h.NLayer, uint64(h.NHead))
	if k.err != nil {
		return
	}
	if h.NHead%h.NKVHead != 0 {
		k.Fail("%d query heads do not divide over %d key/value heads", h.NHead, h.NKVHead)
	}
	h.HeadDim = k.Count("attention.key_length", uint64(h.NEmbd/h.NHead), 1, maxHeadDim)
	vDim := k.Count("attention.value_length", uint64(h.HeadDim), 1, maxHeadDim)
	h.NRot = k.Count("rope.dimension_count", uint64(h.HeadDim), 1, maxHeadDim)
	h.NExpert = k.Need("expert_count", 1, maxExperts)
	h.NExpertUsed = k.Need("expert_used_count", 1, maxExperts)
	h.NFF = k.Count("feed_forward_length", 0, 0, maxWidth)
	h.NFFExpert = k.Count("expert_feed_forward_length", 0, 0, maxWidth)
	h.NFFShared = k.Count("expert_shared_feed_forward_length", 0, 0, maxWidth)
	h.NormEps = k.Eps("attention.layer_norm_rms_epsilon")
	h.WeightScale = float32(k.Float("expert_weights_scale", 1))
	if vDim != h.HeadDim {
		k.Fail("key length %d and value length %d differ: not supported for %s", h.HeadDim, vDim, h.Arch)
	}
	if h.NRot > h.HeadDim || h.NRot%2 != 0 {
		k.Fail("key %q: got %d, want an even number up to the head's %d", k.prefix+"rope.dimension_count", h.NRot, h.HeadDim)
	}
	if h.NExpertUsed > h.NExpert {
		k.Fail("key %q: got %d, want 1..%d (expert_count)", k.prefix+"expert_used_count", h.NExpertUsed, h.NExpert)
	}
}

// Weighing reads how selected weights are scaled. norm is the architecture's rule, which a file's key wins over.
func (k *Keys) Weighing(h *Hparams, norm bool) {
	if k.err == nil {
		h.NormWeight, k.err = k.f.Bool(k.prefix+"expert_weights_norm", norm)
	}
	if h.WeightScale == 0 {
		h.WeightScale = 1 // writers store 0 for "not scaled"
	}
	if !(h.WeightScale > 0) {
		k.Fail("key %q: got %g, want above 0", k.prefix+"expert_weights_scale", h.WeightScale)
	}
}

// ExpertWidth settles the width of an expert whose own key is absent: width, 0 if that is not known either.
func (k *Keys) ExpertWidth(h *Hparams, width int) {
	if h.NFFExpert == 0 {
		h.NFFExpert = width
	}
	if h.NFFExpert == 0 {
		k.Fail("expert width unknown: neither %q nor %q is set", k.prefix+"expert_feed_forward_length", k.prefix+"feed_forward_length")
	}
}

// NoShared refuses shared experts.
func (k *Keys) NoShared(h *Hparams) {
	if h.NFFShared != 0 {
		k.Fail("key %q: got %d, but architecture %q is computed here without shared experts", k.prefix+"expert_shared_feed_forward_length", h.NFFShared, h.Arch)
	}
}

// NextN reads how many of the layers are not part of the forward path.
func (k *Keys) NextN(h *Hparams) {
	h.NNextN = k.Count("nextn_predict_layers", 0, 0, maxLayers)
	if h.NNextN >= h.NLayer && h.NNextN > 0 {
		k.Fail("key %q: got %d, want fewer than the %d layers", k.prefix+"nextn_predict_layers", h.NNextN, h.NLayer)
		return
	}
	h.NLayer -= h.NNextN
}

// Plain refuses the keys by which other models ask for something else than plain causal attention over everything before,
// softmax routing and unscaled sums.
func (k *Keys) Plain() {
	for _, key := range []string{
		"attention.clamp_kqv", "attention.scale", "attention.max_alibi_bias", "attn_logit_softcapping",
		"final_logit_softcapping", "logit_scale", "residual_scale", "embedding_scale",
	} {
		k.Refuse(key, 0)
	}
	for _, key := range []string{"attention.sliding_window", "expert_group_count", "nextn_predict_layers"} {
		k.RefuseCount(key, 0)
	}
	k.RefuseCount("expert_gating_func", gatingSoftmax)
	if k.err != nil {
		return
	}
	causal, err := k.f.Bool(k.prefix+"attention.causal", true)
	if k.err = err; err == nil && !causal {
		k.Fail("key %q: got false, but only causal attention is computed here", k.prefix+"attention.causal")
	}
}

// Rope reads base and scaling. The rule for an absent or zero factor, for the old key
// rope.scale_linear and for yarn's attention factor is llama.cpp's.
func (k *Keys) Rope(h *Hparams) {
	var r kernels.RopeConfig
	defer func() { h.Ropes = append(h.Ropes, r) }()
	r.NRot = h.NRot
	r.Base = k.Positive("rope.freq_base", 10000)
	r.ScalingType = k.Text("rope.scaling.type", "linear")
	r.Factor = 1
	for _, key := range []string{"rope.scaling.factor", "rope.scale_linear"} {
		if k.Float(key, 0) != 0 {
			r.Factor = k.Positive(key, 1)
			break
		}
	}
	r.OrigCtx = k.Count("rope.scaling.original_context_length", uint64(h.NCtxTrain), 1, 1<<31-1)
	r.AttnFactor = k.Positive("rope.scaling.attn_factor", 1)
	r.BetaFast = k.Positive("rope.scaling.yarn_beta_fast", 32)
	r.BetaSlow = k.Positive("rope.scaling.yarn_beta_slow", 1)
	if k.err != nil {
		return
	}
	switch r.ScalingType {
	case "none", "linear":
		if r.ScalingType == "none" {
			r.Factor = 1
		}
	case "yarn":
		r.ExtFactor = k.Float("rope.scaling.yarn_ext_factor", 1)
		k.Refuse("rope.scaling.yarn_log_multiplier", 0)
		// Files state either nothing, a neutral 1, or the very magnitude that follows from the factor.
		magnitude := kernels.YarnMagnitude(r.Factor, 1)
		if v := k.Float("rope.scaling.yarn_attn_factor", 1); k.err == nil && v != 1 && !(math.Abs(v-magnitude) < 1e-3) {
			k.err = fmt.Errorf("%s: key %q: got %g, want 1 or the %.4f of scaling factor %g", k.f.Name(), k.prefix+"rope.scaling.yarn_attn_factor", v, magnitude, r.Factor)
		}
	default:
		k.Fail("key %q: got %q, want none, linear or yarn", k.prefix+"rope.scaling.type", r.ScalingType)
	}
}
