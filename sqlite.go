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

// maxPath is the longest path that SQLite takes on Unix, in bytes: its 512
// without "-journal".
const maxPath = 504

// checkPath makes the path absolute and refuses what can never work. For the
// owner it makes the file first, so that it never exists with wider
// permissions than 0600, not even for a moment; SQLite gives -wal and -shm
// the same ones. Symbolic links are followed, as SQLite follows them: the
// process lock must be the same one by whatever name the file is opened.
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
	switch kind, err := networkFS(abs); {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, fmt.Errorf("inbox: %s: its directory is not there: %w", abs, fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return "", false, fmt.Errorf("%w: %w", ErrReadOnly, err)
	case err != nil:
		return "", false, err
	case kind != "":
		return "", false, fmt.Errorf("%w: %s is on %s; put it on a local disk", ErrNetworkFS, abs, kind)
	}
	if abs, err = followLinks(abs); err != nil {
		return "", false, err
	}
	if len(abs) > maxPath {
		return "", false, fmt.Errorf("inbox: %s: the path is %d bytes long, SQLite takes up to %d", abs, len(abs), maxPath)
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
	case errors.Is(err, fs.ErrPermission):
		return "", false, fmt.Errorf("%w: %w", ErrReadOnly, err)
	case err != nil:
		return "", false, fmt.Errorf("inbox: %w", err)
	case !info.Mode().IsRegular():
		return "", false, fmt.Errorf("%w: %s is a %s", ErrNotFile, abs, kindOf(info.Mode()))
	case info.Size() == 1: // SQLite takes it for an empty one, and would write over it
		return "", false, fmt.Errorf("%w: %s is one byte long", ErrCorrupt, abs)
	}
	return abs, info.Size() == 0, nil
}

// followLinks resolves the links in abs; its last name may be one that is not
// there yet. Where the system cannot resolve, abs stays as it is.
func followLinks(abs string) (string, error) {
	real, err := filepath.EvalSymlinks(abs)
	if err == nil {
		return real, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return abs, nil
	}
	if info, err := os.Lstat(abs); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", fmt.Errorf("%w: %s is a symbolic link that leads nowhere", ErrNotFile, abs)
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(dir, filepath.Base(abs)), nil
	}
	return abs, nil
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

// writerDSN leaves out what changes the file: see openConn.
func writerDSN(abs string, o *Options) string {
	return dsn(abs, url.Values{
		"mode":          {"rw"},
		"_busy_timeout": {strconv.Itoa(busyTimeout)},
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
	return openConn(abs, writerDSN(abs, o), o.Guest)
}

func openConn(abs, dsn string, guest bool) (*writeConn, error) {
	base, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	raw, err := base.Connect(context.Background())
	if err != nil {
		return nil, openError(abs, err)
	}
	c := &writeConn{guard: newGuard(raw)}
	// A file that is refused stays as it is, to the byte.
	if _, err := c.schemaVersion(abs, len(migrations), guest); err != nil {
		raw.Close()
		if code(err) != 0 {
			err = openError(abs, err)
		}
		return nil, err
	}
	if err := c.setUp(); err != nil {
		raw.Close()
		return nil, openError(abs, err)
	}
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

// setUp sets what the file remembers: auto_vacuum, if it is a new one, and the
// journal mode. Each is a commit, unless it was so before.
func (c *writeConn) setUp() error {
	c.committing = true
	defer func() { c.committing = false }()
	var v [1]driver.Value
	if _, err := c.queryRow(query{text: `PRAGMA page_count`}, v[:]); err != nil {
		return err
	}
	if v[0] == int64(0) {
		if _, err := c.exec(query{text: `PRAGMA auto_vacuum = INCREMENTAL`}); err != nil {
			return err
		}
	}
	_, err := c.queryRow(query{text: `PRAGMA journal_mode = WAL`}, v[:])
	return err
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

// schemaVersion is the version of our tables in the file, 0 when there are
// none. It refuses a file that is not for this program, which knows the
// versions up to known; a guest wants exactly that one.
func (c *writeConn) schemaVersion(abs string, known int, guest bool) (version int64, err error) {
	var v [2]driver.Value
	made, foreign := false, ""
	err = c.each(query{text: `
		SELECT type, name FROM main.sqlite_schema
		 WHERE lower(name) IN ('inbox', 'outbox') OR name LIKE 'inbox\_%' ESCAPE '\' OR name LIKE 'outbox\_%' ESCAPE '\'`},
		v[:], func() error {
			if v[0] == "table" && v[1] == "inbox_schema" {
				made = true
			} else {
				foreign = text(v[1])
			}
			return nil
		})
	switch {
	case err != nil:
		return 0, err
	case !made && foreign != "":
		return 0, fmt.Errorf("%w: %s: %s", ErrForeignSchema, abs, foreign)
	case !made && guest:
		return 0, fmt.Errorf("inbox: %s has no inbox in it: its owner makes one by opening it", abs)
	case !made:
		return 0, nil
	}
	found, err := c.queryRow(query{text: `SELECT version FROM main.inbox_schema`}, v[:1])
	version, isInt := v[0].(int64)
	switch {
	case code(err) == codeError: // no such column
		return 0, fmt.Errorf("%w: %s: inbox_schema: %v", ErrForeignSchema, abs, err)
	case err != nil:
		return 0, err
	case !found || !isInt || version < 1:
		return 0, fmt.Errorf("%w: %s: inbox_schema holds no version", ErrForeignSchema, abs)
	case version > int64(known):
		return 0, fmt.Errorf("%w: %s has schema version %d, this program knows %d", ErrNewerSchema, abs, version, known)
	case version < int64(known) && guest:
		return 0, fmt.Errorf("inbox: %s has schema version %d, this program %d: let the owner open it once with this version", abs, version, known)
	}
	return version, nil
}

// codeError is SQLite's result code for a statement that makes no sense.
const codeError = 1

// migrate brings the file to SchemaVersion. For a guest, opening the
// connection has shown that it is there already.
func (c *writeConn) migrate(abs string, guest bool) error {
	if guest {
		return nil
	}
	return c.migrateTo(abs, migrations)
}

// migrateTo runs those of the steps that the file has not seen, in one
// transaction.
func (c *writeConn) migrateTo(abs string, steps []string) error {
	err := c.exclusively(func() error {
		version, err := c.schemaVersion(abs, len(steps), false)
		if err != nil || version == int64(len(steps)) {
			return err
		}
		if version == 0 {
			if _, err := c.exec(query{text: `CREATE TABLE inbox_schema (version INTEGER NOT NULL)`}); err != nil {
				return err
			}
			if _, err := c.exec(query{text: `INSERT INTO inbox_schema VALUES (0)`}); err != nil {
				return err
			}
		}
		for _, text := range steps[version:] {
			if _, err := c.exec(query{text: text}); err != nil {
				return err
			}
		}
		_, err = c.exec(query{text: `UPDATE inbox_schema SET version = ?1`}, int64(len(steps)))
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
