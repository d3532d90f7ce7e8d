package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/launch"
	"sluice/engine/tokenizer"
	"sluice/moe"
)

type runFlags struct {
	modelFlags
	cacheFlags
	dropFlags
	tapFlags
	streamFlags
	sampler   engine.SamplerConfig
	prompt    string
	file      string
	system    string
	n         int
	noSpecial bool
	ignoreEOS bool
	chat      bool
	json      bool
}

func runCommand(io streams) *cobra.Command {
	f := &runFlags{sampler: engine.DefaultSampler()}
	c := &cobra.Command{
		Use:   "run [PROMPT]",
		Short: "Generate text",
		Long: `Generates text from a prompt. The text goes to standard output, all else to standard error.
Without -m the built-in demo model runs.`,
		Example: `  engine run "In the beginning"
  engine run -m model.gguf -p "Once upon a time" -n 64 --temp 0
  engine run -m model.gguf --chat
  engine run -m model.gguf -p Hello --cache-mb 2000 --drop-cold-experts 0.5 --route-trace route.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args, io) },
	}
	f.modelFlags.add(c, false)
	f.cacheFlags.add(c)
	f.dropFlags.add(c, false)
	f.tapFlags.add(c)
	f.streamFlags.add(c, "csv")
	fs := c.Flags()
	fs.StringVarP(&f.prompt, "prompt", "p", "", "the prompt; control tokens in it are parsed")
	fs.StringVarP(&f.file, "file", "f", "", "read the prompt from a file, as literal text")
	fs.IntVarP(&f.n, "predict", "n", 128, "generate at most this many tokens; -1: until the model or the context ends")
	fs.BoolVar(&f.noSpecial, "no-parse-special", false, "take control tokens in the prompt as literal text")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "go on past end-of-generation tokens")
	fs.BoolVar(&f.chat, "chat", false, "talk: one line of standard input is one message, through the model's chat template")
	fs.StringVar(&f.system, "system", "", "system message of --chat")
	fs.BoolVar(&f.json, "json", false, "print one JSON document instead of the text")
	fs.Float64Var(&f.sampler.Temp, "temp", f.sampler.Temp, "temperature; 0: greedy")
	fs.IntVar(&f.sampler.TopK, "top-k", f.sampler.TopK, "draw from the k likeliest tokens; 0: all")
	fs.Float64Var(&f.sampler.TopP, "top-p", f.sampler.TopP, "draw from the likeliest tokens with this much probability together")
	fs.Float64Var(&f.sampler.MinP, "min-p", f.sampler.MinP, "leave out tokens below this share of the likeliest")
	fs.Float64Var(&f.sampler.RepeatPenalty, "repeat-penalty", f.sampler.RepeatPenalty, "weaken recent tokens by this factor; 1: off")
	fs.IntVar(&f.sampler.RepeatLastN, "repeat-last-n", f.sampler.RepeatLastN, "how many recent tokens that means")
	fs.Uint64VarP(&f.sampler.Seed, "seed", "s", 0, "seed of the draw (default: random, printed)")
	return c
}

func (f *runFlags) run(c *cobra.Command, args []string, io streams) (err error) {
	if err := f.check(c, args); err != nil {
		return err
	}
	if err := f.tapFlags.resolve(c, io); err != nil {
		return err
	}
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags, f.frac > 0)
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	prompt, err := f.encode(s)
	if err != nil {
		return err
	}
	f.streamFlags.attach(s)
	t := &taps{selPath: f.selDump, tracePath: f.trace}
	ses, err := s.session(c.Context(), moe.Drop{Frac: f.frac, Renorm: !f.noRenorm}, f.inPrefill, f.nUsed, t, false)
	if err != nil {
		return err
	}
	defer func() {
		t.failed = err != nil && !errors.Is(err, errInterrupted)
		err = errors.Join(err, t.close(&io), ses.Close())
	}()
	smp, err := engine.NewSampler(f.sampler, s.NVocab)
	if err != nil {
		return err
	}
	f.printSampling(c, io)
	g := &generator{f: f, s: s, ses: ses, taps: t, smp: smp, io: io}
	if f.chat {
		return g.chat(c.Context())
	}
	return g.once(c.Context(), prompt)
}

// check refuses contradictions before anything is opened.
func (f *runFlags) check(c *cobra.Command, args []string) error {
	fs := c.Flags()
	if len(args) > 1 {
		return usagef("%d prompts given, want one: put it in quotes", len(args))
	}
	given := len(args)
	for _, name := range []string{"prompt", "file"} {
		if fs.Changed(name) {
			given++
		}
	}
	if len(args) == 1 {
		f.prompt = args[0]
	}
	switch {
	case f.chat && given > 0:
		return usagef("--chat reads messages from standard input: leave the prompt out")
	case !f.chat && given == 0:
		return usagef("no prompt: give one as an argument, with -p or -f, or talk with --chat")
	case given > 1:
		return usagef("several prompts: give one of the argument, -p and -f")
	case f.system != "" && !f.chat:
		return usagef("--system has no effect without --chat")
	case f.noSpecial && (f.chat || f.file != ""):
		return usagef("--no-parse-special has no effect here: text from files and messages is always literal")
	case f.n < -1 || f.n == 0:
		return usagef("-n %d: want 1 or more, or -1", f.n)
	}
	if !fs.Changed("seed") {
		f.sampler.Seed = randomSeed()
	}
	if err := f.sampler.Validate(); err != nil {
		return usageError{err}
	}
	if f.sampler.RepeatPenalty == 1 && fs.Changed("repeat-last-n") {
		return usagef("--repeat-last-n has no effect without --repeat-penalty")
	}
	if err := f.streamFlags.check(c, f.mb != "0" && f.cacheFlags.io != "mmap"); err != nil {
		return err
	}
	// A drop threshold is checked again by setup.session, once it is known whether there is a cache.
	return f.dropFlags.check(c, f.frac, f.mb != "0")
}

func (f *runFlags) printSampling(c *cobra.Command, io streams) {
	p := &f.sampler
	if p.Temp == 0 {
		fmt.Fprintln(io.err, "sampling: greedy")
		for _, name := range []string{"seed", "top-k", "top-p", "min-p"} {
			if c.Flags().Changed(name) {
				fmt.Fprintf(io.err, "sampling: --%s has no effect at temperature 0\n", name)
			}
		}
		return
	}
	fmt.Fprintf(io.err, "sampling: temperature %g, top-k %d, top-p %g, min-p %g, repeat penalty %g, seed %d\n", p.Temp, p.TopK, p.TopP, p.MinP, p.RepeatPenalty, p.Seed)
}

// encode turns the prompt into tokens. A file's text never becomes control tokens.
func (f *runFlags) encode(s *setup) ([]int32, error) {
	if f.chat {
		return nil, nil
	}
	text, special := f.prompt, !f.noSpecial
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return nil, err
		}
		text, special = string(data), false
	}
	ids := s.Tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: special})
	if len(ids) == 0 {
		return nil, usagef("the prompt is empty: it has no tokens, and the model adds none")
	}
	return ids, nil
}

// runJSON is the document of run --json.
type runJSON struct {
	Model        string    `json:"model"`
	Arch         string    `json:"arch"`
	PromptTokens int       `json:"prompt_tokens"`
	PromptIDs    []int32   `json:"prompt_ids"`
	Tokens       []int32   `json:"tokens"`
	Text         string    `json:"text"`
	Stop         string    `json:"stop"`
	Prefill      clockJSON `json:"prefill"`
	Decode       clockJSON `json:"decode"`
	SessionJSON
	Turns []turnJSON `json:"turns,omitempty"`
}

// generator runs prompts through one session.
type generator struct {
	f    *runFlags
	s    *setup
	ses  *launch.Run
	taps *taps
	smp  *engine.Sampler
	io   streams
}

// generate runs one prompt; text streams to standard output unless a document is wanted.
func (g *generator) generate(ctx context.Context, prompt []int32) (engine.Generation, string, error) {
	stream := g.s.Tok.NewStream()
	var text []byte
	show := func(piece string) error {
		text = append(text, piece...)
		if g.f.json {
			return nil
		}
		_, err := fmt.Fprint(g.io.out, piece)
		return err
	}
	gen, err := g.ses.Session.Generate(ctx, prompt, g.smp, engine.GenerateConfig{MaxTokens: g.f.n, IgnoreEOS: g.f.ignoreEOS},
		func(id int32) error { return show(stream.Next(id)) })
	if e := show(stream.Flush()); err == nil {
		err = e
	}
	if !g.f.json {
		fmt.Fprintln(g.io.out)
	}
	return gen, string(text), err
}

func (g *generator) once(ctx context.Context, prompt []int32) error {
	gen, text, err := g.generate(ctx, prompt)
	if err != nil {
		return err
	}
	g.speeds(gen)
	printSession(g.io.err, g.ses)
	if g.f.json {
		doc := g.document(gen, text, prompt)
		if err := g.finish(&doc); err != nil {
			return err
		}
	}
	if gen.Stop == engine.StopCancel {
		return errInterrupted
	}
	return nil
}

func (g *generator) document(gen engine.Generation, text string, prompt []int32) runJSON {
	return runJSON{Model: g.s.Name, Arch: g.s.Arch, PromptTokens: len(prompt), PromptIDs: prompt, Tokens: gen.Tokens, Text: text,
		Stop: string(gen.Stop), Prefill: clockOf(gen.Prefill), Decode: clockOf(gen.Decode)}
}

// finish flushes the recordings, so that the document's counts are what is on disk, and prints it.
func (g *generator) finish(doc *runJSON) error {
	if err := g.taps.flush(); err != nil {
		return err
	}
	doc.SessionJSON = sessionReport(g.ses, g.taps)
	return printJSON(g.io.out, doc)
}

func (g *generator) speeds(gen engine.Generation) {
	fmt.Fprintf(g.io.err, "prefill: %d tokens in %.3f s (%.1f tokens/s)\ndecode: %d tokens in %.3f s (%.1f tokens/s), ended by %s\n",
		gen.Prefill.Tokens, gen.Prefill.Seconds, gen.Prefill.TPS(), gen.Decode.Tokens, gen.Decode.Seconds, gen.Decode.TPS(), gen.Stop)
}

// randomSeed is a seed that was not asked for.
func randomSeed() uint64 { return rand.Uint64() >> 32 }
