package main

import (
	"context"
	"fmt"

	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const pauseHelp = `Make a consumer take no more messages: nothing of it runs, and its subscription
leaves new messages on the broker. What runs now is finished. It lasts until
resume, over restarts.

The program that owns the file may run; it notices within a second. To pause
what is paused already is no error; an unknown consumer is, with exit status 1.`

func newPause() *cobra.Command {
	return newSwitch(true, "pause", "Stop a consumer until resume", pauseHelp,
		`  edge-consumer pause --db orders.db orders
  edge-consumer pause --db orders.db orders --json`)
}

// A switchReport is the JSON of pause and resume.
type switchReport struct {
	Consumer string `json:"consumer"`
	Paused   bool   `json:"paused"`
	Changed  bool   `json:"changed"` // false: it was so already
}

// newSwitch makes pause and resume.
func newSwitch(pause bool, name, short, help, example string) *cobra.Command {
	var asJSON bool
	var db *database
	cmd := &cobra.Command{
		Use:     name + " --db FILE CONSUMER",
		Short:   short,
		Long:    help,
		Example: example,
		Args:    oneArg("the name of a consumer"),
		RunE: action(func(ctx context.Context, args []string, s stdio) error {
			ib, err := db.open(ctx)
			if err != nil {
				return err
			}
			defer ib.Close()
			r, err := setPaused(ctx, ib, args[0], pause)
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(s.out, r)
			}
			p := printer{w: s.out}
			state := "running"
			if pause {
				state = "paused"
			}
			if r.Changed {
				p.printf("Consumer %s is %s now.\n", visible(r.Consumer), state)
			} else {
				p.printf("Consumer %s is %s already.\n", visible(r.Consumer), state)
			}
			return p.err
		}),
	}
	db = databaseFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func setPaused(ctx context.Context, ib *inbox.Inbox, consumer string, pause bool) (*switchReport, error) {
	stats, err := ib.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if err := knownConsumer(&stats, consumer); err != nil {
		return nil, err
	}
	r := &switchReport{Consumer: consumer, Paused: pause, Changed: stats.Consumers[consumer].Paused != pause}
	if pause {
		return r, ib.Pause(ctx, consumer)
	}
	return r, ib.Resume(ctx, consumer)
}

// oneArg is for commands that need one argument, which is what.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("%s takes one argument, %s, but was given %d; see %s --help", cmd.Name(), what, len(args), cmd.CommandPath())
		}
		return nil
	}
}
