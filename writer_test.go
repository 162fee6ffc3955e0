package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// killers are the things that end a whole transaction, not one statement, and
// whatever else one message can do to its neighbours.
var killers = []struct {
	name string
	text string // in last_error
	kill Handler
}{
	{"RAISE(ROLLBACK) in a trigger", "raised", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO guarded VALUES ('raise')`)
		return err
	}},
	{"RAISE(ROLLBACK), its error ignored", "raised", func(ctx context.Context, tx *Tx, m *Message) error {
		_, _ = tx.ExecContext(ctx, `INSERT INTO guarded VALUES ('raise')`)
		return apply(ctx, tx, m) // would commit by itself
	}},
	{"RAISE(ROLLBACK), all errors ignored", "raised", func(ctx context.Context, tx *Tx, m *Message) error {
		_, _ = tx.ExecContext(ctx, `INSERT INTO guarded VALUES ('raise')`)
		err := apply(ctx, tx, m)
		ranAfterLoss.CompareAndSwap(false, !errors.Is(err, ErrTxLost))
		return nil
	}},
	{"INSERT OR ROLLBACK", "UNIQUE", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO uniq VALUES (1)`)
		return err
	}},
	{"UPDATE OR ROLLBACK", "UNIQUE", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `UPDATE OR ROLLBACK uniq SET x = 1`)
		return err
	}},
	{"ON CONFLICT ROLLBACK in the schema", "UNIQUE", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO strict_uniq VALUES (1)`)
		return err
	}},
	{"RAISE(ROLLBACK) by RETURNING Rows", "raised", func(ctx context.Context, tx *Tx, m *Message) error {
		var s string
		return tx.QueryRowContext(ctx, `INSERT INTO guarded VALUES ('raise') RETURNING x`).Scan(&s)
	}},
	{"a deferred foreign key fails at COMMIT", "FOREIGN KEY", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES (4711)`)
		return err
	}},
	{"a write that runs away", "StatementTimeout", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO guarded WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r`)
		return err
	}},
	{"a read that runs away", "StatementTimeout", func(ctx context.Context, tx *Tx, m *Message) error {
		var n int
		return tx.QueryRowContext(ctx, `WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r`).Scan(&n)
	}},
	{"panic", "panicked: ouch", func(ctx context.Context, tx *Tx, m *Message) error {
		_ = apply(ctx, tx, m)
		panic("ouch")
	}},
	{"runtime.Goexit", "Goexit", func(ctx context.Context, tx *Tx, m *Message) error {
		_ = apply(ctx, tx, m)
		runtime.Goexit()
		return nil
	}},
	{"leaked Rows", "left Rows open", func(ctx context.Context, tx *Tx, m *Message) error {
		rows, err := tx.QueryContext(ctx, `SELECT seq FROM effects UNION ALL SELECT 1 UNION ALL SELECT 2`)
		if err == nil {
			rows.Next()
		}
		return errors.Join(err, apply(ctx, tx, m))
	}},
	{"leaked Rows of a write", "left Rows open", func(ctx context.Context, tx *Tx, m *Message) error {
		rows, err := tx.QueryContext(ctx, `INSERT INTO effects (seq, id) VALUES (?1, ?2), (?1, ?2), (?1, ?2) RETURNING n`, m.Seq, m.ID)
		if err == nil {
			rows.Next()
		}
		return err
	}},
	{"a context that ends within a write", "context canceled", func(ctx context.Context, tx *Tx, m *Message) error {
		ctx, cancel := context.WithCancel(ctx)
		go cancel()
		for { // until it has ended, wherever that is
			if _, err := tx.ExecContext(ctx, `INSERT INTO effects (seq, id) SELECT ?1, value FROM json_each(?2)`, m.Seq, bigArray); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM effects WHERE seq = ?`, m.Seq); err != nil {
				return err
			}
		}
	}},
	{"an ordinary error", "no such table", func(ctx context.Context, tx *Tx, m *Message) error {
		_ = apply(ctx, tx, m)
		_, err := tx.ExecContext(ctx, `INSERT INTO absent VALUES (1)`)
		return err
	}},
}

// ranAfterLoss is set when a statement reached SQLite after the transaction
// was lost.
var ranAfterLoss atomic.Bool

var bigArray = func() string {
	s := "[1"
	for range 500 {
		s += ",1"
	}
	return s + "]"
}()

// TestWriter_KillerSparesNeighbours puts each killer in the middle of a group
// of ten: the other nine take effect once, and the one is charged once. A
// group of fifty runs without savepoints at first.
func TestWriter_KillerSparesNeighbours(t *testing.T) {
	t.Parallel()
	for _, k := range killers {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			t.Run("group of ten", func(t *testing.T) { killInGroup(t, k.text, k.kill, 10) })
			t.Run("group of fifty", func(t *testing.T) { killInGroup(t, k.text, k.kill, 50) })
		})
	}
}

func killInGroup(t *testing.T, text string, kill Handler, n int) {
	l := newLab(t, func(o *Options) { o.StatementTimeout = 50 * time.Millisecond })
	l.update(`
				CREATE TABLE guarded (x);
				CREATE TRIGGER guard BEFORE INSERT ON guarded WHEN new.x = 'raise' BEGIN SELECT RAISE(ROLLBACK, 'raised'); END;
				CREATE TABLE uniq (x UNIQUE); INSERT INTO uniq VALUES (1), (2);
				CREATE TABLE strict_uniq (x UNIQUE ON CONFLICT ROLLBACK); INSERT INTO strict_uniq VALUES (1);
				CREATE TABLE parent (id INTEGER PRIMARY KEY);
				CREATE TABLE child (parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED);`)
	var cured atomic.Bool
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "5" && !cured.Load() {
			return kill(ctx, tx, m)
		}
		return apply(ctx, tx, m)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Millisecond}})
	var ms []Message
	for i := range n {
		ms = append(ms, Message{ID: fmt.Sprint(i)})
	}
	outs, errs := l.outcomes(c, ms...)
	for i := range n {
		require.NoError(t, errs[i], "message %d", i)
		if i != 5 {
			assert.Equal(t, Applied, outs[i], "message %d", i)
			assert.Equal(t, 1, l.effects(fmt.Sprint(i)), "effects of %d", i)
		}
	}
	assert.Equal(t, Pending, outs[5])
	assert.Zero(t, l.effects("5"))
	assert.Equal(t, 1, value[int](l, `SELECT attempts FROM inbox WHERE message_id = '5'`), "charged once")
	assert.Contains(t, value[string](l, `SELECT last_error FROM inbox WHERE message_id = '5'`), text)
	assert.False(t, ranAfterLoss.Load(), "a statement ran outside the transaction")
	assert.Zero(t, value[int](l, `SELECT count(*) FROM guarded`)+value[int](l, `SELECT count(*) FROM child`))

	// The inbox goes on, and so does the message once it can.
	o, err := c.Process(ctxBG, Message{ID: "after"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
	cured.Store(true)
	l.run()
	l.eventually(func() bool { return l.effects("5") == 1 }, "retried")
	assert.Equal(t, 2, value[int](l, `SELECT attempts FROM inbox WHERE message_id = '5'`))
}

// TestWriter_KillerOnRetry lets the poller meet the killers.
func TestWriter_KillerOnRetry(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *Options) { o.StatementTimeout = 50 * time.Millisecond })
	l.update(`
		CREATE TABLE guarded (x);
		CREATE TRIGGER guard BEFORE INSERT ON guarded WHEN new.x = 'raise' BEGIN SELECT RAISE(ROLLBACK, 'raised'); END;
		CREATE TABLE uniq (x UNIQUE); INSERT INTO uniq VALUES (1), (2);
		CREATE TABLE strict_uniq (x UNIQUE ON CONFLICT ROLLBACK); INSERT INTO strict_uniq VALUES (1);
		CREATE TABLE parent (id INTEGER PRIMARY KEY);
		CREATE TABLE child (parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED);`)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.Attempt < 3 {
			for _, k := range killers {
				if k.name == m.ID {
					return k.kill(ctx, tx, m)
				}
			}
		}
		return apply(ctx, tx, m)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Millisecond, Max: 2 * time.Millisecond}})
	for i, k := range killers {
		_, err := c.Receive(ctxBG, Message{ID: k.name})
		require.NoError(t, err)
		_, err = c.Receive(ctxBG, Message{ID: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	l.run()
	l.eventually(func() bool { return l.effects("") == 2*len(killers) }, "all applied")
	for _, k := range killers {
		assert.Equal(t, 3, value[int](l, `SELECT attempts FROM inbox WHERE message_id = ?`, k.name), k.name)
	}
	assert.Equal(t, len(killers), value[int](l, `SELECT count(*) FROM inbox WHERE attempts = 1`), "the neighbours were not charged")
}

// TestWriter_UpdateEndsTheTransaction: an Update is a neighbour too.
func TestWriter_UpdateEndsTheTransaction(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE uniq (x UNIQUE); INSERT INTO uniq VALUES (1)`)
	c := l.consumer("c", nil, nil)
	release := l.hold()
	type res struct {
		o   Outcome
		err error
	}
	got := make(chan res, 2)
	done := func(o Outcome, err error) { got <- res{o, err} }
	require.NoError(t, c.Submit(ctxBG, Message{ID: "before"}, done))
	errs := make(chan error)
	go func() {
		errs <- l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO uniq VALUES (1)`)
			return err
		})
	}()
	l.eventually(func() bool { return l.ib.w.q.length() == 2 }, "queued")
	require.NoError(t, c.Submit(ctxBG, Message{ID: "after"}, done))
	release()
	assert.ErrorContains(t, <-errs, "UNIQUE")
	for range 2 {
		r := <-got
		assert.NoError(t, r.err)
		assert.Equal(t, Applied, r.o)
	}
	assert.Equal(t, 2, l.effects(""))
}

func TestWriter_DeniedStatements(t *testing.T) {
	t.Parallel()
	for _, stmt := range []string{
		`BEGIN`, `COMMIT`, `END`, `ROLLBACK`, `SAVEPOINT x`, `RELEASE message`, `ROLLBACK TO message`,
		`ATTACH ':memory:' AS x`, `DETACH main`, `VACUUM`, `VACUUM INTO '/nowhere/x'`, `PRAGMA foreign_keys = OFF`, `PRAGMA user_version`,
		`SELECT * FROM pragma_table_info('effects')`,
		`DELETE FROM inbox_message`, `UPDATE inbox_message SET status = 4`, `INSERT INTO inbox_name (kind, name) VALUES (1, 'x')`,
		`DROP VIEW inbox`, `DROP TABLE inbox_range`, `CREATE TABLE inbox_mine (x)`, `CREATE TEMP TABLE inbox_message (x)`, `CREATE TABLE OUTBOX (x)`,
		`CREATE INDEX mine ON inbox_message (hash)`, `CREATE TRIGGER mine AFTER INSERT ON inbox_message BEGIN SELECT 1; END`,
		`ALTER TABLE inbox_message ADD COLUMN x`, `SELECT 1; COMMIT`, `INSERT INTO effects (seq, id) VALUES (1, 'x'); COMMIT`,
	} {
		t.Run(stmt, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			var got error
			c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
				if m.ID == "1" {
					rows, err := tx.QueryContext(ctx, stmt)
					if err == nil {
						for rows.Next() {
						}
						err = errors.Join(rows.Err(), rows.Close())
					}
					_, got = tx.ExecContext(ctx, stmt)
					assert.Error(t, err)
					return got
				}
				return apply(ctx, tx, m)
			}, nil)
			outs, _ := l.outcomes(c, Message{ID: "0"}, Message{ID: "1"}, Message{ID: "2"})
			assert.Equal(t, []Outcome{Applied, Pending, Applied}, outs)
			if stmt[:3] == "VAC" {
				assert.ErrorContains(t, got, "VACUUM")
			} else {
				assert.ErrorIs(t, got, ErrDenied)
			}
		})
	}
	// Reading our views and a trigger of the user's own are fine.
	l := newLab(t, nil)
	l.update(`CREATE TABLE log (x); CREATE TRIGGER t AFTER INSERT ON effects BEGIN INSERT INTO log SELECT count(*) FROM inbox; END`)
	c := l.consumer("c", nil, nil)
	o, err := c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
	assert.Equal(t, 1, value[int](l, `SELECT x FROM log`))
	// A trigger that would write our tables fails when it runs.
	require.NoError(t, l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TRIGGER evil AFTER INSERT ON log BEGIN DELETE FROM inbox_message; END`)
		return err
	}))
	o, err = c.Process(ctxBG, Message{ID: "2"})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	l.update(`DROP TRIGGER evil`)
}

// TestTx_Retained: whatever a handler keeps is dead when it returns.
func TestTx_Retained(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`INSERT INTO effects (seq, id) VALUES (0, 'x'), (0, 'y')`)
	var tx0 *Tx
	var st *sql.Stmt
	var rows *sql.Rows
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "keep" {
			tx0 = tx
			var err error
			st, err = tx.PrepareContext(ctx, `INSERT INTO effects (seq, id) VALUES (0, 'late')`)
			require.NoError(t, err)
			rows, err = tx.QueryContext(ctx, `SELECT id FROM effects`)
			require.NoError(t, err)
			require.True(t, rows.Next())
			return nil
		}
		// Another handler's turn is not the old one's.
		use := func() {
			_, err := tx0.ExecContext(ctx, `INSERT INTO effects (seq, id) VALUES (0, 'late')`)
			assert.ErrorIs(t, err, ErrTxDone)
			_, err = tx0.QueryContext(ctx, `SELECT 1`)
			assert.ErrorIs(t, err, ErrTxDone)
			var n int
			assert.ErrorIs(t, tx0.QueryRowContext(ctx, `SELECT 1`).Scan(&n), ErrTxDone)
			_, err = tx0.PrepareContext(ctx, `SELECT 1`)
			assert.ErrorIs(t, err, ErrTxDone)
			_, err = st.ExecContext(ctx)
			assert.Error(t, err)
			assert.False(t, rows.Next())
			assert.ErrorIs(t, rows.Err(), ErrTxDone)
		}
		use()
		return apply(ctx, tx, m)
	}, nil)
	outs, _ := l.outcomes(c, Message{ID: "keep"}, Message{ID: "other"})
	assert.Equal(t, []Outcome{Pending, Applied}, outs, "its open Rows are charged to the first")
	_, err := tx0.ExecContext(ctxBG, `INSERT INTO effects (seq, id) VALUES (0, 'late')`)
	assert.ErrorIs(t, err, ErrTxDone, "nor between transactions")
	l.update(`DELETE FROM effects WHERE seq = 0`)
	assert.Zero(t, l.effects("late"))
}

// TestTx_LeakedGoroutine: a goroutine that a handler left behind hammers the
// connection while the writer works; the race detector watches.
func TestTx_LeakedGoroutine(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "0" {
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = tx.ExecContext(ctx, `INSERT INTO effects (seq, id) VALUES (999, 'leak')`)
						if rows, err := tx.QueryContext(ctx, `SELECT id FROM effects`); err == nil {
							rows.Next()
							rows.Close()
						}
					}
				}
			}()
			return errors.New("done with it")
		}
		return apply(ctx, tx, m)
	}, nil)
	for i := range 200 {
		_, err := c.Process(ctxBG, Message{ID: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	close(stop)
	<-stopped
	assert.Equal(t, 199, l.effects(""))
}

func TestTx_Statements(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME, x BLOB)`)
	at := time.Date(2030, 5, 6, 7, 8, 9, 123e6, time.UTC)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		for i := range 300 { // more texts than are kept compiled
			if _, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO t (at, x) VALUES (:at, %d)`, i), sql.Named("at", at)); err != nil {
				return err
			}
		}
		// The same text, nested in itself: its Rows are open.
		outer, err := tx.QueryContext(ctx, `SELECT id, at FROM t WHERE id <= 3 ORDER BY id`)
		require.NoError(t, err)
		n := 0
		for outer.Next() {
			var id int
			var got time.Time
			require.NoError(t, outer.Scan(&id, &got))
			assert.True(t, at.Equal(got))
			inner, err := tx.QueryContext(ctx, `SELECT id, at FROM t WHERE id <= 3 ORDER BY id`)
			require.NoError(t, err)
			for inner.Next() {
				n++
			}
			require.NoError(t, inner.Close())
		}
		require.NoError(t, outer.Close())
		assert.Equal(t, 9, n)
		types, err := tx.QueryContext(ctx, `SELECT at, id FROM t`)
		require.NoError(t, err)
		ct, err := types.ColumnTypes()
		require.NoError(t, err)
		assert.Equal(t, "DATETIME", ct[0].DatabaseTypeName())
		types.Close()
		st, err := tx.PrepareContext(ctx, `UPDATE t SET x = ?2 WHERE id = ?1`)
		require.NoError(t, err)
		for i := range 10 {
			res, err := st.ExecContext(ctx, i+1, []byte("x"))
			require.NoError(t, err)
			k, err := res.RowsAffected()
			require.NoError(t, err)
			assert.EqualValues(t, 1, k)
		}
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err = tx.ExecContext(done, `DELETE FROM t`)
		assert.ErrorIs(t, err, context.Canceled)
		_, err = st.ExecContext(done, 1, 1)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, tx.QueryRowContext(done, `SELECT 1`).Scan(&n), context.Canceled)
		_, err = tx.ExecContext(ctx, `SELEKT`)
		assert.ErrorContains(t, err, "syntax error")
		return apply(ctx, tx, m)
	}, nil)
	o, err := c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	require.Equal(t, Applied, o, value[string](l, `SELECT coalesce(last_error, '') FROM inbox`))
	assert.Equal(t, "2030-05-06 07:08:09", value[string](l, `SELECT datetime(at) FROM t LIMIT 1`), "SQLite's date functions read it")
}

// TestWriter_DiskFull: nobody is charged for a full disk, nothing is stored,
// and it goes on when there is room again.
func TestWriter_DiskFull(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS fat (x)`); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO fat VALUES (zeroblob(?))`, len(m.Payload)*100); err != nil {
			return err
		}
		return apply(ctx, tx, m)
	}, nil)
	pages := func(n int) {
		require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
			_, err := w.conn.exec(query{text: fmt.Sprintf(`PRAGMA max_page_count = %d`, n)})
			return err
		}))
	}
	pages(100)
	ms := []Message{{ID: "small"}, {ID: "fat", Payload: make([]byte, 10_000)}, {ID: "small too"}}
	outs, errs := l.outcomes(c, ms...)
	assert.Equal(t, []Outcome{Applied, 0, Applied}, outs, "who fits is not held up")
	assert.NoError(t, errs[0])
	assert.ErrorIs(t, errs[1], ErrStorage)
	assert.NoError(t, errs[2])
	assert.Equal(t, "", l.status("fat"))
	pages(1 << 30)
	outs, errs = l.outcomes(c, ms...)
	assert.Equal(t, []Outcome{Duplicate, Applied, Duplicate}, outs)
	assert.Equal(t, []error{nil, nil, nil}, errs)
	assert.Equal(t, 1, value[int](l, `SELECT attempts FROM inbox WHERE message_id = 'fat'`))
}

// TestWriter_BareGroups: a large group runs without savepoints until a handler
// fails in it; then again with them, that handler excepted; and the more often
// that happened, the more groups that follow run with them at once.
func TestWriter_BareGroups(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	calls := map[string]int{}
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		calls[m.ID]++
		if err := apply(ctx, tx, m); err != nil || string(m.Payload) == "" {
			return err
		}
		return errors.New(string(m.Payload))
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Hour}})
	const size = minBare + 8
	next := 0
	// group runs one, the last of it with this payload, and says whether it ran bare.
	group := func(last string) bool {
		ms := make([]Message, size)
		for i := range ms {
			next++
			ms[i] = Message{ID: fmt.Sprint(next)}
		}
		ms[size-1].Payload = []byte(last)
		clear(calls)
		outs, errs := l.outcomes(c, ms...)
		twice := 0
		for i, m := range ms {
			require.NoError(t, errs[i])
			want := Applied
			if i == size-1 && last != "" {
				want = Pending
				require.Equal(t, 1, calls[m.ID], "who failed is charged once and not run again")
			}
			require.Equal(t, want, outs[i], m.ID)
			twice += calls[m.ID] - 1
		}
		require.Contains(t, []int{0, size - 1}, twice, "all the others ran again, or none")
		return twice > 0
	}
	var bare []int
	for i := range 40 {
		if group("fails") {
			bare = append(bare, i)
		}
	}
	assert.Equal(t, []int{0, 1, 3, 7, 15, 31}, bare, "each failure doubles the wait")
	for i := 0; !group("fails"); i++ {
		require.Less(t, i, 64)
	}
	for range 64 + 8 { // 63 groups run with savepoints; then each bare one halves what comes next
		group("")
	}
	assert.True(t, group("fails"))
	assert.True(t, group("fails"), "forgiven")
	assert.Equal(t, 1, value[int](l, `SELECT max(attempts) FROM inbox`))
	assert.Equal(t, value[int](l, `SELECT count(*) FROM inbox WHERE status = 'completed'`), l.effects(""))
}

// TestWriter_BareGroupMixed: all kinds of jobs share a group that began without
// savepoints, and two handlers fail in it.
func TestWriter_BareGroupMixed(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE log (name TEXT)`)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if err := apply(ctx, tx, m); err != nil {
			return err
		}
		if string(m.Payload) == "once" && m.Attempt == 1 || string(m.Payload) == "never" {
			return errors.New("not yet")
		}
		return nil
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Hour}})
	outs, _ := l.outcomes(c, Message{ID: "head", Key: "k", Payload: []byte("once")}, Message{ID: "follower", Key: "k"}, Message{ID: "old"})
	require.Equal(t, []Outcome{Pending, Pending, Applied}, outs)
	head := value[int64](l, `SELECT seq FROM inbox_message WHERE message_id = 'head'`)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		_, err := w.conn.exec(query{text: `UPDATE inbox_message SET next_at = 1 WHERE message_id = 'head'`})
		return err
	}))

	release := l.hold()
	var wg sync.WaitGroup
	submit := func(m Message, want Outcome) {
		wg.Add(1)
		require.NoError(t, c.Submit(ctxBG, m, func(o Outcome, err error) {
			defer wg.Done()
			assert.NoError(t, err, m.ID)
			assert.Equal(t, want, o, m.ID)
		}))
	}
	update := func(name string, fail error) {
		queued := l.ib.w.q.length()
		wg.Go(func() {
			err := l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
				if _, err := tx.ExecContext(ctx, `INSERT INTO log VALUES (?)`, name); err != nil {
					return err
				}
				return fail
			})
			assert.ErrorIs(t, err, fail)
		})
		l.eventually(func() bool { return l.ib.w.q.length() > queued }, "queued")
	}
	for i := range minBare {
		submit(Message{ID: fmt.Sprint("before ", i)}, Applied)
	}
	update("kept", nil)
	update("undone", errors.New("failed"))
	submit(Message{ID: "old"}, Duplicate)
	submit(Message{ID: "old", Payload: []byte("other")}, Conflict)
	submit(Message{ID: "third", Key: "k"}, Pending)
	submit(Message{ID: "bad", Payload: []byte("never")}, Pending)
	wg.Add(1)
	require.NoError(t, l.ib.w.q.push(ctxBG, &retry{c: c, seq: head, done: func(err error) { assert.NoError(t, err); wg.Done() }}))
	submit(Message{ID: "bad too", Payload: []byte("never")}, Pending)
	submit(Message{ID: "after"}, Applied)
	update("kept too", nil)
	release()
	wg.Wait()
	assert.Equal(t, []string{"kept", "kept too"}, values[string](l, `SELECT name FROM log`))
	assert.Equal(t, []string{"head", "follower", "third"},
		values[string](l, `SELECT e.id FROM effects e JOIN inbox_message m ON m.seq = e.seq WHERE m.key = 'k' ORDER BY e.n`))
	assert.Equal(t, []int{1, 1}, values[int](l, `SELECT attempts FROM inbox WHERE status = 'pending'`))
	assert.Equal(t, 1, value[int](l, `SELECT count FROM inbox_conflicts`))
	st := l.stats("c")
	assert.EqualValues(t, 1+minBare+1+3, st.Applied)
	assert.EqualValues(t, 3, st.Failures, "the head's and two")
}

// TestWriter_CommitHook: nothing but the writer's own COMMIT commits.
func TestWriter_CommitHook(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	err := l.ib.do(ctxBG, func(w *writer) error {
		w.conn.rollingBack = true
		_, err := w.conn.exec(qRollback)
		w.conn.rollingBack = false
		require.NoError(t, err)
		_, err = w.conn.exec(query{text: `INSERT INTO effects (seq, id) VALUES (1, 'alone')`})
		assert.Error(t, err, "it would have committed by itself")
		w.conn.lost = true
		return &lostError{errors.New("test")}
	})
	assert.ErrorContains(t, err, "test")
	assert.Zero(t, l.effects(""))
}

// TestWriter_Groups: what waits is committed together.
func TestWriter_Groups(t *testing.T) {
	t.Parallel()
	var sizes []int
	l := newLab(t, func(o *Options) {
		o.MaxGroup = 40
		o.MaxGroupBytes = 1 << 20
		o.Observer.Committed = func(n int, took time.Duration) { sizes = append(sizes, n); assert.Positive(t, took) }
	})
	c := l.consumer("c", nil, nil)
	var ms []Message
	for i := range 100 {
		ms = append(ms, Message{ID: fmt.Sprint(i)})
	}
	sizes = nil
	_, errs := l.outcomes(c, ms...)
	assert.NoError(t, errors.Join(errs...))
	l.close()
	assert.Equal(t, []int{1, 40, 40, 20}, sizes)
	l.open()
}

// sqlc's generated code, and most query builders, take this.
var _ interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
} = (*Tx)(nil)
