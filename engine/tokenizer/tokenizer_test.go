package tokenizer

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func decode(tok *Tokenizer, ids []int32) string {
	var b []byte
	for _, id := range ids {
		b = append(b, tok.PieceSpecial(id)...)
	}
	return string(b)
}

func TestMetadataErrors(t *testing.T) {
	bpe, spm := bpeMeta("qwen2", typed{"<|endoftext|>", kindControl}), spmMeta()
	n := len(bpe[keyTokens].([]string))
	long := func(key string, s []string) []string { return append(slices.Clone(s), key) }
	tests := []struct {
		name string
		m    meta
		o    Options
		want []string // all in the error
	}{
		{"model absent", bpe.without(keyModel), Options{}, []string{keyModel, "absent", "gpt2 or llama"}},
		{"model type", bpe.with(keyModel, true), Options{}, []string{keyModel, "bool", "string"}},
		{"bert", bpe.with(keyModel, "bert"), Options{}, []string{keyModel, `"bert" is not supported`}},
		{"t5", bpe.with(keyModel, "t5"), Options{}, []string{`"t5" is not supported`}},
		{"rwkv", bpe.with(keyModel, "rwkv"), Options{}, []string{`"rwkv" is not supported`}},
		{"none", bpe.with(keyModel, "none"), Options{}, []string{`"none" is not supported`}},
		{"no tokens", bpe.without(keyTokens), Options{}, []string{keyTokens, "0 tokens, want 1 to"}},
		{"tokens type", bpe.with(keyTokens, []int64{1}), Options{}, []string{keyTokens, "[]int64", "[]string"}},
		{"repeated token", bpe.with(keyTokens, long("a", bpe[keyTokens].([]string)[:n-1])), Options{}, []string{keyTokens, `"a" is token 97`}},
		{"types short", bpe.with(keyTypes, make([]int64, n-1)), Options{}, []string{keyTypes, "280 values, want 281"}},
		{"types long", bpe.with(keyTypes, make([]int64, n+1)), Options{}, []string{keyTypes, "282 values, want 281"}},
		{"types element", bpe.with(keyTypes, []float32{1}), Options{}, []string{keyTypes, "[]float32", "[]int64"}},
		{"type range", bpe.with(keyTypes, slices.Repeat([]int64{9}, n)), Options{}, []string{keyTypes + "[0]", "type 9, want 0 to 6"}},
		{"byte form", bpe.with(keyTypes, slices.Repeat([]int64{6}, n)), Options{}, []string{keyTokens + "[0]", keyTypes, "want the form <0x0A>"}},
		{"scores short", spm.with(keyScores, []float32{1}), Options{}, []string{keyScores, "1 values, want 286"}},
		{"bpe scores short", bpe.with(keyScores, []float32{1}), Options{}, []string{keyScores, "1 values, want 281"}},
		{"scores absent", spm.without(keyScores), Options{}, []string{keyScores, "absent"}},
		{"scores element", spm.with(keyScores, []int64{1}), Options{}, []string{keyScores, "[]int64", "[]float32"}},
		{"score nan", spm.with(keyScores, slices.Repeat([]float32{float32(math.NaN())}, 286)), Options{}, []string{keyScores + "[0]", "not a number"}},
		{"bos range", bpe.with(keyBOS, uint64(n)), Options{}, []string{keyBOS, "id 281, want below 281"}},
		{"eos range", bpe.with(keyEOS, uint64(1<<40)), Options{}, []string{keyEOS, "want below 281"}},
		{"eot range", bpe.with(keyEOT, uint64(n)), Options{}, []string{keyEOT, "want below 281"}},
		{"eom type", bpe.with(keyEOM, "x"), Options{}, []string{keyEOM, "string"}},
		{"unknown range", spm.with(keyUnknown, uint64(999)), Options{}, []string{keyUnknown, "999"}},
		{"add_bos type", bpe.with(keyAddBOS, uint64(1)), Options{}, []string{keyAddBOS, "uint64", "bool"}},
		{"merges absent", bpe.without(keyMerges), Options{}, []string{keyMerges, "absent"}},
		{"merge without space", bpe.with(keyMerges, []string{"a b", "ab"}), Options{}, []string{keyMerges + "[1]", `"ab"`, "one space"}},
		{"merge half", bpe.with(keyMerges, []string{"a "}), Options{}, []string{keyMerges + "[0]"}},
		{"merge of three", bpe.with(keyMerges, []string{"a b c"}), Options{}, []string{keyMerges + "[0]"}},
		{"unknown pre", bpe.with(keyPre, "qwen9"), Options{}, []string{keyPre, `unknown pre-tokenizer "qwen9"`, "deepseek-v3", "qwen2"}},
		{"unknown asked pre", bpe, Options{Pre: "nope"}, []string{`"nope"`, "qwen2"}},
		{"pre for llama", spm, Options{Pre: "qwen2"}, []string{`"qwen2"`, "llama"}},
		{"eog range", bpe, Options{EOG: []int32{281}}, []string{"281", "0 to 280"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := FromMetadata(tt.m, tt.o)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range append(tt.want, "tokenizer: ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: want %q in it", err, w)
				}
			}
		})
	}
}

func TestPreTokenizerChoice(t *testing.T) {
	m := bpeMeta("qwen2")
	if tok := m.must(t, Options{}); tok.Pre() != "qwen2" || tok.Model() != "gpt2" {
		t.Errorf("pre %q, model %q", tok.Pre(), tok.Model())
	}
	tok := m.with(keyPre, "no-such").must(t, Options{Pre: "gpt-2"})
	if notes := strings.Join(tok.Notes(), "\n"); tok.Pre() != "gpt-2" || !strings.Contains(notes, "no-such") {
		t.Errorf("pre %q, notes %q", tok.Pre(), notes)
	}
	tok = m.without(keyPre).must(t, Options{})
	if notes := strings.Join(tok.Notes(), "\n"); tok.Pre() != "default" || !strings.Contains(notes, keyPre+" is absent") {
		t.Errorf("pre %q, notes %q", tok.Pre(), notes)
	}
	// Llama 3's words that are tokens are not put together from merges.
	m = bpeMeta("llama-bpe", typed{"Ġxy", kindNormal})
	if got := spell(m.must(t, Options{}), m.must(t, Options{}).Encode(" xy xy1", EncodeOptions{})); !cmp.Equal(got, []string{"Ġxy", "Ġxy", "1"}) {
		t.Errorf("with ignored merges: %q", got)
	}
	m = m.with(keyPre, "dbrx")
	if got := spell(m.must(t, Options{}), m.must(t, Options{}).Encode(" xy", EncodeOptions{})); !cmp.Equal(got, []string{"Ġ", "x", "y"}) {
		t.Errorf("with merges: %q", got)
	}
}

func TestBeginAndEnd(t *testing.T) {
	bpe := bpeMeta("qwen2", typed{"<|endoftext|>", kindControl}).with(keyBOS, uint64(280)).with(keyEOS, uint64(280))
	llama := bpeMeta("llama-bpe", typed{"<b>", kindControl}).with(keyBOS, uint64(280))
	tests := []struct {
		name string
		m    meta
		want []string
	}{
		{"gpt2 adds nothing", bpe, []string{"a"}},
		{"gpt2 told to", bpe.with(keyAddBOS, true).with(keyAddEOS, true), []string{"<|endoftext|>", "a", "<|endoftext|>"}},
		{"llama-bpe adds bos", llama, []string{"<b>", "a"}},
		{"llama-bpe told not to", llama.with(keyAddBOS, false), []string{"a"}},
		{"llama-bpe without bos", llama.without(keyBOS), []string{"a"}},
		{"gpt2 told to without eos", bpe.without(keyEOS).with(keyAddEOS, true), []string{"a"}},
		{"llama adds bos", spmMeta(typed{"▁a", kindNormal}, typed{"a", kindNormal}), []string{"<s>", "▁a"}},
		{"llama adds both", spmMeta(typed{"▁a", kindNormal}, typed{"a", kindNormal}).with(keyAddEOS, true), []string{"<s>", "▁a", "</s>"}},
	}
	for _, tt := range tests {
		tok := tt.m.must(t, Options{})
		if got := spell(tok, tok.Encode("a", EncodeOptions{AddSpecial: true})); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		for _, s := range tok.Encode("", EncodeOptions{}) {
			t.Errorf("%s: token %d for an empty text", tt.name, s)
		}
	}
	if tok := llama.without(keyBOS).must(t, Options{}); tok.BOS() != -1 || !strings.Contains(strings.Join(tok.Notes(), "\n"), keyBOS+" is absent") {
		t.Errorf("bos %d, notes %q", tok.BOS(), tok.Notes())
	}
}

func TestSpecialTokens(t *testing.T) {
	m := bpeMeta("qwen2", typed{"<|x|>", kindControl}, typed{"<|x|><|y|>", kindControl}, typed{"<u>", kindUser}, typed{"<|x", kindUser},
		typed{"<unk>", kindUnknown}, typed{"aaaa<", kindUser})
	tok := m.must(t, Options{})
	parse := EncodeOptions{ParseSpecial: true}
	protect := func(r ...Range) EncodeOptions { return EncodeOptions{ParseSpecial: true, Protected: r} }
	tests := []struct {
		text string
		o    EncodeOptions
		want []string
	}{
		{"1<|x|>1", parse, []string{"1", "<|x|>", "1"}},
		{"<|x|>", parse, []string{"<|x|>"}},
		{"<|x|><|y|>", parse, []string{"<|x|><|y|>"}},
		{"<|x|><|x|><|y|>", parse, []string{"<|x|>", "<|x|><|y|>"}},
		{"<u><u>1<unk>", parse, []string{"<u>", "<u>", "1", "<unk>"}},
		// Control and unknown tokens are text unless asked for, user-defined ones never.
		{"1<|x|>1", EncodeOptions{}, []string{"1", "<|x", "|", ">", "1"}},
		{"<u>", EncodeOptions{}, []string{"<u>"}},
		{"<unk>", EncodeOptions{}, []string{"<", "u", "n", "k", ">"}},
		// The longest comes first in the whole text, also when a shorter one begins earlier.
		{"aaaa<|x|>", parse, []string{"aaaa", "<|x|>"}},
		{"aaaa<|x|>", EncodeOptions{}, []string{"aaaa<", "|", "x", "|", ">"}},
		// Protected text has no control tokens, neither inside nor across its ends.
		{"<|x|><|x|>", protect(Range{0, 5}), []string{"<|x", "|", ">", "<|x|>"}},
		{"<|x|><|x|>", protect(Range{5, 10}), []string{"<|x|>", "<|x", "|", ">"}},
		{"<|x|>", protect(Range{2, 3}), []string{"<|x", "|", ">"}},
		{"<|x|>", protect(Range{-5, 1}), []string{"<|x", "|", ">"}},
		{"<|x|>", protect(Range{4, 99}), []string{"<|x", "|", ">"}},
		{"<u>1", protect(Range{0, 4}), []string{"<u>", "1"}},
		{"<unk>", protect(Range{0, 5}), []string{"<", "u", "n", "k", ">"}},
	}
	for _, tt := range tests {
		if got := spell(tok, tok.Encode(tt.text, tt.o)); !cmp.Equal(got, tt.want) {
			t.Errorf("%q %+v: got %q, want %q", tt.text, tt.o, got, tt.want)
		}
	}
	if got, want := tok.ControlTexts(), []string{"<unk>", "<|x|>", "<|x|><|y|>"}; !cmp.Equal(got, want) {
		t.Errorf("control texts %q, want %q", got, want)
	}
}

// TestControlByMerging makes sure that no ordinary text becomes a control token, even where the merges spell its name.
func TestControlByMerging(t *testing.T) {
	tok := spmMeta().with(keySpacePrefix, false).must(t, Options{})
	if got, want := spell(tok, tok.Encode("<s>", EncodeOptions{})), []string{"<", "s>"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	m := bpeMeta("gpt-2", typed{"xyz", kindControl})
	m[keyMerges] = append(slices.Clone(m[keyMerges].([]string)), "x y", "xy z")
	tok = m.must(t, Options{})
	if got, want := spell(tok, tok.Encode("xyz", EncodeOptions{})), []string{"x", "y", "z"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStrip: in Phi 3 the spaces after a special token belong to it.
func TestStrip(t *testing.T) {
	m := spmMeta(typed{"<|end|>", kindControl}).with("general.name", "Phi-3.5-MoE")
	tok := m.must(t, Options{})
	got := spell(tok, tok.Encode("<|end|> \n <|end|>the<s> e", EncodeOptions{ParseSpecial: true}))
	if want := []string{"<|end|>", "<|end|>", "▁the", "<s>", "▁▁", "e"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	tok = m.without("general.name").must(t, Options{})
	got = spell(tok, tok.Encode("<|end|>  the", EncodeOptions{ParseSpecial: true}))
	if want := []string{"<|end|>", "▁▁", "▁the"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSpacePrefix: in a llama vocabulary text at the beginning and after a special token, of either kind, gets a space.
func TestSpacePrefix(t *testing.T) {
	m := spmMeta(typed{"<c>", kindControl}, typed{"<u>", kindUser})
	tests := []struct {
		text   string
		prefix bool
		want   []string
	}{
		{"the", true, []string{"▁the"}},
		{" the", true, []string{"▁", "▁the"}},
		{"the<c>the", true, []string{"▁the", "<c>", "▁the"}},
		{"the<c> the", true, []string{"▁the", "<c>", "▁", "▁the"}},
		{"<u>G", true, []string{"<u>", "▁G"}},
		{"<s>G", true, []string{"<s>", "▁G"}},
		{"<s><s>G</s>", true, []string{"<s>", "<s>", "▁G", "</s>"}},
		{"<s>G", false, []string{"<s>", "G"}},
		{"the<c> the", false, []string{"t", "he", "<c>", "▁the"}},
		{"", true, nil},
		{"é\xffx", false, []string{"é", "<0xFF>", "<0x78>"}},
		{"日", false, []string{"<0xE6>", "<0x97>", "<0xA5>"}},
	}
	for _, tt := range tests {
		tok := m.with(keySpacePrefix, tt.prefix).must(t, Options{})
		if got := spell(tok, tok.Encode(tt.text, EncodeOptions{ParseSpecial: true})); !cmp.Equal(got, tt.want) {
			t.Errorf("%q, prefix %v: got %q, want %q", tt.text, tt.prefix, got, tt.want)
		}
	}
}

func TestEndOfGeneration(t *testing.T) {
	control := func(names ...string) (tokens []typed) {
		for _, n := range names {
			tokens = append(tokens, typed{n, kindControl})
		}
		return tokens
	}
	tests := []struct {
		name string
		m    meta
		o    Options
		want []string
		note string
	}{
		{"key", bpeMeta("qwen2", control("<z>")...).with(keyEOS, uint64(280)), Options{}, []string{"<z>"}, ""},
		{"eot and eom keys", bpeMeta("qwen2", control("<z>", "<t>", "<m>")...).with(keyEOS, uint64(280)).with(keyEOT, uint64(281)).with(keyEOM, uint64(282)),
			Options{}, []string{"<z>", "<t>", "<m>"}, ""},
		{"by name", bpeMeta("qwen2", control("<|im_start|>", "<|im_end|>", "<|endoftext|>")...).with(keyEOS, uint64(282)), Options{},
			[]string{"<|im_end|>", "<|endoftext|>"}, `not by the file's keys: 281 "<|im_end|>"`},
		{"normal </s>", bpeMeta("qwen2", typed{"</s>", kindNormal}), Options{}, []string{"</s>"}, `types them otherwise: 280 "</s>"`},
		{"override", bpeMeta("qwen2", typed{"</s>", kindNormal}, typed{"<z>", kindControl}), Options{EOG: []int32{281}}, []string{"<z>"}, ""},
		{"override with none", bpeMeta("qwen2", typed{"</s>", kindNormal}), Options{EOG: []int32{}}, nil, ""},
		{"nothing known", bpeMeta("qwen2"), Options{}, nil, "no token ends a generation"},
		{"fill-in", bpeMeta("qwen2", typed{"<|fim_pad|>", kindUser}, typed{"<|fim_middle|>", kindUser}), Options{}, []string{"<|fim_pad|>"},
			`types them otherwise: 281 "<|fim_middle|>", 280 "<|fim_pad|>"`},
		{"gpt-oss", bpeMeta("gpt-4o", control("<|return|>", "<|call|>", "<|end|>", "<|start|>")...), Options{}, []string{"<|return|>", "<|call|>"},
			`282 "<|end|>" does not end`},
		{"phi", bpeMeta("gpt-4o", control("<|end|>")...), Options{}, []string{"<|end|>"}, ""},
		{"gemma 4", bpeMeta("gpt-4o", control("<|tool_response>", "</s>")...), Options{}, []string{"<|tool_response>"}, `281 "</s>" does not end`},
		{"llama", spmMeta(), Options{}, []string{"</s>"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok := tt.m.must(t, tt.o)
			if got := spell(tok, tok.EOG()); !cmp.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for _, id := range tok.EOG() {
				if !tok.IsEOG(id) {
					t.Errorf("token %d is in EOG but not IsEOG", id)
				}
			}
			if tok.IsEOG(-1) || tok.IsEOG(3) {
				t.Error("a byte ends a generation")
			}
			if notes := strings.Join(tok.Notes(), "\n"); !strings.Contains(notes, tt.note) {
				t.Errorf("notes %q, want %q in them", notes, tt.note)
			}
		})
	}
	// A control token by name is not printed and is not found in text unless asked for.
	tok := bpeMeta("qwen2", typed{"</s>", kindNormal}).must(t, Options{})
	id := idOf(t, tok, "</s>")
	if !tok.IsControl(id) || tok.Piece(id) != nil || string(tok.PieceSpecial(id)) != "</s>" {
		t.Errorf("control %v, piece %q", tok.IsControl(id), tok.Piece(id))
	}
	if got := tok.Encode("</s>", EncodeOptions{}); slices.Contains(got, id) {
		t.Errorf("got %q", spell(tok, got))
	}
	// gpt-oss prints its channel marks, yet protected text has none.
	tok = bpeMeta("gpt-4o", control("<|start|>")...).must(t, Options{})
	id = idOf(t, tok, "<|start|>")
	if got := tok.Encode("<|start|>", EncodeOptions{}); !cmp.Equal(got, []int32{id}) || tok.IsControl(id) {
		t.Errorf("got %q", spell(tok, got))
	}
	if got := tok.Encode("<|start|>", EncodeOptions{ParseSpecial: true, Protected: []Range{{0, 9}}}); slices.Contains(got, id) {
		t.Errorf("protected: got %q", spell(tok, got))
	}
}

func TestPieces(t *testing.T) {
	tok := bpeMeta("qwen2", typed{"<c>", kindControl}, typed{"<u> ", kindUser}, typed{"<0x41>", kindByte}, typed{"pad", kindUnused}, typed{"a b｜", kindNormal},
		typed{"", kindNormal}).must(t, Options{})
	for text, want := range map[string]string{"Ġthe": " the", "<c>": "", "<u> ": "<u> ", "<0x41>": "A", "pad": "", "a b｜": "a b｜"} {
		if got := string(tok.Piece(idOf(t, tok, text))); got != want {
			t.Errorf("%q: piece %q, want %q", text, got, want)
		}
	}
	idOf(t, tok, "[EMPTY_285]")
	for _, id := range []int32{-1, 286, math.MaxInt32, math.MinInt32} {
		if tok.Piece(id) != nil || tok.Text(id) != "" || tok.IsControl(id) || tok.IsEOG(id) {
			t.Errorf("id %d exists", id)
		}
	}
	if tok.NVocab() != 286 {
		t.Errorf("%d tokens", tok.NVocab())
	}
	spm := spmMeta().must(t, Options{})
	if got := string(spm.Piece(idOf(t, spm, "▁the"))); got != " the" {
		t.Errorf("piece %q", got)
	}
}

// TestLongRuns scans long runs of one character by every pre-tokenizer and encodes a megabyte of one letter: no recursion,
// and if time grew with the square this would take minutes.
func TestLongRuns(t *testing.T) {
	const n = 1 << 17
	texts := map[string]string{}
	for _, s := range []string{"a", "A", " ", "\n", "!", "7", "\u0301", "é"} {
		texts[s] = strings.Repeat(s, n/len(s))
	}
	texts["us"] = strings.Repeat("us", n/2)
	texts["spaces before a letter"] = strings.Repeat(" ", n) + "x "
	texts["capitals"] = "ª" + strings.Repeat("A", n)
	for _, p := range preTokenizers() {
		for name, text := range texts {
			if words := scan(p, text); strings.Join(words, "") != text {
				t.Errorf("%s: %s: the words are not the text", p.names[0], name)
			}
		}
	}
	tok, spm := bpeMeta("gpt-2").must(t, Options{}), spmMeta(typed{"a", kindNormal}, typed{"aa", kindNormal}, typed{"aaaa", kindNormal}).must(t, Options{})
	text := strings.Repeat("a", 1<<20)
	if got := decode(tok, tok.Encode(text, EncodeOptions{})); got != text {
		t.Error("gpt2: decodes to another text")
	}
	if got := decode(spm, spm.Encode(text, EncodeOptions{})); got != " "+text {
		t.Error("llama: decodes to another text")
	}
}

func TestConcurrentEncode(t *testing.T) {
	tok := bpeMeta("deepseek-v3", typed{"<c>", kindControl}).must(t, Options{})
	want := tok.Encode("the hello<c> world 123", EncodeOptions{ParseSpecial: true})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if got := tok.Encode("the hello<c> world 123", EncodeOptions{ParseSpecial: true}); !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
	wg.Wait()
}

// TestMergerAgainstPlain compares the merge queue with the rule as it is stated: while any pair joins, join the best,
// the leftmost of equals.
func TestMergerAgainstPlain(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		type entry struct {
			rank uint32
			sym  int32
		}
		table := map[[2]int32]entry{}
		for range rng.IntN(20) {
			table[[2]int32{rng.Int32N(6), rng.Int32N(6)}] = entry{rng.Uint32N(5), rng.Int32N(6)}
		}
		var m merger
		m.join = func(l, r int32) (uint32, int32, bool) {
			e, ok := table[[2]int32{m.sym[l], m.sym[r]}]
			return e.rank, e.sym, ok
		}
		var want []int32
		for range rng.IntN(25) {
			sym := rng.Int32N(4)
			m.add(1+rng.IntN(3), sym)
			want = append(want, sym)
		}
		for {
			best, at := uint32(math.MaxUint32), -1
			for i := 0; i+1 < len(want); i++ {
				if e, ok := table[[2]int32{want[i], want[i+1]}]; ok && e.rank < best {
					best, at = e.rank, i
				}
			}
			if at < 0 {
				break
			}
			want[at] = table[[2]int32{want[at], want[at+1]}].sym
			want = slices.Delete(want, at+1, at+2)
		}
		m.run()
		var got []int32
		for i := int32(0); i >= 0 && len(m.sym) > 0; i = m.next[i] {
			got = append(got, m.sym[i])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("table %v: got %v, want %v", table, got, want)
		}
	}
}

func TestOrdered(t *testing.T) {
	xs := []float32{float32(math.Inf(-1)), -3e38, -1, -1e-40, 0, 1e-40, 1, 3e38, float32(math.Inf(1))}
	for i := 1; i < len(xs); i++ {
		if ordered(xs[i-1]) >= ordered(xs[i]) {
			t.Errorf("%g and %g", xs[i-1], xs[i])
		}
	}
	if ordered(0) != ordered(float32(math.Copysign(0, -1))) {
		t.Error("the zeros differ")
	}
}

// oneByOne is text with every invalid byte replaced, which is what byte-level BPE encodes.
func oneByOne(text string) string { return string([]rune(text)) }

func FuzzEncode(f *testing.F) {
	for _, s := range append(tricky, "<c>the<u>", "a<|x|>b") {
		f.Add(s, 0, 4)
	}
	var bpes []*Tokenizer
	more := []typed{{"<c>", kindControl}, {"<u>", kindUser}, {"<|x|>", kindControl}}
	for _, p := range preTokenizers() {
		bpes = append(bpes, bpeMeta(p.names[0], more...).must(f, Options{}))
	}
	spm := spmMeta(more...).with(keySpacePrefix, false).must(f, Options{})
	f.Fuzz(func(t *testing.T, text string, from, to int) {
		for _, o := range []EncodeOptions{{}, {ParseSpecial: true}, {ParseSpecial: true, Protected: []Range{{from, to}}}} {
			for _, tok := range bpes {
				ids := tok.Encode(text, o)
				if got, want := decode(tok, ids), oneByOne(text); got != want {
					t.Errorf("%s %+v: %q becomes %q", tok.Pre(), o, text, got)
				}
				if !utf8.ValidString(text) {
					continue
				}
				s := tok.NewStream()
				s.Special = true
				var b strings.Builder
				for _, id := range ids {
					b.WriteString(s.Next(id))
				}
				b.WriteString(s.Flush())
				if b.String() != text {
					t.Errorf("%s: %q streams as %q", tok.Pre(), text, b.String())
				}
			}
			if got, want := decode(spm, spm.Encode(text, o)), strings.ReplaceAll(text, blank, " "); got != want {
				t.Errorf("llama %+v: %q becomes %q", o, text, got)
			}
		}
	})
}
