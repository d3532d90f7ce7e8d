package tokenizer

import (
	"fmt"
	"sort"
	"strings"
)

// matcher is one expression of a pre-tokenizer. It looks at the piece that ends at hi, which no look-ahead sees past,
// and returns the length of the match that begins exactly at i. No match is 0, or -n where it is known that none begins
// in the n runes from i on: that keeps a scanner linear which has to read a run before it can say no.
type matcher func(t *runes, i, hi int) int

// preTokenizer is a row of the table of pre-tokenizers.
type preTokenizer struct {
	names []string // values of tokenizer.ggml.pre
	// Applied one after the other: each expression cuts the pieces the one before left, its matches and the text
	// between them become pieces.
	stages       []matcher
	ignoreMerges bool // a word that is a token is that token, whatever the merges give
	addBOS       bool // default of tokenizer.ggml.add_bos_token
}

// noPre is the pre-tokenizer of a file that names none.
const noPre = "default"

// preTokenizers returns the table. Names and their grouping are llama.cpp's; an expression that llama.cpp spells in
// another way but that cuts every text alike shares the row.
func preTokenizers() []preTokenizer {
	gpt2 := matcher(matchGPT2)
	return []preTokenizer{
		{names: []string{noPre}, stages: []matcher{
			runOf(func(r rune, c class) bool { return c&punct != 0 || strings.ContainsRune("$+<=>^~|", r) }),
			gpt2, runOf(func(_ rune, c class) bool { return c&number != 0 }), matchThreeDigits}},
		{names: []string{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
			"modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais", "trillion",
			"granite-docling"}, stages: []matcher{gpt2}},
		{names: []string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
			stages: []matcher{matchNumber(1), gpt2}},
		{names: []string{"falcon"}, stages: []matcher{
			runOf(func(r rune, c class) bool { return c&punct != 0 || strings.ContainsRune("$+<=>^~|`", r) }),
			gpt2, matchThreeDigits}},
		{names: []string{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
			stages: []matcher{matchWords(words{digits: 3})}, ignoreMerges: true, addBOS: true},
		{names: []string{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, stages: []matcher{matchWords(words{digits: 3})}},
		{names: []string{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
			"bailingmoe", "bailingmoe2", "llada-moe"}, stages: []matcher{matchWords(words{digits: 1})}},
		{names: []string{"qwen35"}, stages: []matcher{matchWords(words{digits: 1, marks: true})}},
		{names: []string{"deepseek-llm"}, stages: []matcher{matchNewline, matchSpaced(isDeepSeekLetter),
			matchSpaced(isDeepSeekPunct), matchTrailingSpace, runOf(isDeepSeekCJK), matchNumber(0)}},
		{names: []string{"deepseek-coder"}, stages: []matcher{matchNewline,
			matchSpaced(func(_ rune, c class) bool { return c&letter != 0 }),
			matchSpaced(func(_ rune, c class) bool { return c&punct != 0 }),
			runOf(isDeepSeekCJK), matchNumber(1)}},
		{names: []string{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
			stages: []matcher{matchNumber(3), runOf(isHanOrKana), matchDeepSeekV3}},
		{names: []string{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
			stages: []matcher{matchCased(cased{digits: 3, contractions: true})}},
		{names: []string{"tekken"}, stages: []matcher{matchCased(cased{digits: 1})}, ignoreMerges: true, addBOS: true},
	}
}

// PreTokenizers returns the known values of tokenizer.ggml.pre, sorted.
func PreTokenizers() []string {
	var names []string
	for _, p := range preTokenizers() {
		names = append(names, p.names...)
	}
	sort.Strings(names)
	return names
}

func findPre(name string) (preTokenizer, error) {
	for _, p := range preTokenizers() {
		for _, n := range p.names {
			if n == name {
				return p, nil
			}
		}
	}
	return preTokenizer{}, fmt.Errorf("unknown pre-tokenizer %q, known are: %s", name, strings.Join(PreTokenizers(), ", "))
}

// cut appends to ends the end of every word of t.
func (p *preTokenizer) cut(t *runes, ends []int) []int {
	ends = append(ends, len(t.r))
	var next []int
	for _, m := range p.stages {
		next = next[:0]
		lo := 0
		for _, hi := range ends {
			next = isolate(m, t, lo, hi, next)
			lo = hi
		}
		ends, next = next, ends
	}
	return ends
}

// isolate appends to ends the ends of m's matches in t[lo:hi] and of what lies between them.
func isolate(m matcher, t *runes, lo, hi int, ends []int) []int {
	gap := lo
	for i := lo; i < hi; {
		n := m(t, i, hi)
		if n <= 0 {
			i += max(1, -n)
			continue
		}
		if gap < i {
			ends = append(ends, i)
		}
		i += n
		ends = append(ends, i)
		gap = i
	}
	if gap < hi {
		ends = append(ends, hi)
	}
	return ends
}
