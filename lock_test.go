package inbox

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lockChildEnv holds the lock path for the child process of a test.
const lockChildEnv = "INBOX_TEST_LOCK_CHILD"

// TestLockChild is not a test but the child process that holds a lock. It holds
// it until it is killed or its parent is gone.
func TestLockChild(t *testing.T) {
	path := os.Getenv(lockChildEnv)
	if path == "" {
		t.Skip("only runs as a child process")
	}
	l, err := acquireLock(path)
	require.NoError(t, err)
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, l.release())
}

// startLockChild returns once a child process holds the lock at path.
func startLockChild(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestLockChild$")
	cmd.Env = append(os.Environ(), lockChildEnv+"="+path)
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // stays open, so that the child waits
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the child said %q", line)
	require.Equal(t, "locked\n", line)
	return cmd
}

func TestLockConflictInOneProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.db-lock")
	l, err := acquireLock(path)
	require.NoError(t, err)

	for range 2 { // losing must not hurt the lock
		_, err = acquireLock(path)
		var held *lockHeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, path, held.path)
		assert.Equal(t, os.Getpid(), held.pid)
	}

	require.NoError(t, l.release())
	require.NoError(t, l.release(), "twice is harmless")
	assert.FileExists(t, path)
	l, err = acquireLock(path)
	require.NoError(t, err)
	require.NoError(t, l.release())
}

func TestLockOfKilledProcessIsFree(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.db-lock")
	child := startLockChild(t, path)

	_, err := acquireLock(path)
	var held *lockHeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, child.Process.Pid, held.pid)

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	l, err := acquireLock(path)
	require.NoError(t, err)
	pid, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("%d\n", os.Getpid()), string(pid))
	require.NoError(t, l.release())
}

func TestLockReplacesContent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.db-lock")
	require.NoError(t, os.WriteFile(path, []byte("99999999999999999999\nleft over\n"), 0o600))
	l, err := acquireLock(path)
	require.NoError(t, err)
	pid, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("%d\n", os.Getpid()), string(pid))
	require.NoError(t, l.release())
}

func TestLockRefusesOtherThanFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var held *lockHeldError

	_, err := acquireLock(dir)
	require.ErrorContains(t, err, "is a directory")
	assert.NotErrorAs(t, err, &held)

	_, err = acquireLock(filepath.Join(dir, "none", "edge.db-lock"))
	require.ErrorIs(t, err, os.ErrNotExist)

	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, []byte("precious"), 0o600))
	if err := os.Symlink(target, link); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	_, err = acquireLock(link)
	require.ErrorContains(t, err, "is a symbolic link")
	assert.NotErrorAs(t, err, &held)
	got, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(got))
}

func TestLockHeldErrorText(t *testing.T) {
	t.Parallel()
	assert.EqualError(t, &lockHeldError{path: "edge.db-lock", pid: 1234},
		"inbox: edge.db-lock is held by process 1234")
	assert.EqualError(t, &lockHeldError{path: "edge.db-lock"},
		"inbox: edge.db-lock is held by another process")
}

// This one is here since fs_test.go has the table of one system only.
func TestNetworkFSOfLocalPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "not-there-yet.db")} {
		kind, err := networkFS(path)
		require.NoError(t, err)
		assert.Empty(t, kind)
	}
}
