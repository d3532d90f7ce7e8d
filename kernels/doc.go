// Package kernels is the arithmetic of a decoder on the CPU: products of quantised weights with activations, and the
// float operations around them (norm, rotary embedding, softmax, attention), with a team of threads to share them out.
//
// It knows ggml's element types and nothing of models, files or experts: it imports no other package of this module, keeps
// no buffers between calls, and a caller decides what is multiplied with what. It does not train, and its quantiser
// serves synthetic models and tests, not publishing.
//
// # Weights
//
// A Mat is a matrix as it lies in a GGUF file: rows of blocks, little-endian, each row a whole number of blocks.
//
//	F32 F16 BF16                         one element per "block"
//	Q4_0 Q4_1 Q5_0 Q5_1 Q8_0             32 elements, one or two float16 scales
//	IQ4_NL MXFP4                         32 elements, codes that index 16 fixed values
//	Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS      256 elements, scales of 16 or 32 elements relative to one or two float16
//
// Of ggml's other types only the sizes are known (Type.Supported is false).
//
// # Activations
//
// NewActs and SetRow put rows of float32 into the form that a weight type multiplies fastest (Type.ActKind): as they
// are, or as int8 with a float32 scale per 32 or per 256. MulRows then adds scale*scale*integer block by block; or, with
// float32 activations and any weight type, the products of the dequantised row in the order of Dot.
//
// # Same bits everywhere
//
// Every function has one portable Go implementation, always compiled, which fixes the result: integer sums are exact,
// float32 operations happen in a written order, and no product is fused with a sum. Results do not depend on how a call
// is cut into rows, on the number of threads or on the machine, unless a faster instruction set says otherwise (ISA, SetISA).
//
// NaN and Inf are passed on, never turned into a plausible number. Functions panic on arguments that do not fit together,
// which is their caller's mistake; sizes that come from a file are checked by NewMat, which returns an error.
package kernels
