//go:build !noasm

package kernels

// compiledIn says that the assembly of AVX2 and AVX-512 is part of this build.
const compiledIn = true
