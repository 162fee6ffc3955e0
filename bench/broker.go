package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const stream = "BENCH"

// A broker is a nats-server with JetStream on files, and a connection to it.
type broker struct {
	l   *lab
	url string
	nc  *nats.Conn
	js  jetstream.JetStream
}

// broker starts one, in this process or in one of its own; it ends with the case.
func (l *lab) broker(separate bool) *broker {
	b := &broker{l: l}
	dir, remove := l.folder()
	l.atEnd = append(l.atEnd, remove)
	if separate {
		b.url = l.child("nats", "BENCH_DIR="+dir).line()
	} else {
		srv := startServer(dir)
		b.url = srv.ClientURL()
		l.atEnd = append(l.atEnd, func() { srv.Shutdown(); srv.WaitForShutdown() })
	}
	b.nc = get(nats.Connect(b.url))
	l.atEnd = append(l.atEnd, b.nc.Close)
	// Publishing never waits for what was published: an open loop must not.
	b.js = get(jetstream.New(b.nc, jetstream.WithPublishAsyncMaxPending(1<<20)))
	return b
}

func startServer(dir string) *server.Server {
	srv := get(server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		MaxPayload: 1 << 20, JetStream: true, StoreDir: dir, JetStreamMaxStore: 1 << 40,
	}))
	go srv.Start()
	require(srv.ReadyForConnections(20*time.Second), "nats-server did not start")
	return srv
}

// empty makes the stream anew.
func (b *broker) empty() {
	if err := b.js.DeleteStream(b.l.ctx, stream); err != nil && err != jetstream.ErrStreamNotFound {
		must(err)
	}
	get(b.js.CreateStream(b.l.ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{"bench.>"}, Duplicates: dedupWindow,
	}))
}

// dedupWindow is the shortest that JetStream has. What repeats an id within it
// is not stored.
const dedupWindow = 100 * time.Millisecond

// fill makes the stream anew, with e in it.
func (b *broker) fill(e *events) {
	b.empty()
	for i, id := range e.ids {
		if i > 0 && i%e.unique == 0 {
			<-b.js.PublishAsyncComplete()
			time.Sleep(2 * dedupWindow)
		}
		m := nats.NewMsg(e.subject(i))
		m.Header.Set(jetstream.MsgIDHeader, id)
		m.Data = e.body
		get(b.js.PublishMsgAsync(m))
		if i%2000 == 1999 || i == e.n()-1 {
			<-b.js.PublishAsyncComplete()
		}
	}
	s := get(b.js.Stream(b.l.ctx, stream))
	require(s.CachedInfo().State.Msgs == uint64(e.n()), "the stream has %d messages, not %d", s.CachedInfo().State.Msgs, e.n())
}

// awaitAcked waits until the broker has the acknowledgements of the first n.
func (b *broker) awaitAcked(durable string, n int) {
	c := get(b.js.Consumer(b.l.ctx, stream, durable))
	within(time.Minute, "acknowledged", func() bool {
		info := get(c.Info(b.l.ctx))
		return info.AckFloor.Stream >= uint64(n)
	})
}

func (b *broker) forget(durable string) { must(b.js.DeleteConsumer(b.l.ctx, stream, durable)) }

// consumer makes a durable consumer with explicit acknowledgement.
func (b *broker) consumer(durable string) jetstream.Consumer {
	return get(b.js.CreateConsumer(b.l.ctx, stream, jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10_000,
	}))
}

// A child is this program as another process, which does one thing.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.WriteCloser
}

// child starts one. It ends when its standard input does, at the latest with
// the case.
func (l *lab) child(what string, env ...string) *child {
	c := &child{cmd: exec.Command(get(os.Executable()))}
	c.cmd.Env = append(append(os.Environ(), "BENCH_CHILD="+what), env...)
	c.cmd.Stderr = os.Stderr
	c.in = get(c.cmd.StdinPipe())
	c.out = bufio.NewReader(get(c.cmd.StdoutPipe()))
	must(c.cmd.Start())
	l.atEnd = append(l.atEnd, func() { c.stop() })
	return c
}

func (c *child) line() string {
	s, err := c.out.ReadString('\n')
	require(err == nil, "a child process ended: %v", err)
	return strings.TrimSpace(s)
}

func (c *child) stop() {
	c.in.Close()
	_ = c.cmd.Wait()
}

// runChild is main of a child.
func runChild(what string) {
	switch what {
	case "nats":
		srv := startServer(os.Getenv("BENCH_DIR"))
		fmt.Println(srv.ClientURL())
		_, _ = io.Copy(io.Discard, os.Stdin)
		srv.Shutdown()
		srv.WaitForShutdown()
	case "consume":
		consumeChild()
	default:
		fmt.Fprintln(os.Stderr, "no such child:", what)
		os.Exit(2)
	}
}
