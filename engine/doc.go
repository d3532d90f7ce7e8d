// Package engine runs models: prompts into tokens, for one sequence or several at once.
//
//	engine.go    Engine: a model, an expert source, a backend; Pass: rows of several sequences computed together
//	seq.go       Seq: one sequence's tokens and state
//	session.go   Session: an engine with one sequence; Config
//	source.go, budget.go, placement.go  where experts and dense weights are held
//	cachestate.go what an expert cache has come to, as a file
//	taps.go      selection dump and route trace
//	telemetry.go, steplog.go  what each pass took
//	sampler.go, generate.go, perplexity.go  logits to a token, a prompt to text, the quality of a configuration
//
// What a layer computes is package model's matter, and how it is computed package cpu's or a device's. An Engine and its
// sequences belong to one goroutine. Nothing here reads flags or the environment, and nothing is logged.
//
// Greedy output does not depend on threads, arm, cache budget or policy, lanes, I/O mode, prompt chunk, or the sequences that
// share a pass, because every result row is computed from its own inputs in one fixed order; see docs/design/exactness.md.
package engine
