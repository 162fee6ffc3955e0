package inbox

// The file: where it may lie, how it is opened, and what must hold before
// anything is read from it. Every pragma is set and then read back, for the
// driver ignores a misspelt one.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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
			// The driver's allocator takes 8 KiB for a page of 4 KiB and its header.
			"cache_size(" + strconv.FormatInt(-o.CacheSize>>11, 10) + ")",
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
	{"encoding", "UTF-8"}, // in another one an id is not read back as it was written
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
			if p.name == "encoding" {
				return nil, fmt.Errorf("inbox: %s keeps its texts in %s, and the inbox needs UTF-8: copy its tables into a new file", abs, s)
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
