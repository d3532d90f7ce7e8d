// Package kernels is the device code of the CUDA arm and the arithmetic of its launches: one .cu file an operation, and
// beside it a .go file whose functions turn addresses and shapes into a Launch. The CPU reference of each operation is
// the package of the same name at the module's root (or moe), named in the header of the .cu.
//
// It launches nothing and talks to no driver, so it needs neither cgo nor a build tag; the package driver runs what this
// one describes. A function panics on arguments that do not fit together, which is always our own caller's mistake: what
// comes from a model file is checked with Supported and Fits when the model is loaded.
//
// Matrices lie on the device either as in the file or, for the types that NeedsRepack names, in planes whose loads are
// 16 bytes wide (repack.go has the layouts). Activations are float32 rows, or Q8_1 rows for quantised weights
// (quantize.go). Every buffer starts at a multiple of 256 bytes.
package kernels
