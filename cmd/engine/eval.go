package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/tokenizer"
	"sluice/moe"
)

type evalFlags struct {
	modelFlags
	cacheFlags
	dropFlags
	tapFlags
	chunk int
	mode  string
	fracs string
	used  string
	json  bool
	sweep bool
	plot  string
}

func evalCommand(io streams) *cobra.Command {
	f := &evalFlags{}
	c := &cobra.Command{
		Use:   "eval FILE",
		Short: "Perplexity of a text file",
		Long: `Scores a text in chunks, each from an empty context, and prints its perplexity. With a list of drop
thresholds or of experts per token, one row each. As soon as dropping or fewer experts are compared,
every row runs in decode mode, the baseline too.

With --drop-sweep drop thresholds and fewer experts per token are compared as two ways to save reads: perplexity and KL
divergence from the undropped run against the bytes read. The undropped run's logits are kept in a temporary file
meanwhile, 4 bytes for each prediction and vocabulary entry.`,
		Example: `  engine eval -m model.gguf validation.txt --chunk 512
  engine eval -m model.gguf validation.txt --cache-mb 2000 --drop-cold-experts 0,0.5,0.75,1
  engine eval -m model.gguf validation.txt --cache-mb 2000 --drop-sweep --plot quality`,
		Args: oneArg("the text file"),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args[0], io) },
	}
	f.modelFlags.add(c, true)
	f.cacheFlags.add(c)
	f.dropFlags.add(c, true)
	f.tapFlags.add(c)
	fs := c.Flags()
	fs.IntVar(&f.chunk, "chunk", 512, "tokens per chunk")
	fs.StringVar(&f.mode, "mode", "", "prefill (whole chunks) or decode (a token a step); default: decode where dropping or top-k is compared")
	fs.StringVar(&f.fracs, "drop-cold-experts", "0", "drop threshold, or a list of them, as a fraction of 1/k")
	fs.StringVar(&f.used, "n-expert-used", "", "experts per token, or a list of numbers (default: the model's)")
	fs.BoolVar(&f.sweep, "drop-sweep", false, "compare thresholds (default "+sweepFracs+") and numbers of experts (default: the model's down to 1) at equal reads")
	fs.StringVar(&f.plot, "plot", "", "draw the sweep's curves to this file, .png or .svg; to both, without extension")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

// evalRow is one configuration that is measured.
type evalRow struct {
	frac float64
	used int // 0: the model's
}

type evalRowJSON struct {
	DropFrac    float64 `json:"drop_frac"`
	NExpertUsed int     `json:"n_expert_used"`
	Mode        string  `json:"mode"`
	Tokens      int     `json:"tokens"` // predictions scored
	NLL         float64 `json:"nll"`    // mean, nats per token
	Perplexity  float64 `json:"perplexity"`
	SessionJSON
}

// evalJSON has the first row's figures at the top.
type evalJSON struct {
	Model string `json:"model"`
	Arch  string `json:"arch"`
	File  string `json:"file"`
	Chunk int    `json:"chunk"`
	evalRowJSON
	Rows []evalRowJSON `json:"rows"`
}

func (f *evalFlags) run(c *cobra.Command, file string, io streams) (err error) {
	if f.sweep {
		return f.runSweep(c, file, io)
	}
	if c.Flags().Changed("plot") {
		return usagef("--plot has no effect without --drop-sweep")
	}
	rows, mode, err := f.plan(c)
	if err != nil {
		return err
	}
	if err := f.tapFlags.resolve(c, io); err != nil {
		return err
	}
	if len(rows) > 1 && (f.selDump != "" || f.trace != "") {
		return usagef("a recording takes one configuration, not a list of %d", len(rows))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if f.modelFlags.ctx == 0 {
		f.modelFlags.ctx = max(f.chunk, 0)
	}
	s, err := open(c, io, &f.modelFlags, &f.cacheFlags, slices.ContainsFunc(rows, func(r evalRow) bool { return r.frac > 0 }))
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	ids := s.Tok.Encode(string(text), tokenizer.EncodeOptions{})
	doc := evalJSON{Model: s.Name, Arch: s.Arch, File: file, Chunk: f.chunk}
	for i, row := range rows {
		r, err := f.measure(c, s, row, mode, ids, i > 0)
		if err != nil {
			return err
		}
		doc.Rows = append(doc.Rows, r)
		if !f.json {
			fmt.Fprintf(io.out, "perplexity %.5f  nll %.6f  tokens %d  mode %s  experts %d  drop %g  dropped %.3f %% of experts, %.3f %% of weight  read %.1f MiB\n",
				r.Perplexity, r.NLL, r.Tokens, r.Mode, r.NExpertUsed, r.DropFrac, percent(float64(r.Drop.Dropped), float64(r.Drop.Routed)),
				percent(r.Drop.WeightDropped, r.Drop.Weight), float64(r.IO.BytesRead)/(1<<20))
		}
	}
	if !f.json {
		return nil
	}
	doc.evalRowJSON = doc.Rows[0]
	return printJSON(io.out, doc)
}

// plan lists the rows and settles the mode.
func (f *evalFlags) plan(c *cobra.Command) ([]evalRow, engine.EvalMode, error) {
	if f.chunk < 2 {
		return nil, "", usagef("--chunk %d: want 2 or more", f.chunk)
	}
	fracs, err := fractions("drop-cold-experts", f.fracs)
	if err != nil {
		return nil, "", err
	}
	used := []int{0}
	if c.Flags().Changed("n-expert-used") {
		if used, err = numbers("n-expert-used", f.used); err != nil {
			return nil, "", err
		}
	}
	var rows []evalRow
	most := 0.0
	for _, k := range used {
		for _, frac := range fracs {
			rows = append(rows, evalRow{frac, k})
			most = max(most, frac)
		}
	}
	if err := f.dropFlags.check(c, most, f.mb != "0"); err != nil {
		return nil, "", err
	}
	compared := most > 0 || c.Flags().Changed("n-expert-used")
	switch f.mode {
	case "":
		if compared {
			return rows, engine.EvalDecode, nil
		}
		return rows, engine.EvalPrefill, nil
	case "prefill":
		if most > 0 && !f.inPrefill {
			return nil, "", usagef("--mode prefill: the prompt drops nothing without --drop-in-prefill")
		}
		return rows, engine.EvalPrefill, nil
	case "decode":
		return rows, engine.EvalDecode, nil
	}
	return nil, "", usagef("--mode %q: want prefill or decode", f.mode)
}

func (f *evalFlags) measure(c *cobra.Command, s *setup, row evalRow, mode engine.EvalMode, ids []int32, quiet bool) (r evalRowJSON, err error) {
	t := &taps{selPath: f.selDump, tracePath: f.trace}
	ses, err := s.session(c.Context(), moe.Drop{Frac: row.frac, Renorm: !f.noRenorm}, f.inPrefill, row.used, t, quiet)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.close(&s.io), ses.Close()) }()
	bar := progress(s.io.err)
	p, err := ses.Session.MeasurePerplexity(c.Context(), ids, f.chunk, mode, func(done, total int, p engine.Perplexity) {
		bar(done, total, fmt.Sprintf("perplexity %.4f", p.Value()))
	})
	if err != nil {
		return r, memoryHint(err, true, true)
	}
	if err := t.flush(); err != nil {
		return r, err
	}
	return evalRowJSON{DropFrac: row.frac, NExpertUsed: ses.Config().NExpertUsed, Mode: string(mode), Tokens: p.Predictions,
		NLL: p.Mean(), Perplexity: p.Value(), SessionJSON: sessionReport(ses, t)}, nil
}
