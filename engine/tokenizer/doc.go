// Package tokenizer turns text into the token ids of a model and ids back into bytes, by the rules in the model's own
// GGUF metadata.
//
// It is for byte-level BPE (tokenizer.ggml.model "gpt2") and for the SentencePiece style that GGUF calls "llama":
// merges driven by scores, with a token for every byte to fall back to. Word-piece, unigram and RWKV vocabularies are
// refused by name. It holds no chat templates (package chat) and samples nothing.
//
// Text takes this way:
//
//	text -> special.go    control and user-defined tokens cut out, the longest first
//	     -> byte-level BPE: pretoken.go  words, by the scanners that tokenizer.ggml.pre names
//	                        bpe.go       bytes of one word, merged by rank
//	     -> llama:          spm.go       characters of the whole fragment, merged by score
//	     -> ids
//
// The ids are those of the tokenizer that the model was trained with; names, aliases and defaults of missing metadata
// are llama.cpp's (llama-vocab.cpp). Where llama.cpp approximates a pre-tokenizer's expression (it has no case classes
// and no marks in gpt-4o's) the expression itself is what is implemented here.
//
// Time is linear in the text but for the merge queue's logarithm, also for a megabyte of one letter, and nothing
// recurses over text.
//
// A Tokenizer is read-only after New: all its methods may be called concurrently. A Stream belongs to one goroutine.
package tokenizer
