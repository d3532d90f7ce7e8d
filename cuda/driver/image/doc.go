// Package image holds the device code of this binary: one fatbin for each source of cuda/kernels, with code for some
// compute capabilities and PTX for newer ones, and the line that says which. build.sh makes the folder kernels with
// nvcc; cuda/env.sh makes a stand-in for an emulated device, which brings its own kernels and reads none.
package image
