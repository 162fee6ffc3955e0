package inbox

// The one writing connection, and the statements of the inbox's own.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// A writeConn is the one writing connection: the raw driver connection, on
// which the writer runs its own statements, and the same connection seen
// through database/sql and a guard, which is what handlers get.
type writeConn struct {
	*guard
	db    *sql.DB
	conn  *sql.Conn
	stmts []*rawStmt
}

// close closes the raw connection and what database/sql holds of it. It does
// not wait for Rows that a handler leaked: the guard has ended those.
func (c *writeConn) close() error {
	for _, s := range c.stmts {
		if s != nil {
			s.stmt.Close()
		}
	}
	c.stmts = nil
	err := c.guard.close()
	return errors.Join(err, c.db.Close())
}

// oneConn hands the one guarded connection to database/sql, once.
type oneConn struct{ g *guard }

func (o oneConn) Connect(context.Context) (driver.Conn, error) { return o.g, nil }
func (o oneConn) Driver() driver.Driver                        { return nil }

// A query is a statement of the inbox's own; each has a place in every
// connection's list of prepared statements.
type query struct {
	text string
	id   int // 1, 2, …; 0 is prepared anew each time
}

var queries struct {
	sync.Mutex
	n int
}

// newQuery is for package variables.
func newQuery(text string) query {
	queries.Lock()
	defer queries.Unlock()
	queries.n++
	return query{text: text, id: queries.n}
}

type rawStmt struct {
	stmt driver.Stmt
	args []driver.NamedValue
}

func (s *rawStmt) bind(args []driver.Value) []driver.NamedValue {
	s.args = s.args[:0]
	for i, v := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return s.args
}

func (c *writeConn) prepared(q query) (*rawStmt, error) {
	if q.id != 0 && q.id < len(c.stmts) && c.stmts[q.id] != nil {
		return c.stmts[q.id], nil
	}
	st, err := c.raw.Prepare(q.text)
	if err != nil {
		return nil, err
	}
	s := &rawStmt{stmt: st}
	if q.id != 0 {
		if q.id >= len(c.stmts) {
			c.stmts = append(c.stmts, make([]*rawStmt, q.id+1-len(c.stmts))...)
		}
		c.stmts[q.id] = s
	}
	return s, nil
}

// exec runs a statement of the inbox's own. Only the goroutine that owns the
// connection calls it, and never while a handler runs. Values must be int64,
// string, []byte or nil.
func (c *writeConn) exec(q query, args ...driver.Value) (changes int64, err error) {
	s, err := c.prepared(q)
	if err != nil {
		return 0, err
	}
	if q.id == 0 {
		defer s.stmt.Close()
	}
	res, err := s.stmt.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(args))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// each calls row for every row of q's result; dest is reused.
func (c *writeConn) each(q query, dest []driver.Value, row func() error, args ...driver.Value) error {
	s, err := c.prepared(q)
	if err != nil {
		return err
	}
	if q.id == 0 {
		defer s.stmt.Close()
	}
	rows, err := s.stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(args))
	if err != nil {
		return err
	}
	for {
		switch err = rows.Next(dest); {
		case isEOF(err):
			return rows.Close()
		case err == nil:
			err = row()
		}
		if err != nil {
			return errors.Join(err, rows.Close())
		}
	}
}

// queryRow fills dest with the first row of q's result.
func (c *writeConn) queryRow(q query, dest []driver.Value, args ...driver.Value) (found bool, err error) {
	errFirst := errors.New("first")
	err = c.each(q, dest, func() error { found = true; return errFirst }, args...)
	if errors.Is(err, errFirst) {
		err = nil
	}
	return found, err
}

// pagesWritten counts the pages that this connection has written.
func (c *writeConn) pagesWritten() int {
	n, _, _ := c.raw.(sqlite.DBStatus).Status(sqlite.DBStatusCacheWrite, false)
	return n
}

var (
	qBegin    = newQuery(`BEGIN IMMEDIATE`)
	qCommit   = newQuery(`COMMIT`)
	qRollback = newQuery(`ROLLBACK`)
)

// exclusively runs fn in a transaction of its own: for work before the writer
// runs, and for guests.
func (c *writeConn) exclusively(fn func() error) error {
	if err := c.beginBeside(); err != nil {
		return err
	}
	c.lost = false
	err := fn()
	if err == nil {
		err = c.commit()
	}
	if err != nil {
		err = errors.Join(err, c.rollback())
	}
	return err
}

var (
	qWaitNot = newQuery(`PRAGMA busy_timeout = 0`)
	qWait    = newQuery(`PRAGMA busy_timeout = ` + strconv.Itoa(busyTimeout))
)

// beginBeside is BEGIN beside a writer that may have much to do. It looks every
// millisecond for a gap between two transactions; SQLite's own waiting looks
// every 100, and would hardly ever meet one.
func (c *writeConn) beginBeside() error {
	if _, err := c.exec(qWaitNot); err != nil {
		return err
	}
	_, err := c.exec(qBegin)
	for end := time.Now().Add(busyTimeout * time.Millisecond); code(err) == codeBusy && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		_, err = c.exec(qBegin)
	}
	if _, e := c.exec(qWait); err == nil && e != nil {
		err = errors.Join(e, c.rollback())
	}
	return err
}

// commit commits; the guard lets no other commit pass.
func (c *writeConn) commit() error {
	c.committing = true
	defer func() { c.committing = false }()
	_, err := c.exec(qCommit)
	return err
}

// rollback ends the transaction if there still is one.
func (c *writeConn) rollback() error {
	if c.lost {
		return nil
	}
	c.rollingBack = true
	defer func() { c.rollingBack = false }()
	_, err := c.exec(qRollback)
	return err
}
