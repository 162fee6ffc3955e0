package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"edge.example/inbox/internal/natstest"
)

// quick is an AckWait for tests in which messages come again.
const quick = 250 * time.Millisecond

// The connection breaks after the commit and before the acknowledgement.
func TestSubscribe_CommitDoneAckLost(t *testing.T) {
	t.Parallel()
	var handled atomic.Bool
	var conn atomic.Pointer[nats.Conn]
	l := newBrokerLab(t, func(o *Options) {
		o.Observer.Committed = func(int, time.Duration) {
			if nc := conn.Load(); nc != nil && handled.Load() {
				nc.Close()
			}
		}
	})
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		handled.Store(true)
		return apply(ctx, tx, m)
	}, nil)
	l.publishN(1, 10)
	nc, js := l.srv.Connect(clientOptions()...)
	conn.Store(nc)
	require.ErrorIs(t, c.Subscribe(ctxBG, js, evStream, &SubscribeOptions{AckWait: quick}), nats.ErrConnectionClosed)
	before := l.effects("")
	require.NotZero(t, before, "committed")
	assert.Zero(t, l.info("c").AckFloor.Stream, "not acknowledged")
	conn.Store(nil)

	l.subscribe(c, &SubscribeOptions{AckWait: quick})
	l.applied(10)
	l.settled("c")
	l.once(1, 10)
	assert.GreaterOrEqual(t, l.stats("c").Duplicates, int64(before), "they came again, and were known")
	assert.Zero(t, l.accounted(10).Duplicates, "the same sequence again is no duplicate in the stream")
}

// users are the server's users: a producer, who needs no password, and the
// edge.
func users(o *server.Options, password string, may *server.Permissions) {
	o.Users = []*server.User{{Username: "producer", Password: "p"}, {Username: "edge", Password: password, Permissions: may}}
	o.NoAuthUser = "producer"
}

// The broker refuses acknowledgements for a while.
func TestSubscribe_AcksRefused(t *testing.T) {
	t.Parallel()
	l := newBrokerLabOn(t, nil, func(o *server.Options) {
		users(o, "secret", &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}})
	})
	c := l.consumer("c", nil, nil)
	l.subscribe(c, &SubscribeOptions{AckWait: quick}, nats.UserInfo("edge", "secret"))
	l.publishN(1, 10)
	l.eventually(func() bool { return l.stats("c").Duplicates >= 20 }, "they come again and again")
	assert.Equal(t, 10, l.effects(""))
	assert.Zero(t, l.info("c").AckFloor.Stream)
	l.srv.Reload(func(o *server.Options) { users(o, "secret", nil) })
	l.settled("c")
	l.once(1, 10)
	l.accounted(10)
}

func TestSubscribe_BrokerRestarted(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, &SubscribeOptions{AckWait: quick})
	l.publishN(1, 20)
	l.applied(20)
	for i := range 2 {
		l.stopBroker()
		l.eventually(func() bool { return l.alerts.count(AlertBroker) == i+1 }, "alerted")
		l.srv.Start()
		l.publishN(21+i*20, 40+i*20)
		l.applied(40 + i*20)
		l.eventually(func() bool { return l.alerts.count(AlertRestored) == i+1 }, "alerted when it was back")
	}
	l.once(1, 60)
	l.settled("c")
	l.accounted(60)
	assert.Equal(t, 2, l.alerts.count(AlertBroker), "said once")
}

// Only the consumer's own connection breaks, in the middle of the traffic.
func TestSubscribe_ConnectionAway(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, func(o *Options) { o.MaxGroup = 20 })
	c := l.consumer("c", nil, nil)
	line := newWire()
	l.subscribe(c, &SubscribeOptions{AckWait: quick, Prefetch: 64}, line.option())
	l.publishN(1, 200)
	for i := range 3 {
		l.eventually(func() bool { return l.effects("") >= 50+i*200 }, "in the middle")
		line.cut()
		l.publishN(201+i*200, 400+i*200)
		line.mend()
	}
	l.applied(800)
	l.once(1, 800)
	l.settled("c")
	l.accounted(800)
	assert.Zero(t, l.alerts.count(AlertMissing))
}

// However long the broker was away: once it is back, what it does not have ready
// at once is not waited for long.
func TestSubscribe_NotReadyAfterAnOutage(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	line := newWire()
	line.proxied = true
	l.subscribe(c, nil, line.option())
	l.publishN(1, 1)
	l.applied(1)
	line.cut()
	l.eventually(func() bool { line.mu.Lock(); defer line.mu.Unlock(); return line.refused >= 30 }, "tried many times")
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	asked, err := l.nc.SubscribeSync("$JS.API.STREAM.INFO." + evStream)
	require.NoError(t, err)
	line.mend()
	_, err = asked.NextMsg(20 * time.Second)
	require.NoError(t, err, "it looks for the stream")
	l.addStream(evStream, "ev")
	l.publishN(2, 2)
	require.Eventually(t, func() bool { return l.effects("") == 2 }, 5*time.Second, 2*time.Millisecond, "it looks again soon")
}

func TestSubscribe_StartWithTheBrokerAway(t *testing.T) {
	t.Parallel()
	l := &brokerLab{lab: newLab(t, nil), srv: natstest.Start(t, nil)}
	url := l.srv.URL()
	l.srv.Stop() // its port is known now
	c := l.consumer("c", nil, nil)
	nc, js := natstest.Connect(t, url, clientOptions()...)
	require.False(t, nc.IsConnected())
	cfg := evConfig(evStream, "ev")
	l.subscribeTo(c, js, evStream, &SubscribeOptions{CreateStream: &cfg})
	l.eventually(func() bool { return l.alerts.count(AlertBroker) == 1 }, "alerted")
	l.srv.Start()
	l.nc, l.js = l.srv.Connect(clientOptions()...)
	l.eventually(func() bool { return l.info("c") != nil }, "stream and consumer are made")
	l.through(1, 10)
	l.accounted(10)
	assert.Equal(t, 1, l.alerts.count(AlertBroker), "said once")
	l.eventually(func() bool { return l.alerts.count(AlertRestored) == 1 }, "restored")
}

func TestSubscribe_StreamNotThereYet(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	c := l.consumer("c", nil, nil)
	l.subscribe(c, nil)
	l.eventually(func() bool { return l.alerts.count(AlertBroker) == 1 }, "alerted")
	assert.ErrorContains(t, l.alerts.all[0].Err, "create it, or set create_stream (SubscribeOptions.CreateStream in Go)")
	l.addStream(evStream, "ev")
	l.publishN(1, 1)
	l.applied(1)
}

func TestSubscribe_DiskTrouble(t *testing.T) {
	t.Parallel()
	pragma := func(l *brokerLab, text string) {
		l.t.Helper()
		require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
			_, err := w.conn.exec(query{text: text})
			return err
		}), text)
	}
	payload := string(make([]byte, 8000))
	const n = 60
	for name, tc := range map[string]struct {
		begin func(*brokerLab) (end func())
		all   bool // nothing at all can be written
	}{
		"full": {func(l *brokerLab) (end func()) {
			pragma(l, fmt.Sprintf(`PRAGMA max_page_count = %d`, value[int](l.lab, `PRAGMA page_count`)+20))
			return func() { pragma(l, `PRAGMA max_page_count = 1000000`) }
		}, false},
		"locked": {func(l *brokerLab) (end func()) {
			pragma(l, `PRAGMA busy_timeout = 1`)
			db, err := sql.Open("sqlite", dsn(l.path, url.Values{"_txlock": {"immediate"}, "_busy_timeout": {strconv.Itoa(busyTimeout)}}))
			require.NoError(t, err)
			tx, err := db.Begin()
			require.NoError(t, err)
			return func() {
				require.NoError(t, tx.Rollback())
				require.NoError(t, db.Close())
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, nil)
			c := l.consumer("c", nil, nil)
			l.subscribe(c, &SubscribeOptions{AckWait: quick})
			l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting > 0 }, "pulling")
			end := sync.OnceFunc(tc.begin(l))
			t.Cleanup(end)
			for i := range n {
				l.publish(event("x", fmt.Sprint(i+1), payload))
			}
			l.eventually(func() bool { return l.alerts.count(AlertStorage) > 0 }, "alerted")
			l.notPulling("c")
			in := l.effects("")
			require.Less(t, in, n)
			ci := l.info("c")
			assert.LessOrEqual(t, ci.AckFloor.Stream, uint64(in), "what is not in the file is not acknowledged")
			assert.Positive(t, ci.NumPending+uint64(ci.NumAckPending))
			if tc.all {
				assert.Zero(t, in)
				assert.Zero(t, ci.AckFloor.Stream)
				assert.Equal(t, 1, l.alerts.count(AlertStorage), "said once")
				assert.Zero(t, l.alerts.count(AlertRestored))
			}
			l.audit()
			end()
			l.applied(n)
			l.once(1, n)
			l.settled("c")
			l.eventually(func() bool { return l.alerts.count(AlertRestored) > 0 }, "restored")
			assert.Zero(t, l.stats("c").Failures, "nobody is charged")
			assert.Zero(t, value[int](l.lab, `SELECT count(*) FROM inbox WHERE attempts <> 1`))
			l.accounted(n)
		})
	}
}

// Refused credentials are no reason to give up.
func TestSubscribe_CredentialsRefused(t *testing.T) {
	t.Parallel()
	l := newBrokerLabOn(t, nil, func(o *server.Options) { users(o, "secret", nil) })
	c := l.consumer("c", nil, nil)
	var refused atomic.Int64
	l.subscribe(c, &SubscribeOptions{AckWait: quick}, nats.UserInfo("edge", "secret"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrAuthorization) {
			refused.Add(1)
		}
	}))
	l.publishN(1, 5)
	l.applied(5)
	l.stopBroker()
	l.srv.Change(func(o *server.Options) { users(o, "another", nil) })
	l.srv.Start()
	l.publishN(6, 10)
	l.eventually(func() bool { return refused.Load() >= 5 }, "refused: %v", lazy(func() any { return refused.Load() }))
	assert.Equal(t, 1, l.alerts.count(AlertBroker))
	assert.Equal(t, 5, l.effects(""))
	l.stopBroker()
	l.srv.Change(func(o *server.Options) { users(o, "secret", nil) })
	l.srv.Start()
	l.publishN(11, 12)
	l.applied(12)
	l.once(1, 12)
	l.settled("c")
	l.accounted(12)
	for _, a := range l.alerts.all {
		assert.NotContains(t, fmt.Sprint(a), "secret")
	}
}
