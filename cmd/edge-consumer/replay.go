package main

import (
	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const replayHelp = `Make completed messages pending: their handlers run AGAIN, on top of what they
did the first time. Undo that first, or have handlers that can run twice.
Messages of the same key run in their order of arrival. A message whose payload
was not kept is left alone.

Confirmation is asked for, unless --yes is given.`

func newReplay() *cobra.Command {
	c := &change{verb: "replay", from: "completed", outcome: "pending, to run again", asks: true, payload: true, do: (*inbox.Inbox).Replay}
	return c.command("Run completed messages again", replayHelp,
		`  edge-consumer replay --db orders.db 01K2Z7Q8
  edge-consumer replay --db orders.db --consumer orders --key customer-7 --dry-run
  edge-consumer replay --db orders.db --consumer orders --since 2026-01-31T08:00:00Z --until 2026-01-31T09:00:00Z --yes`)
}
