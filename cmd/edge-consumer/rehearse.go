package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
)

// A rehearsal is the JSON of what a handler would do with a message.
type rehearsal struct {
	messageRef
	Error   *string     `json:"error"` // null: it would take effect
	Changes []rowChange `json:"changes"`
	More    int         `json:"more_changes"` // that are not shown
}

type rowChange struct {
	Op    string         `json:"op"` // insert, update or delete
	Table string         `json:"table"`
	Old   map[string]any `json:"old"` // null for an insert
	New   map[string]any `json:"new"` // null for a delete
}

// rehearse runs the handlers of the configuration on the first of the chosen
// messages, and undoes what they did. Without a configuration nobody knows the
// handlers.
func (c *change) rehearse(ctx context.Context, ib *inbox.Inbox, r *changeReport) error {
	cfg, err := c.db.handlers()
	if err != nil || cfg == nil {
		return err
	}
	handler, err := gateway.HandlerOf(cfg, r.Consumer)
	if err != nil {
		return configError(err)
	}
	r.Rehearsed = []rehearsal{}
	for _, m := range r.messages[:min(len(r.messages), changeSample)] {
		got, err := ib.Rehearse(ctx, m.seq, handler)
		if err != nil {
			return fmt.Errorf("running the handler on message %s, to undo it: %w", m.id, err)
		}
		out := rehearsal{messageRef: messageRef{m.source, m.id}, Changes: []rowChange{}, More: got.More}
		if got.Err != nil {
			text := got.Err.Error()
			out.Error = &text
		} else {
			for _, ch := range got.Changes {
				out.Changes = append(out.Changes, rowChange{ch.Op, ch.Table, named(ch.Columns, ch.Old), named(ch.Columns, ch.New)})
			}
		}
		r.Rehearsed = append(r.Rehearsed, out)
	}
	return nil
}

func named(columns []string, values []any) map[string]any {
	if values == nil {
		return nil
	}
	row := map[string]any{}
	for i, v := range values {
		if i < len(columns) {
			row[columns[i]] = v
		}
	}
	return row
}

// printRehearsed shows each message with the rows that would change.
func printRehearsed(p *printer, all []rehearsal) {
	for _, r := range all {
		p.printf("\n%s\n", visible(r.MessageID))
		if r.Error != nil {
			p.printf("  would fail: %s\n", visible(*r.Error))
			continue
		}
		for _, ch := range r.Changes {
			switch ch.Op {
			case "insert":
				p.printf("  insert into %s %s\n", visible(ch.Table), rowJSON(ch.New))
			case "delete":
				p.printf("  delete from %s %s\n", visible(ch.Table), rowJSON(ch.Old))
			default:
				p.printf("  update %s %s\n      was %s\n", visible(ch.Table), rowJSON(ch.New), rowJSON(ch.Old))
			}
		}
		switch {
		case r.More > 0:
			p.printf("  and %s more rows\n", comma(r.More))
		case len(r.Changes) == 0:
			p.printf("  would change no rows\n")
		}
	}
}

func rowJSON(row map[string]any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(row); err != nil {
		return fmt.Sprint(row)
	}
	return visible(strings.TrimSpace(b.String()))
}
