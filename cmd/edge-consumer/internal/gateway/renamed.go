package gateway

import (
	"context"
	"fmt"
	"slices"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
)

// warnOfRenamed looks for consumers that got another name: the file has rows of
// one that cfg does not name, and of the one that reads its stream now it has
// none.
func (g *Gateway) warnOfRenamed(ctx context.Context, cfg *config.Config) {
	known, err := streamsOf(ctx, g.ib)
	if err != nil {
		g.log.Warn("it was not found out whether a consumer has another name than before", "error", err)
		return
	}
	named := map[string]bool{}
	for _, k := range cfg.Consumers {
		named[k.Name] = true
	}
	for _, k := range cfg.Consumers {
		if known[k.Name] != nil {
			continue
		}
		for was, streams := range known {
			if named[was] || !slices.Contains(streams, k.Stream) {
				continue
			}
			takes := "takes the whole stream, on top of what the other applied"
			if k.Start != (config.Start{}) {
				takes = "begins where its start says, not where the other ended"
			}
			g.log.Warn(fmt.Sprintf("consumer %s is new to this database and %s; if it is consumer %s with another name, stop, and give it the old name back", k.Name, takes, was),
				"consumer", k.Name, "stream", k.Stream, "no_longer_configured", was)
		}
	}
}

// streamsOf are the streams that each consumer in the file has taken messages
// from.
func streamsOf(ctx context.Context, ib *inbox.Inbox) (map[string][]string, error) {
	known := map[string][]string{}
	err := ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, `SELECT DISTINCT consumer, stream FROM inbox_streams ORDER BY consumer, stream`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var consumer, stream string
			if err := rows.Scan(&consumer, &stream); err != nil {
				return err
			}
			known[consumer] = append(known[consumer], stream)
		}
		return rows.Err()
	})
	return known, err
}
