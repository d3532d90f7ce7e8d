package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

// The expressions of the pre-tokenizers, as the models' own files have them but for three things: (?i:'s) is spelled out
// for ASCII, as llama.cpp does; possessive quantifiers that change nothing are plain; $ is \z, since a piece has no lines.
const (
	exprGPT2  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	exprShort = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
	exprSpace = `|\s*[\r\n]+|\s+(?!\S)|\s+`
	exprCased = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+S?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*S?|`
	exprDSLetter = `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ` +
		"ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ" +
		"ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2" +
		"\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
	exprDSCJK = `[一-龥ࠀ-一가-퟿]+`
)

var expressions = map[string][]string{
	"default":   {`[\p{P}\$\+<=>\^~\|]+`, exprGPT2, `\p{N}+`, `[0-9][0-9][0-9]`},
	"gpt-2":     {exprGPT2},
	"olmo":      {exprGPT2},
	"starcoder": {`\p{N}`, exprGPT2},
	"falcon":    {"[\\p{P}\\$\\+<=>\\^~\\|`]+", exprGPT2, `[0-9][0-9][0-9]`},
	"llama-bpe": {exprShort + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + exprSpace},
	"glm4":      {exprShort + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + exprSpace},
	"qwen2":     {exprShort + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + exprSpace},
	"bailingmoe": {`'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` +
		`\s*[\r\n]|\s+(?!\S)|\s+`},
	"qwen35":         {exprShort + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + exprSpace},
	"deepseek-llm":   {`[\r\n]`, exprDSLetter, `\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+\z`, exprDSCJK, `\p{N}+`},
	"deepseek-coder": {`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, exprDSCJK, `\p{N}`},
	"deepseek-v3": {`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*` + exprSpace},
	"gpt-4o": {strings.ReplaceAll(exprCased, "S?", exprShort+"?") + `\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + exprSpace},
	"tekken": {strings.ReplaceAll(exprCased, "S?", "") + `\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + exprSpace},
}

// oracle cuts text by the expressions, one after the other, with a regular expression engine.
type oracle []*regexp2.Regexp

func newOracle(exprs []string) oracle {
	var o oracle
	for _, e := range exprs {
		o = append(o, regexp2.MustCompile(e))
	}
	return o
}

func (o oracle) cut(t testing.TB, text string) []string {
	pieces := []string{text}
	for _, re := range o {
		var next []string
		for _, p := range pieces {
			r, at := []rune(p), 0
			found, err := re.FindAllRunesIndex(r, -1)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range found {
				if m[0] > at {
					next = append(next, string(r[at:m[0]]))
				}
				next = append(next, string(r[m[0]:m[1]]))
				at = m[1]
			}
			if at < len(r) {
				next = append(next, string(r[at:]))
			}
		}
		pieces = next
	}
	return pieces
}

func scan(p preTokenizer, text string) []string {
	t := newRunes(text)
	var words []string
	from := 0
	for _, end := range p.cut(t, nil) {
		words = append(words, string(t.r[from:end]))
		from = end
	}
	return words
}

var tricky = []string{
	"", " ", "  ", "\n", " \n", "\n ", "\r\n\r\n", "   \n   \n", "\t\t x", "a  b", "a   ", " \t\n a", "\u00a0\u00a0x", "\u3000\u3000、x",
	"It's 'S 'sally I'd we'RE 'LL 'l 've'", "'", "''s", "'re", "' re", "x'", "don’t", "'ſ", "12345678 ½²Ⅳ٣", " 1 12 123 1234",
	"a1b22c333", "CamelCaseWORDSAndÉtéÀB", "iPhone ABCdef ǅx ªAAAb ʰA", "á combining été हिन्दी", "\u0301a \u0301\u0301B", "日本語 текст Ωμέγα 🙂👍🏽",
	"中文，标点。かなカナ한국어", "x=foo(bar[0])+3.14e-10; // c\n\n/\n//\n\n", "!abc $x .. ...\n\n", " !?\r\n x", "\u200d\u200da\u200d", "\x00\x01a\x02",
	"`code` <tag> ^~|$+", "\u0085x\u0085", "ABC's'S Abc'll'LL", "  's", "\ufffd\ufffd", "\xff\xfe ok \xe2\x82", "A\u0301\u0301'S", "\u2028\n\u2029",
	"\u0378\u0379a", "·ꟷÀ-ÖµK℃Ω\u0345", "a/b//c/\n/", "( (\n", "ٱلْعَرَبِيَّة 2024", "\U0001f1e9\U0001f1ea\ufe0f", "\ue000\ue001x",
}

// randomText strings together pieces that the expressions tell apart.
func randomText(rng *rand.Rand, n int) string {
	const singles = " \t\n\r'sSdDlLvVeErRtTmMaZé9½Ⅳ٣一龥かカ한ªʰǅÉß\u0301\u0903\u200d\u00a0\u3000\u0085$+<=>^~|`!/.,-。！‘\x00\u0378\ufffd😀"
	chars := []rune(singles)
	var b strings.Builder
	for range n {
		switch rng.IntN(8) {
		case 0:
			b.WriteString(tricky[rng.IntN(len(tricky))])
		case 1:
			b.WriteString(strings.Repeat(string(chars[rng.IntN(len(chars))]), 1+rng.IntN(5)))
		case 2:
			r := rune(rng.IntN(0x3000))
			if rng.IntN(4) == 0 {
				r = rune(rng.IntN(unicode.MaxRune))
			}
			b.WriteRune(r)
		default:
			b.WriteRune(chars[rng.IntN(len(chars))])
		}
	}
	return b.String()
}

func TestScanners(t *testing.T) {
	for name, exprs := range expressions {
		t.Run(name, func(t *testing.T) {
			p, err := findPre(name)
			if err != nil {
				t.Fatal(err)
			}
			o := newOracle(exprs)
			check := func(text string) {
				if got, want := scan(p, text), o.cut(t, text); !slices.Equal(got, want) {
					t.Fatalf("%q\n got %q\nwant %q", text, got, want)
				}
			}
			for _, text := range tricky {
				check(text)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for range 1000 {
				check(randomText(rng, 1+rng.IntN(30)))
			}
		})
	}
}

// TestScannerTable checks that every row of the table is held against an expression.
func TestScannerTable(t *testing.T) {
	for _, p := range preTokenizers() {
		if !slices.ContainsFunc(p.names, func(n string) bool { return expressions[n] != nil }) {
			t.Errorf("no expression for %q", p.names)
		}
	}
	seen := map[string]bool{}
	for _, n := range PreTokenizers() {
		if seen[n] {
			t.Errorf("%q is in the table twice", n)
		}
		seen[n] = true
	}
}

func FuzzScanners(f *testing.F) {
	for _, s := range tricky {
		f.Add(s)
	}
	type one struct {
		name string
		p    preTokenizer
		o    oracle
	}
	var all []one
	for name, exprs := range expressions {
		p, err := findPre(name)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, one{name, p, newOracle(exprs)})
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			return // the engine backtracks
		}
		for _, x := range all {
			if got, want := scan(x.p, text), x.o.cut(t, text); !slices.Equal(got, want) {
				t.Errorf("%s: %q\n got %q\nwant %q", x.name, text, got, want)
			}
		}
	})
}
