// Package synth writes mixture-of-experts models with random weights as GGUF files: of any supported architecture,
// geometry and quantisation, for speed measurements and tests where no trained model is at hand. It is not for text:
// such a model writes noise, and its vocabulary is the 256 bytes, a few merges and filler.
//
// Activations stay finite and of a useful size at any depth, because the spread (standard deviation) of the weights is
// chosen per tensor:
//
//	matrices                          1/sqrt(row length): an input of variance one gives an output of variance one
//	token embeddings                  1: the residual stream starts with the spread it keeps, routing depends on the token
//	routers, shared experts' gates    1/sqrt(row length), always F32
//	norms                             ones, F32
//	attention biases (qwen2moe)       0.1, F32
//
// A model larger than a few megabytes is not drawn weight by weight. Runs of 256 weights are drawn and quantised once for
// each pair of type and spread; a tensor is then dealt from that deck, shuffled anew for every tensor and every pass, so
// two rows of a tensor are as good as never equal and writing goes at the speed of copying.
//
// The same configuration gives the same bytes. The weights depend on the seed and on the tensor's place in the model, not
// on how experts are stored: a file with one tensor per expert holds the weights of the merged file of the same seed.
package synth
