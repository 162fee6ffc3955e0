package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/spf13/cobra"
)

const doctorHelp = `Examine what a configuration needs to work, and say what to do about what it
finds. It changes nothing, and runs beside the daemon or without it:

  - the configuration, as check does
  - the database: there, its owner and permissions, its schema, SQLite's
    quick_check (which reads the whole file: --quick leaves it out), the space
  - the daemon: does it run, is it ready
  - credentials: when they end, who can read them
  - the broker: reachable, its clock beside ours
  - for each consumer: its stream, the stream's subjects and limits, the durable
    consumer, its configuration, its lag

The first line sums up; then a line for each check: OK, WARN, CRIT or SKIP. A
broker that is away is a warning: messages wait there, and it is reconnected.

The exit status is that of a Nagios plugin, unlike that of other commands:
  0  ok       everything is, or was skipped for a reason that is no fault
  1  warning  it works, but somebody should look
  2  critical it does not work, or will not
  3  unknown  it could not be found out: no configuration, wrong flags,
              an interruption`

// Exit codes of doctor; doctorHelp documents them.
const (
	exitWarning  = 1
	exitCritical = 2
	exitUnknown  = 3
)

func newDoctor() *cobra.Command {
	var c *configuration
	var asJSON bool
	x := &examination{now: time.Now}
	cmd := &cobra.Command{
		Use:   "doctor -c FILE",
		Short: "Examine configuration, database, daemon and broker",
		Long:  doctorHelp,
		Example: `  edge-consumer doctor -c edge.yaml
  edge-consumer doctor -c edge.yaml --quick --timeout 2s
  edge-consumer doctor -c edge.yaml --json | jq '.checks[] | select(.level != "ok")'`,
		Args: unknownArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			if x.limit <= 0 {
				return exitf(exitUnknown, "--timeout is %v: how long to wait for an answer, like 5s", x.limit)
			}
			if _, err := os.Stat(c.file); err != nil {
				return exitf(exitUnknown, "%w: name the configuration with -c FILE, or make one with edge-consumer init", err)
			}
			x.run(ctx, c)
			if ctx.Err() != nil {
				return &exitError{exitUnknown, ctx.Err()}
			}
			var err error
			if asJSON {
				err = writeJSON(s.out, x.report())
			} else {
				err = x.report().print(s.out)
			}
			if err != nil {
				return &exitError{exitUnknown, err}
			}
			return x.report().verdict()
		}),
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitf(exitUnknown, "%w; see %s --help", err, cmd.CommandPath())
	})
	c = configFlag(cmd)
	c.settingFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.BoolVar(&x.quick, "quick", false, "leave out what reads the whole database")
	f.DurationVar(&x.limit, "timeout", 5*time.Second, "how `long` to wait for each answer of the network")
	return cmd
}

// unknownArgs is noArgs with the exit code of a Nagios plugin.
func unknownArgs(cmd *cobra.Command, args []string) error {
	if err := noArgs(cmd, args); err != nil {
		return &exitError{exitUnknown, err}
	}
	return nil
}

// An examination is the command doctor at work.
type examination struct {
	quick bool
	limit time.Duration // of one answer
	now   func() time.Time

	cfg      *config.Config
	dialer   *natsconn.Dialer
	findings []finding
}

func (x *examination) run(ctx context.Context, c *configuration) {
	if !x.configuration(ctx, c) {
		x.add(levelSkipped, "everything else", "the configuration must be right first", "")
		return
	}
	x.database(ctx)
	x.daemon(ctx)
	x.credentials()
	x.broker(ctx)
}

// configuration is what the command check does. Without it there is no more to
// examine.
func (x *examination) configuration(ctx context.Context, c *configuration) bool {
	const check = "configuration"
	var err error
	if x.cfg, err = c.load(); err == nil {
		err = inScratch(ctx, x.cfg, nothing)
	}
	if err == nil {
		x.dialer, err = natsconn.New(&x.cfg.NATS, os.LookupEnv)
	}
	if err != nil {
		var coded *exitError
		if errors.As(err, &coded) {
			err = coded.err
		}
		x.add(levelCritical, check, oneLine(err), "mend it; edge-consumer check shows the places")
		return false
	}
	x.add(levelOK, check, fmt.Sprintf("%s is right: %s", x.cfg.Name(), plural(int64(len(x.cfg.Consumers)), "consumer", "consumers")), "")
	return true
}
