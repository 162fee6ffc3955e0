package inbox

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if f := helperProcess(); f != nil {
		f()
		return
	}
	if raceEnabled { // it makes SQLite ten times slower
		_ = flag.Set("rapid.checks", "15")
	}
	goleak.VerifyTestMain(m)
}

var ctxBG = context.Background()

// A lab is an inbox in a file of its own, with a business table:
//
//	effects (n, seq, id)   one row for each time a message took effect
//
// When the test ends the file is closed and held to the invariants.
type lab struct {
	t    testing.TB
	path string
	opts Options
	ib   *Inbox

	alerts alerts
	// replays: messages are replayed in this test, so one may have had
	// several effects.
	replays bool
}

// newLab opens an inbox in a new file. change, if not nil, may change its
// options first.
func newLab(t testing.TB, change func(*Options)) *lab {
	t.Helper()
	l := &lab{t: t, path: filepath.Join(t.TempDir(), "inbox.db")}
	l.opts.Logger = slog.New(slog.DiscardHandler)
	l.opts.CacheSize = 4 << 20
	l.opts.groupTime = time.Hour // groups are what the test says, however slow this machine is
	l.opts.Observer = &Observer{Alert: l.alerts.add}
	if change != nil {
		change(&l.opts)
	}
	l.open()
	l.update(`CREATE TABLE effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL); CREATE INDEX effects_seq ON effects (seq)`)
	t.Cleanup(func() { l.close(); l.check() })
	return l
}

func (l *lab) open() {
	l.t.Helper()
	ib, err := Open(ctxBG, l.path, &l.opts)
	require.NoError(l.t, err)
	l.ib = ib
}

func (l *lab) close() {
	l.t.Helper()
	require.NoError(l.t, l.ib.Close())
}

// apply is the handler that has the effect.
func apply(ctx context.Context, tx *Tx, m *Message) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (seq, id) VALUES (?, ?)`, m.Seq, m.ID)
	return err
}

func (l *lab) consumer(name string, h Handler, opts *ConsumerOptions) *Consumer {
	l.t.Helper()
	if h == nil {
		h = apply
	}
	c, err := l.ib.Consumer(name, h, opts)
	require.NoError(l.t, err)
	return c
}

// run runs the poller until the test ends or stop is called.
func (l *lab) run() (stop func()) {
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	ib := l.ib
	go func() { done <- ib.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); assert.NoError(l.t, <-done) })
	l.t.Cleanup(stop)
	return stop
}

func (l *lab) update(stmt string, args ...any) {
	l.t.Helper()
	require.NoError(l.t, l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, stmt, args...)
		return err
	}))
}

// value reads one value.
func value[T any](l *lab, query string, args ...any) (v T) {
	l.t.Helper()
	require.NoError(l.t, l.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		return rx.QueryRowContext(ctx, query, args...).Scan(&v)
	}), query)
	return v
}

// effects is how often the message took effect, "" for all messages together.
func (l *lab) effects(id string) int {
	l.t.Helper()
	return value[int](l, `SELECT count(*) FROM effects WHERE ?1 = '' OR id = ?1`, id)
}

// status is how the message stands, "" when it is not there.
func (l *lab) status(id string) string {
	l.t.Helper()
	return value[string](l, `SELECT coalesce((SELECT status FROM inbox WHERE message_id = ?), '')`, id)
}

// eventually waits until cond holds.
func (l *lab) eventually(cond func() bool, what string, args ...any) {
	l.t.Helper()
	require.Eventually(l.t, cond, 20*time.Second, 2*time.Millisecond, append([]any{what}, args...)...)
}

// check holds a closed file to what must always be true of it.
func (l *lab) check() {
	l.t.Helper()
	if _, err := os.Stat(l.path + "-wal"); err == nil {
		assert.Fail(l.t, "a -wal file was left behind by a clean close")
	}
	db, err := sql.Open("sqlite", dsn(l.path, url.Values{"mode": {"ro"}}))
	require.NoError(l.t, err)
	defer db.Close()
	checkInvariants(l.t, db, l.replays)
}

// queryer is what reads a file: sql.DB, or an Rx.
type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func checkInvariants(t testing.TB, db queryer, replays bool) {
	t.Helper()
	var s string
	require.NoError(t, db.QueryRowContext(ctxBG, `PRAGMA quick_check`).Scan(&s))
	require.Equal(t, "ok", s, "quick_check")

	for _, inv := range []struct{ name, query string }{
		{"foreign keys hold", `SELECT count(*) FROM pragma_foreign_key_check`},
		{"a completed message took effect, no other did",
			`SELECT count(*) FROM inbox_message m
			  WHERE (SELECT count(*) FROM effects e WHERE e.seq = m.seq)
			        NOT BETWEEN (m.status = 4) AND CASE WHEN ` + fmt.Sprint(replays) + ` THEN 1000 ELSE (m.status = 4) END`},
		{"every effect has its message", `SELECT count(*) FROM effects WHERE seq NOT IN (SELECT seq FROM inbox_message)`},
		{"a pending message is due, or waits for an earlier one of its key",
			`SELECT count(*) FROM inbox_message m
			  WHERE m.status = 1 AND m.next_at IS NULL
			    AND NOT EXISTS (SELECT 1 FROM inbox_message e
			                     WHERE e.consumer = m.consumer AND e.key = m.key AND e.seq < m.seq AND e.status <= 3)`},
		{"only pending messages have a due time", `SELECT count(*) FROM inbox_message WHERE status <> 1 AND next_at IS NOT NULL`},
		{"what may run again has its payload", `SELECT count(*) FROM inbox_message WHERE status <= 3 AND payload IS NULL`},
		{"what was discarded has none", `SELECT count(*) FROM inbox_message WHERE status = 5 AND payload IS NOT NULL`},
		{"counters agree with the rows",
			`SELECT count(*) FROM inbox_consumer c
			  WHERE (c.pending, c.processing, c.dead, c.completed, c.discarded) IS NOT
			        (SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
			                count(*) FILTER (WHERE status = 4), count(*) FILTER (WHERE status = 5)
			           FROM inbox_message m WHERE m.consumer = c.consumer)`},
		{"every failed attempt is kept, the last 50 of a message, and every duplicate counted",
			`SELECT count(*) FROM inbox_consumer c
			  WHERE (SELECT coalesce(sum(d.count), 0) FROM inbox_duplicate d JOIN inbox_message m ON m.seq = d.message WHERE m.consumer = c.consumer) <> c.duplicates
			     OR (SELECT count(*) FROM inbox_attempt a JOIN inbox_message m ON m.seq = a.message WHERE m.consumer = c.consumer)
			        NOT BETWEEN min(c.failures, 50) AND c.failures`},
		{"an identity is there once, in whatever segment",
			`SELECT count(*) FROM (SELECT 1 FROM inbox_message GROUP BY message_id, source, consumer HAVING count(*) > 1)`},
		{"every row has its consumer", `SELECT count(*) FROM inbox_message WHERE consumer NOT IN (SELECT consumer FROM inbox_consumer)`},
		{"ranges neither touch nor overlap",
			`SELECT count(*) FROM inbox_range a JOIN inbox_range b ON a.stream = b.stream AND a.first_seq < b.first_seq AND b.first_seq <= a.last_seq + 1`},
		{"ranges are the right way round", `SELECT count(*) FROM inbox_range WHERE last_seq < first_seq OR first_seq < 1`},
		{"every sequence accounted for is explained",
			`SELECT count(*) FROM inbox_stream i
			  WHERE (SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM inbox_range r WHERE r.stream = i.id)
			     <> i.skipped + i.duplicates + i.conflicts + (SELECT count(*) FROM inbox_message m WHERE m.stream = i.id)`},
		{"every row's sequence is accounted for",
			`SELECT count(*) FROM inbox_message m WHERE m.stream IS NOT NULL
			    AND NOT EXISTS (SELECT 1 FROM inbox_range r WHERE r.stream = m.stream AND m.stream_seq BETWEEN r.first_seq AND r.last_seq)`},
	} {
		var n int
		require.NoError(t, db.QueryRowContext(ctxBG, inv.query).Scan(&n), inv.name)
		assert.Zero(t, n, "invariant: %s", inv.name)
	}
}

// alerts collects alerts.
type alerts struct {
	mu  sync.Mutex
	all []Alert
}

func (a *alerts) add(al Alert) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, al)
}

func (a *alerts) count(kind AlertKind) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, al := range a.all {
		if al.Kind == kind {
			n++
		}
	}
	return n
}

// fakeClock is a time of day that a test sets.
type fakeClock struct {
	mu sync.Mutex
	t  time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{t: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// hold keeps the writer busy until release is called, so that what is
// submitted meanwhile comes into one group.
func (l *lab) hold() (release func()) {
	l.t.Helper()
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = l.ib.do(ctxBG, func(*writer) error { close(held); <-free; return nil })
	}()
	<-held
	release = sync.OnceFunc(func() { close(free) })
	l.t.Cleanup(release) // a test that fails must not wait for ever
	return release
}

// outcomes submits messages as one group and returns what became of each.
func (l *lab) outcomes(c *Consumer, ms ...Message) ([]Outcome, []error) {
	l.t.Helper()
	release := l.hold()
	outs, errs := make([]Outcome, len(ms)), make([]error, len(ms))
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Add(1)
		require.NoError(l.t, c.Submit(ctxBG, m, func(o Outcome, err error) {
			outs[i], errs[i] = o, err
			wg.Done()
		}))
	}
	release()
	wg.Wait()
	return outs, errs
}

// helperProcess is what a child process of a test does, nil in the parent.
func helperProcess() func() {
	return helpers[os.Getenv("INBOX_TEST_HELPER")]
}

// helpers are registered by tests that need a process of their own.
var helpers = map[string]func(){}

// pass lets time pass in a synctest bubble, where that takes none.
func pass(d time.Duration) { <-time.After(d) }
