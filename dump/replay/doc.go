// Package replay answers questions from a route trace (package dump, docs/format/route-trace.md) without running a model:
// what would a drop threshold have saved and cost, and how large must an expert cache be?
//
//	Drop    thresholds and reduced top-k on the recorded rows as they are; with a cache named, also a dynamic
//	        replay that drops while the cache runs, and what the recorded run really did beside both
//	Cache   hit rates of eviction policies at byte budgets, and the LRU hit rate at every budget from one pass
//
// Decisions come from package moe: the rule for one row is moe.MarkRow, the live cache is store.Cache with store.NewPolicy's
// policies, so that a replay and a run cannot come to differ. Two orders of caching exist, and every result says which it
// used:
//
//	OrderBatch  a prompt is one batched pass, and each layer call one batch: every distinct expert is looked up once, all
//	            misses enter, then eviction brings the cache down to the budget and never takes the batch's own experts.
//	            It compares policies, also those that a run cannot have, and agrees with BigMoeOnEdge's route-replay.
//	OrderLive   this engine's cache: calls as they were recorded (a prompt in its chunks), experts in ascending order, room
//	            made before an expert is read. It predicts a run's misses exactly.
//
// A trace of several sequences (columns seq and pass) says which rows were one layer call: rows with the same pass and layer,
// of prompts and decoded ones, each with a phase of its own. There the calls of both orders are the recorded ones. Rows drop
// and are exempt one by one, as in the run; an expert's lookup and its bytes are counted to the phase of the call's first
// row with it, what is read ahead to that of the call's first row, and a call with a decoded row among the decode batches.
//
// Memory does not grow with a trace: state is per layer and expert. Only looking ahead (belady) takes 4 bytes a lookup, and
// prefetch by the last token (last-token) some for each sequence.
// A replay knows what the router chose in the recorded run. Dropping changes activations, and with them what later layers
// choose; no replay can know that.
package replay
