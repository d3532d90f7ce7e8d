package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sluice/engine"
	"sluice/engine/chat"
	"sluice/engine/tokenizer"
)

// turnJSON is one exchange of run --chat --json.
type turnJSON struct {
	User        string    `json:"user"`
	Text        string    `json:"text"`
	Stop        string    `json:"stop"`
	CacheTokens int       `json:"cache_tokens"` // of the prompt, already in the KV cache
	Prefill     clockJSON `json:"prefill"`
	Decode      clockJSON `json:"decode"`
}

// maxMessage bounds a line of standard input.
const maxMessage = 1 << 20

// chat keeps a conversation. Each turn renders the whole history with the model's template and
// computes only what the KV cache does not hold already.
func (g *generator) chat(ctx context.Context) error {
	m := g.s.Model.Model
	source, err := m.File.String("tokenizer.chat_template", "")
	if err != nil {
		return err
	}
	tmpl, err := chat.Parse(source)
	if err != nil {
		return fmt.Errorf("%s: %w", g.s.Name, err)
	}
	var history []chat.Message
	if g.f.system != "" {
		history = append(history, chat.Message{Role: "system", Content: g.f.system})
	}
	doc := runJSON{Model: g.s.Name, Arch: m.Arch, Turns: []turnJSON{}}
	lines := bufio.NewScanner(g.io.in)
	lines.Buffer(nil, maxMessage)
	fmt.Fprintln(g.io.err, "chat: one line is one message, an empty line or the end of input ends it")
	for ctx.Err() == nil && lines.Scan() {
		user := lines.Text()
		if strings.TrimSpace(user) == "" {
			break
		}
		history = append(history, chat.Message{Role: "user", Content: user})
		ids, err := g.render(tmpl, history)
		if err != nil {
			return err
		}
		same := g.ses.Session.Seq().Prefix(ids)
		kept := g.ses.Session.Keep(ids)
		if kept < same {
			fmt.Fprintf(g.io.err, "chat: %d tokens are computed again: the model's state goes back to %d of %d\n", same-kept, kept, same)
		}
		gen, text, err := g.generate(ctx, ids[kept:])
		if err != nil {
			return err
		}
		history = append(history, chat.Message{Role: "assistant", Content: text})
		g.speeds(gen)
		doc.PromptTokens += len(ids) - kept
		doc.PromptIDs = append(doc.PromptIDs, ids[kept:]...)
		doc.Tokens = append(doc.Tokens, gen.Tokens...)
		doc.Text += text
		doc.Stop = string(gen.Stop)
		addClock(&doc.Prefill, gen.Prefill)
		addClock(&doc.Decode, gen.Decode)
		doc.Turns = append(doc.Turns, turnJSON{User: user, Text: text, Stop: string(gen.Stop), CacheTokens: kept,
			Prefill: clockOf(gen.Prefill), Decode: clockOf(gen.Decode)})
		if gen.Stop == engine.StopCancel {
			return errInterrupted
		}
		g.ses.Session.NextTurn()
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("a message is longer than %d bytes", maxMessage)
		}
		return err
	}
	printSession(g.io.err, g.ses)
	if g.f.json {
		return g.finish(&doc)
	}
	return nil
}

// render applies the template. Text of messages never becomes a control token.
func (g *generator) render(tmpl *chat.Template, history []chat.Message) ([]int32, error) {
	tok := g.s.Tok
	text := func(id int32) string {
		if id < 0 {
			return ""
		}
		return tok.Text(id)
	}
	r, err := tmpl.Render(history, chat.RenderOptions{BOS: text(tok.BOS()), EOS: text(tok.EOS()), AddGenerationPrompt: true,
		Now: time.Now(), Special: tok.ControlTexts()})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.s.Name, err)
	}
	ids := tok.Encode(r.Text, tokenizer.EncodeOptions{AddSpecial: !r.HasBOS, ParseSpecial: true, Protected: r.Protected})
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s: the chat template gives an empty prompt", g.s.Name)
	}
	return ids, nil
}

func addClock(sum *clockJSON, c engine.Clock) {
	sum.Tokens += c.Tokens
	sum.Seconds += c.Seconds
	sum.TPS = engine.Clock{Tokens: sum.Tokens, Seconds: sum.Seconds}.TPS()
}
