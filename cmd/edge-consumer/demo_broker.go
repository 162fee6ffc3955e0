package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The stream of the demo.
const (
	demoStream  = "GITHUB"
	demoSubject = "github.>"
)

// A broker is a nats-server with JetStream inside this process. It opens no
// port: its clients connect through memory. What it stores is gone with it.
type broker struct {
	srv *server.Server
	dir string
}

// startBroker starts one that keeps its files in a new directory in dir, with
// the demo's stream.
func startBroker(ctx context.Context, dir string) (_ *broker, err error) {
	b := &broker{}
	defer func() {
		if err != nil {
			b.stop()
		}
	}()
	if b.dir, err = os.MkdirTemp(dir, "nats-"); err != nil {
		return nil, err
	}
	b.srv, err = server.NewServer(&server.Options{
		ServerName: "demo", DontListen: true, JetStream: true, StoreDir: b.dir,
		NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, fmt.Errorf("making the embedded nats-server: %w", err)
	}
	b.srv.Start()
	if !b.srv.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the embedded nats-server did not start within 10 s")
	}
	nc, js, err := b.connect(nil)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: demoStream, Subjects: []string{demoSubject}, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return nil, fmt.Errorf("making stream %s: %w", demoStream, err)
	}
	return b, nil
}

func (b *broker) stop() {
	if b.srv != nil {
		b.srv.Shutdown()
		b.srv.WaitForShutdown()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// connect connects a client, through c unless that is nil.
func (b *broker) connect(c *cable) (*nats.Conn, jetstream.JetStream, error) {
	var provider nats.InProcessConnProvider = b.srv
	if c != nil {
		c.srv = b.srv
		provider = c
	}
	nc, err := nats.Connect("", nats.InProcessServer(provider), nats.NoReconnect())
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the embedded nats-server: %w", err)
	}
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(1000), jetstream.WithPublishAsyncTimeout(30*time.Second))
	return nc, js, err
}

// A cable is a client's connection that fails on purpose, as networks do.
type cable struct {
	srv     *server.Server
	severed atomic.Bool
	lose    atomic.Int64 // how many more acknowledgements get lost on the way
}

// cut loses everything the client sends from now on.
func (c *cable) cut() { c.severed.Store(true) }

// InProcessConn is for nats.InProcessServer.
func (c *cable) InProcessConn() (net.Conn, error) {
	conn, err := c.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &cableConn{conn, c}, nil
}

type cableConn struct {
	net.Conn
	cable *cable
}

var ackAck, ackProgress = []byte("+ACK"), []byte("+WPI")

// Write loses an acknowledgement by making it a sign of progress, which is as
// long: the broker then delivers the message again after AckWait.
func (c *cableConn) Write(b []byte) (int, error) {
	if c.cable.severed.Load() {
		return len(b), nil
	}
	if lose := c.cable.lose.Load(); lose > 0 {
		if n := min(int64(bytes.Count(b, ackAck)), lose); n > 0 {
			c.cable.lose.Add(-n)
			return c.Conn.Write(bytes.Replace(b, ackAck, ackProgress, int(n)))
		}
	}
	return c.Conn.Write(b)
}
