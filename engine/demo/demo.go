// Package demo carries the small trained mixture-of-experts model that runs when no model file is
// named: TinyMoE, 17.8 million parameters, quantised to q4_k_m. README.md beside it tells where its
// corpus is from, how it was trained and what it can do. Weights licence: MIT.
package demo

import _ "embed"

// Name is the model's file name, as reports print it.
const Name = "tinymoe-q4_k_m.gguf"

//go:embed tinymoe-q4_k_m.gguf
var model []byte

// Model returns the GGUF file's bytes. They are the binary's own: not to be written to.
func Model() []byte { return model }
