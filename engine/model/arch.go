package model

import (
	"fmt"
	"strings"
)

// Arch is one architecture: what its files' metadata says, and the layers that follow from it. A new one is a file of its
// own and a row of the table below.
type Arch struct {
	Name   string // general.architecture
	Shared bool   // has an expert that every row takes

	// Read reads the metadata; k keeps the first error.
	Read func(k *Keys, h *Hparams)
	// Declare declares layers and weights. h is complete and checked.
	Declare func(d *Decl)

	// Bend adapts a preset's sizes to those that the architecture has no choice about, before asked is laid over them;
	// nil: nothing to adapt. For gguf synth, as are the fields below.
	Bend func(asked Geometry, preset *Geometry)
	// Fits says what a geometry must have that no key of such files could say otherwise; nil: nothing more than any other.
	Fits func(g *Geometry) error
	// Keys gives the metadata of a model of that geometry, as writers of such files write it, behind the keys that all
	// have.
	Keys func(g *Geometry, put func(key string, value any))
	// Eps and RopeBase are the constants of the published models.
	Eps, RopeBase float32
}

// archs holds every supported architecture. Facts are from llama.cpp's src/models and the model papers.
var archs = []Arch{qwen3moe, qwen2moe, olmoe, mixtral}

// Archs returns the supported architectures.
func Archs() []Arch { return append([]Arch(nil), archs...) }

// Architectures lists the supported values of general.architecture.
func Architectures() []string {
	out := make([]string, len(archs))
	for i := range archs {
		out[i] = archs[i].Name
	}
	return out
}

// FindArch finds an architecture among the supported ones and those given.
func FindArch(name string, extra []Arch) (*Arch, error) {
	for _, list := range [][]Arch{archs, extra} {
		for i := range list {
			if list[i].Name == name {
				return &list[i], nil
			}
		}
	}
	return nil, fmt.Errorf("architecture %q is not supported (have %s)", name, strings.Join(Architectures(), ", "))
}

// Geometry holds a model's sizes.
type Geometry struct {
	Layers   int `json:"layers"`    // block_count
	Embd     int `json:"embd"`      // embedding_length: width of the residual stream
	Heads    int `json:"heads"`     // attention.head_count
	KVHeads  int `json:"kv_heads"`  // attention.head_count_kv; olmoe has as many as Heads
	HeadDim  int `json:"head_dim"`  // attention.key_length and value_length
	Experts  int `json:"experts"`   // expert_count
	Used     int `json:"used"`      // expert_used_count
	FF       int `json:"ff"`        // width of one expert
	SharedFF int `json:"shared_ff"` // width of qwen2moe's shared expert; 0 elsewhere
	DenseFF  int `json:"dense_ff"`  // feed_forward_length where experts do not use it: no tensor has this size
	Vocab    int `json:"vocab"`     // number of tokens, at least 300
	Context  int `json:"context"`   // context_length
}
