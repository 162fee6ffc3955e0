package inbox

// The file: where it may lie, how it is opened, and what must hold before
// anything is read from it. Every pragma is set and then read back, for the
// driver ignores a misspelt one.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"modernc.org/sqlite"
)

func init() {
	// OFD locks survive a stray close of the file elsewhere in the process.
	// Too late, or not on this system, is no error: POSIX locks do, then.
	_, _ = sqlite.OFDLocking(true)
	// As durable as fsync (it writes the size too) and cheaper: no timestamp.
	_, _ = sqlite.Fdatasync(true)
}

// busyTimeout is how long a statement waits for another process's lock, in
// milliseconds. Guests hold it for one short transaction.
const busyTimeout = 10_000

// checkPath makes the path absolute and refuses what can never work. For the
// owner it makes the file first, so that it never exists with wider
// permissions than 0600, not even for a moment; SQLite gives -wal and -shm
// the same ones.
func checkPath(path string, guest bool) (abs string, isNew bool, err error) {
	if path == "" || path == ":memory:" {
		return "", false, fmt.Errorf("%w: %q: the inbox needs a file that outlives the process", ErrNotFile, path)
	}
	if strings.ContainsRune(path, 0) {
		return "", false, fmt.Errorf("%w: %q: the name has a NUL in it", ErrNotFile, path)
	}
	if abs, err = filepath.Abs(path); err != nil {
		return "", false, fmt.Errorf("inbox: %s: %w", path, err)
	}
	if kind, err := networkFS(abs); err != nil {
		return "", false, fmt.Errorf("inbox: %s: %w", abs, err)
	} else if kind != "" {
		return "", false, fmt.Errorf("%w: %s is on %s; put it on a local disk", ErrNetworkFS, abs, kind)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !guest:
		f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		switch {
		case errors.Is(err, fs.ErrExist):
			return abs, false, nil // somebody was faster: the lock will tell
		case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
			return "", false, fmt.Errorf("%w: %w", ErrReadOnly, err)
		case err != nil:
			return "", false, fmt.Errorf("inbox: cannot make the database file: %w", err)
		}
		return abs, true, f.Close() // nobody else has it open: no locks to drop
	case err != nil:
		return "", false, fmt.Errorf("inbox: %w", err)
	case !info.Mode().IsRegular():
		return "", false, fmt.Errorf("%w: %s is a %s", ErrNotFile, abs, kindOf(info.Mode()))
	}
	return abs, info.Size() == 0, nil
}

func kindOf(m fs.FileMode) string {
	if m.IsDir() {
		return "directory"
	}
	return "special file (" + m.String() + ")"
}

// dsn names the file as a URI: any byte of the path may stand in it.
func dsn(abs string, params url.Values) string {
	p := filepath.ToSlash(abs)
	if !strings.HasPrefix(p, "/") { // C:/…
		p = "/" + p
	}
	return "file:" + (&url.URL{Path: p}).EscapedPath() + "?" + params.Encode()
}

func writerDSN(abs string, o *Options) string {
	return dsn(abs, url.Values{
		"mode":          {"rw"},
		"_busy_timeout": {strconv.Itoa(busyTimeout)},
		"_auto_vacuum":  {"INCREMENTAL"}, // takes effect on a new file only
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"}, // NORMAL loses acknowledged rows in a power cut
		"_foreign_keys": {"1"},
		"_defensive":    {"1"},
		"_time_format":  {"sqlite"}, // a handler's time.Time: what SQLite's date functions read
		"_pragma": {
			"temp_store(MEMORY)", // savepoint journals would go to disk
			"trusted_schema(OFF)",
			"journal_size_limit(" + strconv.Itoa(journalSizeLimit) + ")",
			"cache_size(" + strconv.FormatInt(-o.CacheSize>>10, 10) + ")",
			"wal_autocheckpoint(" + strconv.Itoa(walAutocheckpoint) + ")",
		},
	})
}

func readerDSN(abs string, o *Options) string {
	return dsn(abs, url.Values{
		"mode":          {"ro"},
		"_busy_timeout": {strconv.Itoa(busyTimeout)},
		"_query_only":   {"1"},
		"_time_format":  {"sqlite"},
		"_pragma":       {"temp_store(MEMORY)", "trusted_schema(OFF)", "cache_size(-2000)"},
	})
}

const (
	// walAutocheckpoint is how many pages the WAL grows to before its content
	// moves into the database: 32 MB. At the default 1,000 pages a third of
	// the throughput goes into checkpoints.
	walAutocheckpoint = 8000
	// journalSizeLimit is what the WAL file is cut back to after a checkpoint.
	journalSizeLimit = 64 << 20
)

// pragmas are read back after opening; a wrong answer is an error.
var pragmas = []struct{ name, want string }{
	{"journal_mode", "wal"},
	{"synchronous", "2"},
	{"foreign_keys", "1"},
	{"temp_store", "2"},
	{"trusted_schema", "0"},
	{"journal_size_limit", strconv.Itoa(journalSizeLimit)},
	{"wal_autocheckpoint", strconv.Itoa(walAutocheckpoint)},
	{"busy_timeout", strconv.Itoa(busyTimeout)},
}

// openError says what kind of trouble an error of the driver at open is.
func openError(abs string, err error) error {
	switch code(err) {
	case codeNotADB, codeCorrupt:
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, abs, err)
	case codeReadOnly, codeCantOpen:
		return fmt.Errorf("%w: %s: %w; the file and its directory must be writable by this user", ErrReadOnly, abs, err)
	case codeBusy:
		return fmt.Errorf("%w: %s: %w", ErrLocked, abs, err)
	}
	return fmt.Errorf("inbox: opening %s: %w", abs, err)
}

// A writeConn is the one writing connection: the raw driver connection, on
// which the writer runs its own statements, and the same connection seen
// through database/sql and a guard, which is what handlers get.
type writeConn struct {
	*guard
	db    *sql.DB
	conn  *sql.Conn
	stmts []*rawStmt
}

func openWriteConn(abs string, o *Options) (*writeConn, error) {
	base, err := sqlite.NewConnector(writerDSN(abs, o))
	if err != nil {
		return nil, err
	}
	raw, err := base.Connect(context.Background())
	if err != nil {
		return nil, openError(abs, err)
	}
	c := &writeConn{guard: newGuard(raw)}
	for _, p := range pragmas {
		var got [1]driver.Value
		if _, err := c.queryRow(query{text: "PRAGMA " + p.name}, got[:]); err != nil {
			raw.Close()
			return nil, openError(abs, err)
		}
		if s := fmt.Sprint(got[0]); s != p.want {
			raw.Close()
			if p.name == "journal_mode" {
				return nil, fmt.Errorf("%w: %s: journal_mode is %q, not WAL", ErrReadOnly, abs, s)
			}
			return nil, fmt.Errorf("inbox: %s: PRAGMA %s is %s, not %s: the driver did not take it", abs, p.name, s, p.want)
		}
	}
	if ro, ok := raw.(interface{ IsReadOnly(string) (bool, error) }); ok {
		if is, err := ro.IsReadOnly("main"); err != nil || is {
			raw.Close()
			return nil, fmt.Errorf("%w: %s: the file or its directory is not writable by this user", ErrReadOnly, abs)
		}
	}
	c.db = sql.OpenDB(oneConn{c.guard})
	if c.conn, err = c.db.Conn(context.Background()); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
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

//go:embed schema/*.sql
var schemaFS embed.FS

// migrations in order; number n has index n-1.
var migrations = func() (texts []string) {
	names, err := fs.Glob(schemaFS, "schema/*.sql")
	if err != nil {
		panic(err)
	}
	slices.Sort(names)
	for i, name := range names {
		if !strings.HasPrefix(filepath.Base(name), fmt.Sprintf("%04d_", i+1)) {
			panic("schema: " + name + " is out of order")
		}
		text, err := schemaFS.ReadFile(name)
		if err != nil {
			panic(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}()

// SchemaVersion is the version of the tables that this package writes.
var SchemaVersion = len(migrations)

// migrate brings the file to SchemaVersion, in one transaction. A guest only
// looks.
func (c *writeConn) migrate(abs string, guest bool) error {
	err := c.exclusively(func() error {
		var n [1]driver.Value
		has, err := c.queryRow(query{text: `SELECT count(*) FROM main.sqlite_schema WHERE name = 'inbox_schema'`}, n[:])
		if err != nil {
			return err
		}
		version := 0
		if has && n[0] == int64(1) {
			if _, err := c.queryRow(query{text: `SELECT version FROM inbox_schema`}, n[:]); err != nil {
				return err
			}
			v, ok := n[0].(int64)
			if !ok {
				return fmt.Errorf("%w: inbox_schema has no version", ErrForeignSchema)
			}
			version = int(v)
		} else {
			var name [1]driver.Value
			foreign, err := c.queryRow(query{text: `
				SELECT name FROM main.sqlite_schema
				 WHERE lower(name) IN ('inbox', 'outbox') OR name LIKE 'inbox\_%' ESCAPE '\' OR name LIKE 'outbox\_%' ESCAPE '\'`}, name[:])
			if err != nil {
				return err
			}
			if foreign {
				return fmt.Errorf("%w: %s: %v", ErrForeignSchema, abs, name[0])
			}
			if guest {
				return fmt.Errorf("%w: %s has no inbox in it", ErrForeignSchema, abs)
			}
			if _, err := c.exec(query{text: `CREATE TABLE inbox_schema (version INTEGER NOT NULL)`}); err != nil {
				return err
			}
			if _, err := c.exec(query{text: `INSERT INTO inbox_schema VALUES (0)`}); err != nil {
				return err
			}
		}
		switch {
		case version > len(migrations):
			return fmt.Errorf("%w: %s has schema version %d, this program knows %d", ErrNewerSchema, abs, version, len(migrations))
		case version < len(migrations) && guest:
			return fmt.Errorf("inbox: %s has schema version %d, this program %d: let the owner open it once with this version", abs, version, len(migrations))
		case version == len(migrations):
			return nil
		}
		for _, text := range migrations[version:] {
			if _, err := c.exec(query{text: text}); err != nil {
				return err
			}
		}
		_, err = c.exec(query{text: `UPDATE inbox_schema SET version = ?1`}, int64(len(migrations)))
		return err
	})
	if code(err) != 0 {
		return openError(abs, err)
	}
	return err
}

var (
	qBegin    = newQuery(`BEGIN IMMEDIATE`)
	qCommit   = newQuery(`COMMIT`)
	qRollback = newQuery(`ROLLBACK`)
)

// exclusively runs fn in a transaction of its own: for work before the writer
// runs, and for guests.
func (c *writeConn) exclusively(fn func() error) error {
	if _, err := c.exec(qBegin); err != nil {
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

// openReaders makes the pool of reading connections. They open the file
// without the right to write and see consistent snapshots.
func openReaders(abs string, o *Options) (*sql.DB, error) {
	base, err := sqlite.NewConnector(readerDSN(abs, o))
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(base)
	n := max(4, runtime.GOMAXPROCS(0))
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, nil
}
