// Package sqlhandler makes a handler of an inbox out of SQL statements: they
// run in order in the message's transaction, with the message's parts as bound
// parameters. Nothing of a message ever becomes part of a statement's text.
package sqlhandler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"edge.example/inbox"
	"modernc.org/sqlite"
)

// A Statement is one entry of a handler, as it is configured.
type Statement struct {
	SQL string
	// When is an SQL condition; the statement is skipped unless it is true.
	When string
	// ExpectRows, if set, is how many rows the statement must change.
	ExpectRows *int64
	// PermanentIf replaces the handler's for this statement, if not nil.
	PermanentIf []string
}

// Causes are the kinds of errors that PermanentIf names: a message that meets
// one of them is dead at once, since trying again would not help.
var Causes = []string{"check", "not_null", "unique", "primary_key", "foreign_key", "datatype", "trigger", "rows", "json"}

// DefaultPermanentIf are the causes that are permanent when none are named:
// they depend on the message alone.
var DefaultPermanentIf = []string{"check", "not_null", "datatype", "json"}

// A Handler runs statements.
type Handler struct {
	steps []step
}

type step struct {
	number    int // from 1
	sql, when compiled
	quick     func(*call) bool // instead of when, if not nil
	rows      *int64
	permanent map[string]bool
}

// An Error is what is wrong with one entry.
type Error struct {
	Index int    // of the statement
	Field string // "sql", "when", "expect_rows" or "permanent_if"
	Err   error
}

func (e *Error) Error() string {
	return fmt.Sprintf("statement %d: %s: %v", e.Index+1, e.Field, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }

// New checks what can be checked without a database. permanentIf, if not nil,
// replaces DefaultPermanentIf. Its errors are of type *Error, joined.
func New(statements []Statement, permanentIf []string) (*Handler, error) {
	if permanentIf == nil {
		permanentIf = DefaultPermanentIf
	}
	h := &Handler{}
	var errs []error
	for i, s := range statements {
		fail := func(field string, err error) {
			if err != nil {
				errs = append(errs, &Error{i, field, err})
			}
		}
		st := step{number: i + 1, rows: s.ExpectRows, permanent: map[string]bool{}}
		var err error
		st.sql, err = compile(s.SQL)
		fail("sql", err)
		if s.When != "" {
			st.when, err = compile(s.When)
			fail("when", err)
			st.quick = shortcut(s.When)
			st.when.text = "SELECT CASE WHEN (" + st.when.text + "\n) THEN 1 ELSE 0 END"
		}
		if s.ExpectRows != nil && *s.ExpectRows < 0 {
			fail("expect_rows", fmt.Errorf("is %d, it counts rows", *s.ExpectRows))
		}
		causes := permanentIf
		if s.PermanentIf != nil {
			causes = s.PermanentIf
		}
		for _, c := range causes {
			st.permanent[c] = true
		}
		h.steps = append(h.steps, st)
	}
	return h, errors.Join(errs...)
}

// Prepare compiles the statements against the database behind tx: names that
// are not there, and what a handler may not do, are errors of type *Error,
// joined.
func (h *Handler) Prepare(ctx context.Context, tx *inbox.Tx) error {
	var errs []error
	for i, st := range h.steps {
		for _, part := range []struct{ field, text string }{{"when", st.when.text}, {"sql", st.sql.text}} {
			if part.text == "" {
				continue
			}
			if _, err := tx.PrepareContext(ctx, part.text); err != nil {
				errs = append(errs, &Error{i, part.field, plain(err)})
			}
		}
	}
	return errors.Join(errs...)
}

// Handle is an inbox.Handler.
func (h *Handler) Handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	var buf [12]any
	c := &call{Message: m}
	for i := range h.steps {
		st := &h.steps[i]
		if st.quick != nil {
			if !st.quick(c) {
				continue
			}
		} else if st.when.text != "" {
			var holds bool
			if err := tx.QueryRowContext(ctx, st.when.text, st.when.bind(buf[:0], c)...).Scan(&holds); err != nil {
				return st.failed("when", err, m)
			}
			if !holds {
				continue
			}
		}
		res, err := tx.ExecContext(ctx, st.sql.text, st.sql.bind(buf[:0], c)...)
		if err != nil {
			return st.failed("sql", err, m)
		}
		if st.rows == nil {
			continue
		}
		if n, err := res.RowsAffected(); err != nil || n != *st.rows {
			return st.verdict("rows", cmpErr(err, fmt.Errorf("statement %d changed %d rows, expect_rows is %d", st.number, n, *st.rows)))
		}
	}
	return nil
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// failed says which statement failed, and whether trying again may help.
func (st *step) failed(field string, err error, m *inbox.Message) error {
	where := fmt.Sprintf("statement %d", st.number)
	if field == "when" {
		where += ", when"
	}
	return st.verdict(cause(err, m), fmt.Errorf("%s: %w", where, err))
}

func (st *step) verdict(cause string, err error) error {
	if st.permanent[cause] {
		return inbox.Permanent(err)
	}
	return err
}

// SQLite's extended result codes (https://sqlite.org/rescode.html).
const (
	codeError            = 1
	codeMismatch         = 20
	constraintCheck      = 275
	constraintForeignKey = 787
	constraintNotNull    = 1299
	constraintPrimaryKey = 1555
	constraintTrigger    = 1811
	constraintUnique     = 2067
	constraintRowID      = 2579
	constraintDataType   = 3091 // of a STRICT table
)

// cause is the kind of err, "" for one that has no name here.
func cause(err error, m *inbox.Message) string {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Code() {
	case constraintCheck:
		return "check"
	case constraintForeignKey:
		return "foreign_key"
	case constraintNotNull:
		return "not_null"
	case constraintPrimaryKey, constraintRowID:
		return "primary_key"
	case constraintUnique:
		return "unique"
	case constraintTrigger:
		return "trigger"
	case constraintDataType, codeMismatch:
		return "datatype"
	case codeError:
		// "malformed JSON" has no code of its own: ask the payload.
		if !json.Valid(m.Payload) {
			return "json"
		}
	}
	return ""
}

// plain is err without what a configuration's reader need not know.
func plain(err error) error {
	if errors.Is(err, inbox.ErrDenied) || errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return errors.New(strings.TrimPrefix(err.Error(), "SQL logic error: "))
}
