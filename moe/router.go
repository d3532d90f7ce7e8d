package moe

import (
	"fmt"
	"math"
	"slices"

	"sluice/kernels"
)

// Limits of a router, checked by Validate and by the arms' constructors.
const (
	// MaxExperts bounds NExpert. A device keeps the scores of one row in shared memory (4 bytes an expert) beside its
	// keys (8 bytes), and 4096 experts fill 48 KiB exactly.
	MaxExperts = 4096
	// MaxScale bounds Router.Scale, so that no weight and no sum of weights can overflow. Models in use have 1 to 3.
	MaxScale = 65536
	// MinWeightSum is the least divisor of a renormalisation: the smallest normal float16. llama.cpp clamps to the same
	// number, so a row whose weights are all tiny gets the same small weights on both sides instead of being blown up.
	MinWeightSum = 6.103515625e-5
)

// Gating is the rule that turns logits into selection scores and weights.
type Gating uint8

const (
	// GatingSoftmax selects by the softmax over all experts and weighs by the selected probabilities (qwen3moe, olmoe).
	GatingSoftmax Gating = iota
	// GatingSoftmaxTopK selects by the logits and weighs by the softmax over the selected (mixtral, gpt-oss).
	GatingSoftmaxTopK
	// GatingSigmoid selects by sigmoid plus selection bias and weighs by the sigmoid alone (deepseek v3, glm4moe).
	GatingSigmoid
	// GatingSqrtSoftplus selects by sqrt(softplus) plus selection bias and weighs by that alone (deepseek v4).
	GatingSqrtSoftplus
)

// String is the gating's name as messages and recordings spell it.
func (g Gating) String() string {
	switch g {
	case GatingSoftmax:
		return "softmax"
	case GatingSoftmaxTopK:
		return "softmax-topk"
	case GatingSigmoid:
		return "sigmoid"
	case GatingSqrtSoftplus:
		return "sqrt-softplus"
	}
	return fmt.Sprintf("gating(%d)", uint8(g))
}

// Router says how one layer routes. It is read only after Validate; any number of calls may share it.
//
// # The recipe
//
// Every implementation (host arm, table arm, device kernels) follows these steps for each row, so that all of them agree
// in every bit on the same logits. Everything is IEEE float32, round to nearest even, denormals kept; no multiplication
// is contracted with an addition; Exp is kernels.Exp.
//
//  1. Check, ids ascending: the first logit that is NaN or +Inf is an error; so is a row of -Inf only. -Inf is a legal
//     logit of an expert that must not win.
//  2. Probability p[i] of expert i:
//     softmax: max = greatest logit; e[i] = Exp(l[i] - max); sum = ((e[0] + e[1]) + e[2]) + ... ids ascending from 0;
//     p[i] = e[i] / sum.
//     softmax-topk: p[i] = l[i].
//     sigmoid: p[i] = 1 / (1 + Exp(-l[i])).
//     sqrt-softplus: p[i] = kernels.SqrtSoftplus(l[i]).
//  3. Score s[i] = p[i] + Bias[i], or p[i] without a bias.
//  4. Groups (NGroup > 1; group g holds the ids g*n to g*n+n-1, n = NExpert/NGroup). Group score: with a bias, the sum of
//     the two greatest scores in the group (of one if n is 1), greatest first (DeepSeek-V3, section 2.1.2 and its
//     reference code); without, the greatest score (DeepSeek-V2, group-limited greedy). The NGroupUsed groups of the
//     greatest group score stay, the lower group id first on a tie. Scores of the other groups become -Inf: not 0,
//     which would beat a negative biased score.
//  5. Selection: the NUsed greatest scores in descending order, the lower id first on a tie. -0 equals +0. Slot j holds
//     the j-th.
//  6. Weight of slot j:
//     softmax, sigmoid, sqrt-softplus: w[j] = p of its expert as step 2 made it, never score - bias (a sigmoid of 1e-8 under a bias of
//     12 would come back as 0).
//     softmax-topk: max = l of slot 0; e[j] = Exp(l[j] - max); sum in slot order from slot 0; w[j] = e[j] / sum.
//  7. Norm: sum = w[0] + w[1] + ... in slot order; a sum below MinWeightSum becomes MinWeightSum; w[j] = w[j] / sum.
//  8. Scale: w[j] = w[j] * Scale.
//
// Dropping continues from here: see Drop.
type Router struct {
	NExpert int       // experts of the layer (GGUF expert_count), 1 to MaxExperts
	NUsed   int       // experts of a token, the effective top-k (expert_used_count), 1 to NExpert
	Gating  Gating    // expert_gating_func
	Norm    bool      // renormalise the selected weights (expert_weights_norm)
	Scale   float32   // factor on every weight (expert_weights_scale); a model without the key has 1
	Bias    []float32 // NExpert, added to the score for the selection only (exp_probs_b); nil: none

	NGroup     int // groups of experts (expert_group_count); 0 or 1: no groups
	NGroupUsed int // groups a token may use (expert_group_used_count)
}

// Validate says whether the router is one that the arms can follow. Call it once, at load: the arms rely on it.
func (r *Router) Validate() error {
	if r.NExpert < 1 || r.NExpert > MaxExperts {
		return fmt.Errorf("moe: router: %d experts, want 1 to %d", r.NExpert, MaxExperts)
	}
	if r.NUsed < 1 || r.NUsed > r.NExpert {
		return fmt.Errorf("moe: router: %d experts used, want 1 to %d", r.NUsed, r.NExpert)
	}
	if r.Gating > GatingSqrtSoftplus {
		return fmt.Errorf("moe: router: unknown gating %d, want %s, %s, %s or %s", uint8(r.Gating), GatingSoftmax, GatingSoftmaxTopK, GatingSigmoid, GatingSqrtSoftplus)
	}
	if !(r.Scale > 0 && r.Scale <= MaxScale) { // written so that NaN fails
		return fmt.Errorf("moe: router: weight scale %v, want above 0 up to %d", r.Scale, MaxScale)
	}
	if err := r.validateBias(); err != nil {
		return err
	}
	return r.validateGroups()
}

func (r *Router) validateBias() error {
	if r.Bias == nil {
		return nil
	}
	// A bias on bare logits belongs to the router's matrix product, before Route sees them (gpt-oss has it there).
	if r.Gating == GatingSoftmaxTopK {
		return fmt.Errorf("moe: router: selection bias with gating %s, want %s or %s", r.Gating, GatingSoftmax, GatingSigmoid)
	}
	if len(r.Bias) != r.NExpert {
		return fmt.Errorf("moe: router: selection bias of %d values, want %d", len(r.Bias), r.NExpert)
	}
	for i, b := range r.Bias {
		if b != b || math.IsInf(float64(b), 0) {
			return fmt.Errorf("moe: router: selection bias of expert %d is %v, want a finite number", i, b)
		}
	}
	return nil
}

func (r *Router) validateGroups() error {
	if r.NGroup < 0 || r.NGroupUsed < 0 {
		return fmt.Errorf("moe: router: %d of %d expert groups, want no negative count", r.NGroupUsed, r.NGroup)
	}
	if !r.grouped() {
		if r.NGroupUsed > 1 {
			return fmt.Errorf("moe: router: %d expert groups used of %d, want at most 1", r.NGroupUsed, r.NGroup)
		}
		return nil
	}
	// Without finite scores, -Inf could not tell a masked group from an expert that the logits exclude.
	if r.Gating == GatingSoftmaxTopK {
		return fmt.Errorf("moe: router: %d expert groups with gating %s, want %s or %s", r.NGroup, r.Gating, GatingSoftmax, GatingSigmoid)
	}
	if r.NExpert%r.NGroup != 0 {
		return fmt.Errorf("moe: router: %d experts do not divide into %d groups", r.NExpert, r.NGroup)
	}
	if r.NGroupUsed < 1 || r.NGroupUsed > r.NGroup {
		return fmt.Errorf("moe: router: %d expert groups used, want 1 to %d", r.NGroupUsed, r.NGroup)
	}
	if reach := r.NGroupUsed * (r.NExpert / r.NGroup); r.NUsed > reach {
		return fmt.Errorf("moe: router: %d experts used, but %d groups of %d hold only %d", r.NUsed, r.NGroupUsed, r.NExpert/r.NGroup, reach)
	}
	return nil
}

func (r *Router) grouped() bool { return r.NGroup > 1 }

// selectRow is the recipe in plain steps for one row. logits: NExpert, checked (checkRow). prob, score: NExpert of
// scratch. group, groupScore: NGroup of scratch. expert, weight: NUsed results in slot order.
func (r *Router) selectRow(logits, prob, score []float32, group []int32, groupScore []float32, expert []int32, weight []float32) {
	r.probabilities(prob, logits) // step 2
	copy(score, prob)             // step 3
	for i, b := range r.Bias {
		score[i] += b
	}
	if r.grouped() { // step 4
		r.maskGroups(score, group, groupScore)
	}
	topK(expert, score)        // step 5
	for j, e := range expert { // step 6
		weight[j] = prob[e]
	}
	if r.Gating == GatingSoftmaxTopK {
		softmax(weight, weight, weight[0])
	}
	if r.Norm { // step 7
		var sum float32
		for _, w := range weight {
			sum += w
		}
		if sum < MinWeightSum {
			sum = MinWeightSum
		}
		for j := range weight {
			weight[j] /= sum
		}
	}
	for j, w := range weight { // step 8
		weight[j] = float32(w * r.Scale)
	}
}

func (r *Router) probabilities(prob, logits []float32) {
	switch r.Gating {
	case GatingSoftmax:
		max := logits[0]
		for _, l := range logits {
			if l > max {
				max = l
			}
		}
		softmax(prob, logits, max)
	case GatingSoftmaxTopK:
		copy(prob, logits)
	case GatingSigmoid:
		for i, l := range logits {
			prob[i] = 1 / (1 + kernels.Exp(-l))
		}
	case GatingSqrtSoftplus:
		for i, l := range logits {
			prob[i] = kernels.SqrtSoftplus(l)
		}
	}
}

// softmax sets dst to the softmax of src, whose maximum is max, summing in index order. dst may be src.
func softmax(dst, src []float32, max float32) {
	var sum float32
	for i, x := range src {
		e := kernels.Exp(x - max)
		dst[i] = e
		sum += e
	}
	for i := range dst {
		dst[i] /= sum
	}
}

func (r *Router) maskGroups(score []float32, group []int32, groupScore []float32) {
	n := r.NExpert / r.NGroup
	for g := range groupScore {
		groupScore[g] = r.groupScore(score[g*n : g*n+n])
	}
	topK(group, groupScore)
	for g := range groupScore {
		if !slices.Contains(group, int32(g)) {
			for i := g * n; i < g*n+n; i++ {
				score[i] = float32(math.Inf(-1))
			}
		}
	}
}

// topK fills dst with the indices of the len(dst) greatest scores, greatest first, the lower index first on a tie.
func topK(dst []int32, score []float32) {
	n := 0
	for i, s := range score {
		if n == len(dst) {
			if s <= score[dst[n-1]] {
				continue
			}
		} else {
			n++
		}
		// Indices come ascending, so an equal score that is already in the list has the lower one and stays in front.
		j := n - 1
		for ; j > 0 && s > score[dst[j-1]]; j-- {
			dst[j] = dst[j-1]
		}
		dst[j] = int32(i)
	}
}

// groupScore is the score of the group that holds these scores (step 4).
func (r *Router) groupScore(score []float32) float32 {
	best, second := float32(math.Inf(-1)), float32(math.Inf(-1))
	for _, s := range score {
		switch {
		case s > best:
			best, second = s, best
		case s > second:
			second = s
		}
	}
	if r.Bias == nil || len(score) == 1 {
		return best
	}
	return best + second
}
