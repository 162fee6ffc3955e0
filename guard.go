package inbox

// The guard stands between a handler and the one writing connection. What
// must stay true: outside its own turn a handler reaches nothing; inside it,
// it cannot begin, end or leave the transaction it shares with its
// neighbours; and nobody but the writer ever commits.
//
// Three things watch over that. The authorizer refuses, while a handler's
// statement is compiled, what no handler may do (also inside triggers). The
// commit hook refuses every commit but the writer's own, so that a statement
// which runs after the transaction was lost cannot commit by itself. The
// rollback hook notices that the transaction was lost.

import (
	"container/list"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// guard is a driver.Conn for database/sql around the raw driver connection.
type guard struct {
	raw driver.Conn

	// Owned by the goroutine that runs the transaction; the hooks run on it.
	committing  bool // the writer's own COMMIT is running
	rollingBack bool // the writer's own ROLLBACK is running
	lost        bool // the transaction ended before its time
	denied      string

	// mu makes a handler's calls, from whatever goroutine, take turns, and
	// keeps them out while cur is nil.
	mu      sync.Mutex
	cur     *Tx // whose turn it is; nil: nobody's
	rows    map[*guardRows]struct{}
	cache   stmtCache
	args    []driver.NamedValue // of the statement that exec runs
	trouble error               // the first error in this turn that is the disk's
	cause   error               // the error of the statement that lost the transaction

	// turnMu lets the watchdog interrupt a handler's turn and nothing else.
	turnMu   sync.Mutex
	turn     uint64  // counts the turns
	inTurn   bool    // a handler is running
	timedOut bool    // this turn was interrupted
	handle   uintptr // SQLite's own handle, for interrupt; 0 once closed
}

func newGuard(raw driver.Conn) *guard {
	g := &guard{raw: raw, rows: map[*guardRows]struct{}{}}
	g.handle = handleOf(raw)
	raw.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 {
		if g.committing {
			return 0
		}
		return 1 // turns the commit into a rollback
	})
	raw.(sqlite.HookRegisterer).RegisterRollbackHook(func() {
		if !g.rollingBack {
			g.lost = true
		}
	})
	if err := raw.(sqlite.AuthorizerRegisterer).RegisterAuthorizer(g.authorize); err != nil {
		panic(err) // it cannot fail on an open connection
	}
	return g
}

// handleOf reads the driver's handle: the driver offers to interrupt a
// statement only through a context that can end, which costs a goroutine a
// statement (1 µs of 15). A test holds the driver to this field.
func handleOf(raw driver.Conn) uintptr {
	v := reflect.ValueOf(raw)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return 0
	}
	if f := v.Elem().FieldByName("db"); f.IsValid() && f.Kind() == reflect.Uintptr {
		return uintptr(f.Uint())
	}
	return 0
}

// interrupt ends the statement that is running, if it belongs to the given
// turn. It may be called from any goroutine.
func (g *guard) interrupt(turn uint64) {
	g.turnMu.Lock()
	defer g.turnMu.Unlock()
	if g.handle != 0 && g.inTurn && g.turn == turn {
		g.timedOut = true
		sqlite3.Xsqlite3_interrupt(nil, g.handle) // one atomic store; it uses no TLS
	}
}

// now is the turn that is on.
func (g *guard) now() (turn uint64, inTurn bool) {
	g.turnMu.Lock()
	defer g.turnMu.Unlock()
	return g.turn, g.inTurn
}

func (g *guard) close() error {
	g.turnMu.Lock()
	g.handle, g.inTurn = 0, false
	g.turnMu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cur = nil
	g.endRows()
	g.cache.clear()
	return g.raw.Close()
}

// enter gives tx its turn.
func (g *guard) enter(tx *Tx) {
	g.mu.Lock()
	g.cur, g.trouble, g.cause = tx, nil, nil
	g.mu.Unlock()
	g.turnMu.Lock()
	g.turn++
	g.inTurn, g.timedOut = true, false
	g.turnMu.Unlock()
}

// leave ends it: open Rows are closed, and whatever the handler kept is dead.
func (g *guard) leave() error {
	g.turnMu.Lock()
	g.inTurn = false
	g.turnMu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cur = nil
	if g.endRows() > 0 {
		return ErrRowsLeaked
	}
	return nil
}

func (g *guard) endRows() int {
	n := len(g.rows)
	for r := range g.rows {
		r.end()
	}
	return n
}

// authorize is called by SQLite while a statement is compiled.
func (g *guard) authorize(action sqlite.AuthorizerActionCode, arg1, arg2, db, trigger string) sqlite.AuthorizerReturnCode {
	if g.cur == nil { // the writer's own statement
		return sqlite.AuthorizerOK
	}
	what := ""
	switch action {
	case sqlite.AuthTransaction:
		what = arg1 // BEGIN, COMMIT, ROLLBACK
	case sqlite.AuthSavepoint:
		what = "SAVEPOINT or RELEASE"
	case sqlite.AuthAttach:
		what = "ATTACH (or VACUUM)"
	case sqlite.AuthDetach:
		what = "DETACH"
	case sqlite.AuthPragma:
		what = "PRAGMA " + arg1
	case sqlite.AuthInsert, sqlite.AuthUpdate, sqlite.AuthDelete,
		sqlite.AuthCreateTable, sqlite.AuthCreateTempTable, sqlite.AuthDropTable, sqlite.AuthDropTempTable,
		sqlite.AuthCreateView, sqlite.AuthCreateTempView, sqlite.AuthDropView, sqlite.AuthDropTempView,
		sqlite.AuthCreateVTable, sqlite.AuthDropVTable:
		if ours(arg1) {
			what = "changing " + arg1
		}
	case sqlite.AuthAlterTable, sqlite.AuthCreateIndex, sqlite.AuthDropIndex,
		sqlite.AuthCreateTempIndex, sqlite.AuthDropTempIndex,
		sqlite.AuthCreateTrigger, sqlite.AuthDropTrigger,
		sqlite.AuthCreateTempTrigger, sqlite.AuthDropTempTrigger:
		if ours(arg2) {
			what = "changing " + arg2
		}
	}
	if what == "" {
		return sqlite.AuthorizerOK
	}
	g.denied = what
	return sqlite.AuthorizerDeny
}

// ours tells the inbox's own tables and views.
func ours(name string) bool {
	name = strings.ToLower(name)
	return name == "inbox" || name == "outbox" || strings.HasPrefix(name, "inbox_") || strings.HasPrefix(name, "outbox_")
}

// A txContext is the context that Tx hands to database/sql: it never ends (a
// context that ends inside an INSERT ends the whole transaction) and says
// whose statement this is.
type txContext struct {
	context.Context
	tx *Tx
}

// admit says whether a statement of owner may run now. mu is held.
func (g *guard) admit(ctx context.Context, owner *Tx) error {
	if tc, ok := ctx.(*txContext); ok {
		owner = tc.tx
	} else if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case owner == nil || g.cur != owner:
		return ErrTxDone
	case g.lost:
		return ErrTxLost
	}
	return nil
}

// after looks at the error of a statement that ran. mu is held.
func (g *guard) after(err error) error {
	if g.denied != "" {
		what := g.denied
		g.denied = ""
		if err != nil {
			return &deniedError{what, err}
		}
	}
	if g.lost && g.cause == nil {
		g.cause = err
		if err == nil {
			g.cause = ErrTxLost
		}
	}
	if err != nil && g.trouble == nil && isStorage(err) {
		g.trouble = err
	}
	return err
}

// A deniedError says what was denied, in the place of SQLite's "not authorized".
type deniedError struct {
	what string
	err  error
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("%v: %s: the inbox begins and ends the transaction, sets the PRAGMAs, and alone changes its own tables", ErrDenied, e.what)
}

func (e *deniedError) Unwrap() []error { return []error{ErrDenied, e.err} }

// Prepare, Close and Begin make guard a driver.Conn; database/sql calls the
// methods below instead.
func (g *guard) Prepare(q string) (driver.Stmt, error) {
	return g.PrepareContext(context.Background(), q)
}
func (g *guard) Close() error              { return nil } // writeConn.close does
func (g *guard) Begin() (driver.Tx, error) { return nil, ErrDenied }
func (g *guard) IsValid() bool             { return true }

func (g *guard) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(ctx, nil); err != nil {
		return nil, err
	}
	st, err := g.cache.take(g.raw, q)
	if err = g.after(err); err != nil {
		return nil, err
	}
	g.cache.give(q, st)
	return &guardStmt{g: g, q: q, tx: g.cur}, nil
}

func (g *guard) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return g.run(ctx, nil, q, args)
}

func (g *guard) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return g.query(ctx, nil, q, args)
}

// exec is ExecContext for tx, without the way through database/sql.
func (g *guard) exec(tx *Tx, q string, args []any) (driver.Result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(&tx.ctx, nil); err != nil {
		return nil, err
	}
	g.args = g.args[:0]
	for i, v := range args {
		g.args = append(g.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	defer clear(g.args)
	return g.step(q, g.args)
}

func (g *guard) run(ctx context.Context, owner *Tx, q string, args []driver.NamedValue) (driver.Result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(ctx, owner); err != nil {
		return nil, err
	}
	return g.step(q, args)
}

// step runs a statement that was admitted. mu is held.
func (g *guard) step(q string, args []driver.NamedValue) (driver.Result, error) {
	st, err := g.cache.take(g.raw, q)
	if err != nil {
		return nil, g.after(err)
	}
	res, err := st.(driver.StmtExecContext).ExecContext(context.Background(), args)
	g.cache.give(q, st)
	return res, g.after(err)
}

func (g *guard) query(ctx context.Context, owner *Tx, q string, args []driver.NamedValue) (driver.Rows, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(ctx, owner); err != nil {
		return nil, err
	}
	st, err := g.cache.take(g.raw, q)
	if err != nil {
		return nil, g.after(err)
	}
	rows, err := st.(driver.StmtQueryContext).QueryContext(context.Background(), args)
	if err = g.after(err); err != nil {
		g.cache.give(q, st)
		return nil, err
	}
	r := &guardRows{g: g, q: q, st: st, rows: rows}
	g.rows[r] = struct{}{}
	return r, nil
}

// A guardStmt is a handler's prepared statement: the text, and whose it is.
// The compiled statement stays in the cache.
type guardStmt struct {
	g  *guard
	q  string
	tx *Tx
}

func (s *guardStmt) Close() error                               { return nil }
func (s *guardStmt) NumInput() int                              { return -1 }
func (s *guardStmt) Exec([]driver.Value) (driver.Result, error) { return nil, ErrTxDone }
func (s *guardStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, ErrTxDone }

func (s *guardStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.g.run(ctx, s.tx, s.q, args)
}

func (s *guardStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.g.query(ctx, s.tx, s.q, args)
}

// guardRows are a handler's Rows. The guard ends them when the handler's turn
// is over, whatever the handler still holds.
type guardRows struct {
	g    *guard
	q    string
	st   driver.Stmt
	rows driver.Rows // nil once ended
	cols []string
}

// end closes the rows. mu is held.
func (r *guardRows) end() error {
	if r.rows == nil {
		return nil
	}
	r.cols = r.rows.Columns()
	err := r.rows.Close()
	r.rows = nil
	delete(r.g.rows, r)
	r.g.cache.give(r.q, r.st)
	return err
}

func (r *guardRows) Columns() []string {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.rows != nil {
		return r.rows.Columns()
	}
	return r.cols
}

func (r *guardRows) Close() error {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.after(r.end())
}

func (r *guardRows) Next(dest []driver.Value) error {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.rows == nil {
		return ErrTxDone
	}
	if r.g.lost {
		return ErrTxLost
	}
	err := r.rows.Next(dest)
	if err == io.EOF {
		return err
	}
	return r.g.after(err)
}

// ColumnTypeDatabaseTypeName makes sql.Rows.ColumnTypes say the declared type.
func (r *guardRows) ColumnTypeDatabaseTypeName(i int) string {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if t, ok := r.rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return t.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

// ColumnTypeScanType makes sql.Rows.ColumnTypes say the Go type.
func (r *guardRows) ColumnTypeScanType(i int) reflect.Type {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if t, ok := r.rows.(driver.RowsColumnTypeScanType); ok {
		return t.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}

// stmtCache keeps a handler's compiled statements by their text, the most
// recently used ones. A statement that is in use (its Rows are open) is not
// in the cache.
type stmtCache struct {
	byText map[string]*list.Element
	order  *list.List // of *cached, most recently used first
}

type cached struct {
	text string
	st   driver.Stmt // nil while in use
}

// maxCached bounds the statements kept compiled, about 10 KB each.
const maxCached = 128

func (c *stmtCache) take(raw driver.Conn, q string) (driver.Stmt, error) {
	if e := c.byText[q]; e != nil {
		if k := e.Value.(*cached); k.st != nil {
			st := k.st
			k.st = nil
			c.order.MoveToFront(e)
			return st, nil
		}
	}
	return raw.Prepare(q)
}

func (c *stmtCache) give(q string, st driver.Stmt) {
	if c.byText == nil {
		c.byText, c.order = map[string]*list.Element{}, list.New()
	}
	e := c.byText[q]
	switch {
	case e == nil:
		c.byText[q] = c.order.PushFront(&cached{text: q, st: st})
	case e.Value.(*cached).st == nil:
		e.Value.(*cached).st = st
	default: // a second copy, made while the first was in use
		st.Close()
	}
	for c.order.Len() > maxCached {
		last := c.order.Back()
		k := last.Value.(*cached)
		if k.st != nil {
			k.st.Close()
		}
		c.order.Remove(last)
		delete(c.byText, k.text)
	}
}

func (c *stmtCache) clear() {
	if c.order != nil {
		for e := c.order.Front(); e != nil; e = e.Next() {
			if st := e.Value.(*cached).st; st != nil {
				st.Close()
			}
		}
	}
	c.byText, c.order = nil, nil
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
