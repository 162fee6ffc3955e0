//go:build linux || darwin

package torture

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestNetwork lets an inbox consume a stream over a wire that breaks in every
// way, from a broker that is restarted, emptied, and put back from an old copy,
// while producers publish everything more than once. What was acknowledged is
// in the file at that moment; in the end everything that the broker holds is
// there, took effect once, in order, and the accounts agree.
func TestNetwork(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	seeded(t)
	result := row(t, "Network chaos")
	duplicates, more := 1, 0
	if *long {
		duplicates, more = 1_000_000, 20
	}
	for round := 0; result.Duplicates < duplicates && !t.Failed(); round++ {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			n := newNetwork(t, rand.New(rand.NewPCG(*seed, uint64(round))), result)
			stop := n.produce(rand.New(rand.NewPCG(*seed, 1<<32+uint64(round))))
			n.suffer(more)
			stop()
			n.calm()
			n.finish()
		})
	}
}

// A network is a broker, a wire and an inbox behind it.
type network struct {
	t      *testing.T
	r      *rand.Rand
	row    *Row
	srv    *natstest.Server
	proxy  *Proxy
	js     jetstream.JetStream // directly at the broker
	path   string
	db     *sql.DB // reads beside the inbox
	lookup *sql.Stmt
	opts   inbox.SubscribeOptions

	life        *life
	unsubscribe func()

	story   []string // what happened
	copies  []func() // put the broker back to an older state
	markers int

	mu    sync.Mutex
	sent  map[place]string // contents of messages on their way to the client
	acked map[place]bool
	wrong error // the first thing that an acknowledgement found wrong
}

// A place is where a message was in the stream; not even a broker that lost its
// tail gives it to another one.
type place struct {
	seq uint64
	at  int64 // when the broker stored it, in nanoseconds
}

const stream = "LAB"

// ways are the users of the broker: the edge, which may be refused, or not be
// allowed to acknowledge, and a producer who needs no password.
func ways(password string, may *server.Permissions) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "producer", Password: "p"}, {Username: "edge", Password: password, Permissions: may}}
		o.NoAuthUser = "producer"
	}
}

var openWays = ways("secret", nil)

func newNetwork(t *testing.T, r *rand.Rand, result *Row) *network {
	n := &network{
		t: t, r: r, row: result, path: path(scratch(t)),
		sent: map[place]string{}, acked: map[place]bool{},
		opts: inbox.SubscribeOptions{
			Identity: inbox.Identity{JSONPath: "$.id"}, Key: inbox.KeyFromHeader("Key"),
			AckWait: time.Duration(150+r.IntN(400)) * time.Millisecond, Prefetch: 1 << (5 + r.IntN(8)),
		},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-seed %d: %+v\n%s", *seed, n.opts, strings.Join(n.story, "\n"))
		}
	})
	n.srv = natstest.Start(t, func(o *server.Options) { o.StoreDir = scratch(t); openWays(o) })
	_, n.js = n.srv.Connect(n.client()...)
	n.addStream()
	var err error
	n.proxy, err = NewProxy(strings.TrimPrefix(n.srv.URL(), "nats://"))
	require.NoError(t, err)
	t.Cleanup(n.proxy.Close)
	n.proxy.Delivered, n.proxy.Acked = n.delivered, n.acknowledged
	n.open()
	n.db, err = sql.Open("sqlite", "file:"+n.path+"?mode=ro&_busy_timeout=20000")
	require.NoError(t, err)
	t.Cleanup(func() { n.db.Close() })
	n.lookup, err = n.db.Prepare(lookup)
	require.NoError(t, err)
	n.subscribe()
	t.Cleanup(func() { n.unsubscribe(); _ = n.life.close() })
	return n
}

// client are options for a broker that is back at once.
func (n *network) client(more ...nats.Option) []nats.Option {
	return append(append(inbox.NATSOptions(),
		nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers(),
		nats.PingInterval(200*time.Millisecond), nats.MaxPingsOutstanding(3),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	), more...)
}

func (n *network) addStream() {
	n.eventually("the stream is made", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := n.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{"lab.>"}, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond,
		})
		return err == nil
	})
}

func (n *network) open() {
	var err error
	n.life, err = open(n.t, n.path, nil)
	require.NoError(n.t, err)
	n.life.run()
}

// subscribe subscribes over the wire, with a new connection.
func (n *network) subscribe() {
	nc, js := natstest.Connect(n.t, n.proxy.URL(), n.client(nats.UserInfo("edge", "secret"))...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c, opts := n.life.c, n.opts
	go func() { done <- c.Subscribe(ctx, js, stream, &opts) }()
	n.unsubscribe = sync.OnceFunc(func() {
		cancel()
		assert.NoError(n.t, <-done, "Subscribe")
		nc.Close()
	})
}

func (n *network) close() {
	n.unsubscribe()
	require.NoError(n.t, n.life.close())
}

func (n *network) eventually(what string, cond func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !cond(); time.Sleep(3 * time.Millisecond) {
		require.True(n.t, time.Now().Before(deadline), "not within a minute: %s", what)
	}
}

// placeOf reads the reply subject of a message.
func placeOf(reply string) (p place, ok bool) {
	f := strings.Split(reply, ".")
	at := 5
	if len(f) >= 11 { // with domain and account
		at = 7
	}
	if len(f) < at+3 {
		return p, false
	}
	var err1, err2 error
	p.seq, err1 = strconv.ParseUint(f[at], 10, 64)
	p.at, err2 = strconv.ParseInt(f[at+2], 10, 64)
	return p, err1 == nil && err2 == nil
}

// delivered remembers what is on its way to the client.
func (n *network) delivered(reply string, b []byte) {
	p, ok := placeOf(reply)
	if _, body, found := bytes.Cut(b, []byte("\r\n\r\n")); found {
		b = body
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.sent[p]; !ok || known {
		return
	}
	n.sent[p] = string(b)
}

// acknowledged holds acknowledgements up until it has seen that their messages
// are in the file.
func (n *network) acknowledged(subjects []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for _, s := range subjects {
		p, ok := placeOf(s)
		body, sent := n.sent[p]
		switch {
		case !ok || !sent:
			n.fault(fmt.Errorf("acknowledged without having come: %s", s))
		case !n.acked[p]:
			n.acked[p] = true
			ids = append(ids, idOf(body, p))
		}
	}
	if len(ids) == 0 {
		return
	}
	n.mu.Unlock()
	lost, err := n.absent(ids...)
	n.mu.Lock()
	if err != nil {
		n.fault(fmt.Errorf("looking for what is acknowledged: %w", err))
	} else if len(lost) > 0 {
		n.row.Lost += len(lost)
		n.fault(fmt.Errorf("acknowledged before it was in the file: %v", lost))
	}
}

// fault remembers the first thing that was wrong; n.mu is held.
func (n *network) fault(err error) {
	if n.wrong == nil {
		n.wrong = err
	}
}

// idOf is the identity of a message, without the stream's creation time, where
// that is its beginning.
func idOf(body string, p place) string {
	var c content
	_ = json.Unmarshal([]byte(body), &c)
	if c.ID != "" {
		return c.ID
	}
	return fmt.Sprintf("/%d/%d", p.seq, p.at)
}

// lookup are the messages of a list that are not in the file. (CROSS JOIN: in
// this order, for the index of each segment.)
const lookup = `
	WITH RECURSIVE segment (n) AS (
		SELECT max(seq) >> 13 FROM inbox_message UNION ALL SELECT n - 1 FROM segment WHERE n > 0)
	SELECT value FROM json_each(?)
	 WHERE NOT EXISTS (
		SELECT 1 FROM (SELECT '' AS life UNION SELECT created FROM inbox_stream)
		 CROSS JOIN inbox_consumer c CROSS JOIN inbox_name s CROSS JOIN segment CROSS JOIN inbox_message m
		 WHERE s.kind >= 10 AND m.seq >> 13 = segment.n AND m.message_id = life || value
		   AND m.consumer = c.consumer AND m.source = s.id)`

// absent are the messages that are not in the file.
func (n *network) absent(ids ...string) (absent []string, err error) {
	list, _ := json.Marshal(ids)
	rows, err := n.lookup.Query(string(list))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		absent = append(absent, id)
	}
	return absent, rows.Err()
}

// duplicates is how many deliveries had come before.
func (n *network) duplicates() (d int) {
	require.NoError(n.t, n.db.QueryRow(`SELECT duplicates FROM inbox_consumer`).Scan(&d))
	return d
}

// through waits until a message that is published now has its row: consumption
// goes on.
func (n *network) through() {
	n.t.Helper()
	n.markers++
	id := fmt.Sprint("through", n.markers)
	b, _ := json.Marshal(content{ID: id})
	n.eventually("a message is published", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := n.js.Publish(ctx, "lab.x", b)
		return err == nil
	})
	n.eventually("a message comes through", func() bool {
		absent, err := n.absent(id)
		require.NoError(n.t, err)
		return len(absent) == 0
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	require.NoError(n.t, n.wrong)
}

// calm waits, on a wire that works, until nothing is left to be done.
func (n *network) calm() {
	n.through()
	var left string
	defer func() {
		if n.t.Failed() {
			n.t.Log(left)
		}
	}()
	n.eventually("everything is acknowledged", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c, err := n.js.Consumer(ctx, stream, "c")
		if err != nil {
			return false
		}
		ci := c.CachedInfo()
		left = fmt.Sprintf("%+v", ci)
		return ci.NumPending == 0 && ci.NumAckPending == 0
	})
	n.life.idle()
}

// finish ends everything and looks at what is there.
func (n *network) finish() {
	held := n.held()
	n.audit()
	n.unsubscribe()
	n.proxy.Close()
	n.row.Duplicates += n.duplicates()
	n.t.Logf("%d duplicates so far", n.row.Duplicates)
	require.NoError(n.t, n.db.Close())
	require.NoError(n.t, n.life.close())
	for _, end := range []string{"-wal", "-shm"} {
		_, err := os.Stat(n.path + end)
		require.ErrorIs(n.t, err, os.ErrNotExist, "%s is left", end)
	}
	n.inspect(held)
}
