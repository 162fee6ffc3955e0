package main

import (
	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const retryHelp = `Make dead messages pending again: due now, with all their attempts before them.
Use it when the cause is mended: a fixed handler, a full table emptied.

Confirmation is asked for with --all only.`

func newRetry() *cobra.Command {
	c := &change{verb: "retry", from: "dead", outcome: "pending again", do: (*inbox.Inbox).Retry}
	return c.command("Give dead messages another chance", retryHelp,
		`  edge-consumer retry --db orders.db 01K2Z7Q8
  edge-consumer retry --db orders.db --consumer orders --error "no such table" --dry-run
  edge-consumer retry --db orders.db --consumer orders --since 2h
  edge-consumer retry --db orders.db --consumer orders --all --yes`)
}
