package main

import (
	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const discardHelp = `Give dead messages up for good: their payloads and headers are removed, which
cannot be undone. The ids stay known, so that a message that comes again is a
duplicate. A message that waited for a discarded one of its key may go.

Confirmation is asked for, unless --yes is given.`

func newDiscard() *cobra.Command {
	c := &change{verb: "discard", from: "dead", outcome: "discarded", asks: true, do: (*inbox.Inbox).Discard}
	return c.command("Give dead messages up for good", discardHelp,
		`  edge-consumer discard --db orders.db 01K2Z7Q8
  edge-consumer discard --db orders.db --consumer orders --type order.test --dry-run
  edge-consumer discard --db orders.db --consumer orders --until 2026-01-31T00:00:00Z --yes`)
}
