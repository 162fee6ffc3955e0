package inbox

import (
	"context"
	"database/sql/driver"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// A Rehearsal is what a handler would do with a message.
type Rehearsal struct {
	Source, MessageID string
	// Err is the handler's error, or that of a statement which ended the
	// whole transaction.
	Err error
	// Changes are the rows it would change, in order, those of triggers and
	// foreign keys included; 1000 at most. More counts the others.
	Changes []RowChange
	More    int
}

// A RowChange is one row that a statement changes.
type RowChange struct {
	Op      string // "insert", "update" or "delete"
	Table   string
	Columns []string
	Old     []any // nil for an insert: int64, float64, string, []byte or nil
	New     []any // nil for a delete
}

// maxRehearsed bounds the changes that a Rehearsal keeps.
const maxRehearsed = 1000

var (
	qRehearsal     = newQuery(`SAVEPOINT rehearsal`)
	qRehearsalUndo = newQuery(`ROLLBACK TO rehearsal`)
	qRehearsalEnd  = newQuery(`RELEASE rehearsal`)
	qConsumerOf    = newQuery(`SELECT n.name FROM inbox_message m JOIN inbox_name n ON n.id = m.consumer WHERE m.seq = ?1`)
)

// Rehearse runs h on the message with this seq, whatever its status, and
// undoes all that it did: to see what Replay or Retry would do. The payload
// must have been kept; otherwise the error is ErrNoPayload. ErrNoMatch: there
// is no such message.
//
// It works for the owner and for a guest. It holds the write lock while h
// runs; the owner's messages wait that long. What is checked at COMMIT only
// (deferred foreign keys) is not seen.
func (ib *Inbox) Rehearse(ctx context.Context, seq int64, h Handler) (r Rehearsal, err error) {
	err = ib.admin(ctx, func(c *writeConn, now int64) error {
		r = Rehearsal{}
		return r.play(ctx, &writer{conn: c, now: now, opts: ib.opts}, seq, h)
	})
	if err == nil {
		return r, nil
	}
	if isLost(err) && r.Err != nil { // the handler ended the transaction: that is what it does
		return r, nil
	}
	return r, err
}

// play is Rehearse inside a transaction.
func (r *Rehearsal) play(ctx context.Context, w *writer, seq int64, h Handler) error {
	s, found, err := w.loadMessage(seq)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("%w: no message has seq %d", ErrNoMatch, seq)
	case s.dropped:
		return fmt.Errorf("%w: message %s", ErrNoPayload, s.m.ID)
	}
	var v [1]driver.Value
	if _, err := w.conn.queryRow(qConsumerOf, v[:], seq); err != nil {
		return err
	}
	m := s.m
	m.consumer, m.Attempt = text(v[0]), int(s.attempts)+1
	r.Source, r.MessageID = m.Source, m.ID
	if _, err := w.conn.exec(qRehearsal); err != nil {
		return err
	}
	hooks := w.conn.raw.(sqlite.HookRegisterer)
	hooks.RegisterPreUpdateHook(r.changed)
	err = w.inTurn(ctx, func(ctx context.Context, tx *Tx) error { return h(ctx, tx, &m) })
	hooks.RegisterPreUpdateHook(nil)
	r.Err = err
	if isLost(err) {
		return err
	}
	if _, err := w.conn.exec(qRehearsalUndo); err != nil {
		return err
	}
	if _, err := w.conn.exec(qRehearsalEnd); err != nil {
		return err
	}
	return r.nameColumns(w.conn)
}

// changed is SQLite's preupdate hook.
func (r *Rehearsal) changed(d sqlite.SQLitePreUpdateData) {
	if len(r.Changes) == maxRehearsed {
		r.More++
		return
	}
	c := RowChange{Table: d.TableName}
	n := d.Count()
	if d.Op != sqlite3.SQLITE_INSERT {
		c.Old = make([]any, n)
		_ = d.Old(c.Old...)
	}
	if d.Op != sqlite3.SQLITE_DELETE {
		c.New = make([]any, n)
		_ = d.New(c.New...)
	}
	switch d.Op {
	case sqlite3.SQLITE_INSERT:
		c.Op = "insert"
	case sqlite3.SQLITE_UPDATE:
		c.Op = "update"
	default:
		c.Op = "delete"
	}
	r.Changes = append(r.Changes, c)
}

var qColumns = query{text: `SELECT name, hidden FROM pragma_table_xinfo(?1) ORDER BY cid`}

// virtual is what pragma_table_xinfo says of a generated column that is not
// stored: the hook has no value for it.
const virtual = int64(2)

// nameColumns names the columns, and leaves out those without a value.
func (r *Rehearsal) nameColumns(c *writeConn) error {
	type column struct {
		name   string
		hidden int64
	}
	tables := map[string][]column{}
	for i := range r.Changes {
		ch := &r.Changes[i]
		if tables[ch.Table] == nil {
			var v [2]driver.Value
			err := c.each(qColumns, v[:], func() error {
				tables[ch.Table] = append(tables[ch.Table], column{text(v[0]), v[1].(int64)})
				return nil
			}, ch.Table)
			if err != nil {
				return err
			}
		}
		was, is := ch.Old, ch.New
		ch.Old, ch.New = nil, nil
		for at, col := range tables[ch.Table] {
			if col.hidden == virtual {
				continue
			}
			ch.Columns = append(ch.Columns, col.name)
			if at < len(was) {
				ch.Old = append(ch.Old, was[at])
			}
			if at < len(is) {
				ch.New = append(ch.New, is[at])
			}
		}
	}
	return nil
}
