package engine

import (
	"fmt"
	"strings"

	"sluice/moe"
)

// qkNorm says how an architecture normalises queries and keys before the rotary embedding.
type qkNorm uint8

const (
	qkNormNone qkNorm = iota
	qkNormHead        // RMSNorm over each head, weight of headDim (qwen3moe)
	qkNormRow         // RMSNorm over all heads together, weight of nHead*headDim (olmoe)
)

// arch is one row of the table of architectures: what the forward path must know beyond the
// numbers in the file's metadata.
type arch struct {
	name       string // general.architecture
	ropeNeox   bool   // pairs (i, i+n/2); false: neighbours (2i, 2i+1)
	qkNorm     qkNorm
	gating     moe.Gating
	normWeight bool // selected weights renormalised to sum 1 (a file's expert_weights_norm key wins)
	sharedGate bool // has a shared expert behind a sigmoid gate of its own
	tiedOutput bool // output.weight may be absent; token_embd.weight then serves both ends
	perExpert  bool // files with one tensor per expert exist
	ffFromFFN  bool // an expert's width is feed_forward_length when expert_feed_forward_length is absent
	ropeFreqs  bool // rope_freqs.weight may scale the rotary frequencies
}

// archs holds every supported architecture. Facts are from llama.cpp's src/models and the model
// papers: OLMoE (arXiv:2409.02060) does not renormalise, Mixtral (arXiv:2401.04088) takes a softmax
// over the selected logits, which equals a renormalised softmax.
var archs = []arch{
	{name: "qwen3moe", ropeNeox: true, qkNorm: qkNormHead, gating: moe.GatingSoftmax, normWeight: true, tiedOutput: true},
	{name: "qwen2moe", ropeNeox: true, gating: moe.GatingSoftmax, sharedGate: true},
	{name: "olmoe", ropeNeox: true, qkNorm: qkNormRow, gating: moe.GatingSoftmax, ffFromFFN: true},
	{name: "llama", gating: moe.GatingSoftmaxTopK, tiedOutput: true, perExpert: true, ffFromFFN: true, ropeFreqs: true},
}

// Architectures lists the supported values of general.architecture.
func Architectures() []string {
	out := make([]string, len(archs))
	for i := range archs {
		out[i] = archs[i].name
	}
	return out
}

func findArch(name string) (*arch, error) {
	for i := range archs {
		if archs[i].name == name {
			return &archs[i], nil
		}
	}
	return nil, fmt.Errorf("architecture %q is not supported (have %s)", name, strings.Join(Architectures(), ", "))
}
