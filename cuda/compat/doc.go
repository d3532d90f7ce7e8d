// Package compat holds no Go code: its include/cuda.h lets gorgonia.org/cu compile with the headers of CUDA 13, and its
// test proves that against declarations of their shape.
package compat
