package tokenizer

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sluice/engine/gguf"
)

// TestVocabs compares with the reference ids that come with llama.cpp's vocabulary files: FILE.gguf has texts in
// FILE.gguf.inp and their ids, made by the models' own tokenizers, in FILE.gguf.out.
func TestVocabs(t *testing.T) {
	dir := os.Getenv("SLUICE_VOCABS")
	if dir == "" {
		t.Skip("SLUICE_VOCABS is unset: no directory with ggml-vocab-*.gguf files and their .inp and .out")
	}
	outs, err := filepath.Glob(filepath.Join(dir, "ggml-vocab-*.gguf.out"))
	if err != nil || len(outs) == 0 {
		t.Fatalf("no ggml-vocab-*.gguf.out in %s (%v)", dir, err)
	}
	for _, out := range outs {
		path := strings.TrimSuffix(out, ".out")
		t.Run(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "ggml-vocab-"), ".gguf"), func(t *testing.T) {
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			tok, err := New(f, Options{})
			if err != nil {
				if strings.Contains(err.Error(), "not supported") {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			ids := readLines(t, out)
			const sep = "\n__ggml_vocab_test__\n"
			texts := strings.Split(strings.TrimSuffix(readAll(t, path+".inp"), sep), sep)
			if len(texts) != len(ids) {
				t.Fatalf("%d texts, %d lines of ids", len(texts), len(ids))
			}
			for i, text := range texts {
				if got, want := join(tok.Encode(text, EncodeOptions{})), strings.TrimSpace(ids[i]); got != want {
					t.Errorf("%q\n got %s\nwant %s", text, got, want)
				}
			}
			t.Logf("%d texts, model %s, pre %q, notes %q", len(texts), tok.Model(), tok.Pre(), tok.Notes())
		})
	}
}

func join(ids []int32) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = strconv.Itoa(int(id))
	}
	return strings.Join(words, " ")
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(readAll(t, path), "\n"), "\n")
}
