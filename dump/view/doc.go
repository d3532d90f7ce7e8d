// Package view turns recordings into one HTML file to look at: how often each expert of each layer was picked, what was in
// memory, read and dropped over time, and how even and how repetitive each layer's routing is. The file needs nothing else:
// data, style and script are in it, it asks nothing of any network, and its size is bounded whatever the recordings' length.
//
// Analyse reads a recording twice, first its extent and then its counts, in memory that does not grow with the file; Write
// puts recordings into a page. It judges nothing (dump/replay and dump/coact do).
//
//	scan.go     both formats as one stream of cells, a cell being one token in one layer
//	clock.go    turns and steps of a trace as one time axis
//	extent.go   first pass: layers, experts, length
//	grid.go     into how many bins experts and time are counted
//	analyse.go  second pass: the counts
//	layer.go    figures per layer: entropy, reuse
//	write.go    the page; page/ has its parts
//
// Time is counted in tokens: one tick is one token's way through all layers.
package view
