package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"edge.example/inbox"
	"github.com/spf13/cobra"
)

// commands make the commands; a new one is added here.
var commands = []func() *cobra.Command{
	newRun,
	newInit,
	newCheck,
	newTest,
	newDemo,
	newDoctor,
	newStatus,
	newTop,
	newList,
	newShow,
	newRetry,
	newDiscard,
	newReplay,
	newPause,
	newResume,
	newAudit,
	newHealthcheck,
	newCompletion,
	newVersion,
}

const rootHelp = `edge-consumer takes messages from NATS JetStream into one SQLite file, so that
each takes effect exactly once, or is visibly waiting, or is visibly dead.

Exit status:
  0  ok
  1  the proof, or the audit, does not hold; or what was named is not there:
     no such consumer, no such message, nothing that could be changed
  2  usage error, or a wrong configuration
  3  any other failure, an interruption included
doctor has those of a Nagios plugin: 0 ok, 1 warning, 2 critical, 3 unknown.`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "edge-consumer",
		Short: "An exactly-once consumer for the edge",
		Long:  rootHelp,
		Example: `  edge-consumer demo
  edge-consumer status --db orders.db
  edge-consumer list --db orders.db --status dead
  edge-consumer help audit`,
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	for _, command := range commands {
		root.AddCommand(command())
	}
	completeValues(root)
	return root
}

// knownCommand is for what follows the name of the program: cobra calls it
// when that is no command.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	hint := "see " + cmd.CommandPath() + " --help"
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q; %s", args[0], hint)
}

// noArgs is for commands that have flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, but was given %q; see %s --help", cmd.Name(), args[0], cmd.CommandPath())
	}
	return nil
}

// Exit codes; rootHelp documents them.
const (
	exitOK      = 0
	exitNotHeld = 1
	exitNoMatch = 1
	exitUsage   = 2
	exitFailure = 3
)

// An exitError is the error of a command, with the exit code it asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitf makes an error that ends the program with code.
func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// stdio is what a command reads and writes.
type stdio struct {
	in  io.Reader
	out io.Writer // data
	err io.Writer // everything else
}

// action makes a function cobra's. Its errors ask for exitFailure unless they
// say otherwise; so what run sees without an exit code comes from cobra, which
// did not understand the command line.
func action(fn func(ctx context.Context, args []string, s stdio) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := fn(cmd.Context(), args, stdio{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()})
		var coded *exitError
		if err == nil || errors.As(err, &coded) {
			return err
		}
		return &exitError{exitFailure, err}
	}
}

// run is the program but for signals: it runs the command that args name and
// returns the exit code. An error becomes one line on stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	text := visible(oneLine(err))
	if places := problemText(err); places != "" {
		lines := strings.Split(places, "\n")
		for i := range lines {
			lines[i] = visible(lines[i])
		}
		text = strings.Join(lines, "\n")
	}
	if what := remedy(err); what != "" {
		text += "; " + what
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintln(stderr, "edge-consumer:", text)
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.code
	}
	return exitUsage
}

// remedy is what an operator can do about an error of the database's file.
func remedy(err error) string {
	switch {
	case errors.Is(err, inbox.ErrCorrupt):
		return "put it away and restore a backup: what came since is fetched from the stream again"
	case errors.Is(err, inbox.ErrLocked):
		return "a database has one edge-consumer run: stop the other first"
	case errors.Is(err, inbox.ErrNewerSchema):
		return "use the newer program, or restore a backup from before the upgrade"
	case errors.Is(err, inbox.ErrReadOnly):
		return "run this as the user of the service, who owns the file"
	}
	return ""
}

// writeJSON writes v as one JSON document.
func writeJSON(w io.Writer, v any) error {
	e := newJSONEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// newJSONEncoder makes one that writes each value on a line of its own.
func newJSONEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(visibleJSON{w})
	e.SetEscapeHTML(false)
	return e
}

// A printer writes lines for people and remembers the first error, so that
// output which got lost is not taken for success.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format, args...); err != nil && p.err == nil {
		p.err = err
	}
}
