package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const listHelp = `List messages, the newest first. All conditions must hold; without any, all
messages are meant. --status may be given more than once, or as a list.

The table cuts long texts; --json does not: it prints one JSON object a line.
With --limit 0 there is no limit, and the messages come in the order of
arrival: they are printed as they are read, however many there are.

The file may be in use. No message at all is no error; an unknown consumer is,
with exit status 1.`

// listMost bounds what is sorted, in memory.
const listMost = 10_000

func newList() *cobra.Command {
	var asJSON bool
	var limit int
	var db *database
	var f *filter
	cmd := &cobra.Command{
		Use:   "list --db FILE",
		Short: "List messages by status, type, key, time or error",
		Long:  listHelp,
		Example: `  edge-consumer list --db orders.db --status dead
  edge-consumer list --db orders.db --status pending,dead --since 2h --error timeout
  edge-consumer list --db orders.db --key customer-7 --limit 200
  edge-consumer list --db orders.db --limit 0 --json | jq -r .message_id`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			if err := f.check(time.Now()); err != nil {
				return err
			}
			for _, status := range f.statuses {
				if !slices.Contains(messageStatuses, status) {
					return exitf(exitUsage, "--status %q is no status: use %s", status, strings.Join(messageStatuses, ", "))
				}
			}
			if limit < 0 || limit > listMost {
				return exitf(exitUsage, "--limit is %d: use 1 to %d, or 0 for all, in the order of arrival", limit, listMost)
			}
			ib, err := db.open(ctx)
			if err != nil {
				return err
			}
			defer ib.Close()
			if f.consumer != "" {
				stats, err := ib.Stats(ctx)
				if err != nil {
					return err
				}
				if err := knownConsumer(&stats, f.consumer); err != nil {
					return err
				}
			}
			return ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
				if asJSON {
					e := newJSONEncoder(s.out)
					return eachMessage(ctx, rx, f, limit, func(m *message) error { return e.Encode(m) })
				}
				return listForPeople(ctx, rx, f, limit, s)
			})
		}),
	}
	db = databaseFlag(cmd)
	f = filterFlags(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.statuses, "status", nil, "only messages with this status: "+strings.Join(messageStatuses, ", "))
	flags.IntVar(&limit, "limit", 50, "list so many messages at most; 0 for all, in the order of arrival")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func listForPeople(ctx context.Context, rx *inbox.Rx, f *filter, limit int, s stdio) error {
	p := printer{w: s.out}
	t := newTable(&p, column{name: "RECEIVED"}, column{name: "STATUS"}, column{name: "CONSUMER", most: 24}, column{name: "ID"},
		column{name: "TYPE", most: 32}, column{name: "KEY", most: 32}, column{name: "ATTEMPTS", right: true}, column{name: "LAST ERROR", most: 80})
	n := 0
	err := eachMessage(ctx, rx, f, limit, func(m *message) error {
		n++
		t.row(m.ReceivedAt, m.Status, m.Consumer, m.MessageID, or(m.Type, "-"), or(m.Key, "-"), comma(m.Attempts), or(m.LastError, "-"))
		return p.err
	})
	if err != nil {
		return err
	}
	if n == 0 {
		fmt.Fprintln(s.err, "No message is chosen.")
		return nil
	}
	t.flush()
	if n == limit {
		fmt.Fprintf(s.err, "These are the newest %s; there may be more: see --limit.\n", comma(n))
	}
	return p.err
}
