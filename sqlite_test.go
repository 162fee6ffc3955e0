//go:build unix

package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() {
	helpers["open"] = helpOpen
	helpers["own"] = helpOwn
}

// openErrors are the typed errors of Open, by the names that helpers print.
var openErrors = map[string]error{
	"ErrLocked": ErrLocked, "ErrNewerSchema": ErrNewerSchema, "ErrForeignSchema": ErrForeignSchema, "ErrCorrupt": ErrCorrupt,
	"ErrNotFile": ErrNotFile, "ErrReadOnly": ErrReadOnly, "ErrNetworkFS": ErrNetworkFS,
}

// quiet are options for a test that opens a file without a lab.
func quiet() *Options {
	return &Options{Logger: slog.New(slog.DiscardHandler), CacheSize: 1 << 20}
}

// openFails opens what must not open, and returns why.
func openFails(t *testing.T, path string, opts *Options) error {
	t.Helper()
	ib, err := Open(ctxBG, path, opts)
	if !assert.Error(t, err, "it opens") {
		assert.NoError(t, ib.Close())
		return errors.New("it opened")
	}
	assert.Nil(t, ib)
	return err
}

// openClose opens a file and closes it again.
func openClose(t *testing.T, path string) {
	t.Helper()
	ib, err := Open(ctxBG, path, quiet())
	require.NoError(t, err)
	require.NoError(t, ib.Close())
}

// userDB makes a database as another program would.
func userDB(t *testing.T, path string, stmts ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, nil))
	require.NoError(t, err)
	defer db.Close()
	for _, s := range stmts {
		_, err := db.Exec(s)
		require.NoError(t, err, s)
	}
}

// bytesOf reads a file that nobody has open.
func bytesOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

// names lists a directory.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestOpen_NewFile(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	for _, suffix := range []string{"", "-wal", "-shm", "-lock"} {
		info, err := os.Stat(l.path + suffix)
		if assert.NoError(t, err) {
			assert.Equal(t, fs.FileMode(0o600), info.Mode(), "%q", suffix)
		}
	}
	assert.Equal(t, 2, value[int](l, `PRAGMA auto_vacuum`), "INCREMENTAL")
	assert.Equal(t, "wal", value[string](l, `PRAGMA journal_mode`))
	assert.Equal(t, SchemaVersion, value[int](l, `SELECT version FROM inbox_schema`))
	assert.Equal(t, 1, value[int](l, `SELECT count(*) FROM inbox_schema`))
	assert.Equal(t, 0, value[int](l, `PRAGMA user_version`))
	l.close()
	assert.Equal(t, []string{"inbox.db", "inbox.db-lock"}, names(t, filepath.Dir(l.path)), "nothing else is left")
}

// A file of any name is made under exactly that name, and found again.
func TestOpen_AnyName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"a#b", "%41", "%", "a?b", "?mode=memory", "a?mode=ro&vfs=x", " a b ", "a&b=c", "a;b", "it's", `say "x"`, `back\slash`,
		"Grüße-日本-😀.db", "-rf", "file:x", "file::memory:", "$HOME", "a\nb", "\x01", "\xff\xfe", "a+b", "[*]", strings.Repeat("n", 240),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			visit := func(path string, want int) {
				ib, err := Open(ctxBG, path, quiet())
				require.NoError(t, err)
				var n int
				assert.NoError(t, ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
					_, err1 := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS visits (n INTEGER PRIMARY KEY)`)
					_, err2 := tx.ExecContext(ctx, `INSERT INTO visits DEFAULT VALUES`)
					return errors.Join(err1, err2)
				}))
				assert.NoError(t, ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
					return rx.QueryRowContext(ctx, `SELECT count(*) FROM visits`).Scan(&n)
				}))
				assert.Equal(t, want, n)
				assert.Equal(t, filepath.Join(dir, name), ib.Path())
				require.NoError(t, ib.Close())
				assert.Equal(t, []string{name, name + "-lock"}, names(t, dir))
			}
			path := filepath.Join(dir, name)
			visit(path, 1)
			here, err := os.Getwd()
			require.NoError(t, err)
			relative, err := filepath.Rel(here, path)
			require.NoError(t, err)
			visit(relative, 2)
		})
	}
}

// The same in a working directory of its own: bare names.
func TestOpen_BareName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	bare := []string{"-rf", "x", "%41", "a?mode=memory", "./y", "sub/../z", "sub//w", "file:v", "file:v", "./sub/../x"}
	cmd := helper(t, "open", strings.Join(bare, "\n"))
	cmd.Dir = dir
	assert.Equal(t, []string{"ok 1", "ok 1", "ok 1", "ok 1", "ok 1", "ok 1", "ok 1", "ok 1", "ok 2", "ok 2"}, says(t, cmd))
	for _, name := range bare {
		assert.FileExists(t, dir+"/"+name)
	}
}

// A file has one owner, by whatever name it is opened.
func TestOpen_Links(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	other := t.TempDir()
	link, dirLink := filepath.Join(other, "link.db"), filepath.Join(other, "dir")
	require.NoError(t, os.Symlink(l.path, link))
	require.NoError(t, os.Symlink(filepath.Dir(l.path), dirLink))
	for _, path := range []string{link, filepath.Join(dirLink, "inbox.db"), filepath.Join(filepath.Dir(l.path), ".", "inbox.db")} {
		assert.ErrorIs(t, openFails(t, path, quiet()), ErrLocked, path)
	}
	l.close()
	ib, err := Open(ctxBG, link, quiet())
	require.NoError(t, err)
	assert.Equal(t, l.path, ib.Path())
	assert.ErrorIs(t, openFails(t, l.path, quiet()), ErrLocked)
	require.NoError(t, ib.Close())
	assert.Equal(t, []string{"dir", "link.db"}, names(t, other), "nothing beside the link")

	through := filepath.Join(dirLink, "new.db") // one that is not there yet
	ib, err = Open(ctxBG, through, quiet())
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(filepath.Dir(l.path), "new.db"), ib.Path())
	assert.ErrorIs(t, openFails(t, filepath.Join(filepath.Dir(l.path), "new.db"), quiet()), ErrLocked)
	require.NoError(t, ib.Close())
}

// The rest of the file is the user's.
func TestOpen_UserDatabase(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"DELETE", "WAL", "PERSIST"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "app.db")
			userDB(t, path, `PRAGMA page_size = 1024`, `PRAGMA journal_mode = `+mode, `PRAGMA user_version = 4711`, `PRAGMA application_id = 815`,
				`CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)`, `INSERT INTO orders VALUES (1, 'mine'), (2, 'too')`,
				// names that are nearly ours
				`CREATE TABLE inboxes (x)`, `CREATE TABLE my_inbox (x)`, `CREATE TABLE inboxXschema (x)`, `CREATE TABLE "inbox-x" (x)`, `CREATE TABLE outboxing (x)`)
			var objects []string
			look := func(ib *Inbox) {
				require.NoError(t, ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
					one := func(query string) (s string) {
						require.NoError(t, rx.QueryRowContext(ctx, query).Scan(&s), query)
						return s
					}
					assert.Equal(t, "4711", one(`PRAGMA user_version`))
					assert.Equal(t, "815", one(`PRAGMA application_id`))
					assert.Equal(t, "1024", one(`PRAGMA page_size`))
					assert.Equal(t, "0", one(`PRAGMA auto_vacuum`), "that is for new files")
					assert.Equal(t, "wal", one(`PRAGMA journal_mode`))
					assert.Equal(t, "1:mine,2:too", one(`SELECT group_concat(id || ':' || note) FROM orders`))
					assert.Equal(t, "0", one(`SELECT count(*) FROM inbox`))
					objects = strings.Split(one(`SELECT group_concat(name, ',' ORDER BY name) FROM sqlite_schema
						WHERE name NOT LIKE 'inbox\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`), ",")
					return nil
				}))
			}
			for range 2 {
				ib, err := Open(ctxBG, path, quiet())
				require.NoError(t, err)
				look(ib)
				assert.Equal(t, []string{"inbox", "inbox-x", "inboxXschema", "inboxes", "my_inbox", "orders", "outboxing"}, objects)
				c, err := ib.Consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
					_, err := tx.ExecContext(ctx, `UPDATE orders SET note = note WHERE id = 1`)
					return err
				}, nil)
				require.NoError(t, err)
				_, err = c.Process(ctxBG, Message{ID: "1"})
				require.NoError(t, err)
				require.NoError(t, ib.Close())
				userDB(t, path, `DELETE FROM inbox_message`, `UPDATE inbox_consumer SET completed = 0`) // so that look sees the same
			}
		})
	}
}

func TestOpen_PragmasReadBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	openClose(t, path)
	o := quiet()
	require.NoError(t, o.setDefaults())
	right := writerDSN(path, o)

	c, err := openWriteConn(path, o)
	require.NoError(t, err)
	for name, want := range map[string]any{
		"journal_mode": "wal", "synchronous": int64(2), "foreign_keys": int64(1), "temp_store": int64(2), "trusted_schema": int64(0),
		"journal_size_limit": int64(64 << 20), "wal_autocheckpoint": int64(8000), "busy_timeout": int64(10_000), "cache_size": int64(-512),
		"query_only": int64(0), "auto_vacuum": int64(2), "read_uncommitted": int64(0), "recursive_triggers": int64(0), "writable_schema": int64(0),
	} {
		var got [1]driver.Value
		_, err := c.queryRow(query{text: "PRAGMA " + name}, got[:])
		require.NoError(t, err)
		assert.Equal(t, want, got[0], name)
	}
	require.NoError(t, c.close())

	// The driver ignores what it does not know, and says nothing.
	for _, x := range []struct{ pragma, from, to string }{
		{"synchronous", "_synchronous=FULL", "_synchronous=NORMAL"},
		{"foreign_keys", "_foreign_keys=1", "_foreign_key=1"},
		{"foreign_keys", "_foreign_keys=1", "_pragma=foreign_keys%28yep%29"},
		{"temp_store", "temp_store%28MEMORY%29", "temp_store%28MEMROY%29"},
		{"trusted_schema", "trusted_schema%28OFF%29", "trustedschema%28OFF%29"},
		{"journal_size_limit", "journal_size_limit%2867108864%29", "journal_size_limit%28-1%29"},
		{"wal_autocheckpoint", "wal_autocheckpoint%288000%29", "wal_autocheckpoint"},
		{"busy_timeout", "_busy_timeout=10000", "_busy_timeout=1"},
	} {
		require.Contains(t, right, x.from)
		c, err := openConn(path, strings.Replace(right, x.from, x.to, 1), false)
		if assert.Error(t, err, x.to) {
			assert.ErrorContains(t, err, "PRAGMA "+x.pragma+" is", x.to)
			assert.ErrorContains(t, err, "the driver did not take it", x.to)
		} else {
			_ = c.close()
		}
	}
	_, err = openConn(path, strings.Replace(right, "mode=rw", "mode=ro", 1), false)
	assert.ErrorIs(t, err, ErrReadOnly)

	// The readers.
	ib, err := Open(ctxBG, path, quiet())
	require.NoError(t, err)
	require.NoError(t, ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		for name, want := range map[string]string{"query_only": "1", "temp_store": "2", "trusted_schema": "0", "busy_timeout": "10000", "cache_size": "-2000"} {
			var got string
			require.NoError(t, rx.QueryRowContext(ctx, "PRAGMA "+name).Scan(&got))
			assert.Equal(t, want, got, name)
		}
		return nil
	}))
	require.NoError(t, ib.Close())
}

func TestOpen_UTF16(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	userDB(t, path, `PRAGMA encoding = 'UTF-16le'`, `CREATE TABLE mine (x)`)
	_, err := Open(ctxBG, path, quiet())
	assert.ErrorContains(t, err, "keeps its texts in UTF-16le, and the inbox needs UTF-8")
}

func TestOpen_MigrationIsOneTransaction(t *testing.T) {
	t.Parallel()
	o := quiet()
	require.NoError(t, o.setDefaults())
	path := filepath.Join(t.TempDir(), "x.db")
	userDB(t, path, `PRAGMA journal_mode = WAL`, `CREATE TABLE mine (x)`, `INSERT INTO mine VALUES (1)`)
	before := bytesOf(t, path)
	migrate := func(steps []string) error {
		c, err := openWriteConn(path, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.close()) }()
		return c.migrateTo(path, steps)
	}
	broken := `CREATE TABLE inbox_more (x); INSERT INTO mine VALUES (2); INSERT INTO nowhere VALUES (1); CREATE TABLE inbox_last (x)`

	// A new inbox: all of it or nothing.
	for name, steps := range map[string][]string{
		"in the first step":       {broken},
		"in a later one":          append(slices.Clone(migrations), broken),
		"a step ends too early":   append(slices.Clone(migrations), `COMMIT; CREATE TABLE inbox_late (x)`),
		"a step rolls back":       append(slices.Clone(migrations), `ROLLBACK; CREATE TABLE inbox_late (x)`),
		"a step cannot be parsed": append(slices.Clone(migrations), `CREATE TABL`),
	} {
		assert.Error(t, migrate(steps), name)
		assert.True(t, before == bytesOf(t, path), "%s: it is as it was, to the byte", name)
	}
	ib, err := Open(ctxBG, path, o)
	require.NoError(t, err)
	c, err := ib.Consumer("c", func(context.Context, *Tx, *Message) error { return nil }, nil)
	require.NoError(t, err)
	_, err = c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	require.NoError(t, ib.Close())

	// An older one.
	before = bytesOf(t, path)
	assert.ErrorContains(t, migrate(append(slices.Clone(migrations), broken)), "nowhere")
	assert.True(t, before == bytesOf(t, path))
	w, err := openWriteConn(path, o)
	require.NoError(t, err)
	_, err = w.schemaVersion(path, SchemaVersion+1, true)
	assert.ErrorContains(t, err, "let the owner open it once", "a guest does not migrate")
	require.NoError(t, w.close())
	require.NoError(t, migrate(append(slices.Clone(migrations), `ALTER TABLE inbox_consumer ADD COLUMN more; UPDATE inbox_consumer SET more = 'new'`)))
	after := bytesOf(t, path)
	err = openFails(t, path, o)
	assert.ErrorIs(t, err, ErrNewerSchema)
	assert.ErrorContains(t, err, fmt.Sprintf("schema version %d, this program knows %d", SchemaVersion+1, SchemaVersion))
	assert.True(t, after == bytesOf(t, path))
	db, err := sql.Open("sqlite", dsn(path, nil))
	require.NoError(t, err)
	defer db.Close()
	var more, id string
	require.NoError(t, db.QueryRow(`SELECT more, message_id FROM inbox_consumer, inbox_message`).Scan(&more, &id))
	assert.Equal(t, "new", more)
	assert.Equal(t, "1", id, "rows stay")
}

// The views are a documented contract: humans and scripts read them.
func TestOpen_Views(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	columns := func(view string) string {
		return value[string](l, `SELECT group_concat(name, ', ') FROM pragma_table_info(?)`, view)
	}
	assert.Equal(t, "inbox, inbox_attempts, inbox_conflicts, inbox_streams",
		value[string](l, `SELECT group_concat(name, ', ' ORDER BY name) FROM sqlite_schema WHERE type = 'view'`))
	assert.Equal(t, "consumer, source, message_id, type, subject, key, status, attempts, received_at, processed_at, next_attempt_at, "+
		"last_error, payload_hash, payload, stream, stream_seq, duplicates, last_duplicate_at, seq", columns("inbox"))
	assert.Equal(t, "consumer, source, message_id, attempt, at, error", columns("inbox_attempts"))
	assert.Equal(t, "consumer, source, message_id, stored_hash, refused_hash, refused_payload, first_seen, last_seen, count", columns("inbox_conflicts"))
	assert.Equal(t, "consumer, stream, created, epoch, first_seq, last_seq", columns("inbox_streams"))

	// What they show, of a message of each kind.
	clock := newFakeClock()
	l.close()
	l.opts.clock.now = clock.now
	l.open()
	c := l.consumer("orders", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "later" {
			return RetryAfter(90_001e6, errors.New("not now"))
		}
		return apply(ctx, tx, m)
	}, nil)
	for _, m := range []Message{
		{Source: "/shop", ID: "done", Type: "placed", Subject: "orders.new", Key: "k", Payload: []byte("hello")},
		{ID: "later"}, {Source: "/shop", ID: "done", Payload: []byte("refused")},
	} {
		_, err := c.Process(ctxBG, m)
		require.NoError(t, err)
	}
	assert.Equal(t, "orders|/shop|done|placed|orders.new|k|completed|1|2030-01-02T03:04:05.000Z|2030-01-02T03:04:05.000Z|-|-|"+helloHash+"|hello|-|-", value[string](l, `
		SELECT concat_ws('|', consumer, source, message_id, type, subject, key, status, attempts, received_at, processed_at,
		                 coalesce(next_attempt_at, '-'), coalesce(last_error, '-'), payload_hash, payload, coalesce(stream, '-'), coalesce(stream_seq, '-'))
		  FROM inbox WHERE message_id = 'done'`))
	assert.Equal(t, "||-|-|-|pending|1|2030-01-02T03:05:35.001Z|not now|", value[string](l, `
		SELECT concat_ws('|', '', source, coalesce(type, '-'), coalesce(subject, '-'), coalesce(key, '-'), status, attempts, next_attempt_at, last_error, payload)
		  FROM inbox WHERE message_id = 'later'`))
	assert.Equal(t, "orders|/shop|done|"+helloHash+"|"+hexHash("refused")+"|refused|2030-01-02T03:04:05.000Z|2030-01-02T03:04:05.000Z|1", value[string](l, `
		SELECT concat_ws('|', consumer, source, message_id, stored_hash, refused_hash, refused_payload, first_seen, last_seen, count) FROM inbox_conflicts`))
	assert.Equal(t, "orders||later|1|2030-01-02T03:04:05.000Z|not now", value[string](l, `
		SELECT concat_ws('|', consumer, source, message_id, attempt, at, error) FROM inbox_attempts`))
	clock.add(60e9)
	for range 2 {
		_, err := c.Process(ctxBG, Message{Source: "/shop", ID: "done", Payload: []byte("hello")})
		require.NoError(t, err)
	}
	assert.Equal(t, "2|2030-01-02T03:05:05.000Z", value[string](l, `
		SELECT concat_ws('|', duplicates, last_duplicate_at) FROM inbox WHERE message_id = 'done'`))
	assert.Equal(t, "0|-", value[string](l, `
		SELECT concat_ws('|', duplicates, coalesce(last_duplicate_at, '-')) FROM inbox WHERE message_id = 'later'`))
}

func TestOpen_TimesAreIntegers(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "later" {
			return errors.New("later")
		}
		return apply(ctx, tx, m)
	}, nil)
	for _, m := range []Message{{ID: "done"}, {ID: "later"}, {ID: "done", Payload: []byte("x")}, {ID: "done"}} {
		_, err := c.Process(ctxBG, m)
		require.NoError(t, err)
	}
	for table, columns := range map[string][]string{
		"inbox_message":  {"received_at", "processed_at", "next_at", "retry_delay"},
		"inbox_conflict": {"first_seen", "last_seen"}, "inbox_attempt": {"at"}, "inbox_duplicate": {"last_at"},
	} {
		for _, column := range columns {
			assert.Equal(t, "integer", value[string](l, fmt.Sprintf(`SELECT group_concat(DISTINCT typeof(%[1]s)) FROM %[2]s WHERE %[1]s IS NOT NULL`, column, table)), column)
		}
	}
	now := l.opts.clock.now
	if now == nil {
		assert.Less(t, int64(1_700_000_000_000), value[int64](l, `SELECT max(received_at) FROM inbox_message`), "milliseconds")
	}
}

func TestOpen_OptionsAndContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	for name, o := range map[string]*Options{
		"CacheSize": {CacheSize: -1}, "MaxGroup": {MaxGroup: -1}, "MaxGroupBytes": {MaxGroupBytes: -1}, "QueueLength": {QueueLength: -1}, "QueueBytes": {QueueBytes: -1},
	} {
		assert.ErrorContains(t, openFails(t, path, o), "Options."+name)
	}
	ctx, cancel := context.WithCancel(ctxBG)
	cancel()
	_, err := Open(ctx, path, nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, names(t, dir), "nothing was made")

	ib, err := Open(ctxBG, path, &Options{CacheSize: 1}) // the least there is
	require.NoError(t, err)
	require.NoError(t, ib.Close())
	ib, err = Open(ctxBG, path, nil)
	require.NoError(t, err)
	require.NoError(t, ib.Close())
}

// A file of the first schema is brought up to date with what it knows.
func TestOpen_FirstSchema(t *testing.T) {
	t.Parallel()
	o := quiet()
	require.NoError(t, o.setDefaults())
	path := filepath.Join(t.TempDir(), "x.db")
	userDB(t, path, `PRAGMA journal_mode = WAL`)
	conn, err := openWriteConn(path, o)
	require.NoError(t, err)
	require.NoError(t, conn.migrateTo(path, migrations[:1]))
	const messages = 20_000
	require.NoError(t, conn.exclusively(func() error {
		_, err := conn.exec(query{text: fmt.Sprintf(`
			INSERT INTO inbox_name VALUES (1, %d, 'c'), (2, %d, '');
			INSERT INTO inbox_consumer (consumer, completed, applied) VALUES (1, %[3]d, %[3]d);
			INSERT INTO inbox_message (seq, consumer, source, message_id, hash, status, attempts, failures, received_at, payload)
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %[3]d)
			SELECT i, 1, 2, 'm' || i, x'00', 4, 1, 0, 0, x'' FROM n`, kindConsumer, ruleProducer, messages)})
		return err
	}))
	require.NoError(t, conn.close())

	ib, err := Open(ctxBG, path, o)
	require.NoError(t, err)
	l := &lab{t: t, ib: ib}
	defer l.close()
	c := l.consumer("c", func(context.Context, *Tx, *Message) error { return nil }, &ConsumerOptions{IgnoreConflicts: true})
	for _, made := range []bool{false, true} {
		for _, i := range []int{1, 8191, 8192, messages - 1, messages} {
			o, err := c.Process(ctxBG, Message{ID: fmt.Sprint("m", i)})
			require.NoError(t, err)
			require.Equal(t, Duplicate, o, i)
		}
		if !made {
			l.filters(2)
		}
	}
	o2, err := c.Process(ctxBG, Message{ID: "new"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o2)
}

// damageable is an inbox that is not held to the invariants when the test ends,
// with message 1.
func damageable(t *testing.T) (*lab, *Consumer) {
	l := &lab{t: t, path: filepath.Join(t.TempDir(), "x.db"), opts: *quiet()}
	l.open()
	c := l.consumer("c", func(context.Context, *Tx, *Message) error { return nil }, nil)
	l.send(c, "1", Applied)
	return l, c
}

// A filter is not made from an index that has lost an identity.
func TestOpen_DamagedIdentityIndex(t *testing.T) {
	t.Parallel()
	l, c := damageable(t)
	l.send(c, "2", Applied)
	l.nextSegment()
	l.pretendKept(0)
	l.send(c, "3", Applied)
	l.close()
	userDB(t, l.path,
		`CREATE TABLE less (seq INTEGER PRIMARY KEY, consumer INTEGER NOT NULL, source INTEGER NOT NULL, message_id TEXT NOT NULL)`,
		`INSERT INTO less SELECT seq, consumer, source, message_id FROM inbox_message WHERE seq <> 1`,
		`CREATE UNIQUE INDEX less_identity ON less (seq >> 13, message_id, consumer, source)`,
		`PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'less_identity') WHERE name = 'inbox_message_identity'`)
	l.open()
	defer l.close()
	_, err := l.ib.seal(ctxBG)
	assert.ErrorContains(t, err, "segment 0 has 2 messages, and 1 identities were found")
	assert.Zero(t, value[int](l, `SELECT count(*) FROM inbox_filter`))
}

// A message's number that only damage makes is an error, and costs no memory.
func TestOpen_DamagedNumber(t *testing.T) {
	t.Parallel()
	l, _ := damageable(t)
	l.close()
	userDB(t, l.path, `UPDATE inbox_message SET seq = 1 << 50`)
	_, err := Open(ctxBG, l.path, quiet())
	assert.ErrorIs(t, err, ErrCorrupt)
	assert.ErrorContains(t, err, "1125899906842624")
}
