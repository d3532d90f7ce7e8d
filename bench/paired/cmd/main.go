// Command cmd prints what rounds of two programs say (-table ROUNDS: lines "name old new", larger is better; exit 1 where a
// figure does not hold), or runs a command and prints its seconds and instructions (-run COMMAND ARGUMENT...; the command's output
// is passed on to standard error).
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"sluice/bench/paired"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	if !errors.Is(err, errNot) {
		fmt.Fprintln(os.Stderr, "paired:", err)
	}
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

var (
	errUsage = errors.New("wrong usage")
	errNot   = errors.New("a figure does not hold")
)

func run(args []string, out, errs io.Writer) error {
	fs := flag.NewFlagSet("paired", flag.ContinueOnError)
	fs.SetOutput(errs)
	table := fs.String("table", "", "print the figures of this file")
	timed := fs.Bool("run", false, "run the command that follows; print its seconds and instructions, 0 where there is no counter")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	switch {
	case *timed && *table == "" && fs.NArg() > 0:
		c := exec.Command(fs.Arg(0), fs.Args()[1:]...)
		c.Stdout, c.Stderr = errs, errs
		begin := time.Now()
		n, noCount, err := paired.Run(c)
		seconds := time.Since(begin).Seconds()
		if err != nil {
			return fmt.Errorf("%s: %w", fs.Arg(0), err)
		}
		if noCount != nil {
			fmt.Fprintln(errs, noCount)
		}
		_, err = fmt.Fprintf(out, "%.6f %d\n", seconds, n)
		return err
	case !*timed && *table != "" && fs.NArg() == 0:
		f, err := os.Open(*table)
		if err != nil {
			return err
		}
		defer f.Close()
		figures, err := paired.Read(f)
		if err != nil {
			return err
		}
		all, err := paired.WriteTable(out, figures)
		if err == nil && !all {
			err = errNot
		}
		return err
	}
	return fmt.Errorf("%w: want one of -table FILE and -run COMMAND", errUsage)
}
