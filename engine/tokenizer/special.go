package tokenizer

import (
	"slices"
	"sort"
)

// Range is the byte range Start <= i < End of a text.
type Range struct{ Start, End int }

// fragment is a piece of the text to encode: ordinary text, or one special token where id >= 0.
type fragment struct {
	start, end int
	id         int32
}

// matches finds the special tokens of a vocabulary in text.
type matches struct {
	first [256]bool        // whether any token begins with the byte
	node  map[uint64]int32 // the trie: node<<8 | byte to node, the root is 0
	id    []int32          // by node: the token that ends here, -1
	order []int32          // by token id: place in the order in which tokens are looked for, the longest first
}

func newMatches(texts map[int32]string, nTokens int) *matches {
	m := &matches{node: map[uint64]int32{}, id: []int32{-1}, order: make([]int32, nTokens)}
	ids := make([]int32, 0, len(texts))
	for id := range texts {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool {
		if a, b := len(texts[ids[i]]), len(texts[ids[j]]); a != b {
			return a > b
		}
		return ids[i] < ids[j]
	})
	for place, id := range ids {
		m.order[id] = int32(place)
		m.first[texts[id][0]] = true
		at := int32(0)
		for _, c := range []byte(texts[id]) {
			key := uint64(at)<<8 | uint64(c)
			next, ok := m.node[key]
			if !ok {
				next = int32(len(m.id))
				m.node[key] = next
				m.id = append(m.id, -1)
			}
			at = next
		}
		m.id[at] = id
	}
	return m
}

// find returns all occurrences of the tokens that allow agrees to, those of longer tokens first, of one token by position.
func (m *matches) find(text string, allow func(f fragment) bool) []fragment {
	var found []fragment
	for i := range len(text) {
		if !m.first[text[i]] {
			continue
		}
		at, ok := int32(0), true
		for j := i; j < len(text); j++ {
			if at, ok = m.node[uint64(at)<<8|uint64(text[j])]; !ok {
				break
			}
			if f := (fragment{i, j + 1, m.id[at]}); f.id >= 0 && allow(f) {
				found = append(found, f)
			}
		}
	}
	sort.SliceStable(found, func(i, j int) bool { return m.order[found[i].id] < m.order[found[j].id] })
	return found
}

// split cuts the special tokens out of text. The longest token is looked for first in the whole text, the next in what is
// left between its occurrences, and so on: a short token that begins earlier does not hide a long one.
func (t *Tokenizer) split(text string, o EncodeOptions) []fragment {
	if text == "" {
		return nil
	}
	var protected []bool
	if len(o.Protected) > 0 {
		protected = make([]bool, len(text))
		for _, r := range o.Protected {
			for i := max(r.Start, 0); i < min(r.End, len(text)); i++ {
				protected[i] = true
			}
		}
	}
	found := t.special.find(text, func(f fragment) bool {
		if t.kind[f.id] != kindUser && !o.ParseSpecial {
			return false
		}
		return protected == nil || !t.guarded[f.id] || !slices.Contains(protected[f.start:f.end], true)
	})
	if len(found) == 0 {
		return []fragment{{0, len(text), -1}}
	}
	taken := make([]bool, len(text))
	kept := found[:0]
	for _, f := range found {
		if slices.Contains(taken[f.start:f.end], true) {
			continue
		}
		kept = append(kept, f)
		lo, hi := f.start, f.end
		for t.lstrip[f.id] && lo > 0 && !taken[lo-1] && asciiSpace(text[lo-1]) {
			lo--
		}
		for t.rstrip[f.id] && hi < len(text) && !taken[hi] && asciiSpace(text[hi]) {
			hi++
		}
		for i := lo; i < hi; i++ {
			taken[i] = true
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].start < kept[j].start })

	var out []fragment
	for i := 0; i < len(text); {
		if len(kept) > 0 && kept[0].start == i {
			out = append(out, kept[0])
			i = kept[0].end
			kept = kept[1:]
			continue
		}
		from := i
		for i < len(text) && taken[i] == taken[from] && (len(kept) == 0 || i < kept[0].start) {
			i++
		}
		if !taken[from] {
			out = append(out, fragment{from, i, -1})
		}
	}
	return out
}

// asciiSpace is isspace of the C locale.
func asciiSpace(b byte) bool { return b == ' ' || '\t' <= b && b <= '\r' }
