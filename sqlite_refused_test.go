//go:build unix

package inbox

// What is no inbox, or must not be opened, and how that is said.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
