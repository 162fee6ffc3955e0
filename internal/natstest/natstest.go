// Package natstest runs a real nats-server with JetStream and file storage
// inside a test: one that can be stopped, started again on the same port and
// the same files, and started from an older copy of them.
package natstest

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A Server is a nats-server under a test's control.
type Server struct {
	t    testing.TB
	opts server.Options
	srv  *server.Server
}

// Start starts a server that keeps its streams in a directory of the test.
// change, if not nil, may change its options first.
func Start(t testing.TB, change func(*server.Options)) *Server {
	t.Helper()
	s := New(t, change)
	s.Start()
	return s
}

// New prepares a server and reserves nothing but its directory: Start it later.
func New(t testing.TB, change func(*server.Options)) *Server {
	t.Helper()
	s := &Server{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 30,
	}}
	if change != nil {
		change(&s.opts)
	}
	t.Cleanup(s.Stop)
	return s
}

// Start starts the server again, on its port and its files.
func (s *Server) Start() {
	s.t.Helper()
	opts := s.opts
	srv, err := server.NewServer(&opts)
	require.NoError(s.t, err)
	go srv.Start()
	require.True(s.t, srv.ReadyForConnections(20*time.Second), "nats-server did not start")
	s.srv = srv
	s.opts.Port = opts.Port
}

// Change changes the options for the next Start.
func (s *Server) Change(change func(*server.Options)) { change(&s.opts) }

// Reload gives the running server other options; those that cannot change
// under way need a Stop and a Start.
func (s *Server) Reload(change func(*server.Options)) {
	s.t.Helper()
	change(&s.opts)
	opts := s.opts
	require.NoError(s.t, s.srv.ReloadOptions(&opts))
}

// Stop stops the server; what it stored stays.
func (s *Server) Stop() {
	if s.srv != nil {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		s.srv = nil
	}
}

// URL is where clients connect. A server that was never started has none.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Raw is the running server.
func (s *Server) Raw() *server.Server { return s.srv }

// SaveFiles copies the stored streams of a stopped server, and returns a
// function that puts that copy back.
func (s *Server) SaveFiles() (restore func()) {
	s.t.Helper()
	require.Nil(s.t, s.srv, "stop the server first")
	saved, err := "", fs.ErrNotExist
	for range 100 { // a stopped server may still be deleting what was deleted
		saved = s.t.TempDir()
		if err = os.CopyFS(saved, os.DirFS(s.opts.StoreDir)); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	require.NoError(s.t, err)
	return func() {
		s.t.Helper()
		require.Nil(s.t, s.srv, "stop the server first")
		require.NoError(s.t, os.RemoveAll(s.opts.StoreDir))
		require.NoError(s.t, os.MkdirAll(s.opts.StoreDir, 0o755))
		require.NoError(s.t, os.CopyFS(s.opts.StoreDir, os.DirFS(saved)))
	}
}

// Connect connects a client, closed with the test.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	s.t.Helper()
	return Connect(s.t, s.URL(), opts...)
}

// Connect connects a client to url, closed with the test.
func Connect(t testing.TB, url string, opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return nc, js
}
