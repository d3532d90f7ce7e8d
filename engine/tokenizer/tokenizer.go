package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"sluice/engine/gguf"
)

// Tokenizer is the tokenizer of one model.
type Tokenizer struct {
	*vocab
	model          string
	preName        string
	bpe            *bpe // exactly one of bpe and spm is set
	spm            *spm
	bos, eos       int32 // -1: none
	addBOS, addEOS bool
	eog            []int32 // sorted
	pieces         [][]byte
	special        *matches
	lstrip, rstrip map[int32]bool
	notes          []string
}

// Options change what the file says.
type Options struct {
	Pre string  // pre-tokenizer to use in place of tokenizer.ggml.pre; "" for the file's
	EOG []int32 // not nil: exactly these tokens end a generation, whatever keys and names say
}

// New reads the tokenizer of a GGUF file. It copies what it needs: the file may be closed afterwards. Errors name the
// metadata key, what it holds and what it should.
func New(f *gguf.File, o Options) (*Tokenizer, error) {
	// The getters take any integer or float type; ggml writes one, and a file with another was not made for this.
	for _, want := range []struct {
		key  string
		elem []gguf.ValueType
	}{{keyTypes, []gguf.ValueType{gguf.Int32}}, {keyScores, []gguf.ValueType{gguf.Float32}}} {
		v, ok := f.Value(want.key)
		if ok && (v.Type != gguf.Array || !slices.Contains(want.elem, v.Elem)) {
			found := v.Type.String()
			if v.Type == gguf.Array {
				found = "array of " + v.Elem.String()
			}
			return nil, fmt.Errorf("tokenizer: %s: key %q: found %s, want array of %s", f.Name(), want.key, found, want.elem[0])
		}
	}
	return FromMetadata(f, o)
}

// FromMetadata is New for any source of metadata.
func FromMetadata(m Metadata, o Options) (*Tokenizer, error) {
	model, err := m.String(keyModel, "")
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if model == "" {
		return nil, fmt.Errorf("tokenizer: %s: absent, want gpt2 or llama", keyModel)
	}
	if model != "gpt2" && model != "llama" {
		return nil, fmt.Errorf("tokenizer: %s: model %q is not supported, want gpt2 or llama", keyModel, model)
	}
	t := &Tokenizer{model: model}
	if t.vocab, err = loadVocab(m); err != nil {
		return nil, err
	}
	if model == "gpt2" {
		err = t.loadBPE(m, o)
	} else {
		err = t.loadSPM(m, o)
	}
	if err != nil {
		return nil, err
	}
	if err := t.loadStrip(m); err != nil {
		return nil, err
	}
	t.makePieces()
	texts := map[int32]string{}
	for i, k := range t.kind {
		if k == kindControl || k == kindUser || k == kindUnknown {
			texts[int32(i)] = t.text[i]
		}
	}
	t.special = newMatches(texts, len(t.text))
	return t, nil
}

func (t *Tokenizer) loadBPE(m Metadata, o Options) error {
	name, err := m.String(keyPre, "")
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if o.Pre != "" {
		if name != o.Pre {
			t.note("pre-tokenizer %q as asked, the file says %q", o.Pre, name)
		}
		name = o.Pre
	}
	if name == "" {
		name = noPre
		t.note("%s is absent: pre-tokenizer %q, which may not be the one that the model was trained with", keyPre, noPre)
	}
	pre, err := findPre(name)
	if err != nil {
		return fmt.Errorf("tokenizer: %s: %w", keyPre, err)
	}
	t.preName = name
	merges, err := m.Strings(keyMerges)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if merges == nil {
		return fmt.Errorf("tokenizer: %s: absent, a gpt2 vocabulary needs it", keyMerges)
	}
	if _, err := t.loadScores(m, false); err != nil {
		return err
	}
	// llama.cpp's defaults are ids 11 for want of keys, which fits one old family only: none is better than a wrong one.
	if err := t.loadEnds(m, -1, -1, pre.addBOS, o); err != nil {
		return err
	}
	if t.bpe, err = newBPE(pre, len(t.text), t.plain, merges); err != nil {
		return err
	}
	if n := t.bpe.missingBytes(); n > 0 {
		t.note("the vocabulary has no token for %d of the bytes that UTF-8 uses: text loses them", n)
	}
	return nil
}

func (t *Tokenizer) loadSPM(m Metadata, o Options) error {
	if o.Pre != "" {
		return fmt.Errorf("tokenizer: pre-tokenizer %q asked for, but %s is llama, which has none", o.Pre, keyModel)
	}
	scores, err := t.loadScores(m, true)
	if err != nil {
		return err
	}
	def := func(id int32) int32 {
		if int(id) < len(t.text) {
			return id
		}
		return -1
	}
	if err := t.loadEnds(m, def(1), def(2), true, o); err != nil {
		return err
	}
	unknown, err := t.tokenID(m, keyUnknown, def(0))
	if err != nil {
		return err
	}
	spacePrefix, err := m.Bool(keySpacePrefix, true)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	t.spm = newSPM(scores, t.plain, t.ids, unknown, spacePrefix)
	if n := t.spm.missingBytes(); n > 0 {
		t.note("the vocabulary has no token for %d of the 256 bytes and no unknown token: text may lose them", n)
	}
	return nil
}

// loadEnds reads which tokens begin and end a text and a generation.
func (t *Tokenizer) loadEnds(m Metadata, bos, eos int32, addBOS bool, o Options) (err error) {
	if t.bos, err = t.tokenID(m, keyBOS, bos); err != nil {
		return err
	}
	if t.eos, err = t.tokenID(m, keyEOS, eos); err != nil {
		return err
	}
	if t.addBOS, err = m.Bool(keyAddBOS, addBOS); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if t.addEOS, err = m.Bool(keyAddEOS, false); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if t.addBOS && t.bos < 0 {
		t.addBOS = false
		t.note("texts get no token at their beginning: %s is absent", keyBOS)
	}
	if t.addEOS && t.eos < 0 {
		t.addEOS = false
		t.note("texts get no token at their end: %s is absent", keyEOS)
	}
	return t.loadEOG(m, o.EOG)
}

// loadStrip sets which special tokens take the spaces around them with them. Files do not say it; llama.cpp knows the
// families by name.
func (t *Tokenizer) loadStrip(m Metadata) error {
	name, err := m.String("general.name", "")
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	t.lstrip, t.rstrip = map[int32]bool{}, map[int32]bool{}
	name = strings.ToLower(name)
	switch {
	case strings.Contains(t.preName, "jina-v2-"):
		if id, ok := t.ids["<mask>"]; ok {
			t.lstrip[id] = true
		}
	case strings.Contains(name, "phi-3") || strings.Contains(name, "phi3"):
		for id, k := range t.kind {
			switch t.text[id] {
			case "<unk>", "<s>", "<|endoftext|>":
			default:
				t.rstrip[int32(id)] = k == kindControl || k == kindUser || k == kindUnknown
			}
		}
	}
	return nil
}

// makePieces makes the bytes of every token once, in one block of memory.
func (t *Tokenizer) makePieces() {
	var all []byte
	ends := make([]int, len(t.text))
	for i, text := range t.text {
		switch t.kind[i] {
		case kindControl, kindUnknown, kindUser:
			all = append(all, text...)
		case kindNormal:
			if t.bpe != nil {
				all = appendUnspelled(all, text)
			} else {
				all = append(all, strings.ReplaceAll(text, blank, " ")...)
			}
		case kindByte:
			b, _ := byteOf(text)
			all = append(all, b)
		}
		ends[i] = len(all)
	}
	t.pieces = make([][]byte, len(ends))
	from := 0
	for i, end := range ends {
		t.pieces[i] = all[from:end:end]
		from = end
	}
}

func (t *Tokenizer) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// EncodeOptions say how Encode treats special tokens.
type EncodeOptions struct {
	AddSpecial   bool // put the tokens for beginning and end around the text that the model wants there
	ParseSpecial bool // find control tokens in the text by their names; otherwise their names are ordinary text
	// Byte ranges in which names of control tokens are ordinary text in spite of ParseSpecial, also where a name only
	// overlaps. User-defined tokens are found there as everywhere.
	Protected []Range
}

// Encode returns the token ids of text, which must be shorter than 2 GiB. Invalid UTF-8 is no error: in byte-level BPE
// every invalid byte becomes U+FFFD, in a llama vocabulary it becomes its byte's token.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	var ids []int32
	if o.AddSpecial && t.addBOS {
		ids = append(ids, t.bos)
	}
	afterSpecial := true // the beginning counts as well
	for _, f := range t.split(text, o) {
		switch {
		case f.id >= 0:
			ids = append(ids, f.id)
		case t.bpe != nil:
			ids = t.bpe.encode(ids, text[f.start:f.end])
		default:
			ids = t.spm.encode(ids, text[f.start:f.end], afterSpecial)
		}
		afterSpecial = f.id >= 0
	}
	if o.AddSpecial && t.addEOS {
		ids = append(ids, t.eos)
	}
	return ids
}

// Piece returns the bytes that a token stands for in text: none for control, unknown and unused tokens and for ids that
// the model does not have. They may be part of a character only. The caller must not change them.
func (t *Tokenizer) Piece(id int32) []byte {
	if t.IsControl(id) {
		return nil
	}
	return t.PieceSpecial(id)
}

// PieceSpecial is Piece with the names of control tokens.
func (t *Tokenizer) PieceSpecial(id int32) []byte {
	if id < 0 || int(id) >= len(t.pieces) {
		return nil
	}
	return t.pieces[id]
}

// Text returns the token as it is spelled in the vocabulary, "" for an id that the model does not have.
func (t *Tokenizer) Text(id int32) string {
	if id < 0 || int(id) >= len(t.text) {
		return ""
	}
	return t.text[id]
}

// ControlTexts returns the names that text must not smuggle in, sorted: those of control and unknown tokens.
func (t *Tokenizer) ControlTexts() []string {
	var texts []string
	for id, g := range t.guarded {
		if g {
			texts = append(texts, t.text[id])
		}
	}
	slices.Sort(texts)
	return texts
}

// NVocab returns the number of tokens.
func (t *Tokenizer) NVocab() int { return len(t.text) }

// IsEOG reports whether the token ends a generation.
func (t *Tokenizer) IsEOG(id int32) bool { _, ok := slices.BinarySearch(t.eog, id); return ok }

// IsControl reports whether the token is a control or unknown token, which is not printed.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < len(t.kind) && (t.kind[id] == kindControl || t.kind[id] == kindUnknown)
}

// BOS returns the token at the beginning of texts, -1 for none.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the token at the end of texts, -1 for none.
func (t *Tokenizer) EOS() int32 { return t.eos }

// AddsBOS reports whether Encode with AddSpecial begins with BOS.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// EOG returns the tokens that end a generation, ascending.
func (t *Tokenizer) EOG() []int32 { return slices.Clone(t.eog) }

// Notes returns what a user should know: guesses for missing metadata and corrections of it.
func (t *Tokenizer) Notes() []string { return slices.Clone(t.notes) }

// Pre returns the name of the pre-tokenizer in use, "" for a llama vocabulary.
func (t *Tokenizer) Pre() string { return t.preName }

// Model returns tokenizer.ggml.model: "gpt2" or "llama".
func (t *Tokenizer) Model() string { return t.model }
