package tokenizer

import (
	"fmt"
	"slices"
	"strings"
)

// Which tokens end a generation. Files say it in part (the eos, eot and eom keys); the rest is known by the tokens'
// names only. The names and the exceptions are llama.cpp's.

// endNames end a generation wherever they are in a vocabulary.
var endNames = [...]string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
	"<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
	"<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}

// fillNames are the tokens of fill-in-the-middle prompts. A name counts where the file has none of the group's keys; it
// is a control token then, and the groups with ends stop a generation too.
var fillNames = [...]struct {
	keys  []string
	ends  bool
	names []string
}{
	{keys: []string{"fim_pre_token_id", "prefix_token_id"}, names: []string{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
		"<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"}},
	{keys: []string{"fim_suf_token_id", "suffix_token_id"}, names: []string{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
		"<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"}},
	{keys: []string{"fim_mid_token_id", "middle_token_id"}, names: []string{"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
		"<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"}},
	{keys: []string{"fim_pad_token_id"}, ends: true, names: []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
	{keys: []string{"fim_rep_token_id"}, ends: true, names: []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{keys: []string{"fim_sep_token_id"}, ends: true, names: []string{"<|file_sep|>"}},
}

// loadEOG fills t.eog, corrects the types of tokens known by name, and notes both.
func (t *Tokenizer) loadEOG(m Metadata, override []int32) error {
	ends := map[int32]bool{}
	for _, key := range []string{keyEOS, keyEOT, keyEOM} {
		id, err := t.tokenID(m, key, -1)
		if err != nil {
			return err
		}
		if id >= 0 {
			ends[id] = true
		}
	}
	if t.eos >= 0 {
		ends[t.eos] = true
	}
	var byName, retyped []string
	control := func(id int32) {
		if t.kind[id] != kindControl {
			retyped = append(retyped, t.quoted(id))
			t.kind[id], t.guarded[id] = kindControl, true
		}
	}
	for _, group := range fillNames {
		id := int32(-1)
		for _, key := range group.keys {
			var err error
			if id, err = t.tokenID(m, "tokenizer.ggml."+key, id); err != nil {
				return err
			}
		}
		for _, name := range group.names {
			if found, ok := t.ids[name]; ok && id < 0 {
				id = found
				control(id)
			}
		}
		if id >= 0 && group.ends && !ends[id] {
			ends[id] = true
			byName = append(byName, t.quoted(id))
		}
	}
	for _, name := range endNames {
		if id, ok := t.ids[name]; ok {
			if !ends[id] {
				ends[id] = true
				byName = append(byName, t.quoted(id))
			}
			control(id)
		}
	}
	t.exceptions(ends)

	if override != nil {
		clear(ends)
		for _, id := range override {
			if id < 0 || int(id) >= len(t.text) {
				return fmt.Errorf("tokenizer: end-of-generation id %d, want 0 to %d", id, len(t.text)-1)
			}
			ends[id] = true
		}
		byName = nil
	}
	for id := range ends {
		t.eog = append(t.eog, id)
	}
	slices.Sort(t.eog)
	if len(byName) > 0 {
		t.note("tokens that end a generation by their name, not by the file's keys: %s", strings.Join(byName, ", "))
	}
	if len(retyped) > 0 {
		t.note("tokens treated as control tokens by their name, the file types them otherwise: %s", strings.Join(retyped, ", "))
	}
	if len(t.eog) == 0 {
		t.note("no token ends a generation: the file has no %s and no token with a known name", keyEOS)
	}
	return nil
}

// exceptions takes tokens back whose names mean something else in some families.
func (t *Tokenizer) exceptions(ends map[int32]bool) {
	has := func(name string) bool {
		id, ok := t.ids[name]
		return ok && ends[id]
	}
	drop := func(name string, k kind) {
		if id, ok := t.ids[name]; ok && ends[id] {
			delete(ends, id)
			t.kind[id] = k
			t.note("token %s does not end a generation in this family of models", t.quoted(id))
		}
	}
	// The channel marks of gpt-oss are printed and found in any text.
	for _, name := range []string{"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"} {
		if id, ok := t.ids[name]; ok {
			t.kind[id] = kindUser
		}
	}
	call := has("<|call|>") || has("<|calls|>")
	if call && (has("<|return|>") || has("<|flush|>")) {
		drop("<|end|>", kindUser)
	}
	if has("<|tool_response>") {
		drop("</s>", kindNormal)
	}
}

func (t *Tokenizer) quoted(id int32) string { return fmt.Sprintf("%d %q", id, t.text[id]) }
