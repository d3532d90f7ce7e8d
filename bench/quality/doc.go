// Package quality measures what saving expert reads costs in quality, at equal reads. Run scores one text with two ways to
// save: the cache-aware drop policy at several thresholds, and fewer experts per token. Both run in decode mode, one token a
// step through an expert cache of the same budget, and each is one curve of perplexity and of KL divergence from the undropped
// run over the bytes read. A Report prints the points and draws the curves.
//
// It measures a model on a text: a divergence on one text says little about another one, and nothing about chat.
//
//	run.go     the measurement
//	store.go   the undropped run's logits, kept for the divergence
//	report.go  the figures, and the comparison at equal reads
//	text.go    the table
//	plot.go    the curves
package quality
