package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sluice/dump"
	"sluice/dump/view"
)

// viewRecordings is how many recordings a page takes: they share the room that bounds it.
const viewRecordings = 16

func viewCommand(io streams) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "view RECORDING...",
		Short: "Recordings as an HTML page: heat maps of experts, residency and drops over time",
		Long: `Writes one HTML file that shows selection dumps and route traces in any browser of 2023 or later: how
often each expert of each layer was picked, what was in memory, read and dropped over time, and entropy and
reuse per layer. The file holds everything it needs and asks nothing of any network. Its size does not grow
with the recordings: experts and time are put together where there are too many to show.`,
		Example: `  engine run "In the beginning" -n 400 --cache-mb 4 --route-trace route.csv --sel-dump run.sel.bin
  engine view route.csv run.sel.bin -o routing.html`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > viewRecordings {
				return usagef("%s: got %d arguments, want 1 to %d recordings", c.CommandPath(), len(args), viewRecordings)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return writeView(c, args, out, io) },
	}
	c.Flags().StringVarP(&out, "output", "o", "", "the HTML file to write")
	return c
}

func writeView(c *cobra.Command, paths []string, out string, io streams) error {
	if out == "" {
		return usagef("-o: want the name of the HTML file to write")
	}
	for _, p := range paths {
		if sameFile(p, out) {
			return usagef("-o %s: would replace a recording that it is made from", out)
		}
	}
	bases := map[string]int{}
	for _, p := range paths {
		bases[filepath.Base(p)]++
	}
	var recs []*view.Recording
	for _, p := range paths {
		name := filepath.Base(p)
		if bases[name] > 1 {
			name = p
		}
		rec, err := analyseView(c, p, name, view.Options{Cells: view.DefaultCells / len(paths)})
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, n := range rec.Notes {
			fmt.Fprintf(io.err, "note: %s: %s\n", p, n)
		}
		recs = append(recs, rec)
	}
	first, err := os.Open(paths[0])
	if err != nil {
		return err
	}
	defer first.Close()
	if err := replaceFile(out, first, func(w ioWriter) error { return view.Write(w, recs) }); err != nil {
		return err
	}
	fmt.Fprintln(io.err, "wrote", out)
	return nil
}

func analyseView(c *cobra.Command, path, name string, o view.Options) (*view.Recording, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var side *dump.SelMeta
	switch meta, err := dump.ReadSelMeta(path); {
	case err == nil:
		side = &meta
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return view.Analyse(c.Context(), name, in, side, o)
}
