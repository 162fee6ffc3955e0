package inbox

// What ends a whole transaction, by name, and its neighbours.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	{"a write that runs away", runsAway, func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO guarded WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r`)
		return err
	}},
	{"a read that runs away", runsAway, func(ctx context.Context, tx *Tx, m *Message) error {
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

// What the killers that run away leave in last_error, and how long they may
// run. (Beside other tests, with the race detector, an innocent INSERT has been
// seen to take 50 ms.)
const (
	runsAway = "StatementTimeout"
	patience = 250 * time.Millisecond
)

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
// group of fifty runs without savepoints at first; one that has no time is
// committed in parts.
func TestWriter_KillerSparesNeighbours(t *testing.T) {
	t.Parallel()
	for _, k := range killers {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{10, 50} {
				t.Run(fmt.Sprint("group of ", n), func(t *testing.T) { killInGroup(t, k.text, k.kill, n, time.Hour) })
				t.Run(fmt.Sprint("group of ", n, " in parts"), func(t *testing.T) { killInGroup(t, k.text, k.kill, n, 1) })
			}
		})
	}
}

func killInGroup(t *testing.T, text string, kill Handler, n int, groupTime time.Duration) {
	l := newLab(t, func(o *Options) {
		o.groupTime = groupTime
		if text == runsAway {
			o.StatementTimeout = patience
		}
	})
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
	l := newLab(t, func(o *Options) { o.StatementTimeout = patience })
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
