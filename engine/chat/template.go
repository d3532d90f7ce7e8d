package chat

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"

	"sluice/engine/tokenizer"
)

// maxSource bounds a template, ten times above the largest known: the parser recurses over nested expressions.
const maxSource = 256 << 10

// Template is a parsed chat template.
type Template struct{ t *jinja.Template }

// Message is one turn of a conversation.
type Message struct {
	Role    string // "system", "user", "assistant", or what else the template knows
	Content string
}

// RenderOptions are what a template sees besides the messages.
type RenderOptions struct {
	BOS, EOS            string    // texts of the model's tokens for the beginning and end of text, "" for none
	AddGenerationPrompt bool      // end with what introduces the assistant's next turn
	Now                 time.Time // what strftime_now says; the zero time stands for the present
	// Special are the names of the model's control tokens (Tokenizer.ControlTexts). Where they come from a message, and
	// not from the template, they are listed in Rendered.Protected.
	Special []string
}

// Rendered is a prompt. It is to be encoded with ParseSpecial and Protected.
type Rendered struct {
	Text string
	// Protected are byte ranges of Text, ascending, that hold control token names out of messages, whole or in part.
	Protected []tokenizer.Range
	// HasBOS says that Text begins with BOS by the template's doing: the tokenizer must not add it again.
	HasBOS bool
}

// RaisedError is a template's own refusal (raise_exception), such as of two user messages in a row.
type RaisedError struct{ Message string }

// Error returns the template's message with its origin.
func (e *RaisedError) Error() string { return "chat: the template refuses the messages: " + e.Message }

// ErrNoTemplate is the error for a model without a template.
var ErrNoTemplate = errors.New("chat: the model has no chat template (no tokenizer.chat_template in its file)")

// Parse reads a template. Errors name the line and the column of the tag at fault, both from 1, columns in bytes.
func Parse(source string) (t *Template, err error) {
	switch {
	case source == "":
		return nil, ErrNoTemplate
	case len(source) > maxSource:
		return nil, fmt.Errorf("chat: template of %d bytes, want at most %d", len(source), maxSource)
	}
	defer recovered(&err)
	tags, err := scanTags(source)
	if err != nil {
		return nil, fmt.Errorf("chat: template: %w", err)
	}
	if _, err := jinja.Compile(source); err != nil {
		return nil, fmt.Errorf("chat: template: %w", locate(tags, err))
	}
	counted, err := jinja.Compile(countMacroCalls(source, tags))
	if err != nil {
		return nil, fmt.Errorf("chat: template: %w", err)
	}
	return &Template{counted}, nil
}

// Render applies the template. The error is a *RaisedError where the template refuses, else it says what failed in it.
func (t *Template) Render(msgs []Message, o RenderOptions) (r Rendered, err error) {
	if len(msgs) == 0 {
		return Rendered{}, errors.New("chat: no messages")
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	p := newProtector(msgs, o)
	items := make([]jinja.Value, len(msgs))
	for i, m := range msgs {
		items[i] = jinja.NewDict()
		d := items[i].AsDict()
		d.Set("role", jinja.NewString(p.hide(m.Role)))
		d.Set("content", jinja.NewString(p.hide(m.Content)))
	}
	if p.err != nil {
		return Rendered{}, p.err
	}
	f := functions{now: o.Now, callsLeft: callsBase + callsPerMessage*len(msgs)}
	data := f.values()
	data["messages"] = jinja.NewList(items)
	data["add_generation_prompt"] = jinja.NewBool(o.AddGenerationPrompt)
	data["bos_token"] = jinja.NewString(o.BOS)
	data["eos_token"] = jinja.NewString(o.EOS)
	data["tools"], data["documents"] = jinja.None(), jinja.None()

	defer recovered(&err)
	text, err := t.t.RenderValues(data)
	if f.raised != nil {
		return Rendered{}, f.raised
	}
	if err != nil {
		return Rendered{}, fmt.Errorf("chat: template: %w", err)
	}
	r.Text, r.Protected = p.reveal(text)
	r.HasBOS = o.BOS != "" && strings.HasPrefix(r.Text, o.BOS) && (len(r.Protected) == 0 || r.Protected[0].Start >= len(o.BOS))
	return r, nil
}

// recovered turns a panic of the template engine into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("chat: template: the template engine failed: %v", p)
	}
}
