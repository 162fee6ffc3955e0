//go:build unix

package inbox

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// helper makes the command of a child process; see helpers.
func helper(t *testing.T, name, path string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), append(env, "INBOX_TEST_HELPER="+name, "INBOX_TEST_PATH="+path)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// helpOpen opens files, one after the other, and adds a row to a table of its
// own in each. For each it says how that went in a line: "ok" and the number
// of rows, or the name of the error and its text. Root becomes nobody first
// when it is told to: no permission binds root.
func helpOpen() {
	if reach := os.Getenv("INBOX_TEST_NOBODY"); reach != "" && os.Getuid() == 0 {
		const nobody = 65534
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			fmt.Println("skip: cannot become nobody:", err)
			return
		}
		if _, err := os.Stat(reach); err != nil {
			fmt.Println("skip: nobody cannot reach the directory:", err)
			return
		}
	}
	opts := quiet()
	opts.Guest = os.Getenv("INBOX_TEST_GUEST") != ""
	visit := func(path string) (n int, err error) {
		ib, err := Open(ctxBG, path, opts)
		if err != nil {
			return 0, err
		}
		err = ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
			_, err1 := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS visits (n INTEGER PRIMARY KEY)`)
			_, err2 := tx.ExecContext(ctx, `INSERT INTO visits DEFAULT VALUES`)
			return errors.Join(err1, err2, tx.QueryRowContext(ctx, `SELECT count(*) FROM visits`).Scan(&n))
		})
		return n, errors.Join(err, ib.Close())
	}
	for path := range strings.SplitSeq(os.Getenv("INBOX_TEST_PATH"), "\n") {
		n, err := visit(path)
		if err == nil {
			fmt.Println("ok", n)
			continue
		}
		name := "other"
		for n, e := range openErrors {
			if errors.Is(err, e) {
				name = n
			}
		}
		fmt.Println(name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// says runs a helper and returns its lines.
func says(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	out, err := cmd.Output()
	require.NoError(t, err)
	if reason, skip := strings.CutPrefix(string(out), "skip: "); skip {
		t.Skip(strings.TrimSpace(reason))
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// helpOwn owns a file and processes messages 0, 1, … until it is killed; it
// says each when it is applied.
func helpOwn() {
	ib, err := Open(ctxBG, os.Getenv("INBOX_TEST_PATH"), quiet())
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := ib.Consumer("c", apply, nil)
	fmt.Println("open", err)
	for i := 0; ; i++ {
		o, err := c.Process(ctxBG, Message{ID: strconv.Itoa(i)})
		if _, gone := fmt.Println(i, o, err); gone != nil { // the parent is gone
			return
		}
	}
}

// own starts a process that owns a file, and returns once it has applied some
// messages. It goes on until it is killed.
func own(t *testing.T, path string, applied int) *exec.Cmd {
	t.Helper()
	cmd := helper(t, "own", path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "open <nil>", lines.Text())
	for i := range applied {
		require.True(t, lines.Scan())
		require.Equal(t, fmt.Sprint(i, " applied <nil>"), lines.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return cmd
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

func TestOpen_NotFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, syscall.Mkfifo(in("fifo"), 0o600))
	require.NoError(t, os.Symlink("nowhere", in("dangling")))
	require.NoError(t, os.Symlink("loop", in("loop")))
	require.NoError(t, os.Symlink(dir, in("link")))
	before := names(t, dir)
	for _, c := range []struct{ path, text string }{
		{"", "needs a file"},
		{":memory:", "needs a file"},
		{in("a\x00b"), "NUL"},
		{"\x00", "NUL"},
		{dir, "is a directory"},
		{dir + "/", "is a directory"},
		{".", "is a directory"},
		{"/", "is a directory"},
		{in("link"), "is a directory"},
		{os.DevNull, "special file"},
		{in("fifo"), "special file"}, // to open it would wait for ever
		{in("dangling"), "leads nowhere"},
	} {
		for _, guest := range []bool{false, true} {
			opts := quiet()
			opts.Guest = guest
			err := openFails(t, c.path, opts)
			assert.ErrorIs(t, err, ErrNotFile, "%q", c.path)
			assert.ErrorContains(t, err, c.text, "%q", c.path)
		}
	}
	assert.ErrorContains(t, openFails(t, in("loop"), quiet()), "loop")
	assert.ErrorContains(t, openFails(t, "/etc/passwd/x.db", quiet()), "/etc/passwd")
	assert.Equal(t, before, names(t, dir), "nothing was made")
}

func TestOpen_MissingDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, guest := range []bool{false, true} {
		opts := quiet()
		opts.Guest = guest
		err := openFails(t, filepath.Join(dir, "no", "such", "x.db"), opts)
		assert.ErrorIs(t, err, fs.ErrNotExist)
		assert.ErrorContains(t, err, filepath.Join(dir, "no", "such", "x.db")+": its directory is not there")
	}
	assert.Empty(t, names(t, dir))
}

func TestOpen_LongPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for len(dir) < maxPath-100 {
		dir = filepath.Join(dir, strings.Repeat("d", 50))
	}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	longest := filepath.Join(dir, strings.Repeat("n", maxPath-len(dir)-1))
	openClose(t, longest) // SQLite takes it
	openClose(t, longest)
	list := names(t, dir)
	assert.ErrorContains(t, openFails(t, longest+"n", quiet()), "505 bytes long, SQLite takes up to 504")
	assert.Equal(t, list, names(t, dir))
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

// What may not be written is refused, by a process that permissions bind.
func TestOpen_ReadOnly(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		dir, file fs.FileMode // file 0: there is none
		rollback  bool        // the file is not in WAL mode
		owner     string      // what the owner hears
		guest     string
	}{
		{name: "file", dir: 0o777, file: 0o444, owner: "^ErrReadOnly .*x.db", guest: "^ErrReadOnly .*x.db"},
		{name: "file, not in WAL mode", dir: 0o777, file: 0o444, rollback: true, owner: "^ErrReadOnly .*x.db", guest: "^ErrReadOnly .*x.db"},
		{name: "file that may not be read", dir: 0o777, file: 0o222, owner: "^ErrReadOnly .*x.db", guest: "^ErrReadOnly .*x.db"},
		{name: "directory", dir: 0o555, file: 0o666, owner: "^ErrReadOnly .*x.db-lock: permission denied", guest: "^ErrReadOnly .*x.db"},
		{name: "directory, a new file", dir: 0o555, owner: "^ErrReadOnly .*x.db: permission denied", guest: "^other .*no such file"},
		{name: "directory that may not be searched", dir: 0o444, file: 0o666, owner: "^ErrReadOnly .*x.db: permission denied", guest: "^ErrReadOnly .*x.db: permission denied"},
		{name: "nothing", dir: 0o777, file: 0o666, owner: "^ok 1$", guest: "^other " + ErrGuest.Error()},
	}
	for _, guest := range []bool{false, true} {
		t.Run(fmt.Sprint("guest ", guest), func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			// t.TempDir is for its owner alone.
			require.NoError(t, errors.Join(os.Chmod(filepath.Dir(top), 0o755), os.Chmod(top, 0o755)))
			paths, before := make([]string, len(cases)), make([]string, len(cases))
			for i, c := range cases {
				dir := filepath.Join(top, strconv.Itoa(i))
				paths[i] = filepath.Join(dir, "x.db")
				require.NoError(t, os.Mkdir(dir, 0o700))
				if c.file != 0 {
					openClose(t, paths[i])
					if c.rollback {
						userDB(t, paths[i], `PRAGMA journal_mode = DELETE`)
					}
					require.NoError(t, os.Remove(paths[i]+"-lock"))
					before[i] = bytesOf(t, paths[i])
					require.NoError(t, os.Chmod(paths[i], c.file))
				}
				require.NoError(t, os.Chmod(dir, c.dir))
				t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
			}
			env := []string{"INBOX_TEST_NOBODY=" + top}
			if guest {
				env = append(env, "INBOX_TEST_GUEST=1")
			}
			got := says(t, helper(t, "open", strings.Join(paths, "\n"), env...))
			require.Len(t, got, len(cases))
			for i, c := range cases {
				want := c.owner
				if guest {
					want = c.guest
				}
				assert.Regexp(t, want, got[i], c.name)
				require.NoError(t, os.Chmod(filepath.Dir(paths[i]), 0o700))
				if c.file == 0 {
					assert.NoFileExists(t, paths[i], c.name)
				} else if !strings.HasPrefix(got[i], "ok") {
					require.NoError(t, os.Chmod(paths[i], 0o600))
					assert.True(t, before[i] == bytesOf(t, paths[i]), "%s: it is as it was", c.name)
				}
			}
		})
	}
}

func TestOpen_Corrupt(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	for i := range 20 {
		_, err := c.Process(ctxBG, Message{ID: strconv.Itoa(i), Payload: make([]byte, 5000)})
		require.NoError(t, err)
	}
	page := value[int](l, `PRAGMA page_size`)
	l.close()
	sound := bytesOf(t, l.path)
	noise := bytes.Repeat([]byte{0xA5}, len(sound))
	over := func(from, to int) string { // overwritten from here to there
		b := []byte(sound)
		copy(b[from:to], noise)
		return string(b)
	}
	for name, content := range map[string]string{
		"text":                         strings.Repeat("This is not a database.\n", 1000),
		"short text":                   "hello\n",
		"one byte":                     "x",
		"a line end":                   "\n",
		"noise":                        string(noise),
		"zeros":                        strings.Repeat("\x00", 2*page),
		"the magic words alone":        sound[:16],
		"half a header":                sound[:50],
		"a header alone":               sound[:100],
		"magic words overwritten":      over(0, 16),
		"header overwritten":           over(16, 100),
		"first page overwritten":       over(100, page),
		"all but the first":            over(page, len(sound)),
		"truncated to half":            sound[:len(sound)/2],
		"truncated to one page":        sound[:page],
		"truncated within a page":      sound[:page*3-100],
		"the last page is gone":        sound[:len(sound)-page],
		"another program's first page": "SQLite format 3\x00" + string(noise[:4080]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x.db")
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			for _, guest := range []bool{false, true} {
				opts := quiet()
				opts.Guest = guest
				err := openFails(t, path, opts)
				assert.ErrorIs(t, err, ErrCorrupt)
				assert.ErrorContains(t, err, path)
				assert.True(t, content == bytesOf(t, path), "it is as it was")
			}
			assert.NoFileExists(t, path+"-wal")
		})
	}
	t.Run("zero length", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "x.db")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		openClose(t, path)
		openClose(t, path)
	})
}

// Damage that Open does not come past is the disk's trouble, not a message's.
func TestOpen_CorruptWithin(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	_, err := c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	root, page := value[int64](l, `SELECT rootpage FROM sqlite_schema WHERE name = 'effects'`), value[int64](l, `PRAGMA page_size`)
	l.close()
	sound := bytesOf(t, l.path)
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xA5}, int(page)), (root-1)*page)
	require.NoError(t, errors.Join(err, f.Close()))

	l.open()
	c = l.consumer("c", nil, nil)
	_, err = c.Process(ctxBG, Message{ID: "2"})
	assert.ErrorIs(t, err, ErrStorage)
	assert.ErrorContains(t, err, "malformed")
	assert.Equal(t, "", l.status("2"), "nothing is stored, nobody is charged")
	l.close()
	require.NoError(t, os.WriteFile(l.path, []byte(sound), 0o600)) // for the lab's checks
	l.open()
}

// refused are files that Open must refuse and leave alone.
func refused(t *testing.T, want error, files map[string][]string) {
	for name, stmts := range files {
		for _, mode := range []string{"DELETE", "WAL"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "x.db")
				userDB(t, path, append([]string{`PRAGMA journal_mode = ` + mode}, stmts...)...)
				before := bytesOf(t, path)
				for _, guest := range []bool{false, true} {
					opts := quiet()
					opts.Guest = guest
					err := openFails(t, path, opts)
					assert.ErrorIs(t, err, want)
					assert.ErrorContains(t, err, path)
					assert.True(t, before == bytesOf(t, path), "it is as it was, to the byte")
					assert.NoFileExists(t, path+"-wal")
					assert.NoFileExists(t, path+"-journal")
				}
			})
		}
	}
}

func TestOpen_NewerSchema(t *testing.T) {
	t.Parallel()
	next := fmt.Sprintf(`INSERT INTO inbox_schema VALUES (%d)`, SchemaVersion+1)
	refused(t, ErrNewerSchema, map[string][]string{
		"the next one":  {`CREATE TABLE inbox_schema (version INTEGER NOT NULL)`, next, `CREATE TABLE inbox (x)`},
		"a far one":     {`CREATE TABLE inbox_schema (version INTEGER NOT NULL, more)`, `INSERT INTO inbox_schema VALUES (9223372036854775807, 'x')`},
		"above 32 bits": {`CREATE TABLE inbox_schema (version)`, `INSERT INTO inbox_schema VALUES (4294967297)`},
	})
}

func TestOpen_ForeignSchema(t *testing.T) {
	t.Parallel()
	refused(t, ErrForeignSchema, map[string][]string{
		"inbox":                {`CREATE TABLE inbox (x)`},
		"Inbox":                {`CREATE TABLE Inbox (x)`},
		"a view":               {`CREATE VIEW OUTBOX AS SELECT 1`},
		"an index":             {`CREATE TABLE t (x)`, `CREATE INDEX inbox_t ON t (x)`},
		"a trigger":            {`CREATE TABLE t (x)`, `CREATE TRIGGER outbox_t AFTER INSERT ON t BEGIN SELECT 1; END`},
		"one among others":     {`CREATE TABLE a (x)`, `CREATE TABLE inbox_message (x)`, `CREATE TABLE z (x)`},
		"schema in capitals":   {`CREATE TABLE INBOX_SCHEMA (version)`, `INSERT INTO INBOX_SCHEMA VALUES (1)`},
		"schema is a view":     {`CREATE VIEW inbox_schema AS SELECT 1 AS version`},
		"schema of another":    {`CREATE TABLE inbox_schema (v)`, `INSERT INTO inbox_schema VALUES (1)`},
		"schema without a row": {`CREATE TABLE inbox_schema (version)`},
		"version as text":      {`CREATE TABLE inbox_schema (version)`, `INSERT INTO inbox_schema VALUES ('1')`},
		"version NULL":         {`CREATE TABLE inbox_schema (version)`, `INSERT INTO inbox_schema VALUES (NULL)`},
		"version 0":            {`CREATE TABLE inbox_schema (version)`, `INSERT INTO inbox_schema VALUES (0)`},
		"version -1":           {`CREATE TABLE inbox_schema (version)`, `INSERT INTO inbox_schema VALUES (-1)`},
	})
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

func TestOpen_SecondOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	held := fmt.Sprintf("inbox.db-lock is held by process %d", os.Getpid())
	for range 2 {
		err := openFails(t, l.path, quiet())
		assert.ErrorIs(t, err, ErrLocked)
		assert.ErrorContains(t, err, held)
	}
	got := says(t, helper(t, "open", l.path))[0]
	assert.Regexp(t, "^ErrLocked ", got)
	assert.Contains(t, got, held)
	l.update(`SELECT 1`) // the owner was not disturbed
	l.close()
	openClose(t, l.path) // it was given up
	l.open()
}

// Of many who open a new file at once, one owns it.
func TestOpen_Race(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	var mu sync.Mutex
	var owners []*Inbox
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			ib, err := Open(ctxBG, path, quiet())
			if err != nil {
				assert.ErrorIs(t, err, ErrLocked)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			owners = append(owners, ib)
		})
	}
	wg.Wait()
	if assert.Len(t, owners, 1) {
		assert.NoError(t, owners[0].Close())
	}
	openClose(t, path)
}

func TestOpen_KilledOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.close()
	const applied = 20
	cmd := own(t, l.path, applied)
	err := openFails(t, l.path, quiet())
	assert.ErrorIs(t, err, ErrLocked)
	assert.ErrorContains(t, err, fmt.Sprintf("held by process %d", cmd.Process.Pid))

	require.NoError(t, cmd.Process.Kill()) // SIGKILL
	assert.Error(t, cmd.Wait())
	info, err := os.Stat(l.path + "-wal")
	require.NoError(t, err)
	require.NotZero(t, info.Size(), "there is something to recover")
	l.open()
	c := l.consumer("c", nil, nil)
	for i := range applied {
		id := strconv.Itoa(i)
		assert.Equal(t, 1, l.effects(id))
		o, err := c.Process(ctxBG, Message{ID: id})
		require.NoError(t, err)
		assert.Equal(t, Duplicate, o)
		assert.Equal(t, 1, l.effects(id))
	}
}

func TestOpen_Guest(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	dead := true
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "bad" && dead {
			return Permanent(errors.New("bad"))
		}
		return apply(ctx, tx, m)
	}, nil)
	for _, id := range []string{"good", "bad"} {
		_, err := c.Process(ctxBG, Message{ID: id})
		require.NoError(t, err)
	}
	opts := quiet()
	opts.Guest = true
	release := l.hold() // also while the owner writes
	g, err := Open(ctxBG, l.path, opts)
	release()
	require.NoError(t, err, "it sees no lock")
	defer func() { assert.NoError(t, g.Close()) }()
	second, err := Open(ctxBG, l.path, opts)
	require.NoError(t, err, "nor another guest")
	require.NoError(t, second.Close())

	// It reads.
	stats, err := g.Stats(ctxBG)
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.Consumers["c"].Completed)
	assert.EqualValues(t, 1, stats.Consumers["c"].Dead)
	assert.NotZero(t, stats.DatabaseBytes)
	audits, err := g.Audit(ctxBG)
	require.NoError(t, err)
	assert.Empty(t, audits)
	read := func() (n int) {
		require.NoError(t, g.View(ctxBG, func(ctx context.Context, rx *Rx) error {
			return rx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n)
		}))
		return n
	}
	assert.Equal(t, 1, read())

	// It does not process.
	_, err = g.Consumer("c", apply, nil)
	assert.ErrorIs(t, err, ErrGuest)
	assert.ErrorIs(t, g.Update(ctxBG, func(context.Context, *Tx) error { return nil }), ErrGuest)
	assert.ErrorIs(t, g.Run(ctxBG), ErrGuest)

	// What it changes the owner notices.
	require.NoError(t, g.Pause(ctxBG, "c"))
	o, err := c.Process(ctxBG, Message{ID: "while paused"})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	assert.True(t, c.Paused())
	require.NoError(t, g.Resume(ctxBG, "c"))
	l.run()
	l.eventually(func() bool { return l.effects("while paused") == 1 }, "resumed")
	require.NoError(t, l.ib.Update(ctxBG, func(context.Context, *Tx) error { dead = false; return nil }))
	n, err := g.Retry(ctxBG, Selection{Consumer: "c", IDs: []string{"bad"}})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	l.eventually(func() bool { return l.effects("bad") == 1 }, "retried")
	assert.Equal(t, 3, read())
	assert.ErrorIs(t, g.Pause(ctxBG, "nobody"), ErrUnknownConsumer)
	_, err = g.Retry(ctxBG, Selection{Consumer: "c", IDs: []string{"bad"}})
	assert.ErrorIs(t, err, ErrNoMatch)
}

func TestOpen_GuestAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.consumer("c", nil, nil)
	l.close()
	require.NoError(t, os.Remove(l.path+"-lock"))
	opts := quiet()
	opts.Guest = true
	g, err := Open(ctxBG, l.path, opts)
	require.NoError(t, err)
	require.NoError(t, g.Pause(ctxBG, "c"))
	assert.NoFileExists(t, l.path+"-lock", "a guest owns nothing")
	l.open() // and keeps nobody from owning
	assert.True(t, l.consumer("c", nil, nil).Paused())
	l.close()
	stats, err := g.Stats(ctxBG)
	require.NoError(t, err, "its owner has gone, it goes on")
	assert.True(t, stats.Consumers["c"].Paused)
	require.NoError(t, g.Close())
	require.NoError(t, g.Close(), "again")
	assert.ErrorIs(t, g.Pause(ctxBG, "c"), ErrClosed)
	assert.ErrorIs(t, g.View(ctxBG, func(context.Context, *Rx) error { return nil }), ErrClosed)
	assert.Equal(t, []string{"inbox.db", "inbox.db-lock"}, names(t, filepath.Dir(l.path)))
	l.open()
}

// A guest changes nothing in a file that is not an inbox.
func TestOpen_GuestWithoutInbox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opts := quiet()
	opts.Guest = true
	missing := filepath.Join(dir, "missing.db")
	err := openFails(t, missing, opts)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, missing)

	empty, user := filepath.Join(dir, "empty.db"), filepath.Join(dir, "user.db")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	userDB(t, user, `CREATE TABLE t (x)`)
	before := bytesOf(t, user)
	for _, path := range []string{empty, user} {
		err := openFails(t, path, opts)
		assert.ErrorContains(t, err, path+" has no inbox in it")
		for name, typed := range openErrors {
			assert.NotErrorIs(t, err, typed, name)
		}
	}
	assert.Zero(t, len(bytesOf(t, empty)))
	assert.True(t, before == bytesOf(t, user))
	assert.Equal(t, []string{"empty.db", "user.db"}, names(t, dir))
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
		"journal_size_limit": int64(64 << 20), "wal_autocheckpoint": int64(8000), "busy_timeout": int64(10_000), "cache_size": int64(-1024),
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
