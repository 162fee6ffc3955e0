package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"edge.example/inbox"
)

// A migration is one file of the folder migrations: 0001_orders.sql.
type migration struct {
	number   int
	name     string // of the file
	text     string
	checksum string
}

var migrationName = regexp.MustCompile(`^(\d+)_[\w.-]*\.sql$`)

// maxMigration bounds one file, in bytes.
const maxMigration = 16 << 20

// readMigrations reads a folder. Its numbers begin at 1 and have no gaps.
func readMigrations(dir string) ([]migration, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ms []migration
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".sql") {
			continue
		}
		m := migrationName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("%s: a migration's name is a number, _ and a name: 0001_orders.sql", filepath.Join(dir, e.Name()))
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err)
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if len(text) > maxMigration {
			return nil, fmt.Errorf("%s is %d bytes long, the limit is %d", filepath.Join(dir, e.Name()), len(text), maxMigration)
		}
		// Line ends are git's business on some machines.
		sum := sha256.Sum256([]byte(strings.ReplaceAll(string(text), "\r\n", "\n")))
		ms = append(ms, migration{n, e.Name(), string(text), hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(ms, func(a, b migration) int { return a.number - b.number })
	for i, m := range ms {
		switch {
		case i > 0 && m.number == ms[i-1].number:
			return nil, fmt.Errorf("%s: %s and %s have the same number", dir, ms[i-1].name, m.name)
		case m.number != i+1:
			return nil, fmt.Errorf("%s: number %d is missing: the numbers begin at 1 and have no gaps", dir, i+1)
		}
	}
	return ms, nil
}

const createMigrations = `
	CREATE TABLE IF NOT EXISTS edge_migrations (
	    number     INTEGER PRIMARY KEY,
	    name       TEXT NOT NULL,
	    checksum   TEXT NOT NULL,
	    applied_at TEXT NOT NULL
	)`

// migrate applies what was not applied, each file in a transaction with the
// note that it was. A file that was changed or removed since is an error:
// nobody knows then what the tables are.
func migrate(ctx context.Context, ib *inbox.Inbox, ms []migration) (applied []string, err error) {
	if len(ms) == 0 {
		return nil, nil
	}
	had := map[int]migration{}
	err = ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		clear(had)
		if _, err := tx.ExecContext(ctx, createMigrations); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, `SELECT number, name, checksum FROM edge_migrations`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var m migration
			if err := rows.Scan(&m.number, &m.name, &m.checksum); err != nil {
				return err
			}
			had[m.number] = m
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("reading which migrations were applied: %w", err)
	}
	for n, was := range had {
		switch {
		case n > len(ms):
			return nil, fmt.Errorf("migration %s was applied to %s and is not in the folder: put it back, or use an older copy of the database", was.name, ib.Path())
		case ms[n-1].checksum != was.checksum:
			return nil, fmt.Errorf("migration %s was changed after it was applied: put it back as it was, and make a new one for what you want to change", ms[n-1].name)
		}
	}
	for _, m := range ms {
		if _, ok := had[m.number]; ok {
			continue
		}
		err := ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
			if _, err := tx.ExecContext(ctx, m.text); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `
				INSERT INTO edge_migrations (number, name, checksum, applied_at)
				VALUES (?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ'))`, m.number, m.name, m.checksum)
			return err
		})
		if errors.Is(err, inbox.ErrDenied) {
			return applied, fmt.Errorf("migration %s: nothing of it was done: %w; a migration is a transaction of its own already: leave that out", m.name, err)
		}
		if err != nil {
			return applied, fmt.Errorf("migration %s: nothing of it was done: %w", m.name, err)
		}
		applied = append(applied, m.name)
	}
	return applied, nil
}
