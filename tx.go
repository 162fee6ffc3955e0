package inbox

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

// A Tx is what a handler may do to the database. It is the part of a shared
// transaction that belongs to one message: when the handler returns nil it
// is kept, when it returns an error every trace of it is undone, and the
// neighbours are not touched either way. It ends with the handler.
//
// Its methods have the signatures of database/sql, so sqlc's generated code
// and query builders take it. Statements are compiled once and kept. A
// context given to them is looked at before the statement starts and not
// after: a context that ended within a write would end the transaction of
// all. ConsumerOptions and Options.StatementTimeout bound what runs away.
//
// Transaction control, ATTACH, DETACH, VACUUM, PRAGMA and writes to the
// inbox's own tables are refused with ErrDenied. A time.Time argument is
// stored as text that SQLite's date functions read.
//
// Methods may be called from several goroutines; they take turns.
type Tx struct {
	*Rx
	rx    Rx
	conn  *sql.Conn
	guard *guard
	ctx   txContext
	now   int64
	mu    sync.Mutex
	stmts []*sql.Stmt
}

// An Rx reads the database: in View a consistent snapshot, in a handler the
// state inside its transaction.
type Rx struct {
	q querier
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// QueryContext runs a query. Close the Rows before the function that was
// given this Rx or Tx returns.
func (r *Rx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return r.q.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query for its first row. Scan it: a Row that is not
// scanned stays open.
func (r *Rx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return r.q.QueryRowContext(ctx, query, args...)
}

// PrepareContext makes a statement that lives until the function that was
// given this Rx or Tx returns. In a handler there is no need for it:
// statements are kept compiled by their text.
func (r *Rx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return r.q.PrepareContext(ctx, query)
}

// ExecContext runs a statement that returns no rows.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if plain(args) {
		return tx.guard.exec(tx, query, args)
	}
	return tx.conn.ExecContext(&tx.ctx, query, args...)
}

// plain reports whether database/sql would hand all of args to the driver as
// they are.
func plain(args []any) bool {
	for _, v := range args {
		switch v.(type) {
		case nil, int64, string, []byte, bool, float64, time.Time:
		default:
			return false
		}
	}
	return true
}

// Now is the time of this transaction: one for all its messages, the same
// that the inbox writes into its own rows. Millisecond resolution, UTC.
func (tx *Tx) Now() time.Time { return time.UnixMilli(tx.now).UTC() }

func newTx(c *writeConn, now int64) *Tx {
	tx := &Tx{conn: c.conn, guard: c.guard, now: now}
	tx.ctx = txContext{Context: context.Background(), tx: tx}
	tx.rx.q = txQuerier{tx}
	tx.Rx = &tx.rx
	return tx
}

// end closes what the handler prepared.
func (tx *Tx) end() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	for _, s := range tx.stmts {
		s.Close()
	}
	tx.stmts = nil
}

// txQuerier reads inside a handler's transaction.
type txQuerier struct{ tx *Tx }

func (q txQuerier) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return q.tx.conn.QueryContext(&q.tx.ctx, query, args...)
}

func (q txQuerier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if ctx.Err() != nil {
		return q.tx.conn.QueryRowContext(ctx, query, args...) // a Row with the context's error
	}
	return q.tx.conn.QueryRowContext(&q.tx.ctx, query, args...)
}

func (q txQuerier) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := q.tx.conn.PrepareContext(&q.tx.ctx, query)
	if err == nil {
		q.tx.mu.Lock()
		q.tx.stmts = append(q.tx.stmts, s)
		q.tx.mu.Unlock()
	}
	return s, err
}
