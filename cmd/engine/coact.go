package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/coact"
	"sluice/dump/inspect"
	"sluice/internal/whole"
)

type coactFlags struct {
	experts, cards, threads     int
	replicate, layers           string
	json                        bool
	markdown, placement, matrix string
}

// defaultReplicate are the budgets where none is typed; those that a model has no experts for are left out.
const defaultReplicate = "0,16,32,64"

func coactCommand(io streams) *cobra.Command {
	f := &coactFlags{}
	c := &cobra.Command{
		Use:   "coact DUMP",
		Short: "Selection dump: can the experts be split over cards?",
		Long: `Counts in a selection dump which experts are picked, how often and together with which others, and
looks for the split over cards with which a token's experts rarely cross from one card to another.
Experts may be replicated on every card. Splits are fitted to the first 70 % of each layer's tokens
and scored on the rest, beside random and contiguous splits with the same experts replicated.`,
		Example: `  engine coact run.sel.bin --experts 288 --cards 2 --replicate 0,16,32,64
  engine coact run.sel.bin --replicate 16 --placement placement.json --md report.md`,
		Args: oneArg("the selection dump"),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args[0], io) },
	}
	fs := c.Flags()
	fs.IntVar(&f.experts, "experts", 0, "experts per layer (default: as the dump's sidecar says)")
	fs.IntVar(&f.cards, "cards", 2, fmt.Sprintf("cards to split over, 2..%d", coact.MaxCards))
	fs.StringVar(&f.replicate, "replicate", defaultReplicate, "how many experts of a layer to put on every card, a list")
	fs.StringVar(&f.layers, "layers", "", "the layers to analyse, a list (default: all)")
	fs.IntVarP(&f.threads, "threads", "t", 0, "worker threads (default: one per processor)")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	fs.StringVar(&f.markdown, "md", "", "write the report as Markdown to this file")
	fs.StringVar(&f.placement, "placement", "", "write which expert stands on which cards to this file, for the budget of the verdict")
	fs.StringVar(&f.matrix, "matrix", "", "write the co-activation matrix to this file, as CSV")
	return c
}

func (f *coactFlags) run(c *cobra.Command, path string, io streams) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	kind, err := inspect.Detect(in)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if kind != inspect.Selection {
		return fmt.Errorf("%s: a %s, want a selection dump (record one with --sel-dump)", path, kind)
	}
	meta, o, err := f.options(c, path, io)
	if err != nil {
		return err
	}
	r, err := coact.Analyse(c.Context(), in, o)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.Dump, r.Model, r.Arch = filepath.Base(path), meta.Model, meta.Arch
	r.Placement.Dump, r.Placement.Model, r.Placement.Arch = r.Dump, r.Model, r.Arch
	for _, n := range r.Notes {
		fmt.Fprintln(io.err, "note:", n)
	}
	for _, out := range []struct {
		path  string
		write func(w ioWriter) error
	}{{f.markdown, r.WriteMarkdown}, {f.placement, r.Placement.Write}, {f.matrix, r.WriteMatrix}} {
		if out.path == "" {
			continue
		}
		if err := replaceFile(out.path, in, out.write); err != nil {
			return err
		}
	}
	if f.placement != "" {
		fmt.Fprintf(io.err, "%s: placement with %d experts on every card\n", f.placement, r.Chosen)
	}
	if f.json {
		return printJSON(io.out, r)
	}
	return r.WriteText(io.out)
}

// options puts flags and sidecar together.
func (f *coactFlags) options(c *cobra.Command, path string, io streams) (meta dump.SelMeta, o coact.Options, err error) {
	meta, err = dump.ReadSelMeta(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return meta, o, err
	}
	typed := c.Flags().Changed("experts")
	switch {
	case typed && f.experts < 1:
		return meta, o, usagef("--experts %d: want 1 or more", f.experts)
	case !typed && meta.NExpert < 1:
		return meta, o, usagef("--experts: the dump has no %s.meta.json that says how many experts a layer has; name it", filepath.Base(path))
	case !typed:
		f.experts = meta.NExpert
	case meta.NExpert > 0 && meta.NExpert != f.experts:
		return meta, o, usagef("--experts %d: the dump's sidecar says %d", f.experts, meta.NExpert)
	}
	o = coact.Options{Experts: f.experts, NLayer: meta.NLayer, Cards: f.cards, Threads: f.threads}
	if o.Replicate, err = countList("replicate", f.replicate); err != nil {
		return meta, o, err
	}
	if !c.Flags().Changed("replicate") {
		fits := slices.DeleteFunc(slices.Clone(o.Replicate), func(r int) bool { return r >= f.experts })
		if len(fits) < len(o.Replicate) {
			fmt.Fprintf(io.err, "note: --replicate: of %s only %v, a layer has %d experts\n", defaultReplicate, fits, f.experts)
		}
		o.Replicate = fits
	}
	if f.layers != "" {
		if o.Layers, err = countList("layers", f.layers); err != nil {
			return meta, o, err
		}
	}
	if err := o.Validate(); err != nil {
		return meta, o, usageError{err}
	}
	return meta, o, nil
}

// countList parses a comma-separated list of numbers from 0.
func countList(flag, list string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 {
			return nil, usagef("--%s %q: want whole numbers of 0 or more, separated by commas", flag, list)
		}
		out = append(out, n)
	}
	return out, nil
}

type ioWriter = io.Writer // where a parameter called io hides the package

// replaceFile is whole.WriteFile for a file that is made from another, and must not be it.
func replaceFile(path string, from *os.File, write func(ioWriter) error) error {
	old, oldErr := os.Stat(path)
	if source, err := from.Stat(); err == nil && oldErr == nil && os.SameFile(old, source) {
		return usagef("%s: would replace the recording it is made from", path)
	}
	if err := whole.WriteFile(path, write); err != nil {
		return fmt.Errorf("%s: cannot write: %w", path, err)
	}
	return nil
}
