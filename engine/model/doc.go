// Package model turns a GGUF file with a mixture-of-experts model into layers as data, and says what computes them.
//
//	arch.go      the table of architectures; qwen.go, olmoe.go, mixtral.go: one file a family
//	hparams.go   the numbers of one model, read from GGUF metadata and checked
//	layer.go     what a layer is: a mixer, a feed-forward, norms, a router of its own
//	slot.go      every weight, declared once; parts.go: the parts that architectures share
//	load.go      slots bound to tensors, everything in the file accounted for
//	model.go     an opened model
//	backend.go   the seam: Backend, State, Pass, and what an engine hands to a backend
//	ops.go, opinfo.go  what backends record of their ops
//
// A Model is read-only once opened. Nothing here reads flags or the environment, and nothing is logged: what a caller must
// know comes back as values (Notes).
package model
