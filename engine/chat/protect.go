package chat

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sluice/engine/tokenizer"
)

// protector finds out where control token names from messages end up in a prompt, whatever the template does with the
// messages. In the messages it puts one private-use character in place of each name, and turns these back in the result.
// A part of a name at the end or beginning of a message is treated alike, since the template's text next to it could
// complete it.
type protector struct {
	names   *strings.Replacer // nil if no message has any
	begins  map[string]bool   // what names begin with, less than the whole
	ends    map[string]bool   // what names end with, less than the whole
	longest int               // length of the longest name
	next    rune
	used    map[rune]bool
	hidden  map[rune]string
	err     error
}

// Plane 16 is for private use as a whole.
const firstHidden, lastHidden = rune(0x100000), rune(0x10fffd)

func newProtector(msgs []Message, o RenderOptions) *protector {
	p := &protector{begins: map[string]bool{}, ends: map[string]bool{}, next: firstHidden, used: map[rune]bool{}, hidden: map[rune]string{}}
	for _, name := range o.Special {
		p.longest = max(p.longest, len(name))
		for i := 1; i < len(name); i++ {
			p.begins[name[:i]], p.ends[name[i:]] = true, true
		}
	}
	var found []string
	for _, m := range msgs {
		for _, s := range []string{m.Role, m.Content} {
			for _, r := range s {
				if r >= firstHidden {
					p.used[r] = true
				}
			}
			for _, name := range o.Special {
				if name != "" && strings.Contains(s, name) {
					found = append(found, name)
				}
			}
		}
	}
	// The replacer takes the first that fits at a place.
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	var pairs []string
	for _, name := range slices.Compact(found) {
		pairs = append(pairs, name, p.placeholder(name))
	}
	if len(pairs) > 0 {
		p.names = strings.NewReplacer(pairs...)
	}
	return p
}

// placeholder returns a character that stands for text from now on.
func (p *protector) placeholder(text string) string {
	for p.next <= lastHidden && p.used[p.next] {
		p.next++
	}
	if p.next > lastHidden {
		p.err = errors.New("chat: the messages have too many control token names and private-use characters to tell them apart")
		return text
	}
	p.hidden[p.next] = text
	p.next++
	return string(p.next - 1)
}

// hide returns s with placeholders.
func (p *protector) hide(s string) string {
	if p.names != nil {
		s = p.names.Replace(s)
	}
	// Templates trim messages, so what counts as the end may have spaces after it.
	core := strings.TrimRightFunc(s, unicode.IsSpace)
	for n := min(p.longest, len(core)); n > 0; n-- {
		if part := core[len(core)-n:]; p.begins[part] {
			s = core[:len(core)-n] + p.part(part) + s[len(core):]
			break
		}
	}
	core = strings.TrimLeftFunc(s, unicode.IsSpace)
	for n := min(p.longest, len(core)); n > 0; n-- {
		if part := core[:n]; p.ends[part] {
			s = s[:len(s)-len(core)] + p.part(part) + core[n:]
			break
		}
	}
	return s
}

// part returns the placeholder for a part of a name.
func (p *protector) part(text string) string {
	for r, s := range p.hidden {
		if s == text {
			return string(r)
		}
	}
	return p.placeholder(text)
}

// reveal turns the placeholders back and returns the ranges of what they stood for.
func (p *protector) reveal(s string) (string, []tokenizer.Range) {
	if len(p.hidden) == 0 {
		return s, nil
	}
	var b strings.Builder
	var ranges []tokenizer.Range
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		text, ok := p.hidden[r]
		if !ok {
			text = s[i : i+n]
		}
		if ok {
			ranges = append(ranges, tokenizer.Range{Start: b.Len(), End: b.Len() + len(text)})
		}
		b.WriteString(text)
		i += n
	}
	return b.String(), ranges
}
