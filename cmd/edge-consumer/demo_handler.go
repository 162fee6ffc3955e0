package main

import (
	"context"
	"encoding/json"
	"fmt"

	"edge.example/inbox"
)

// demoTables are the business tables. Nothing in them would keep a second
// application out: events has no UNIQUE, repositories counts. Only the inbox
// stands between a message that comes twice and an effect that is there twice.
var demoTables = []string{`
	CREATE TABLE IF NOT EXISTS events (
	    source     TEXT NOT NULL,
	    id         TEXT NOT NULL,
	    type       TEXT NOT NULL,
	    repository TEXT,
	    actor      TEXT,
	    action     TEXT
	)`, `
	CREATE TABLE IF NOT EXISTS repositories (
	    name          TEXT PRIMARY KEY,
	    events        INTEGER NOT NULL,
	    issues_open   INTEGER NOT NULL,
	    last_event_at TEXT NOT NULL
	)`,
}

// An event is what the handler takes from a payload.
type event struct {
	Action     string
	Repository struct {
		FullName string `json:"full_name"`
	}
	Sender struct{ Login string }
}

func parseEvent(payload []byte) (e event, err error) {
	if err := json.Unmarshal(payload, &e); err != nil {
		return e, fmt.Errorf("not a GitHub event: %w", err)
	}
	return e, nil
}

// issuesOpened is by how many an event of this type changes the number of
// open issues.
func issuesOpened(eventType string) int64 {
	switch eventType {
	case "com.github.issues.opened", "com.github.issues.reopened":
		return 1
	case "com.github.issues.closed", "com.github.issues.deleted":
		return -1
	}
	return 0
}

// applyEvent is the demo's handler: a row for each event, sums for each
// repository.
func applyEvent(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	e, err := parseEvent(m.Payload)
	if err != nil {
		return inbox.Permanent(err) // it will not read better tomorrow
	}
	repository := e.Repository.FullName
	_, err = tx.ExecContext(ctx, `
		INSERT INTO events (source, id, type, repository, actor, action)
		VALUES (?1, ?2, ?3, nullif(?4, ''), nullif(?5, ''), nullif(?6, ''))`,
		m.Source, m.ID, m.Type, repository, e.Sender.Login, e.Action)
	if err != nil || repository == "" {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO repositories (name, events, issues_open, last_event_at)
		VALUES (?1, 1, ?2, ?3)
		ON CONFLICT (name) DO UPDATE SET
		       events        = events + 1,
		       issues_open   = issues_open + excluded.issues_open,
		       last_event_at = max(last_event_at, excluded.last_event_at)`,
		repository, issuesOpened(m.Type), m.Headers.Get("ce-time"))
	return err
}
