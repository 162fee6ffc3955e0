//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// long runs the long form of each part: make torture.
var long = flag.Bool("long", false, "the long form")

var seed = flag.Uint64("seed", 0, "of everything random; 0: 1 in the short form, another one each time in the long one")

// seeded chooses the seed, if nobody has, and says it.
func seeded(t *testing.T) {
	if *seed == 0 {
		*seed = 1
		if *long {
			*seed = uint64(time.Now().UnixNano())
		}
	}
	t.Logf("-seed %d", *seed)
}

// scratch is a folder in memory, where there is one: images come and go by the
// thousand, and what they hold is in the log.
func scratch(t testing.TB) string {
	t.Helper()
	base := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm"
	}
	dir, err := os.MkdirTemp(base, "torture-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A life is one opening of the inbox by the workload.
type life struct {
	t    testing.TB
	path string
	disk *Disk // nil: nobody looks
	ib   *inbox.Inbox
	c    *inbox.Consumer
	stop func()

	mu      sync.Mutex
	failing map[string]int  // how often a message still fails
	ended   map[string]bool // the transaction, by its first attempt
}

// open opens the inbox with a consumer whose effects are rows of the table
// effects. Errors are returned: the disk may be bad.
func open(t testing.TB, path string, disk *Disk) (*life, error) {
	return openWith(t, path, disk, &inbox.Options{})
}

// openWith is open with some options.
func openWith(t testing.TB, path string, disk *Disk, opts *inbox.Options) (*life, error) {
	l := &life{t: t, path: path, disk: disk, failing: map[string]int{}, ended: map[string]bool{}}
	ctx := context.Background()
	var err error
	opts.Logger = slog.New(slog.DiscardHandler)
	if l.ib, err = inbox.Open(ctx, path, opts); err != nil {
		return nil, err
	}
	err = l.ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL, body BLOB);
			CREATE TABLE IF NOT EXISTS one (n INTEGER PRIMARY KEY);
			INSERT OR IGNORE INTO one VALUES (1);
			CREATE INDEX IF NOT EXISTS effects_seq ON effects (seq)`)
		return err
	})
	if err == nil {
		l.c, err = l.ib.Consumer("c", l.handle, &inbox.ConsumerOptions{
			Retry: inbox.RetryPolicy{Initial: time.Millisecond, Multiplier: 1, MaxAttempts: 4}, DeadPasses: true,
		})
	}
	if err != nil {
		_ = l.ib.Close()
		return nil, err
	}
	return l, nil
}

func (l *life) handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	l.mu.Lock()
	end := strings.HasPrefix(m.ID, "end") && !l.ended[m.ID]
	l.ended[m.ID] = true
	l.mu.Unlock()
	if end { // everybody's transaction, and go on as if nothing had been
		_, _ = tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO one VALUES (1)`)
		_, _ = tx.ExecContext(ctx, `INSERT INTO effects (seq, id, body) VALUES (?, ?, ?)`, m.Seq, m.ID, m.Payload)
		return nil
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effects (seq, id, body) VALUES (?, ?, ?)`, m.Seq, m.ID, m.Payload); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing[m.ID] > 0 {
		l.failing[m.ID]--
		return errors.New("not yet")
	}
	if strings.HasPrefix(m.ID, "bad") {
		return inbox.Permanent(errors.New("never"))
	}
	if len(m.ID) > 5 && m.ID[:5] == "flaky" && m.Attempt < 3 {
		return errors.New("not yet")
	}
	return nil
}

// fails makes a message's next n attempts fail.
func (l *life) fails(id string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing[id] = n
}

// run runs the poller.
func (l *life) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.ib.Run(ctx) }()
	l.stop = func() { cancel(); <-done }
}

func (l *life) close() error {
	if l.stop != nil {
		l.stop()
	}
	return l.ib.Close()
}

// other is m with another content: a conflict.
func other(m inbox.Message) inbox.Message {
	m.Payload = []byte("another content")
	return m
}

// group delivers messages together, and marks in the log those that are ours.
func (l *life) group(ms ...inbox.Message) {
	var wg sync.WaitGroup
	for _, m := range ms {
		wg.Add(1)
		err := l.c.Submit(context.Background(), m, func(o inbox.Outcome, err error) {
			if err == nil && l.disk != nil {
				l.disk.Mark(known(m, o))
			}
			if isOther := string(m.Payload) == "another content"; err == nil && isOther != (o == inbox.Conflict) {
				l.t.Errorf("message %s, other content %v: %v", m.ID, isOther, o)
			}
			wg.Done()
		})
		if err != nil {
			wg.Done()
		}
	}
	wg.Wait()
}

// idle waits until nothing is pending.
func (l *life) idle() {
	l.t.Helper()
	require.Eventually(l.t, func() bool {
		s, err := l.ib.Stats(context.Background())
		return err == nil && s.Consumers["c"].Pending == 0
	}, 20*time.Second, time.Millisecond, "idle")
}

// messages are n good ones, with keys, some that are bad for ever, and some
// whose first attempt ends the transaction that they share.
func messages(first, n int) (ms []inbox.Message) {
	for i := first; i < first+n; i++ {
		m := inbox.Message{ID: fmt.Sprintf("m%05d", i), Source: "lab", Type: "t", Payload: make([]byte, 40+i*37%900)}
		if i%3 == 0 {
			m.Key = fmt.Sprint("k", i%7)
		}
		switch {
		case i%19 == 0:
			m.ID = fmt.Sprintf("bad%05d", i)
		case i%23 == 0:
			m.ID = fmt.Sprintf("end%05d", i)
		}
		ms = append(ms, m)
	}
	return ms
}

// A queryer is a database, or a transaction.
type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// invariants are what every file must hold to, whatever happened to it. Each
// query finds what is wrong. They rely on the tables behind the views: the lab
// is part of the house.
var invariants = []struct{ name, query string }{
	{"foreign keys hold", `SELECT count(*) FROM pragma_foreign_key_check`},
	{"a completed message took effect once, no other did", `
		SELECT count(*) FROM inbox_message m WHERE (SELECT count(*) FROM effects e WHERE e.seq = m.seq) <> (m.status = 4)`},
	{"every effect has its message", `SELECT count(*) FROM effects WHERE seq NOT IN (SELECT seq FROM inbox_message)`},
	{"an effect is of its message", `SELECT count(*) FROM effects e JOIN inbox_message m ON m.seq = e.seq WHERE m.message_id <> e.id OR m.payload <> e.body`},
	{"a pending message is due, or waits for an earlier one of its key", `
		SELECT count(*) FROM inbox_message m WHERE m.status = 1 AND m.next_at IS NULL
		   AND NOT EXISTS (SELECT 1 FROM inbox_message e WHERE e.consumer = m.consumer AND e.key = m.key AND e.seq < m.seq AND e.status <= 3)`},
	{"counters agree with the rows", `
		SELECT count(*) FROM inbox_consumer c WHERE (c.pending, c.processing, c.dead, c.completed, c.discarded) IS NOT
		       (SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
		               count(*) FILTER (WHERE status = 4), count(*) FILTER (WHERE status = 5)
		          FROM inbox_message m WHERE m.consumer = c.consumer)`},
	{"order by key", `
		SELECT count(*) FROM (SELECT m.seq, lag(m.seq) OVER (PARTITION BY m.key ORDER BY e.n) AS before
		                        FROM effects e JOIN inbox_message m ON m.seq = e.seq WHERE m.key IS NOT NULL)
		 WHERE before > seq`},
	{"every sequence accounted for is explained", `
		SELECT count(*) FROM inbox_stream i
		 WHERE (SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM inbox_range r WHERE r.stream = i.id)
		    <> i.skipped + i.duplicates + i.conflicts + (SELECT count(*) FROM inbox_message m WHERE m.stream = i.id)`},
}

// violation is the first invariant that does not hold.
func violation(ctx context.Context, db queryer) error {
	var text string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check`).Scan(&text); err != nil || text != "ok" {
		return fmt.Errorf("quick_check: %s %w", text, err)
	}
	for _, inv := range invariants {
		var n int
		if err := db.QueryRowContext(ctx, inv.query).Scan(&n); err != nil {
			return fmt.Errorf("%s: %w", inv.name, err)
		}
		if n != 0 {
			return fmt.Errorf("%d times not so: %s", n, inv.name)
		}
	}
	return nil
}

// known is what ids says of a message that had this outcome.
func known(m inbox.Message, o inbox.Outcome) string {
	if o == inbox.Conflict {
		return "conflict " + m.ID
	}
	return m.ID
}

// ids are the messages that a file knows, and the conflicts it shows.
func ids(ctx context.Context, db queryer) (map[string]bool, error) {
	rows, err := db.QueryContext(ctx, `
		SELECT message_id FROM inbox_message
		UNION SELECT 'conflict ' || m.message_id FROM inbox_conflict c JOIN inbox_message m ON m.seq = c.message`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	known := map[string]bool{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		known[id] = true
	}
	return known, rows.Err()
}

// path is the database in a folder.
func path(dir string) string { return filepath.Join(dir, "x.db") }
