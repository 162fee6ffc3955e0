package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
