// Package coact answers one question from a selection dump: can the experts of a layer be split over cards so that a
// token's experts rarely cross from one card to another?
//
// Analyse reads the dump three times and keeps counts per layer, never records, so memory does not grow with the file:
//
//  1. survey: tokens and top-k per layer, and a check of every record
//  2. count: how often two experts were picked together, over all tokens and over the fit tokens
//  3. score: every candidate split, on the fit tokens and on the held-out ones
//
// The first 70 % of a layer's tokens, in the order of the file, are the fit tokens: everything that is chosen (which
// experts stand on every card, which card the others go to) is chosen by them. The rest is held out and only scored.
//
// A token costs as many cards as its experts that stand on one card only are spread over, and at least one: an expert
// on every card follows the others. P(single) is the share of tokens that cost one card. Two baselines are scored with
// the same replicated experts: random parts (mean over seeds) and contiguous even parts.
//
// The split starts from eigenvectors of the co-activation graph (Shi and Malik, "Normalized cuts and image
// segmentation", section 2) and is refined by exchanges (Kernighan and Lin, "An efficient heuristic procedure for
// partitioning graphs"); more than two cards by recursion and then between all pairs of cards. All cards get the same
// number of experts, to within one.
//
// The package reads dumps and writes reports and placements (docs/format/placement.md). It moves no weights and knows
// no model: what an exchange between cards costs is for its caller to judge.
package coact
