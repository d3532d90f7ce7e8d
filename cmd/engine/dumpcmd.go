package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/columns"
	"sluice/dump/inspect"
)

func dumpCommand(io streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "dump",
		Short: "Print, sum up and export selection dumps and route traces",
		Long: `All three take a selection dump (--sel-dump) or a route trace (--route-trace) and tell the two apart
by their first bytes. A recording whose end is torn is used up to there, and said to be torn.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("no command given (have %s)", commandNames(c))
		},
	}
	c.AddCommand(catCommand(io), statCommand(io), exportCommand(io))
	return c
}

func catCommand(io streams) *cobra.Command {
	var o inspect.CatOptions
	c := &cobra.Command{
		Use:     "cat RECORDING",
		Short:   "Print the records with the byte at which each begins",
		Example: `  engine dump cat run.sel.bin --layer 3 --limit 20`,
		Args:    oneArg("the recording"),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("layer") && o.Layer < 0 {
				return usagef("--layer %d: want 0 or more", o.Layer)
			}
			in, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			rows, closeRows, err := openRows(args[0])
			if err != nil {
				return err
			}
			defer closeRows()
			o.Rows = rows
			torn, err := inspect.Cat(c.Context(), io.out, in, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			noteTorn(io, torn)
			return nil
		},
	}
	fs := c.Flags()
	fs.IntVar(&o.Layer, "layer", -1, "only this layer (default: all)")
	fs.Uint64Var(&o.Skip, "skip", 0, "records to pass over first")
	fs.Uint64Var(&o.Limit, "limit", 0, "records to print at most (default: all)")
	fs.BoolVar(&o.JSON, "json", false, "print one JSON document")
	return c
}

func noteTorn(io streams, torn *inspect.Torn) {
	if torn != nil {
		fmt.Fprintln(io.err, "note:", torn)
	}
}

func statCommand(io streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "stat RECORDING",
		Short: "Print totals per layer",
		Args:  oneArg("the recording"),
		RunE: func(c *cobra.Command, args []string) error {
			in, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			rows, closeRows, err := openRows(args[0])
			if err != nil {
				return err
			}
			defer closeRows()
			t, err := inspect.Stat(c.Context(), in, rows)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if asJSON {
				return printJSON(io.out, t)
			}
			return t.WriteText(io.out)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

// openRows opens the sidecar that says whose the records of a selection dump are; nil: it has none.
func openRows(path string) (rows io.Reader, closeRows func() error, err error) {
	side, err := os.Open(dump.RowsPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, func() error { return nil }, nil
	}
	return side, side.Close, err
}

type exportJSON struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Input int64  `json:"input_bytes"`
	*columns.Summary
}

func exportCommand(io streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "export RECORDING OUT.parquet",
		Short: "Write a recording as Parquet, a row per routed slot",
		Example: `  engine dump export run.sel.bin run.parquet
  duckdb -c "select layer, expert, count(*) from 'run.parquet' group by all order by 3 desc limit 10"`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("%s: got %d arguments, want two: the recording and the file to write", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			facts := columns.Facts{"recording": filepath.Base(args[0])}
			switch meta, err := dump.ReadSelMeta(args[0]); {
			case err == nil:
				facts["model"], facts["arch"] = meta.Model, meta.Arch
				facts["n_layer"], facts["n_expert"], facts["n_expert_used"] = fmt.Sprint(meta.NLayer), fmt.Sprint(meta.NExpert), fmt.Sprint(meta.NUsed)
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
			doc := exportJSON{Path: args[1]}
			err = replaceFile(args[1], in, func(w ioWriter) (err error) {
				doc.Summary, err = columns.Export(c.Context(), w, in, facts)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for path, size := range map[string]*int64{args[0]: &doc.Input, args[1]: &doc.Bytes} {
				if st, err := os.Stat(path); err == nil {
					*size = st.Size()
				}
			}
			noteTorn(io, doc.Torn)
			if asJSON {
				return printJSON(io.out, doc)
			}
			_, err = fmt.Fprintf(io.out, "%s: %d rows of %d records, %d bytes (the %s has %d)\n", args[1], doc.Rows, doc.Records, doc.Bytes, doc.Kind, doc.Input)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}
