package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"sluice/engine/gguf"
)

func openModel(t *testing.T, path string) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	fatal(t, err)
	defer f.Close()
	return must(t)(New(f, Options{}))
}

// TestReference compares with the ids that the tests' trained model was trained with.
func TestReference(t *testing.T) {
	dir := os.Getenv("SLUICE_MODELS")
	if dir == "" {
		t.Skip("SLUICE_MODELS is unset: no directory with tinymoe-*.gguf and reference.json")
	}
	type encoded struct {
		Text string
		IDs  []int32
	}
	var ref struct {
		Tokenizer struct {
			Strings []encoded
			Special []encoded `json:"special_strings"`
		}
		Validation struct {
			File string
			IDs  []int32
		}
	}
	fatal(t, json.Unmarshal([]byte(readAll(t, filepath.Join(dir, "reference.json"))), &ref))
	ref.Tokenizer.Strings = append(ref.Tokenizer.Strings, encoded{readAll(t, filepath.Join(dir, ref.Validation.File)), ref.Validation.IDs})
	if len(ref.Validation.IDs) < 8000 {
		t.Fatalf("%d ids of the validation text", len(ref.Validation.IDs))
	}
	models, _ := filepath.Glob(filepath.Join(dir, "tinymoe-*.gguf"))
	if len(models) == 0 {
		t.Fatalf("no tinymoe-*.gguf in %s", dir)
	}
	for _, path := range models {
		tok := openModel(t, path)
		for i, set := range [][]encoded{ref.Tokenizer.Strings, ref.Tokenizer.Special} {
			for _, e := range set {
				got := tok.Encode(e.Text, EncodeOptions{AddSpecial: true, ParseSpecial: i == 1})
				if join(got) != join(e.IDs) {
					t.Errorf("%s: %.60q: %s", filepath.Base(path), e.Text, cmp.Diff(e.IDs, got))
				}
				if decode(tok, got) != e.Text {
					t.Errorf("%s: %.60q decodes to another text", filepath.Base(path), e.Text)
				}
			}
		}
		if got := spell(tok, tok.EOG()); !cmp.Equal(got, []string{"<|endoftext|>", "<|im_end|>"}) || tok.Pre() != "qwen2" {
			t.Errorf("end of generation %q, pre-tokenizer %q", got, tok.Pre())
		}
	}
}

// TestPeer compares with llama.cpp on tricky and random text, control tokens parsed, over the trained model and, where
// SLUICE_VOCABS is set, its vocabulary files.
func TestPeer(t *testing.T) {
	peer, libs := os.Getenv("SLUICE_PEER"), os.Getenv("SLUICE_PEER_LIBS")
	if peer == "" || libs == "" {
		t.Skip("SLUICE_PEER or SLUICE_PEER_LIBS is unset: no llama-peer to compare with")
	}
	var paths []string
	if dir := os.Getenv("SLUICE_MODELS"); dir != "" {
		paths = append(paths, filepath.Join(dir, "tinymoe-q4_0.gguf"))
	}
	if dir := os.Getenv("SLUICE_VOCABS"); dir != "" {
		vocabs, _ := filepath.Glob(filepath.Join(dir, "ggml-vocab-*.gguf"))
		paths = append(paths, vocabs...)
	}
	if len(paths) == 0 {
		t.Skip("SLUICE_MODELS and SLUICE_VOCABS are unset: nothing to compare")
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := gguf.Open(path)
			fatal(t, err)
			defer f.Close()
			tok, err := New(f, Options{})
			if err != nil && strings.Contains(err.Error(), "not supported") {
				t.Skip(err)
			}
			fatal(t, err)
			for i, text := range peerTexts(tok) {
				if strings.HasPrefix(tok.Pre(), "deepseek-") {
					// llama.cpp hides spaces past ASCII from these expressions, whose ranges take some of them.
					text = strings.Map(func(r rune) rune {
						if r > 127 && unicode.IsSpace(r) {
							return ' '
						}
						return r
					}, text)
				}
				out, err := exec.Command(peer, "--libs", libs, "--model", path, "--tokenize", text).Output()
				if err != nil {
					t.Fatalf("llama-peer: %v", err)
				}
				var want []int32
				fatal(t, json.Unmarshal(out, &want))
				got := tok.Encode(text, EncodeOptions{ParseSpecial: true})
				if d := firstDifference(got, want); d >= 0 {
					from := max(0, d-8)
					t.Errorf("text %d: of %d and %d ids the %dth differs\n got %q\nwant %q", i, len(got), len(want), d,
						spell(tok, got[from:min(len(got), d+8)]), spell(tok, want[from:min(len(want), d+8)]))
				}
			}
		})
	}
}

func firstDifference(a, b []int32) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// peerTexts returns two texts that fit in one argument: the tricky ones, and random ones with names of special tokens.
func peerTexts(tok *Tokenizer) []string {
	clean := func(s string) string {
		s = strings.ToValidUTF8(s, "\ufffd")
		return strings.Map(func(r rune) rune {
			switch {
			case r == 0:
				return -1 // ends an argument
			case !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf):
				return 'u' // unassigned in our version of Unicode, maybe not in theirs
			}
			return r
		}, s)
	}
	var special []string
	for id, k := range tok.kind {
		if k == kindControl || k == kindUser {
			special = append(special, tok.text[id])
		}
	}
	rng := rand.New(rand.NewPCG(7, 8))
	var b strings.Builder
	for b.Len() < 40<<10 {
		b.WriteString(clean(randomText(rng, 20)))
		if len(special) > 0 {
			b.WriteString(special[rng.IntN(len(special))])
		}
	}
	return []string{clean(strings.Join(tricky, "|")), b.String()}
}
