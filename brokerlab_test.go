package inbox

// A laboratory with a real broker, and a wire that can be cut.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"edge.example/inbox/internal/natstest"
)

// evStream is the stream of a brokerLab; it takes the subjects ev.>
const evStream = "EVENTS"

// A brokerLab is a lab with a nats-server and a stream.
type brokerLab struct {
	*lab
	srv *natstest.Server
	nc  *nats.Conn          // a producer's
	js  jetstream.JetStream // on nc
}

// newBrokerLab starts a lab and a server with the stream.
func newBrokerLab(t testing.TB, change func(*Options)) *brokerLab {
	t.Helper()
	return newBrokerLabOn(t, change, nil)
}

func newBrokerLabOn(t testing.TB, change func(*Options), srv func(*server.Options)) *brokerLab {
	t.Helper()
	l := &brokerLab{lab: newLab(t, change), srv: natstest.Start(t, srv)}
	l.nc, l.js = l.srv.Connect(clientOptions()...)
	l.addStream(evStream, "ev")
	return l
}

// clientOptions are NATSOptions for a broker that is back at once.
func clientOptions(more ...nats.Option) []nats.Option {
	return append(append(NATSOptions(),
		nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	), more...)
}

// evConfig is a stream for the subjects <subject>.>
func evConfig(name, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{subject + ".>"}, Storage: jetstream.FileStorage,
		AllowMsgSchedules: true, Duplicates: 100 * time.Millisecond,
	}
}

func (l *brokerLab) addStream(name, subject string) {
	l.t.Helper()
	var err error
	l.eventually(func() bool {
		_, err = l.js.CreateStream(ctxBG, evConfig(name, subject))
		var said *jetstream.APIError
		return !errors.As(err, &said) || said.ErrorCode != stillDeleting
	}, "the stream can be made")
	require.NoError(l.t, err)
}

// stillDeleting is what the server says ("error creating store for stream")
// while it is still deleting the files of a stream of the same name.
const stillDeleting = 10049

// event is a message with an id (none: ""), for a subject below ev.
func event(subject, id, payload string) *nats.Msg {
	m := &nats.Msg{Subject: "ev." + subject, Data: []byte(payload), Header: nats.Header{}}
	if id != "" {
		m.Header.Set("ce-id", id)
		m.Header.Set("ce-source", "test")
	}
	return m
}

// publish publishes in order and waits until the broker has stored all. It
// returns the sequence of the last.
func (l *brokerLab) publish(ms ...*nats.Msg) (last uint64) {
	l.t.Helper()
	l.eventually(l.nc.IsConnected, "the producer is connected")
	acks := make([]jetstream.PubAckFuture, len(ms))
	for i, m := range ms {
		var err error
		acks[i], err = l.js.PublishMsgAsync(m)
		require.NoError(l.t, err)
	}
	for _, f := range acks {
		select {
		case ack := <-f.Ok():
			last = max(last, ack.Sequence)
		case err := <-f.Err():
			require.NoError(l.t, err)
		case <-time.After(20 * time.Second):
			require.Fail(l.t, "the broker does not say that it has stored a message")
		}
	}
	return last
}

// publishN publishes messages with the ids first..last, as text.
func (l *brokerLab) publishN(first, last int) {
	l.t.Helper()
	var ms []*nats.Msg
	for i := first; i <= last; i++ {
		ms = append(ms, event("n", fmt.Sprint(i), fmt.Sprint("payload ", i)))
	}
	l.publish(ms...)
}

// through publishes the messages first..last and waits until the consumer c has
// applied them, after all before, and the broker has its acknowledgements.
func (l *brokerLab) through(first, last int) {
	l.t.Helper()
	l.publishN(first, last)
	l.applied(last)
	l.settled("c")
}

// subscribe runs Subscribe on a connection of its own until the test ends, or
// stop is called.
func (l *brokerLab) subscribe(c *Consumer, opts *SubscribeOptions, conn ...nats.Option) (stop func()) {
	l.t.Helper()
	_, js := l.srv.Connect(clientOptions(conn...)...)
	return l.subscribeTo(c, js, evStream, opts)
}

func (l *brokerLab) subscribeTo(c *Consumer, js jetstream.JetStream, stream string, opts *SubscribeOptions) (stop func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	go func() { done <- c.Subscribe(ctx, js, stream, opts) }()
	stop = sync.OnceFunc(func() { cancel(); assert.NoError(l.t, <-done, "Subscribe") })
	l.t.Cleanup(stop)
	return stop
}

// stopBroker stops the server, and waits until the producer knows.
func (l *brokerLab) stopBroker() {
	l.t.Helper()
	l.srv.Stop()
	l.eventually(func() bool { return !l.nc.IsConnected() }, "noticed")
}

// info is how the durable consumer stands, nil when it is not there.
func (l *brokerLab) info(durable string) *jetstream.ConsumerInfo {
	ctx, cancel := context.WithTimeout(ctxBG, 5*time.Second)
	defer cancel()
	c, err := l.js.Consumer(ctx, evStream, durable)
	if err != nil {
		return nil
	}
	return c.CachedInfo()
}

// settled waits until the broker has nothing left for the durable consumer:
// all was delivered, all is acknowledged.
func (l *brokerLab) settled(durable string) *jetstream.ConsumerInfo {
	l.t.Helper()
	var last atomic.Pointer[jetstream.ConsumerInfo]
	l.eventually(func() bool {
		ci := l.info(durable)
		last.Store(ci)
		return ci != nil && ci.NumPending == 0 && ci.NumAckPending == 0
	}, "everything is acknowledged: %+v", lazy(func() any { return last.Load() }))
	return last.Load()
}

// lazy is printed as what it returns then.
type lazy func() any

func (f lazy) String() string             { return fmt.Sprintf("%+v", f()) }
func (f lazy) GoString() string           { return f.String() }
func (f lazy) Format(s fmt.State, _ rune) { fmt.Fprint(s, f.String()) }

// applied waits until messages took effect n times in all.
func (l *brokerLab) applied(n int) {
	l.t.Helper()
	l.eventually(func() bool { return l.effects("") >= n }, "%d effects, not %v", n, lazy(func() any { return l.effects("") }))
	require.Equal(l.t, n, l.effects(""), "effects")
}

// once asserts that each of the messages first..last took effect once.
func (l *brokerLab) once(first, last int) {
	l.t.Helper()
	var want []string
	for i := first; i <= last; i++ {
		want = append(want, fmt.Sprint(i))
	}
	assert.ElementsMatch(l.t, want, values[string](l.lab, `SELECT id FROM effects`))
}

// values reads a column.
func values[T any](l *lab, query string, args ...any) (vs []T) {
	l.t.Helper()
	require.NoError(l.t, l.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		rows, err := rx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		vs = nil
		for rows.Next() {
			var v T
			if err := rows.Scan(&v); err != nil {
				return err
			}
			vs = append(vs, v)
		}
		return rows.Err()
	}), query)
	return vs
}

// audit is the whole account; nothing in it may be unexplained.
func (l *lab) audit() []StreamAudit {
	l.t.Helper()
	as, err := l.ib.Audit(ctxBG)
	require.NoError(l.t, err)
	for _, a := range as {
		assert.Zero(l.t, a.Unexplained, "unexplained in %+v", a)
	}
	return as
}

// accounted asserts that the only account is of the sequences 1..last, without a gap.
func (l *lab) accounted(last uint64) StreamAudit {
	l.t.Helper()
	as := l.audit()
	require.Len(l.t, as, 1)
	assert.Equal(l.t, []Interval{{1, last}}, as[0].Accounted)
	assert.Empty(l.t, as[0].Missing)
	return as[0]
}

func (l *lab) stats(consumer string) ConsumerStats {
	l.t.Helper()
	s, err := l.ib.Stats(ctxBG)
	require.NoError(l.t, err)
	return s.Consumers[consumer]
}

// inOrder asserts that the effects of each key came in the order of the stream.
func (l *brokerLab) inOrder() {
	l.t.Helper()
	assert.Empty(l.t, values[string](l.lab, `
		SELECT key || ': ' || stream_seq || ' after ' || before FROM (
			SELECT m.key, m.stream_seq, lag(m.stream_seq) OVER (PARTITION BY m.key ORDER BY e.n) AS before
			  FROM effects e JOIN inbox_message m ON m.seq = e.seq)
		 WHERE before > stream_seq`), "out of order")
}

// notPulling waits until nobody asks the durable consumer for messages.
func (l *brokerLab) notPulling(durable string) {
	l.t.Helper()
	l.eventually(func() bool {
		ci := l.info(durable)
		return ci != nil && ci.NumWaiting == 0
	}, "not pulling")
}

// slowConsumer is a consumer "c" whose handler waits at the message number at,
// for release.
func (l *brokerLab) slowConsumer(at int) (c *Consumer, release func()) {
	l.t.Helper()
	goOn := make(chan struct{})
	count := 0
	c = l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if count++; count == at {
			<-goOn
		}
		return apply(ctx, tx, m)
	}, nil)
	release = sync.OnceFunc(func() { close(goOn) })
	l.t.Cleanup(release)
	return c, release
}

// A wire is the line between a client and the broker, to be cut and mended.
type wire struct {
	mu      sync.Mutex
	down    bool
	proxied bool // somebody answers while it is down, and hangs up
	refused int  // attempts to connect
	conns   []net.Conn
}

func newWire() *wire { return &wire{} }

func (n *wire) option() nats.Option { return nats.SetCustomDialer(n) }

// Dial makes it a nats.CustomDialer.
func (n *wire) Dial(network, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		n.refused++
		if n.proxied {
			c, far := net.Pipe()
			return c, far.Close()
		}
		return nil, &url.Error{Op: "dial", URL: address, Err: errors.New("the line is cut")}
	}
	c, err := net.Dial(network, address)
	if err == nil {
		n.conns = append(n.conns, c)
	}
	return c, err
}

// cut breaks the connection; it cannot be made again before mend.
func (n *wire) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

func (n *wire) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}
