// Package first asks whether a CUDA driver answers, before gorgonia.org/cu does in its own initialisation and ends the
// process with a line that helps nobody. When none answers, this package ends the process with one that does.
//
// Package driver imports it for that alone. It imports nothing of Go: the packages of a program are initialised in the
// order of their import paths as far as their own imports are ready, and gorgonia.org/cu needs fmt and os first, which
// need packages that come behind this one in that order.
package first
