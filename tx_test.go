package inbox

// What a handler may do through its Tx, and when.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// TestTx_Arguments: what goes past database/sql is stored as what goes through it.
func TestTx_Arguments(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE args (k, v)`)
	at := time.Date(2026, 12, 1, 23, 59, 58, 987_654_321, time.FixedZone("", 3600))
	seven, text := 7, "text"
	for i, v := range []any{
		nil, int64(-1), 1.5, 2.0, true, false, "", "a\x00b", []byte(nil), []byte{}, []byte("\x00\xff"), at,
		seven, uint8(7), &seven, &text, (*string)(nil), sql.NullString{}, sql.NullInt64{Int64: 9, Valid: true}, time.Minute,
	} {
		require.NoError(t, l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
			const insert = `INSERT INTO args (k, v) VALUES (?, ?)`
			_, err := tx.ExecContext(ctx, insert, int64(i), v)
			require.NoError(t, err)
			res, err := tx.conn.ExecContext(&tx.ctx, insert, int64(i), v)
			require.NoError(t, err)
			n, err := res.RowsAffected()
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			return nil
		}))
		assert.Equal(t, 1, value[int](l, `SELECT count(DISTINCT typeof(v) || quote(v)) FROM args WHERE k = ?`, i), "%T %v", v, v)
		assert.Equal(t, 2, value[int](l, `SELECT count(*) FROM args WHERE k = ?`, i))
	}
	require.NoError(t, l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO args (k, v) VALUES (:k, :v)`, sql.Named("v", "named"), sql.Named("k", 100))
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx, `INSERT INTO args (k, v) VALUES (?, ?)`, int64(1))
		require.Error(t, err)
		_, err = tx.ExecContext(ctx, `INSERT INTO args (k) VALUES (?)`, struct{}{})
		require.ErrorContains(t, err, "unsupported type")
		res, err := tx.ExecContext(ctx, `UPDATE args SET v = ?`, "all")
		require.NoError(t, err)
		n, err := res.RowsAffected()
		require.NoError(t, err)
		require.EqualValues(t, 41, n)
		return nil
	}))
}
