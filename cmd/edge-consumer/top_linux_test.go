package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A pty is a terminal of the test: what top draws, and the keys it reads.
type pty struct {
	t              *testing.T
	master, client *os.File

	mu   sync.Mutex
	seen bytes.Buffer
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	client, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(client.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}))
	p := &pty{t: t, master: master, client: client}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.seen.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_, _ = io.WriteString(master, "q\n") // whoever still reads the keys lets go of the terminal
		client.Close()
		<-ended
		master.Close()
	})
	return p
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

func (p *pty) waitFor(pattern string) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	require.Eventually(p.t, func() bool { return re.MatchString(p.text()) }, 20*time.Second, 10*time.Millisecond, "%s\nnever matched, of %q", pattern, lazy(p.text))
}

// lazy is a text that is read when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }

func (p *pty) settings() *unix.Termios {
	p.t.Helper()
	s, err := unix.IoctlGetTermios(int(p.client.Fd()), unix.TCGETS)
	require.NoError(p.t, err)
	return s
}

// top runs the command on the terminal; the channel has its exit code.
func (p *pty) top(ctx context.Context, args ...string) (code <-chan int, stderr *bytes.Buffer) {
	done := make(chan int, 1)
	stderr = &bytes.Buffer{}
	go func() { done <- run(ctx, append([]string{"top"}, args...), p.client, p.client, stderr) }()
	return done, stderr
}

func (p *pty) press(keys string) {
	p.t.Helper()
	_, err := io.WriteString(p.master, keys)
	require.NoError(p.t, err)
}

func TestTop_RatesAndKeys(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	p := newPTY(t)
	before := p.settings()
	code, stderr := p.top(t.Context(), "--db", d.Path())
	p.waitFor(`\x1b\[\?1049h`)
	p.waitFor(`orders +- +- +- +0`)
	require.NotEqual(t, before, p.settings(), "keys come as they are pressed")
	for i := range 50 {
		require.Equal(t, inbox.Applied, d.process(t, "shop", fmt.Sprint(i)))
	}
	p.waitFor(`orders +[1-9][0-9.]+ +0\.0 +0\.0 +0 +- +0`)
	require.Equal(t, inbox.Applied, d.process(t, "shop", "x"))
	require.NotContains(t, p.text(), "LAG", "the broker is not asked")
	p.press("xq")
	require.Equal(t, exitOK, <-code, stderr)
	require.Equal(t, before, p.settings())
	p.waitFor(`\x1b\[\?7h\x1b\[\?25h\x1b\[\?1049l$`)
	require.Empty(t, stderr.String())
}

func TestTop_TerminalIsRestored(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	for _, tt := range []struct {
		name string
		end  func(p *pty, cancel func())
		code int
	}{
		{"Ctrl-C", func(p *pty, _ func()) { p.press("\x03") }, exitOK},
		{"a signal", func(_ *pty, cancel func()) { cancel() }, exitFailure},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPTY(t)
			before := p.settings()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			code, stderr := p.top(ctx, "--db", d.Path())
			p.waitFor("q ends")
			tt.end(p, cancel)
			require.Equal(t, tt.code, <-code, stderr)
			require.Equal(t, before, p.settings())
			p.waitFor(`\x1b\[\?1049l$`)
		})
	}
}

// TestTop_Panic: a panic, in whatever goroutine, leaves the terminal usable.
func TestTop_Panic(t *testing.T) {
	t.Parallel()
	p := newPTY(t)
	before := p.settings()
	s, err := newScreen(stdio{in: p.client, out: p.client})
	require.NoError(t, err)
	require.NoError(t, s.enter())
	require.Panics(t, func() { defer s.rescue(); panic("boom") })
	require.Equal(t, before, p.settings())
	require.NoError(t, s.leave())
}

func TestTop_Lag(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, nil)
	_, js := srv.Connect()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	db := filepath.Join(t.TempDir(), "orders.db")
	_, err = js.Publish(t.Context(), "orders.new", nil)
	require.NoError(t, err)
	consume(t, db, js, 1)
	for range 1234 {
		_, err = js.PublishAsync("orders.new", nil)
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()

	p := newPTY(t)
	code, stderr := p.top(t.Context(), "--db", db, "--nats", srv.URL())
	p.waitFor(`connected to nats://127`)
	p.waitFor(`orders .* 1,234 +0`)
	srv.Stop()
	p.waitFor(`broker  not reachable: `)
	p.waitFor(`orders .* - +-`)
	srv.Start()
	p.waitFor(`(?s)not reachable.*connected to nats://127`)
	p.press("q")
	require.Equal(t, exitOK, <-code, stderr)
}

// TestTop_ForgedName: a name cannot obey or move anything on the terminal.
func TestTop_ForgedName(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	require.NoError(t, query(t.Context(), d.Path(), `UPDATE inbox_name SET name = 'ord' || char(10, 27) || '[2Jers' WHERE kind = 1`))
	p := newPTY(t)
	code, stderr := p.top(t.Context(), "--db", d.Path())
	p.waitFor(`ord\\n\\x1b\[2Jers`)
	p.press("q")
	require.Equal(t, exitOK, <-code, stderr)
	require.NotContains(t, p.text(), "\x1b[2Jers")
}
