// Package cuda is the room of the device side: driver bindings, device kernels and the device arms of the router and
// the forward path, all behind the build tag cuda.
//
// This version has no device arm, so the package holds no code. Building with CUDA=1 is refused rather than answered
// with the CPU engine under another name.
package cuda
