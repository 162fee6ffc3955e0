package sqlhandler

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCompile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ sql, want string }{
		{`INSERT INTO t VALUES (:id, :data ->> '$.a', :id)`, `INSERT INTO t VALUES (?1, ?2 ->> '$.a', ?1)`},
		{`SELECT ':id', ":id", [:id], ` + "`:id`" + `, 'it''s :id' -- :id` + "\n, :ID", `SELECT ':id', ":id", [:id], ` + "`:id`" + `, 'it''s :id' -- :id` + "\n, ?1"},
		{`SELECT /* ; :nobody */ 1;`, `SELECT /* ; :nobody */ 1`},
		{`SELECT 1 ; ; -- the end`, `SELECT 1`},
		{`SELECT :header_Ce_Time, :header_ce_time`, `SELECT ?1, ?1`},
		{`SELECT x ->> '$.id' FROM t`, `SELECT x ->> '$.id' FROM t`},
		{`SELECT 'ü' || :type`, `SELECT 'ü' || ?1`},
	} {
		c, err := compile(tc.sql)
		require.NoError(t, err, tc.sql)
		assert.Equal(t, tc.want, c.text, tc.sql)
	}
	for sql, want := range map[string]string{
		``:                             "empty",
		` ; -- nothing`:                "empty",
		`DELETE FROM a; DELETE FROM b`: "a second statement follows the semicolon at byte 13",
		`SELECT :nobody`:               "there is no parameter :nobody",
		`SELECT :header_`:              "there is no parameter :header_",
		`SELECT ?`:                     "parameters have names",
		`SELECT ?1`:                    "parameters have names",
		`SELECT @id`:                   "parameters have names",
		`SELECT $id`:                   "parameters have names",
		`SELECT 'open`:                 "never closed",
		`SELECT "open`:                 "never closed",
		`SELECT [open`:                 "never closed",
		`INSERT INTO t VALUES (:id); -- x` + "\nDROP TABLE t": "a second statement",
	} {
		_, err := compile(sql)
		assert.ErrorContains(t, err, want, sql)
	}
}

// FuzzCompile: what compiles has no parameter but numbered ones, and compiling
// it never panics.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{`SELECT :id, ':id'`, `a;b`, `--`, `/*`, `[`, "`", `::id`, `:`, `?`, `#`, `$1`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := compile(s)
		if err != nil {
			return
		}
		tokens, err := scan(c.text)
		if err != nil {
			t.Fatalf("%q became %q: %v", s, c.text, err)
		}
		for _, k := range tokens {
			if k.kind == semicolon || k.kind == parameter && k.text[0] != '?' {
				t.Fatalf("%q became %q: %q", s, c.text, k.text)
			}
		}
	})
}

// A lab is an inbox with a table for each kind of constraint.
type lab struct {
	t  *testing.T
	ib *inbox.Inbox
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ib, err := inbox.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), &inbox.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ib.Close()) })
	l := &lab{t, ib}
	l.update(`
		CREATE TABLE parent (id INTEGER PRIMARY KEY);
		CREATE TABLE t (
			id     INTEGER PRIMARY KEY,
			u      TEXT UNIQUE,
			n      TEXT NOT NULL DEFAULT 'n',
			c      INTEGER CHECK (c > 0),
			parent INTEGER REFERENCES parent (id)
		) STRICT;
		CREATE TRIGGER refuse BEFORE INSERT ON t WHEN NEW.n = 'refused' BEGIN SELECT RAISE(ABORT, 'refused'); END;
		CREATE TABLE seen (v)`)
	return l
}

func (l *lab) update(sql string) {
	l.t.Helper()
	require.NoError(l.t, l.ib.Update(context.Background(), func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, sql)
		return err
	}))
}

func (l *lab) value(query string) (v any) {
	l.t.Helper()
	require.NoError(l.t, l.ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
		return rx.QueryRowContext(ctx, query).Scan(&v)
	}))
	return v
}

// process gives a message to a consumer of its own.
func (l *lab) process(name string, statements []Statement, permanentIf []string, m inbox.Message) inbox.Outcome {
	l.t.Helper()
	h, err := New(statements, permanentIf)
	require.NoError(l.t, err)
	c, err := l.ib.Consumer(name, h.Handle, &inbox.ConsumerOptions{Retry: inbox.RetryPolicy{Initial: time.Hour}})
	require.NoError(l.t, err)
	o, err := c.Process(context.Background(), m)
	require.NoError(l.t, err)
	return o
}

func TestHandle_Parameters(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	o := l.process("c", []Statement{{SQL: `
		INSERT INTO seen SELECT concat_ws('|', :id, :source, :type, :subject, :key, :data ->> '$.a', :attempt,
			:header_ce_time, :header_x, typeof(:header_none), typeof(:data), length(:received_at))`}}, nil,
		inbox.Message{
			ID: "1", Source: "/s", Type: "ty", Subject: "su", Key: "k", Payload: []byte(`{"a":"it's; DROP TABLE seen"}`),
			Headers: inbox.Header{"Ce-Time": {"noon"}, "x": {"small"}, "X": {"large"}},
		})
	require.Equal(t, inbox.Applied, o)
	assert.Equal(t, "1|/s|ty|su|k|it's; DROP TABLE seen|1|noon|large|null|text|24", l.value(`SELECT v FROM seen`))

	l.update(`DELETE FROM seen`)
	require.Equal(t, inbox.Applied, l.process("d", []Statement{{SQL: `INSERT INTO seen VALUES (typeof(:type) || typeof(:key) || typeof(:data))`}}, nil,
		inbox.Message{ID: "1", Payload: []byte{0xff, 0}}))
	assert.Equal(t, "nullnullblob", l.value(`SELECT v FROM seen`))
}

func TestHandle_When(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	statements := []Statement{
		{When: `:type = 'a' -- a comment`, SQL: `INSERT INTO seen VALUES ('a')`},
		{When: `:type = 'b' OR :type IS NULL`, SQL: `INSERT INTO seen VALUES ('b')`},
		{When: `:key = 'unknown'`, SQL: `INSERT INTO seen VALUES ('null is not true')`},
	}
	require.Equal(t, inbox.Applied, l.process("c", statements, nil, inbox.Message{ID: "1", Type: "a"}))
	assert.Equal(t, "a", l.value(`SELECT group_concat(v) FROM seen`))
	require.Equal(t, inbox.Applied, l.process("d", statements, nil, inbox.Message{ID: "1"}))
	assert.Equal(t, "a,b", l.value(`SELECT group_concat(v) FROM seen`))
}

// TestShortcut: what is decided without a query is decided as SQLite would.
func TestShortcut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	messages := []inbox.Message{
		{ID: "1"}, {ID: "2", Type: "a"}, {ID: "3", Type: "A", Subject: "it's"}, {ID: "4", Type: "b ", Key: "7"},
		{ID: "5", Type: "b", Headers: inbox.Header{"Ce-Time": {""}}}, {ID: "6", Type: "a\x00b"}, {ID: "7", Headers: inbox.Header{"ce_time": {"x"}}},
	}
	quick := 0
	for _, condition := range []string{
		`:type = 'a'`, `:TYPE='a'`, `:type IN ('a', 'b')`, `:type in ('b')`, `:subject = 'it''s'`, `:key = '7'`, `:id IN ('1','2','3')`,
		`:header_ce_time = ''`, `:header_ce_time = 'x' -- a comment`, `:type = ''`,
		`:key = 7`, `:type = "a"`, `:type IN ()`, `:type == 'a'`, `:type = 'a' OR :type = 'b'`, `:attempt = '1'`, `:data = ''`, `:type = x'61'`,
		`:type = 'a' COLLATE NOCASE`, `:type IN ('a', NULL)`, `:type IN ('a' COLLATE NOCASE)`, `:type NOT IN ('a')`, `NOT :type = 'a'`, `:received_at = 'x'`,
	} {
		h, err := New([]Statement{{When: condition, SQL: `INSERT INTO seen VALUES (:id)`}}, nil)
		require.NoError(t, err, condition)
		slow, err := New([]Statement{{When: condition, SQL: `INSERT INTO seen VALUES (:id)`}}, nil)
		require.NoError(t, err, condition)
		slow.steps[0].quick = nil
		if h.steps[0].quick != nil {
			quick++
		}
		var got [2]string
		for i, h := range []*Handler{h, slow} {
			require.NoError(t, l.ib.Update(t.Context(), func(ctx context.Context, tx *inbox.Tx) error {
				for j := range messages {
					if err := h.Handle(ctx, tx, &messages[j]); err != nil {
						return err
					}
				}
				if err := tx.QueryRowContext(ctx, `SELECT coalesce(group_concat(v), '') FROM seen`).Scan(&got[i]); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, `DELETE FROM seen`)
				return err
			}), condition)
		}
		assert.Equal(t, got[1], got[0], condition)
	}
	assert.Equal(t, 10, quick, "the usual ones")
}

func TestHandle_ErrorsAndVerdicts(t *testing.T) {
	t.Parallel()
	one := int64(1)
	l := newLab(t)
	l.update(`INSERT INTO t (id, u) VALUES (1, 'taken')`)
	for _, tc := range []struct {
		name, cause string
		statement   Statement
		permanent   bool // by default
	}{
		{"check", "check", Statement{SQL: `INSERT INTO t (c) VALUES (0)`}, true},
		{"not null", "not_null", Statement{SQL: `INSERT INTO t (n) VALUES (NULL)`}, true},
		{"unique", "unique", Statement{SQL: `INSERT INTO t (u) VALUES ('taken')`}, false},
		{"primary key", "primary_key", Statement{SQL: `INSERT INTO t (id) VALUES (1)`}, false},
		{"foreign key", "foreign_key", Statement{SQL: `INSERT INTO t (parent) VALUES (9)`}, false},
		{"datatype", "datatype", Statement{SQL: `INSERT INTO t (c) VALUES ('text')`}, true},
		{"trigger", "trigger", Statement{SQL: `INSERT INTO t (n) VALUES ('refused')`}, false},
		{"rows", "rows", Statement{SQL: `UPDATE t SET c = 1 WHERE id = 99`, ExpectRows: &one}, false},
		{"json", "json", Statement{SQL: `INSERT INTO seen VALUES (:data ->> '$.a')`}, true},
		{"json in a condition", "json", Statement{When: `:data ->> '$.a' = 1`, SQL: `DELETE FROM seen`}, true},
		{"no such table", "", Statement{SQL: `INSERT INTO missing VALUES (:id)`}, false},
	} {
		m := inbox.Message{ID: "1", Payload: []byte(`{"a": 1}`)}
		if tc.cause == "json" {
			m.Payload = []byte(`{"a": `)
		}
		before := []Statement{{SQL: `INSERT INTO seen VALUES ('undone')`}, tc.statement}
		want := map[bool]inbox.Outcome{true: inbox.Dead, false: inbox.Pending}
		assert.Equal(t, want[tc.permanent], l.process(tc.name+", default", before, nil, m), tc.name)
		assert.Equal(t, inbox.Pending, l.process(tc.name+", none", before, []string{}, m), tc.name)
		if tc.cause != "" {
			assert.Equal(t, inbox.Dead, l.process(tc.name+", all", before, Causes, m), tc.name)
			own := tc.statement
			own.PermanentIf = []string{tc.cause}
			assert.Equal(t, inbox.Dead, l.process(tc.name+", its own", []Statement{own}, []string{}, m), tc.name)
			own.PermanentIf = []string{}
			assert.Equal(t, inbox.Pending, l.process(tc.name+", none of its own", []Statement{own}, Causes, m), tc.name)
		}
	}
	assert.EqualValues(t, 0, l.value(`SELECT count(*) FROM seen`), "every effect of a message that failed is undone")
	assert.EqualValues(t, 1, l.value(`SELECT count(*) FROM t`))
	assert.EqualValues(t, 0, l.value(`SELECT count(*) FROM inbox WHERE last_error NOT LIKE 'statement _%'`), "each says which statement")
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, err := New([]Statement{
		{SQL: `INSERT INTO missing VALUES (:id)`},
		{SQL: `INSERT INTO seen VALUES (:id)`, When: `nothing = 1`},
		{SQL: `PRAGMA user_version = 7`}, {SQL: `COMMIT`}, {SQL: `ATTACH 'x' AS y`}, {SQL: `DELETE FROM inbox_message`},
		{SQL: `INSERT INTO seen VALUES (:id)`},
		{SQL: `INSRT INTO seen VALUES (:id)`},
	}, nil)
	require.NoError(t, err)
	var found error
	require.NoError(t, l.ib.Update(t.Context(), func(ctx context.Context, tx *inbox.Tx) error {
		found = h.Prepare(ctx, tx)
		return nil
	}))
	bad := map[int]string{}
	for _, e := range found.(interface{ Unwrap() []error }).Unwrap() {
		var at *Error
		require.ErrorAs(t, e, &at)
		bad[at.Index] = at.Field
		if at.Index >= 2 && at.Index <= 5 {
			assert.ErrorIs(t, e, inbox.ErrDenied)
		}
	}
	assert.Equal(t, map[int]string{0: "sql", 1: "when", 2: "sql", 3: "sql", 4: "sql", 5: "sql", 7: "sql"}, bad)
	assert.ErrorContains(t, found, "no such table: missing")
	assert.ErrorContains(t, found, `near "INSRT": syntax error`)

	_, err = New([]Statement{{SQL: `SELECT 1`, ExpectRows: new(int64(-1))}}, nil)
	var at *Error
	require.True(t, errors.As(err, &at))
	assert.Equal(t, "expect_rows", at.Field)
}
