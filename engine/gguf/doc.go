// Package gguf reads and writes GGUF model files, versions 2 and 3, little-endian.
//
// It is for whoever needs the metadata or the tensor bytes of a model: the engine, the tokenizer, the synthetic model
// writer and the command line. It knows no architecture: which keys and tensors a model must have is the engine's matter.
//
// A file is
//
//	"GGUF"              4 bytes
//	version             u32      2 or 3; the two have the same layout
//	tensor count        u64
//	key count           u64
//	keys                key count times: name, value type u32, value
//	tensor infos        tensor count times: name, dimension count u32 (1..4), dimensions u64, type u32, offset u64
//	padding             up to a multiple of general.alignment (32 where the key is absent)
//	tensor data         each tensor at its offset from here, which is a multiple of the alignment
//
// where a string is a u64 byte length and that many bytes, and an array value is an element type u32, a count u64 and the
// elements. The layout is described in docs/gguf.md of ggml.
//
// A model may be split over several files, the shards. Whether a file is a shard is said by its keys split.no (0-based),
// split.count and split.tensors.count (total over all shards), never by its name; the name PREFIX-00002-of-00003.gguf only
// tells where the siblings are. Opening any shard opens the set.
//
// Everything a file says is compared with the bytes that exist before memory is taken for it, so a file can cost no more
// memory than a fixed multiple of its own header, and no content causes a panic. Tensor data stays in a read-only mapping.
// The mapping has the limit that all mappings have: a file cut short by someone else while it is open faults on access.
// [File.Verify] reads through the file instead.
package gguf
