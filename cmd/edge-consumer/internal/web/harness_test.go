package web

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

// A lab is a server in front of a real inbox, and a daemon that a test can
// bring into any state.
type lab struct {
	t   *testing.T
	ib  *inbox.Inbox
	src Source

	mu        sync.Mutex
	broker    Broker
	alive     error
	storage   error
	free      error
	consumers map[string]Consumer
	snapshots int // calls of Stats
}

var quiet = slog.New(slog.DiscardHandler)

// errLost is what the message with the payload "lost" dies of.
var errLost = errors.New("no such order")

// newLab opens an inbox with the consumer orders: one message applied and
// delivered again, one in conflict with it, one dead, one pending.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{
		t: t, broker: Broker{Connected: true},
		consumers: map[string]Consumer{"orders": {State: "consuming"}},
	}
	alerts := NewAlerts()
	ib, err := inbox.Open(t.Context(), filepath.Join(t.TempDir(), "edge.db"), &inbox.Options{
		Logger: quiet, Observer: &inbox.Observer{Alert: alerts.Count},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ib.Close()) })
	orders, err := ib.Consumer("orders", func(_ context.Context, _ *inbox.Tx, m *inbox.Message) error {
		switch string(m.Payload) {
		case "lost":
			return inbox.Permanent(errLost)
		case "later":
			return errors.New("not yet")
		}
		return nil
	}, nil)
	require.NoError(t, err)
	for _, m := range []struct {
		id, payload string
		want        inbox.Outcome
	}{
		{"a", "x", inbox.Applied}, {"a", "x", inbox.Duplicate}, {"a", "y", inbox.Conflict},
		{"b", "lost", inbox.Dead}, {"c", "later", inbox.Pending},
	} {
		got, err := orders.Process(t.Context(), inbox.Message{ID: m.id, Payload: []byte(m.payload)})
		require.NoError(t, err)
		require.Equal(t, m.want, got)
	}
	l.ib = ib
	l.src = Source{
		Stats: func(ctx context.Context) (inbox.Stats, error) {
			l.set(func() { l.snapshots++ })
			return ib.Stats(ctx)
		},
		Alive:     func() error { return read(l, &l.alive) },
		Storage:   func() error { return read(l, &l.storage) },
		DiskFree:  func() (uint64, error) { return 5 << 30, read(l, &l.free) },
		Broker:    func() Broker { return read(l, &l.broker) },
		Consumers: func() map[string]Consumer { return read(l, &l.consumers) },
		Alerts:    alerts,
		Version:   "v1.2.3",
		Versions:  map[string]string{"version": "v1.2.3", "sqlite": "3.50"},
	}
	return l
}

func (l *lab) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func read[T any](l *lab, p *T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *p
}

// serve runs a server until the test ends, and returns its configuration with
// the port that it got.
func (l *lab) serve(c Config) Config {
	l.t.Helper()
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	s, err := Listen(l.t.Context(), c, l.src, quiet)
	require.NoError(l.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	l.t.Cleanup(func() {
		stop()
		require.NoError(l.t, <-ended)
	})
	if _, ok := c.socket(); !ok {
		_, port, err := net.SplitHostPort(s.Addr().String())
		require.NoError(l.t, err)
		host, _, _ := net.SplitHostPort(c.Listen)
		c.Listen = net.JoinHostPort(host, port)
	}
	return c
}

// ask sends a request with headers, written as "Name: value".
func ask(t *testing.T, c Config, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	_, addr := c.target()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, nil)
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}
