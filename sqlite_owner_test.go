//go:build unix

package inbox

// One owner a file, and guests beside it: other processes, real ones.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
