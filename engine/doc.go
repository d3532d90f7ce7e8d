// Package engine turns a GGUF file with a mixture-of-experts model into tokens.
//
// The parts, in the order a token meets them:
//
//	arch.go      the table of architectures: what differs between model families, one row each
//	hparams.go   the numbers of one model, read from GGUF metadata and checked
//	weights.go   tensors found by full name, shapes checked, everything in the file accounted for
//	experts.go   where each expert's bytes lie in the file, for package moe
//	session.go   one conversation: KV cache, expert source, scratch memory, position
//	walk.go      what computes a session's passes: this processor, or a device (view.go: the weights it takes)
//	forward.go   one chunk of tokens through all layers, on this processor
//	attention.go, ffn.go  the two halves of a layer as jobs for the worker team
//	sampler.go   logits to a token
//	generate.go  prompt to text, with stop rules and separate clocks for prefill and decode
//	perplexity.go the quality of a configuration on a text
//
// A Model is read-only once opened and may serve several Sessions at a time. A Session belongs to
// one goroutine. Nothing here reads flags or the environment, and nothing is logged: what a caller
// must know comes back as values (Notes).
//
// Greedy output does not depend on threads, arm, cache budget or policy, lanes, I/O mode or prompt
// chunk, because every result row is computed from its own inputs in one fixed order; see
// docs/design/exactness.md.
package engine
