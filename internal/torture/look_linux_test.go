package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openSite opens the gateway's file. What the inbox's invariants know as the
// table effects is made of the handler's, which has only the message's id.
func openSite(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", path+"?_busy_timeout=5000")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // it has the temporary table
	return db, nil
}

const siteEffects = `
CREATE TEMP TABLE effects AS
SELECT e.n, coalesce(m.seq, -1) AS seq, e.id, e.body FROM effect e LEFT JOIN inbox_message m ON m.message_id = e.id;
CREATE INDEX effects_seq ON effects (seq);`

// look holds the gateway's file to the promise, while nobody has it open. It
// looks at a copy: the next start finds what the last end left.
func (s *site) look(end bool) error {
	dir := scratch(s.t)
	defer os.RemoveAll(dir)
	for _, name := range []string{"x.db", "x.db-wal"} {
		b, err := os.ReadFile(filepath.Join(s.gateway.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	db, err := openSite(path(dir))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx := context.Background()
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name IN ('inbox_message', 'effect')`).Scan(&tables); err != nil {
		s.row.Corrupt++
		return err
	}
	known := map[string]bool{}
	if tables == 2 {
		if _, err := db.ExecContext(ctx, siteEffects); err != nil {
			s.row.Corrupt++
			return err
		}
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM effect GROUP BY id HAVING count(*) > 1)`).Scan(&s.row.Twice); err != nil || s.row.Twice > 0 {
			return errors.Join(err, fmt.Errorf("%d messages took effect twice", s.row.Twice))
		}
		if err := violation(ctx, db); err != nil {
			s.row.Corrupt++
			return err
		}
		if known, err = ids(ctx, db); err != nil {
			return err
		}
	}
	if err := s.acknowledged(ctx, db, tables, known); err != nil {
		return err
	}
	if end {
		return s.complete(ctx, db, known)
	}
	return nil
}

// acknowledged: what was, is in the file.
func (s *site) acknowledged(ctx context.Context, db *sql.DB, tables int, known map[string]bool) error {
	accounted := map[uint64]bool{}
	if tables == 2 {
		rows, err := db.QueryContext(ctx, `SELECT first_seq, last_seq FROM inbox_range`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var first, last uint64
			if err := rows.Scan(&first, &last); err != nil {
				return err
			}
			for ; first <= last; first++ {
				accounted[first] = true
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	p := s.traffic
	p.mu.Lock()
	defer p.mu.Unlock()
	lost, example := 0, ""
	for seq := range p.acked {
		id := p.stored[seq]
		if !accounted[seq] || s.plan.sync == "always" && id != "" && !known[id] {
			lost++
			example = fmt.Sprintf("sequence %d, message %q", seq, id)
		}
	}
	if lost > 0 {
		s.row.Lost += lost
		return fmt.Errorf("%d of %d sequences were acknowledged and are not in the file: %s", lost, len(p.acked), example)
	}
	return nil
}

// complete: all that was published is there, and as it must be.
func (s *site) complete(ctx context.Context, db *sql.DB, known map[string]bool) error {
	var n struct{ open, wrong, disorder, duplicates, conflicts int }
	for _, q := range []struct {
		n     *int
		query string
	}{
		{&n.open, `SELECT count(*) FROM inbox_message WHERE status NOT IN (3, 4)`},
		{&n.wrong, `SELECT count(*) FROM inbox_message WHERE (status = 3) <> (message_id LIKE 'bad%')`},
		{&n.disorder, `
			SELECT count(*) FROM (SELECT m.stream_seq, lag(m.stream_seq) OVER (PARTITION BY m.stream, m.key ORDER BY e.n) AS before
			                        FROM effects e JOIN inbox_message m ON m.seq = e.seq WHERE m.key IS NOT NULL)
			 WHERE before > stream_seq`},
		{&n.duplicates, `SELECT coalesce(sum(duplicates), 0) FROM inbox_consumer`},
		{&n.conflicts, `SELECT count(DISTINCT message) FROM inbox_conflict`},
	} {
		if err := db.QueryRowContext(ctx, q.query).Scan(q.n); err != nil {
			return err
		}
	}
	s.row.Duplicates += n.duplicates
	if n.open+n.wrong+n.disorder > 0 {
		s.row.Corrupt++
		return fmt.Errorf("%d messages are open, %d have another end than theirs, %d took effect before an earlier one of their key", n.open, n.wrong, n.disorder)
	}
	want, err := s.published(ctx, known)
	if err != nil {
		return err
	}
	lost := 0
	for id := range want {
		if !known[id] {
			lost++
			err = fmt.Errorf("message %s was published and is not in the file, nor are %d others", id, lost-1)
		}
	}
	if s.row.Lost += lost; lost > 0 {
		return err
	}
	p := s.traffic
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.plan.sync == "always" && n.conflicts != len(p.conflicts) {
		s.row.Corrupt++
		return fmt.Errorf("%d messages came with another content too, %d are known for it", len(p.conflicts), n.conflicts)
	}
	if len(want) == 0 || n.duplicates == 0 {
		return errors.New("nothing was published, or nothing twice")
	}
	s.t.Logf("%d messages, %d acknowledgements heard, %d duplicates, %d conflicts", len(known), p.acks, n.duplicates, n.conflicts)
	return nil
}

// published are the messages that must be in the file: what was confirmed or,
// when the broker forgets what it confirmed, what it has now. The gateway must
// have noticed that what it had taken was gone.
func (s *site) published(ctx context.Context, known map[string]bool) (map[string]bool, error) {
	p := s.traffic
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.plan.sync == "always" {
		return p.confirmed, nil
	}
	have, err := p.onBroker(ctx)
	if err != nil {
		return nil, err
	}
	forgotten, taken := 0, 0
	for id := range p.confirmed {
		if !have[id] {
			forgotten++
			if known[id] {
				taken++
			}
		}
	}
	s.t.Logf("the broker lost %d of %d messages that it had confirmed; %d of them had been taken", forgotten, len(p.confirmed), taken)
	noticed, err := s.alerted("stream_") // reissued, or new
	if err == nil && taken > 0 && !noticed {
		err = errors.New("the broker lost messages that were taken, and the gateway did not notice")
	}
	return have, err
}
