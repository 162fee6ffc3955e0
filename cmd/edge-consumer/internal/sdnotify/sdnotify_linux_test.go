package sdnotify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The environment belongs to the process, so this test is not parallel.
func TestNotify(t *testing.T) {
	for name, socket := range map[string]string{
		"a path":           filepath.Join(t.TempDir(), "notify"),
		"an abstract name": fmt.Sprintf("@edge-consumer-test-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			require.NoError(t, err)
			defer l.Close()
			t.Setenv("NOTIFY_SOCKET", socket)
			received := func() string {
				buf := make([]byte, 4096)
				require.NoError(t, l.SetReadDeadline(time.Now().Add(10*time.Second)))
				n, err := l.Read(buf)
				require.NoError(t, err)
				return string(buf[:n])
			}
			require.NoError(t, Ready("consuming"))
			assert.Equal(t, "READY=1\nSTATUS=consuming", received())
			require.NoError(t, Ready(""))
			assert.Equal(t, "READY=1", received())
			require.NoError(t, Status("offline\nREADY=1\r\n"))
			assert.Equal(t, "STATUS=offline READY=1", received(), "a status is one line")
			require.NoError(t, Alive())
			assert.Equal(t, "WATCHDOG=1", received())
			require.NoError(t, Stopping("finishing"))
			assert.Equal(t, "STOPPING=1\nSTATUS=finishing", received())

			before := monotonic(t)
			require.NoError(t, Reloading())
			first, second, _ := strings.Cut(received(), "\n")
			assert.Equal(t, "RELOADING=1", first)
			var at int64
			_, err = fmt.Sscanf(second, "MONOTONIC_USEC=%d", &at)
			require.NoError(t, err, second)
			assert.GreaterOrEqual(t, at, before)
			assert.LessOrEqual(t, at, monotonic(t))
		})
	}

	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	assert.ErrorContains(t, Ready(""), "NOTIFY_SOCKET")

	t.Setenv("NOTIFY_SOCKET", "")
	assert.NoError(t, Ready("not under systemd"))
	assert.NoError(t, Status(""))
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano() / 1000
}

func TestWatchdogInterval(t *testing.T) {
	for _, tt := range []struct {
		usec, pid string
		want      time.Duration
		fails     bool
	}{
		{"", "", 0, false},
		{"60000000", "", 30 * time.Second, false},
		{"60000000", fmt.Sprint(os.Getpid()), 30 * time.Second, false},
		{"60000000", "1", 0, false}, // another process's
		{"soon", "", 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", tt.usec)
		t.Setenv("WATCHDOG_PID", tt.pid)
		got, err := WatchdogInterval()
		assert.Equal(t, tt.fails, err != nil, "%+v: %v", tt, err)
		assert.Equal(t, tt.want, got, "%+v", tt)
	}
}
