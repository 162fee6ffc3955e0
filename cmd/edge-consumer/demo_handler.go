package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/sqlhandler"
	"edge.example/inbox/testdata/gateway"
)

// demoGateway is the folder, beside the database, with the configuration that
// the demo's handler and tables are taken from.
const demoGateway = "gateway"

// demoTables is the migration that makes the business tables.
const demoTables = "migrations/0003_github.sql"

// writeGateway writes the configuration where everybody can read it, and takes
// the handler for GitHub's events from it.
func writeGateway(dir string) (*sqlhandler.Handler, error) {
	dir = filepath.Join(dir, demoGateway)
	if err := os.CopyFS(dir, gateway.Files); err != nil && !os.IsExist(err) {
		return nil, err
	}
	none := func(string) (string, bool) { return "", false }
	cfg, err := config.Load(filepath.Join(dir, "edge.yaml"), none, nil)
	if err != nil {
		return nil, err
	}
	h, ok := cfg.Handlers[demoConsumer]
	if !ok {
		return nil, fmt.Errorf("%s has no handler %q", cfg.Name(), demoConsumer)
	}
	return h.Compile()
}

// createTables makes the business tables, once.
func createTables(ctx context.Context, tx *inbox.Tx) error {
	var made bool
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'events'`).Scan(&made)
	if err != nil || made {
		return err
	}
	text, err := fs.ReadFile(gateway.Files, demoTables)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, string(text))
	return err
}

// An event is what the handler takes from a payload, as the proof reads it: in
// Go, so that it does not rest on the handler's SQL.
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
