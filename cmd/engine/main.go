// Command engine runs mixture-of-experts models from GGUF files and records what their routers
// chose. This package binds flags to package calls and prints results; it computes nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice/engine/model"
)

// version is set by the build (-ldflags "-X main.version=...").
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process, whatever it waits for
	code := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// streams are the three files of a process, so that tests can stand in for them.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is a wrong way to call the program: exit 2.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errInterrupted ends a run that a signal stopped, after its recordings were closed: exit 1.
var errInterrupted = errors.New("interrupted")

// run is the program: 0 done, 1 failed, 2 wrong usage.
func run(ctx context.Context, args []string, io streams) int {
	root := &cobra.Command{
		Use:           "engine",
		Short:         "Runs mixture-of-experts models and records their routing",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("no command given (have %s)", commandNames(c))
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(io), evalCommand(io), benchCommand(io), ggufCommand(io), profileCommand(io), replayCommand(io), coactCommand(io), dumpCommand(io),
		rooflineCommand(io), sweepCommand(io), viewCommand(io), deviceCommand(io))
	root.SetArgs(args)
	root.SetIn(io.in)
	root.SetOut(io.out)
	root.SetErr(io.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	fmt.Fprintln(io.err, "engine:", strings.TrimPrefix(err.Error(), "engine: ")) // a package has the program's name
	var usage usageError
	var setting *model.SettingError
	if errors.As(err, &usage) || errors.As(err, &setting) {
		return 2
	}
	return 1
}

// noArgs refuses arguments; for a command with sub-commands it lists the right choices.
func noArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case c.HasSubCommands():
		return usagef("unknown command %q (have %s)", args[0], commandNames(c))
	}
	return usagef("%s: unexpected argument %q", c.CommandPath(), args[0])
}

// oneArg wants exactly one argument, called what in the message.
func oneArg(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("%s: got %d arguments, want one: %s", c.CommandPath(), len(args), what)
		}
		return nil
	}
}

func commandNames(c *cobra.Command) string {
	s := ""
	for _, sub := range c.Commands() {
		if sub.Name() == "help" {
			continue
		}
		if s != "" {
			s += ", "
		}
		s += sub.Name()
	}
	return s
}
