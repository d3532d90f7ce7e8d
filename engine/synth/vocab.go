package synth

import "fmt"

// Token kinds, as tokenizer.ggml.token_type numbers them.
const (
	tokenNormal  = 1
	tokenControl = 3
	tokenUnused  = 5
)

// vocab is a byte-level BPE vocabulary: 256 bytes, some merges of common English, filler that no text reaches, and last
// the end-of-text token.
type vocab struct {
	tokens []string
	kinds  []int32
	merges []string
}

// byteRunes gives each byte the character that byte-level BPE writes for it: itself where it is printable, else the next
// free code point from 256 up.
func byteRunes() [256]rune {
	var out [256]rune
	next := rune(256)
	for b := range 256 {
		switch {
		case b > ' ' && b < 0x7f, b > 0xa0 && b != 0xad:
			out[b] = rune(b)
		default:
			out[b] = next
			next++
		}
	}
	return out
}

// mergePairs in order of priority; a blank stands for the space byte. A pair's halves are bytes or earlier merges.
var mergePairs = [...][2]string{
	{" ", "t"}, {" ", "a"}, {"h", "e"}, {"i", "n"}, {"r", "e"}, {"o", "n"}, {"e", "r"}, {"a", "t"}, {"n", "d"},
	{" ", "s"}, {" ", "o"}, {" ", "w"}, {" ", "i"}, {" ", "b"}, {" ", "c"}, {"o", "u"}, {"e", "s"}, {"e", "n"},
	{"i", "s"}, {"o", "r"}, {" ", "f"}, {" ", "m"}, {" ", "p"}, {" t", "he"}, {" a", "nd"}, {"in", "g"}, {" o", "f"},
}

func newVocab(size int) vocab {
	runes := byteRunes()
	spell := func(s string) string {
		out := make([]rune, 0, len(s))
		for _, b := range []byte(s) {
			out = append(out, runes[b])
		}
		return string(out)
	}
	v := vocab{tokens: make([]string, 0, size), kinds: make([]int32, 0, size)}
	add := func(token string, kind int32) {
		v.tokens = append(v.tokens, token)
		v.kinds = append(v.kinds, kind)
	}
	for b := range 256 {
		add(string(runes[b]), tokenNormal)
	}
	for _, p := range mergePairs {
		left, right := spell(p[0]), spell(p[1])
		v.merges = append(v.merges, left+" "+right)
		add(left+right, tokenNormal)
	}
	for len(v.tokens) < size-1 {
		add(fmt.Sprintf("[unused%d]", len(v.tokens)), tokenUnused)
	}
	add("<|endoftext|>", tokenControl)
	return v
}
