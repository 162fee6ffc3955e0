package web

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListen_PortTaken(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.serve(Config{})
	_, err := Listen(t.Context(), c, l.src, quiet)
	require.ErrorContains(t, err, c.Listen)
	require.ErrorContains(t, err, "choose another address")
}

// socketPath is short, as the addresses of sockets must be.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "web")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "http.sock")
}

func TestListen_Socket(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows keeps no mode of a socket")
	}
	l := newLab(t)
	path := socketPath(t)

	// What a dead process leaves behind.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	require.FileExists(t, path)

	c := l.serve(Config{Listen: "unix:" + path})
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	code, body, err := Get(t.Context(), c, "/healthz")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "ok\n", body)

	_, err = Listen(t.Context(), c, l.src, quiet)
	require.ErrorContains(t, err, "another process serves this socket")
	code, _, err = Get(t.Context(), c, "/healthz")
	require.NoError(t, err, "the first one goes on")
	assert.Equal(t, http.StatusOK, code)
}

func TestListen_SparesWhatIsNoSocket(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err := Listen(t.Context(), Config{Listen: "unix:" + path}, newLab(t).src, quiet)
	require.ErrorContains(t, err, path)
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "mine", string(kept))
}
