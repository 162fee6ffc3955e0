package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
	_, err := l.js.CreateStream(ctxBG, evConfig(name, subject))
	require.NoError(l.t, err)
}

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

func TestSubscribe(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("orders.v1", func(ctx context.Context, tx *Tx, m *Message) error {
		assert.Equal(t, evStream, m.Stream)
		assert.Equal(t, fmt.Sprint("payload ", m.ID), string(m.Payload))
		assert.Equal(t, fmt.Sprint(m.StreamSeq), m.ID)
		assert.Equal(t, "test", m.Source)
		assert.Equal(t, "ev.n", m.Subject)
		assert.Equal(t, m.ID, m.Headers.Get("ce-id"))
		return apply(ctx, tx, m)
	}, nil)
	const n = 300
	l.publishN(1, n/2)
	l.subscribe(c, nil)
	l.publishN(n/2+1, n)
	l.applied(n)
	l.once(1, n)
	ci := l.settled("orders_v1")
	assert.EqualValues(t, n, ci.AckFloor.Stream)
	assert.EqualValues(t, n, ci.Delivered.Consumer, "each was delivered once")
	assert.Equal(t, jetstream.AckExplicitPolicy, ci.Config.AckPolicy)
	assert.Equal(t, jetstream.DeliverAllPolicy, ci.Config.DeliverPolicy)
	assert.Equal(t, -1, ci.Config.MaxDeliver)
	assert.Zero(t, ci.Config.InactiveThreshold)
	assert.Equal(t, 30*time.Second, ci.Config.AckWait)

	a := l.accounted(n)
	assert.EqualValues(t, n, a.Completed)
	assert.EqualValues(t, n, a.Sequences())
	assert.Equal(t, "orders.v1", a.Consumer)
	assert.Equal(t, "orders_v1", a.Durable)
	assert.True(t, a.Current)
	require.NoError(t, a.Compare(ctxBG, l.js))
	assert.Empty(t, a.Missing)
	assert.Empty(t, a.OnBroker)
	assert.Zero(t, a.Waiting)
	assert.Zero(t, l.stats("orders.v1").Duplicates)
	assert.Empty(t, l.alerts.all)
	assert.Equal(t, 1, value[int](l.lab, `SELECT count(*) FROM inbox_streams WHERE stream = ? AND first_seq = 1 AND last_seq = ?`, evStream, n))
}

func TestSubscribe_Duplicates(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	l.addStream("OTHER", "other")
	c := l.consumer("c", nil, nil)
	msgID := func(subject string) *nats.Msg {
		return &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Msg-Id": {"m"}}, Data: []byte("m")}
	}
	l.publish(event("x", "1", "one"), event("x", "1", "one"), event("x", "2", "two"), event("x", "1", "other"))
	// The stream itself drops the second copy only within its window, 100 ms.
	l.publish(msgID("ev.x"))
	l.eventually(func() bool {
		ack, err := l.js.PublishMsg(ctxBG, msgID("ev.x"))
		require.NoError(t, err)
		return !ack.Duplicate
	}, "outside the window")
	l.publish(msgID("other.x"))

	nc, js := l.srv.Connect(clientOptions()...)
	l.subscribeTo(c, js, evStream, nil)
	l.settled("c")
	assert.Equal(t, 1, l.effects("1"))
	assert.Equal(t, 1, l.effects("2"))
	assert.Equal(t, 1, l.effects("m"))
	assert.Equal(t, "one", value[string](l.lab, `SELECT payload FROM inbox WHERE message_id = '1'`))
	assert.Equal(t, "other", value[string](l.lab, `SELECT refused_payload FROM inbox_conflicts`))
	assert.Equal(t, 1, l.alerts.count(AlertConflict))
	a := l.accounted(6)
	assert.EqualValues(t, 3, a.Completed)
	assert.EqualValues(t, 2, a.Duplicates)
	assert.EqualValues(t, 1, a.Conflicts)
	assert.EqualValues(t, 2, l.stats("c").Duplicates)

	// The same Nats-Msg-Id in another stream is another message.
	l.subscribeTo(c, js, "OTHER", nil)
	l.eventually(func() bool { return l.effects("m") == 2 }, "applied from the other stream too")
	assert.Len(t, l.audit(), 2)
	assert.True(t, nc.IsConnected())
}

func TestSubscribe_IdentityBySequence(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, &SubscribeOptions{AckWait: 200 * time.Millisecond})
	l.publish(event("x", "", "same"), event("x", "", "same"), event("x", "", ""))
	l.applied(3)
	l.settled("c")
	stop()
	// Delivered again, by a consumer that begins at the beginning.
	l.subscribe(c, &SubscribeOptions{Durable: "again"})
	l.settled("again")
	assert.Equal(t, 3, l.effects(""), "a redelivery is recognised")
	l.accounted(3)
}

// What a producer publishes may look like the server's own words.
func TestSubscribe_StatusHeader(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, nil)
	n := 0
	for _, status := range []string{"400", "409", "503", "100", "404", "408", "412", "423", "x"} {
		n++
		m := event("status", fmt.Sprint(n), "")
		m.Header.Set("Status", status)
		m.Header.Set("Description", "Consumer Deleted")
		m.Header.Set("Nats-Pending-Messages", "1000000")
		l.publish(m)
	}
	// The same in the first line of the header, where the server has it.
	raw, err := net.Dial("tcp", strings.TrimPrefix(l.srv.URL(), "nats://"))
	require.NoError(t, err)
	defer raw.Close()
	_, err = raw.Write([]byte(`CONNECT {"verbose":false,"headers":true,"no_responders":true}` + "\r\n"))
	require.NoError(t, err)
	for _, line := range []string{"400 Bad Request", "409 Consumer Deleted", "503", "100 Idle Heartbeat", "100 FlowControl Request"} {
		n++
		h := fmt.Sprintf("NATS/1.0 %s\r\nce-source: test\r\nce-id: %d\r\n\r\n", line, n)
		_, err := fmt.Fprintf(raw, "HPUB ev.status %d %d\r\n%s\r\n", len(h), len(h), h)
		require.NoError(t, err)
		l.eventually(func() bool { return l.effects(fmt.Sprint(n)) == 1 }, "applied after %q", line)
	}
	l.publishN(n+1, n+10)
	l.applied(n + 10)
	l.once(1, n+10)
	l.settled("c")
	l.accounted(uint64(n + 10))
	assert.Empty(t, l.alerts.all)
	assert.EqualValues(t, n+10, l.info("c").Delivered.Consumer, "nothing was delivered twice")
}

// A recurring schedule publishes the same headers every time, ids too.
func TestSubscribe_RecurringSchedule(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	m := event("schedule", "tick", "tock")
	m.Header.Set(jetstream.ScheduleHeader, "@every 1s")
	m.Header.Set(jetstream.ScheduleTargetHeader, "ev.ticks")
	m.Header.Set("Nats-Msg-Id", "tick")
	l.publish(m)
	l.subscribe(c, &SubscribeOptions{Subjects: []string{"ev.ticks"}})
	l.eventually(func() bool { return l.effects("") >= 2 }, "both ticks took effect")
	assert.Equal(t, 2, value[int](l.lab, `SELECT count(*) FROM (SELECT * FROM inbox WHERE payload = CAST('tock' AS BLOB) AND source = 'sequence:EVENTS' ORDER BY stream_seq LIMIT 2)`))
	assert.Zero(t, l.stats("c").Duplicates)
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	l.audit()
}

func TestSubscribe_BadInput(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	key, err := KeyFromJSON("$.customer")
	require.NoError(t, err)
	c := l.consumer("c", nil, nil)
	structured := &nats.Msg{Subject: "ev.x", Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}, Data: []byte(`{"source":"s","customer":"k"}`)}
	l.publish(
		event("x", "1", `{"customer":"k"}`),
		event("x", "2", `not JSON`),
		structured,
		event("x", "3", `{"customer":{"no":"string"}}`),
		event("x", "4", `{}`),
		event("x", "5", `{"customer":"k"}`),
	)
	l.subscribe(c, &SubscribeOptions{Key: key, Identity: Identity{JSONPath: "$.id"}})
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.AckFloor.Stream == 6 }, "nothing blocks the rest")
	assert.Equal(t, []string{"1", "4", "5"}, values[string](l.lab, `SELECT id FROM effects ORDER BY n`))
	assert.Equal(t, "not JSON", value[string](l.lab, `SELECT payload FROM inbox WHERE message_id = '2' AND status = 'dead'`), "the raw message is kept")
	assert.Contains(t, value[string](l.lab, `SELECT last_error FROM inbox WHERE message_id = '2'`), "no ordering key")
	assert.Contains(t, value[string](l.lab, `SELECT last_error FROM inbox WHERE message_id = '3'`), "no ordering key")
	assert.Equal(t, string(structured.Data), value[string](l.lab, `SELECT payload FROM inbox WHERE stream_seq = 3 AND status = 'dead'`))
	assert.Contains(t, value[string](l.lab, `SELECT last_error FROM inbox WHERE stream_seq = 3`), "structured CloudEvent")
	assert.Equal(t, "sequence:EVENTS", value[string](l.lab, `SELECT source FROM inbox WHERE stream_seq = 3`))
	l.eventually(func() bool { return l.alerts.count(AlertDead) == 3 }, "alerts")
	a := l.accounted(6)
	assert.EqualValues(t, 3, a.Dead)
	assert.EqualValues(t, 3, a.Completed)
}

func TestSubscribe_StoreFirst(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.publishN(1, 20)
	l.subscribe(c, &SubscribeOptions{StoreFirst: true})
	l.settled("c")
	assert.Zero(t, l.effects(""), "stored, not applied")
	assert.EqualValues(t, 20, l.accounted(20).Pending)
	l.run()
	l.applied(20)
	l.once(1, 20)
}

func TestSubscribe_OrderByKey(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	var mu sync.Mutex
	failed := map[string]int{}
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		mu.Lock()
		defer mu.Unlock()
		// The first of each key fails three times, every seventh once.
		if n := failed[m.ID]; m.StreamSeq <= 5 && n < 3 || m.StreamSeq%7 == 0 && n < 1 {
			failed[m.ID]++
			return errors.New("not yet")
		}
		return apply(ctx, tx, m)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Millisecond, Multiplier: 1}})
	var ms []*nats.Msg
	for i := range 200 {
		m := event("x", fmt.Sprint(i+1), "")
		m.Header.Set("Customer", fmt.Sprint("k", i%5))
		ms = append(ms, m)
	}
	l.publish(ms...)
	l.subscribe(c, &SubscribeOptions{Key: KeyFromHeader("customer")})
	l.run()
	l.applied(200)
	l.once(1, 200)
	l.inOrder()
	l.settled("c")
	l.accounted(200)
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

func TestSubscribe_Filter(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	line := newWire()
	l.subscribe(c, &SubscribeOptions{Subjects: []string{"ev.a.*", "ev.c"}, AckWait: quick}, line.option())
	l.publish(event("b", "", ""), event("a.1", "1", ""), event("b", "", ""), event("b", "", ""), event("a.2", "2", ""), event("a", "", ""), event("c", "3", ""))
	l.applied(3)
	l.settled("c")
	a := l.accounted(7)
	assert.EqualValues(t, 3, a.Completed)
	assert.EqualValues(t, 4, a.Skipped, "known from the delivery sequence alone")

	// Deliveries come with a break: the stream is asked.
	for i := range 2 {
		line.cut()
		l.publish(event("b", "", ""), event("b", "", ""), event("a.1", fmt.Sprint(4+i), ""))
		line.mend()
		l.applied(4 + i)
		l.settled("c")
	}
	l.eventually(func() bool { return len(l.audit()[0].Missing) == 0 }, "the stream was asked")
	a = l.accounted(13)
	assert.EqualValues(t, 8, a.Skipped)
	require.NoError(t, a.Compare(ctxBG, l.js))
	assert.Empty(t, a.Missing)
	assert.Zero(t, l.stats("c").Duplicates)
	assert.Zero(t, l.alerts.count(AlertMissing))
}

// TestSubscribe_Start: a consumer that is made new may begin later than with
// the first message; what lies before is accounted for, and never comes back.
func TestSubscribe_Start(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		start func(third time.Time) Start
		first int // of the messages that are taken
	}{
		"all":                       {func(third time.Time) Start { return Start{} }, 1},
		"new":                       {func(third time.Time) Start { return Start{New: true} }, 6},
		"sequence":                  {func(third time.Time) Start { return Start{Sequence: 3} }, 3},
		"the first":                 {func(third time.Time) Start { return Start{Sequence: 1} }, 1},
		"a sequence yet to come":    {func(third time.Time) Start { return Start{Sequence: 8} }, 8},
		"time":                      {func(third time.Time) Start { return Start{Time: third} }, 3},
		"a time before the first":   {func(third time.Time) Start { return Start{Time: third.Add(-time.Hour)} }, 1},
		"a time after the last one": {func(third time.Time) Start { return Start{Time: time.Now().Add(-time.Microsecond)} }, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, nil)
			l.publishN(1, 5)
			stream, err := l.js.Stream(ctxBG, evStream)
			require.NoError(t, err)
			m, err := stream.GetMsg(ctxBG, 3)
			require.NoError(t, err)
			start := tc.start(m.Time)
			c := l.consumer("c", nil, nil)
			stop := l.subscribe(c, &SubscribeOptions{Start: start})
			l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting > 0 }, "pulling")
			l.publishN(6, 10)
			l.applied(10 - tc.first + 1)
			l.once(tc.first, 10)
			l.settled("c")
			assert.EqualValues(t, tc.first-1, l.accounted(10).Skipped)
			stop()

			// Lost, it goes on where the file is, wherever it once began.
			require.NoError(t, stream.DeleteConsumer(ctxBG, "c"))
			l.publishN(11, 12)
			l.subscribe(c, &SubscribeOptions{Start: start})
			l.applied(12 - tc.first + 1)
			l.once(tc.first, 12)
			l.settled("c")
			l.accounted(12)
			assert.Zero(t, l.stats("c").Duplicates)
		})
	}
}

func TestSubscribe_PurgedBeforeDelivery(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stream, err := l.js.Stream(ctxBG, evStream)
	require.NoError(t, err)
	l.publishN(1, 3)
	require.NoError(t, stream.Purge(ctxBG))
	l.publishN(4, 5)
	l.subscribe(c, nil)
	l.applied(2)
	l.settled("c")
	assert.EqualValues(t, 3, l.accounted(5).Skipped)

	require.NoError(t, l.ib.Pause(ctxBG, "c"))
	l.notPulling("c")
	l.publishN(6, 8)
	require.NoError(t, stream.Purge(ctxBG))
	l.publishN(9, 9)
	require.NoError(t, l.ib.Resume(ctxBG, "c"))
	l.applied(3)
	l.settled("c")
	l.eventually(func() bool { return l.audit()[0].Skipped == 6 }, "accounted")
	l.accounted(9)
	assert.Zero(t, l.alerts.count(AlertMissing))
}

// The connection breaks before the first message for us: what the consumer
// has passed over is accounted for, and nothing was lost.
func TestSubscribe_BreakBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stream, err := l.js.Stream(ctxBG, evStream)
	require.NoError(t, err)
	l.publish(event("a", "", ""), event("b", "", ""))
	require.NoError(t, stream.Purge(ctxBG))
	l.publish(event("b", "", ""), event("b", "", ""))
	line := newWire()
	l.subscribe(c, &SubscribeOptions{Subjects: []string{"ev.a"}}, line.option())
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting > 0 }, "pulling")
	line.cut()
	l.notPulling("c")
	line.mend()
	l.eventually(func() bool { return l.info("c").NumWaiting > 0 }, "pulling again")
	l.publish(event("b", "", ""), event("a", "1", ""))
	l.applied(1)
	l.settled("c")
	assert.Zero(t, l.alerts.count(AlertConsumerNew))
	assert.EqualValues(t, 5, l.accounted(6).Skipped)
}

// Another client takes a message from the durable consumer, and drops it: it
// is not taken for one that was never ours, and those that never were are
// asked for.
func TestSubscribe_AnotherClientTakesOne(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, &SubscribeOptions{AckWait: quick, Subjects: []string{"ev.ours"}})
	waiting := func(n int) {
		t.Helper()
		l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting == n }, "%d requests are open", n)
	}
	waiting(2)
	durable, err := l.js.Consumer(ctxBG, evStream, "c")
	require.NoError(t, err)
	batch, err := durable.Fetch(1)
	require.NoError(t, err)
	waiting(3)
	for i := range 6 {
		l.publish(event("ours", fmt.Sprint(i+1), ""), event("theirs", "", ""))
	}
	l.publish(event("ours", "7", ""))
	taken := <-batch.Messages()
	require.NotNil(t, taken)
	l.applied(7)
	l.once(1, 7)
	l.settled("c")
	l.eventually(func() bool { return l.audit()[0].Missing == nil }, "the stream was asked")
	assert.EqualValues(t, 6, l.accounted(13).Skipped)
	assert.Zero(t, l.alerts.count(AlertMissing))
}

// notPulling waits until nobody asks the durable consumer for messages.
func (l *brokerLab) notPulling(durable string) {
	l.t.Helper()
	l.eventually(func() bool {
		ci := l.info(durable)
		return ci != nil && ci.NumWaiting == 0
	}, "not pulling")
}

func TestSubscribe_PauseResume(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.run()
	stop := l.subscribe(c, nil)
	l.publishN(1, 3)
	l.applied(3)
	require.NoError(t, l.ib.Pause(ctxBG, "c"))
	l.notPulling("c")
	before := l.settled("c")
	l.publishN(4, 10)
	var ci *jetstream.ConsumerInfo
	l.eventually(func() bool { // the broker counts them a little later
		ci = l.info("c")
		return ci.NumPending == 7
	}, "they stay on the broker")
	assert.Equal(t, before.Delivered.Consumer, ci.Delivered.Consumer)
	assert.Zero(t, ci.NumAckPending)
	a := l.accounted(3)
	require.NoError(t, a.Compare(ctxBG, l.js))
	assert.EqualValues(t, 7, a.Waiting)

	// It lasts over a restart of the subscription.
	stop()
	l.subscribe(c, nil)
	require.NoError(t, l.ib.Resume(ctxBG, "c"))
	l.applied(10)
	l.once(1, 10)
	l.settled("c")
	l.accounted(10)
	assert.Empty(t, l.alerts.all)
}

func TestSubscribe_ExistingDurable(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	l.publishN(1, 5)
	add := func(cfg jetstream.ConsumerConfig) jetstream.Consumer {
		t.Helper()
		c, err := l.js.CreateConsumer(ctxBG, evStream, cfg)
		require.NoError(t, err)
		return c
	}
	c := l.consumer("c", nil, nil)
	subscribe := func(durable string) error {
		ctx, cancel := context.WithTimeout(ctxBG, 10*time.Second)
		defer cancel()
		err := c.Subscribe(ctx, l.js, evStream, &SubscribeOptions{Durable: durable})
		require.NoError(t, ctx.Err(), "it did not return at once")
		return err
	}
	add(jetstream.ConsumerConfig{Durable: "none", AckPolicy: jetstream.AckNonePolicy})
	assert.ErrorContains(t, subscribe("none"), "explicit acknowledgement")
	add(jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckAllPolicy})
	assert.ErrorContains(t, subscribe("all"), "explicit acknowledgement")
	_, err := l.js.CreatePushConsumer(ctxBG, evStream, jetstream.ConsumerConfig{Durable: "push", AckPolicy: jetstream.AckExplicitPolicy, DeliverSubject: "to.me"})
	require.NoError(t, err)
	assert.ErrorContains(t, subscribe("push"), "push")
	assert.Empty(t, l.audit()[0].Accounted)

	// Whatever would break the promise is brought into line, and this file
	// goes on where the others before it had come to.
	had := add(jetstream.ConsumerConfig{
		Durable: "odd", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxDeliver: 3, MaxAckPending: 2,
		FilterSubject: "ev.nothing.else", InactiveThreshold: time.Hour, HeadersOnly: true,
		BackOff: []time.Duration{time.Second, 2 * time.Second}, MaxRequestBatch: 2, MaxRequestExpires: 2 * time.Second, MaxRequestMaxBytes: 10_000,
		Description: "mine", Metadata: map[string]string{"my": "own"},
	})
	cfg := had.CachedInfo().Config
	cfg.FilterSubject = ""
	had, err = l.js.UpdateConsumer(ctxBG, evStream, cfg)
	require.NoError(t, err)
	batch, err := had.Fetch(2, jetstream.FetchMaxWait(time.Second))
	require.NoError(t, err)
	for m := range batch.Messages() {
		require.NoError(t, m.DoubleAck(ctxBG))
	}
	require.NoError(t, batch.Error())
	cfg.FilterSubject = "ev.nothing.else"
	_, err = l.js.UpdateConsumer(ctxBG, evStream, cfg)
	require.NoError(t, err)

	l.subscribe(c, &SubscribeOptions{Durable: "odd", AckWait: 7 * time.Second})
	l.applied(3)
	l.once(3, 5)
	got := l.settled("odd").Config
	assert.Equal(t, 7*time.Second, got.AckWait)
	assert.Equal(t, -1, got.MaxDeliver)
	assert.Empty(t, got.FilterSubject)
	assert.Zero(t, got.InactiveThreshold)
	assert.Empty(t, got.BackOff)
	assert.False(t, got.HeadersOnly)
	assert.Greater(t, got.MaxAckPending, 4096)
	assert.Equal(t, "mine", got.Description, "the rest is left alone")
	assert.Equal(t, "own", got.Metadata["my"])
	assert.Equal(t, "payload 5", value[string](l.lab, `SELECT payload FROM inbox WHERE message_id = '5'`))
	assert.Equal(t, 1, l.alerts.count(AlertConsumerNew))
	assert.EqualValues(t, 2, l.accounted(5).Skipped)
	l.publishN(6, 30) // more than one request
	l.applied(28)
	l.settled("odd")
	assert.Equal(t, 1, l.alerts.count(AlertConsumerNew))
	assert.Zero(t, l.alerts.count(AlertBroker))
}

// A hosted broker limits what a consumer may ask for.
// Another program used the durable consumer before, and left some messages
// unacknowledged: with a key, too, what it acknowledged is not taken again.
func TestSubscribe_ExistingDurableWithKey(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	l.publishN(1, 9)
	had, err := l.js.CreateConsumer(ctxBG, evStream, jetstream.ConsumerConfig{Durable: "had", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute})
	require.NoError(t, err)
	batch, err := had.Fetch(7, jetstream.FetchMaxWait(5*time.Second))
	require.NoError(t, err)
	n := 0
	for m := range batch.Messages() {
		if n++; n <= 5 {
			require.NoError(t, m.DoubleAck(ctxBG))
		}
	}
	require.NoError(t, batch.Error())
	require.Equal(t, 7, n)
	l.subscribe(l.consumer("c", nil, nil), &SubscribeOptions{Durable: "had", Key: KeyFromHeader("Key")})
	l.applied(4)
	l.once(6, 9)
	l.settled("had")
	assert.EqualValues(t, 5, l.accounted(9).Skipped)
}

func TestSubscribe_LimitsOfTheServer(t *testing.T) {
	t.Parallel()
	l := newBrokerLabOn(t, nil, func(o *server.Options) {
		o.JetStreamLimits = server.JSLimitOpts{MaxRequestBatch: 20, MaxAckPending: 50}
	})
	c := l.consumer("c", nil, nil)
	l.publishN(1, 200)
	l.subscribe(c, nil)
	l.applied(200)
	l.once(1, 200)
	ci := l.settled("c")
	assert.EqualValues(t, 200, ci.Delivered.Consumer)
	assert.Empty(t, l.alerts.all)
	l.accounted(200)
}

// Requests end by number and by bytes in turn; none may be taken for open when
// the broker has answered it, or nothing would be asked for any more.
func TestSubscribe_PrefetchBytes(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c, release := l.slowConsumer(1)
	const n = 1000
	rnd := rand.New(rand.NewPCG(1, 2))
	var ms []*nats.Msg
	for i := range n {
		size := 10
		if i/40%2 == 1 {
			size = rnd.IntN(6000)
		}
		if i%200 == 100 {
			size = 100_000 // more than all the room there is
		}
		ms = append(ms, event("x", fmt.Sprint(i+1), string(make([]byte, size))))
	}
	l.publish(ms...)
	l.subscribe(c, &SubscribeOptions{Prefetch: 20, PrefetchBytes: 40_000})
	same := 0
	l.eventually(func() bool {
		ci := l.info("c")
		if ci == nil || ci.NumAckPending < 20 || ci.NumWaiting > 0 {
			same = 0
			return false
		}
		assert.Equal(t, 20, ci.NumAckPending, "no more on the way than there is room for")
		same++
		return same == 25
	}, "no more is asked for")
	release()
	l.applied(n)
	l.once(1, n)
	assert.EqualValues(t, n, l.settled("c").Delivered.Consumer, "each was delivered once")
	assert.Empty(t, l.alerts.all)
	l.accounted(n)
}

func TestSubscribe_WrongOptions(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	for name, o := range map[string]SubscribeOptions{
		"bytes":    {PrefetchBytes: -1},
		"durable":  {Durable: "a.b"},
		"ack wait": {AckWait: time.Millisecond},
		"prefetch": {Prefetch: -1},
		"identity": {Identity: Identity{JSONPath: "id"}},
	} {
		assert.Error(t, c.Subscribe(ctxBG, l.js, evStream, &o), name)
	}
	assert.Error(t, c.Subscribe(ctxBG, l.js, "", nil))
	_, err := KeyFromJSON("nonsense")
	assert.Error(t, err)

	stop := l.subscribe(c, nil)
	l.publishN(1, 1)
	l.applied(1)
	// A second subscription would account for what the first has to deliver.
	ctx, cancel := context.WithTimeout(ctxBG, 10*time.Second)
	defer cancel()
	assert.ErrorContains(t, c.Subscribe(ctx, l.js, evStream, &SubscribeOptions{Durable: "second", Subjects: []string{"ev.other"}}), "already")
	// Nor may two consumers share a durable: each would get half the messages.
	other := l.consumer("other", nil, nil)
	assert.ErrorContains(t, other.Subscribe(ctx, l.js, evStream, &SubscribeOptions{Durable: "c"}), "taken")
	stop()
	l.subscribe(c, nil)
	l.publishN(2, 2)
	l.applied(2)
}

func TestSubscribe_ConnectionClosedForGood(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	nc, js := l.srv.Connect(clientOptions()...)
	done := make(chan error, 1)
	go func() { done <- c.Subscribe(ctxBG, js, evStream, nil) }()
	l.publishN(1, 1)
	l.applied(1)
	nc.Close()
	assert.ErrorIs(t, <-done, nats.ErrConnectionClosed)
}

func TestSubscribe_ClosingTheInbox(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	done := make(chan error, 1)
	go func() { done <- c.Subscribe(ctxBG, l.js, evStream, nil) }()
	l.publishN(1, 100)
	l.applied(100)
	require.NoError(t, l.ib.Close())
	assert.NoError(t, <-done)
	l.settled("c")
	assert.ErrorIs(t, c.Subscribe(ctxBG, l.js, evStream, nil), ErrClosed)
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

// Messages that wait long for a slow handler are kept from being delivered
// again.
func TestSubscribe_SlowHandlers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"in the queue":          nil,
		"in front of the queue": func(o *Options) { o.QueueLength = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, change)
			c, release := l.slowConsumer(1)
			l.publishN(1, 10)
			// The broker hears of every message, ten times in a row.
			heard := map[string]int{}
			var mu sync.Mutex
			sub, err := l.nc.Subscribe("$JS.ACK.>", func(m *nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				if string(m.Data) == "+WPI" {
					heard[m.Subject]++
				}
			})
			require.NoError(t, err)
			l.subscribe(c, &SubscribeOptions{AckWait: 300 * time.Millisecond})
			l.eventually(func() bool {
				mu.Lock()
				defer mu.Unlock()
				n := 0
				for _, times := range heard {
					if times >= 10 {
						n++
					}
				}
				return n >= 10
			}, "told that they are being worked on: %v", lazy(func() any { mu.Lock(); defer mu.Unlock(); return fmt.Sprint(heard) }))
			require.NoError(t, sub.Unsubscribe())
			release()
			l.applied(10)
			ci := l.settled("c")
			assert.EqualValues(t, 10, ci.Delivered.Consumer, "none was delivered again")
			assert.Zero(t, l.stats("c").Duplicates)
			l.accounted(10)
		})
	}
}

func TestKeyFrom(t *testing.T) {
	t.Parallel()
	byJSON, err := KeyFromJSON("$.order.id")
	require.NoError(t, err)
	byHeader := KeyFromHeader("Customer")
	for _, tc := range []struct {
		payload, want string
		ok            bool
	}{
		{`{"order":{"id":"a"}}`, "a", true},
		{`{"order":{"id":7}}`, "7", true},
		{`{"order":{}}`, "", true},
		{`{"order":{"id":{}}}`, "", false},
		{`nonsense`, "", false},
		{``, "", false},
	} {
		got, err := byJSON(&Message{Payload: []byte(tc.payload)})
		assert.Equal(t, tc.ok, err == nil, "%s: %v", tc.payload, err)
		assert.Equal(t, tc.want, got, tc.payload)
	}
	got, err := byHeader(&Message{Headers: Header{"CUSTOMER": {"x"}}})
	assert.NoError(t, err)
	assert.Equal(t, "x", got)
	got, err = byHeader(&Message{})
	assert.NoError(t, err)
	assert.Empty(t, got)
}

func TestAudit_Compare(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.publishN(1, 9)
	l.applied(9)
	l.settled("c")
	stop()
	// Make the file forget what it answered for, as a restored one does.
	l.update(`SELECT 1`)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		for _, q := range []string{
			`UPDATE inbox_range SET last_seq = 2`, `INSERT INTO inbox_range SELECT stream, 4, 5 FROM inbox_range`,
			`DELETE FROM effects WHERE seq IN (3, 6, 7, 8, 9)`, `DELETE FROM inbox_message WHERE seq IN (3, 6, 7, 8, 9)`, `UPDATE inbox_consumer SET completed = 4`,
		} {
			if _, err := w.conn.exec(query{text: q}); err != nil {
				return w.fail(q, err)
			}
		}
		return nil
	}))
	stream, err := l.js.Stream(ctxBG, evStream)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(ctxBG, 7))
	compare := func() StreamAudit {
		t.Helper()
		as, err := l.ib.Audit(ctxBG)
		require.NoError(t, err)
		require.Len(t, as, 1)
		assert.Equal(t, []Interval{{1, 2}, {4, 5}}, as[0].Accounted)
		assert.Equal(t, []Interval{{3, 3}}, as[0].Missing)
		require.NoError(t, as[0].Compare(ctxBG, l.js))
		return as[0]
	}
	a := compare()
	assert.Equal(t, []Interval{{3, 3}, {6, 6}, {8, 9}}, a.Missing, "acknowledged, not in the file")
	assert.Empty(t, a.OnBroker)
	// Without its durable consumer everything comes again.
	require.NoError(t, stream.DeleteConsumer(ctxBG, "c"))
	a = compare()
	assert.Empty(t, a.Missing)
	assert.Equal(t, []Interval{{3, 3}}, a.OnBroker)
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	assert.ErrorContains(t, a.Compare(ctxBG, l.js), evStream)
	l.addStream(evStream, "ev")
	assert.ErrorContains(t, a.Compare(ctxBG, l.js), "made anew")
	b, err := json.Marshal(a.OnBroker)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"first":3,"last":3}]`, string(b))

	l.subscribe(c, nil)
	l.eventually(func() bool { return len(l.audit()) == 2 }, "the new life has its account")
}

func TestSpans(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		had         spans
		first, last uint64
		want        spans
		fresh       uint64
		merged      span
		gone        []span
	}{
		{nil, 1, 1, spans{{1, 1}}, 1, span{1, 1}, nil},
		{nil, 5, 9, spans{{5, 9}}, 5, span{5, 9}, nil},
		{spans{{1, 3}}, 4, 4, spans{{1, 4}}, 1, span{1, 4}, nil},
		{spans{{1, 3}}, 2, 3, spans{{1, 3}}, 0, span{1, 3}, nil},
		{spans{{1, 3}}, 3, 5, spans{{1, 5}}, 2, span{1, 5}, nil},
		{spans{{1, 3}}, 5, 5, spans{{1, 3}, {5, 5}}, 1, span{5, 5}, nil},
		{spans{{3, 3}}, 1, 1, spans{{1, 1}, {3, 3}}, 1, span{1, 1}, nil},
		{spans{{3, 3}}, 2, 2, spans{{2, 3}}, 1, span{2, 3}, []span{{3, 3}}},
		{spans{{1, 1}, {3, 3}}, 2, 2, spans{{1, 3}}, 1, span{1, 3}, []span{{3, 3}}},
		{spans{{1, 1}, {3, 3}, {7, 8}}, 2, 5, spans{{1, 5}, {7, 8}}, 3, span{1, 5}, []span{{3, 3}}},
		{spans{{2, 2}, {4, 4}, {6, 6}}, 1, 9, spans{{1, 9}}, 6, span{1, 9}, []span{{2, 2}, {4, 4}, {6, 6}}},
		{spans{{2, 2}, {9, 9}}, 4, 5, spans{{2, 2}, {4, 5}, {9, 9}}, 2, span{4, 5}, nil},
	} {
		got, fresh, merged, gone := slices.Clone(tc.had).add(tc.first, tc.last)
		assert.Equal(t, tc.want, got, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.Equal(t, tc.fresh, fresh, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.Equal(t, tc.merged, merged, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.ElementsMatch(t, tc.gone, gone, "%v + %d..%d", tc.had, tc.first, tc.last)
	}

	s := spans{{2, 3}, {6, 6}, {9, 12}}
	for _, tc := range []struct {
		first, last uint64
		want        spans
	}{
		{1, 12, spans{{1, 1}, {4, 5}, {7, 8}}},
		{2, 3, nil},
		{3, 6, spans{{4, 5}}},
		{4, 4, spans{{4, 4}}},
		{5, 7, spans{{5, 5}, {7, 7}}},
		{12, 15, spans{{13, 15}}},
		{14, 15, spans{{14, 15}}},
		{1, 1, spans{{1, 1}}},
		{1, 0, nil},
		{9, 3, nil},
	} {
		assert.Equal(t, tc.want, s.gaps(tc.first, tc.last), "%d..%d", tc.first, tc.last)
	}
	assert.Equal(t, spans{{1, 4}}, spans(nil).gaps(1, 4))
	assert.EqualValues(t, 7, s.count())

	for seq, want := range map[uint64]int{1: 0, 2: 0, 3: 0, 4: 1, 6: 1, 7: 2, 12: 2, 13: 3} {
		i, found := s.at(seq)
		assert.Equal(t, want, i, seq)
		assert.Equal(t, want < 3, found, seq)
	}
	_, found := spans(nil).at(1)
	assert.False(t, found)
	for seq := uint64(1); seq <= 14; seq++ {
		assert.Equal(t, slices.Contains([]uint64{2, 3, 6, 9, 10, 11, 12}, seq), s.has(seq), seq)
	}
}

// TestSpans_LikeASet drives an account against a plain set of integers, with
// what flush writes to the table as its mirror.
func TestSpans_LikeASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 60
		a := &account{touched: map[uint64]struct{}{}}
		set := map[uint64]bool{}
		table := map[uint64]uint64{} // inbox_range
		seq := rapid.Uint64Range(1, most)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := seq.Draw(t, "first")
				last := min(first+rapid.Uint64Range(0, 9).Draw(t, "more"), most)
				var fresh uint64
				for i := first; i <= last; i++ {
					if !set[i] {
						fresh++
					}
					set[i] = true
				}
				assert.Equal(t, fresh, a.add(first, last), "fresh")
			},
			"flush": func(t *rapid.T) {
				for first := range a.touched {
					if i, found := a.ranges.at(first); found && a.ranges[i].first == first {
						table[first] = a.ranges[i].last
					} else {
						delete(table, first)
					}
				}
				clear(a.touched)
				want := map[uint64]uint64{}
				for _, sp := range a.ranges {
					want[sp.first] = sp.last
				}
				assert.Equal(t, want, table, "what was touched is what changed")
			},
			"gaps": func(t *rapid.T) {
				first, last := seq.Draw(t, "first"), seq.Draw(t, "last")
				var want []uint64
				for i := first; i <= last; i++ {
					if !set[i] {
						want = append(want, i)
					}
				}
				var got []uint64
				for _, g := range a.ranges.gaps(first, last) {
					for i := g.first; i <= g.last; i++ {
						got = append(got, i)
					}
				}
				assert.Equal(t, want, got, "gaps of %d..%d", first, last)
			},
			"": func(t *rapid.T) {
				for i, sp := range a.ranges {
					assert.LessOrEqual(t, sp.first, sp.last)
					assert.True(t, i == 0 || a.ranges[i-1].last+1 < sp.first, "%v", a.ranges)
				}
				for i := uint64(1); i <= most; i++ {
					assert.Equal(t, set[i], a.ranges.has(i), "%d in %v", i, a.ranges)
				}
				assert.EqualValues(t, len(set), a.ranges.count())
				k := accounted{ranges: a.ranges}
				for first := uint64(1); first <= most; first++ {
					next := first
					for set[next] {
						next++
					}
					assert.Equal(t, next, k.resume(first), "after %v from %d", a.ranges, first)
				}
			},
		})
	})
}

// A line is the wire between a client and the broker, to be cut and mended.
type wire struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func newWire() *wire { return &wire{} }

func (n *wire) option() nats.Option { return nats.SetCustomDialer(n) }

// Dial makes it a nats.CustomDialer.
func (n *wire) Dial(network, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
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
