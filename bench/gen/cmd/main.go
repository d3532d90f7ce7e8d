// Command cmd writes synthetic recordings: go run ./bench/gen/cmd -trace route.csv -mb 300, or -dump sel.bin -mb 1000.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"sluice/bench/gen"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "gen:", err)
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errUsage = errors.New("wrong usage")

func run(args []string, out, help io.Writer) error {
	fs := flag.NewFlagSet("gen", flag.ContinueOnError)
	fs.SetOutput(help)
	trace := fs.String("trace", "", "write a route trace to this file")
	sel := fs.String("dump", "", "write a selection dump to this file")
	mb := fs.Int64("mb", 300, "size in MB (10^6 bytes)")
	seed := fs.Uint64("seed", 1, "seed")
	frac := fs.Float64("frac", 0, "drop threshold of the run that the trace is of")
	state := fs.Bool("state", false, "state the run's cache and threshold in the trace's preamble")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 || *mb < 1 || (*trace == "") == (*sel == "") {
		return fmt.Errorf("%w: want one of -trace FILE and -dump FILE, and -mb of 1 or more", errUsage)
	}
	if *trace != "" {
		c := gen.DefaultTrace(*mb * 1e6)
		c.Seed, c.Frac, c.State = *seed, *frac, *state
		n, err := gen.WriteTrace(*trace, c)
		if err == nil {
			fmt.Fprintf(out, "%s: %d rows\n", *trace, n)
		}
		return err
	}
	c := gen.DefaultDump(*mb * 1e6)
	c.Seed = *seed
	n, err := gen.WriteDump(*sel, c)
	if err == nil {
		fmt.Fprintf(out, "%s: %d records\n", *sel, n)
	}
	return err
}
