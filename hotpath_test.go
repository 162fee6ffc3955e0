package inbox

// What one message costs, in numbers that do not depend on the machine:
// statements and allocations. A change that makes the hot path dearer fails
// here, where a timed test would only be flaky.

import (
	"bufio"
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"edge.example/inbox/internal/natstest"
)

const (
	// hotMessages come in one group, of the largest size.
	hotMessages = 2000
	// maxAllocs bounds the allocations a message, from what nats.go hands over,
	// or Submit, to the acknowledgement: handler, database/sql and driver
	// included.
	maxAllocs = 25
)

// A countedConn counts what is compiled and run on a connection.
type countedConn struct {
	driver.Conn
	sqlite.DBStatus
	compiled, run atomic.Int64
}

func (c *countedConn) Prepare(q string) (driver.Stmt, error) {
	c.compiled.Add(1)
	st, err := c.Conn.Prepare(q)
	if err != nil {
		return nil, err
	}
	return &countedStmt{st, c}, nil
}

type countedStmt struct {
	driver.Stmt
	c *countedConn
}

func (s *countedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.c.run.Add(1)
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

func (s *countedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.c.run.Add(1)
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

// counted makes the writer's connection count.
func (l *lab) counted() *countedConn {
	l.t.Helper()
	c := &countedConn{}
	require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
		c.Conn, c.DBStatus, w.conn.raw = w.conn.raw, w.conn.raw.(sqlite.DBStatus), c
		return nil
	}))
	// What was compiled before goes on uncounted: compile all anew.
	require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
		for i, s := range w.conn.stmts {
			if s != nil {
				s.stmt.Close()
				w.conn.stmts[i] = nil
			}
		}
		w.conn.cache.clear()
		return nil
	}))
	return c
}

// hotGroup is a group of new messages.
func hotGroup(key string) []Message {
	ms := make([]Message, hotMessages)
	for i := range ms {
		ms[i] = Message{
			ID: ulid.Make().String(), Key: key, Subject: "orders.placed", Payload: make([]byte, 256),
			Headers: Header{"Nats-Msg-Id": {"x"}, "Content-Type": {"application/json"}},
		}
	}
	return ms
}

// A message of a large group is its part of an INSERT of ours and what its
// handler does.
// Compiled is nothing that was compiled before.
func TestHotPath_Statements(t *testing.T) {
	t.Parallel()
	const perGroup = 4 // BEGIN, PRAGMA data_version, the counters, COMMIT
	for _, tc := range []struct {
		name, key  string
		store      bool
		perMessage int64 // beside the batch's
	}{
		{name: "applied", perMessage: 1},
		{name: "applied in order of a key", key: "k", perMessage: 2},
		{name: "stored", store: true, perMessage: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, nil)
			c := l.consumer("c", nil, nil)
			count := l.counted()
			deliver := func() {
				if !tc.store {
					outs, errs := l.outcomes(c, hotGroup(tc.key)...)
					for i := range outs {
						require.NoError(t, errs[i])
						require.Equal(t, Applied, outs[i])
					}
					return
				}
				release := l.hold()
				var wg sync.WaitGroup
				for _, m := range hotGroup(tc.key) {
					wg.Go(func() {
						o, err := c.Receive(ctxBG, m)
						assert.NoError(t, err)
						assert.Equal(t, Pending, o)
					})
				}
				l.eventually(func() bool { return l.ib.w.q.length() == hotMessages }, "all wait for the writer")
				release()
				wg.Wait()
			}
			deliver() // compiles
			compiled, run := count.compiled.Load(), count.run.Load()
			deliver()
			assert.Zero(t, count.compiled.Load()-compiled, "statements compiled again")
			// The job of hold is a group of its own: BEGIN, data_version, COMMIT.
			assert.Equal(t, tc.perMessage*hotMessages+hotMessages/maxBatch+perGroup+3, count.run.Load()-run, "statements run for %d messages", hotMessages)
		})
	}
}

// mallocs is how many allocations fn makes, in the whole process.
func mallocs(t *testing.T, fn func()) float64 {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates too")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

// These are not parallel: they count the allocations of the process.

func TestHotPath_AllocationsOfSubmit(t *testing.T) {
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	var left sync.WaitGroup
	var wrong atomic.Int64
	done := func(o Outcome, err error) {
		if o != Applied || err != nil {
			wrong.Add(1)
		}
		left.Done()
	}
	submit := func(ms []Message) {
		release := l.hold()
		left.Add(len(ms))
		for i := range ms {
			if err := c.Submit(ctxBG, ms[i], done); err != nil {
				t.Error(err)
			}
		}
		release()
		left.Wait()
	}
	submit(hotGroup("")) // compiles, fills caches
	ms := hotGroup("")
	got := mallocs(t, func() { submit(ms) }) / hotMessages
	t.Logf("%.1f allocations a message", got)
	assert.Zero(t, wrong.Load())
	assert.LessOrEqual(t, got, float64(maxAllocs), "allocations a message")
}

func TestHotPath_AllocationsOfSubscribe(t *testing.T) {
	nc, js := natstest.Connect(t, serverProcess(t))
	_, err := js.CreateStream(ctxBG, jetstream.StreamConfig{Name: "HOT", Subjects: []string{"hot"}})
	require.NoError(t, err)
	publish := func(to int) {
		t.Helper()
		for range hotMessages {
			m := nats.NewMsg("hot")
			m.Header.Set(jetstream.MsgIDHeader, ulid.Make().String())
			m.Data = make([]byte, 256)
			_, err := js.PublishMsgAsync(m)
			require.NoError(t, err)
		}
		<-js.PublishAsyncComplete()
		s, err := js.Stream(ctxBG, "HOT")
		require.NoError(t, err)
		require.EqualValues(t, to, s.CachedInfo().State.Msgs)
	}

	l := newLab(t, func(o *Options) { o.QueueLength = 4 * hotMessages })
	c := l.consumer("c", nil, nil)
	var applied atomic.Int64
	l.opts.Observer.Delivered = func(_ string, o Outcome) {
		if o == Applied {
			applied.Add(1)
		}
	}
	ctx, cancel := context.WithCancel(ctxBG)
	ended := make(chan error, 1)
	go func() { ended <- c.Subscribe(ctx, js, "HOT", nil) }()
	defer func() { cancel(); assert.NoError(t, <-ended) }()

	publish(hotMessages)
	all := func(n int64) func() bool { return func() bool { return applied.Load() == n } }
	l.eventually(all(hotMessages), "the first messages are applied")

	// The broker is a process of its own. What is published here allocates too,
	// so that is over before the subscription gets any of it.
	require.NoError(t, l.ib.Pause(ctxBG, "c"))
	publish(2 * hotMessages)
	total := mallocs(t, func() {
		require.NoError(t, l.ib.Resume(ctxBG, "c"))
		l.eventually(all(2*hotMessages), "the others too")
	}) / hotMessages

	// What nats.go makes of a message that it reads is not ours.
	old, err := nc.JetStream()
	require.NoError(t, err)
	ch := make(chan *nats.Msg, 2*hotMessages)
	client := mallocs(t, func() {
		_, err := old.ChanSubscribe("hot", ch, nats.BindStream("HOT"), nats.AckNone())
		require.NoError(t, err)
		l.eventually(func() bool { return len(ch) == 2*hotMessages }, "read by nats.go alone")
	}) / (2 * hotMessages)

	t.Logf("%.1f allocations a message, %.1f of them in nats.go", total, client)
	assert.LessOrEqual(t, total-client, float64(maxAllocs), "allocations a message, without those of nats.go")
}

func init() { helpers["nats-server"] = runServer }

// serverProcess starts a nats-server with JetStream in a process of its own,
// which ends with the test, and returns its URL.
func serverProcess(t *testing.T) (url string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "INBOX_TEST_HELPER=nats-server", "INBOX_TEST_PATH="+t.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	url, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(url)
}

// runServer runs until its standard input ends.
func runServer() {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: os.Getenv("INBOX_TEST_PATH"),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	srv.Start()
	fmt.Println(srv.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Shutdown()
	srv.WaitForShutdown()
}
