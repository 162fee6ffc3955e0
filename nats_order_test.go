package inbox

// Order by key over breaks of the wire and of the disk.

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A message that does not fit on the disk holds up what follows it of its key,
// in its own group and in later ones, and nothing else.
func TestSubscribe_DiskTroubleKeepsOrder(t *testing.T) {
	t.Parallel()
	for _, group := range []int{1, 3, 2000} {
		t.Run(fmt.Sprint("groups of ", group), func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, func(o *Options) { o.MaxGroup = group })
			pages := func(n int) {
				require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
					_, err := w.conn.exec(query{text: fmt.Sprintf(`PRAGMA max_page_count = %d`, n)})
					return err
				}))
			}
			c := l.consumer("c", nil, nil)
			l.subscribe(c, &SubscribeOptions{AckWait: quick, Key: KeyFromHeader("key")})
			l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting > 0 }, "pulling")
			pages(value[int](l.lab, `PRAGMA page_count`) + 20)
			release := l.hold()
			for i, key := range []string{"k", "k", "k", "other", "k", "", "k"} {
				m := event("x", fmt.Sprint(i+1), string(make([]byte, map[int]int{1: 500_000}[i])))
				m.Header.Set("Key", key)
				l.publish(m)
			}
			l.eventually(func() bool { return l.ib.w.q.length() >= 7 }, "all wait for the writer; slow, some come again")
			release()
			l.eventually(func() bool { return l.alerts.count(AlertRestored) > 1 }, "tried more than once")
			assert.Equal(t, []string{"1", "4", "6"}, values[string](l.lab, `SELECT id FROM effects ORDER BY id`))
			pages(1 << 30)
			l.applied(7)
			l.once(1, 7)
			l.inOrder()
			l.settled("c")
			l.accounted(7)
		})
	}
}

// Whatever breaks the deliveries, the messages of one key take effect in the
// order of the stream.
func TestSubscribe_OrderByKeyOverBreaks(t *testing.T) {
	t.Parallel()
	const n = 1200
	l := newBrokerLab(t, func(o *Options) { o.MaxGroup = 25 })
	c := l.consumer("c", nil, nil)
	var ms []*nats.Msg
	for i := range n {
		m := event("x", fmt.Sprint(i+1), string(make([]byte, 2000)))
		m.Header.Set("Key", fmt.Sprint("k", i%3))
		ms = append(ms, m)
	}
	l.publish(ms...)
	line := newWire()
	opts := &SubscribeOptions{Key: KeyFromHeader("Key"), AckWait: quick, Prefetch: 200}
	stop := l.subscribe(c, opts, line.option())
	breaks := []func(){
		func() { line.cut(); line.mend() },
		func() { stop(); stop = l.subscribe(c, opts, line.option()) },
		func() { require.NoError(t, l.ib.Pause(ctxBG, "c")); require.NoError(t, l.ib.Resume(ctxBG, "c")) },
		func() { l.stopBroker(); l.srv.Start() },
	}
	l.run()
	for i, brk := range append(breaks, breaks...) {
		l.eventually(func() bool { return l.effects("") >= 100*(i+1) }, "some more")
		brk()
	}
	l.applied(n)
	l.once(1, n)
	l.inOrder()
	l.settled("c")
	l.accounted(n)
}

// The client loses its connection, which lives on at the broker with the open
// requests of it: what the broker sends there must not be overtaken.
func TestSubscribe_OrderByKeyBesideAnOldConnection(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	line := &deafWire{}
	t.Cleanup(line.close)
	l.subscribe(c, &SubscribeOptions{Key: KeyFromHeader("Key"), AckWait: quick}, nats.SetCustomDialer(line))
	l.publishKeyed(1, 3)
	l.applied(3)
	l.settled("c")
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting == 2 }, "pulling")
	line.abandon()
	l.eventually(func() bool { return line.dials.Load() == 2 }, "connected again")
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && (ci.NumWaiting == 4 || ci.Config.OptStartSeq == 4) }, "pulling again")
	l.publishKeyed(4, 33)
	l.applied(33)
	l.inOrder()
	l.settled("c")
	l.accounted(33)
}

// A request that is not the subscriber's reaches the broker when the subscriber
// is pulling already: one that an earlier connection sent, or another client's.
// What is given to it must not be overtaken.
func TestSubscribe_OrderByKeyBesideALateRequest(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 3, 12} {
		t.Run(fmt.Sprint(count, " messages"), func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, nil)
			c := l.consumer("c", nil, nil)
			l.subscribe(c, &SubscribeOptions{Key: KeyFromHeader("Key"), AckWait: quick})
			l.publishKeyed(1, 3)
			l.applied(3)
			l.settled("c")
			l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting == 2 }, "pulling")
			late, err := l.nc.SubscribeSync(l.nc.NewInbox())
			require.NoError(t, err)
			require.NoError(t, l.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+evStream+".c", late.Subject, fmt.Appendf(nil, `{"batch":%d}`, count)))
			l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting == 3 }, "three requests")
			l.publishKeyed(4, 43)
			l.applied(43)
			_, err = late.NextMsg(time.Second)
			require.NoError(t, err, "one was given to another")
			l.inOrder()
			l.settled("c")
			l.accounted(43)
		})
	}
}

// A deafWire can let the client give its connection up without the broker
// getting to know.
type deafWire struct {
	dials atomic.Int64
	mu    sync.Mutex
	conns []net.Conn
}

// Dial makes it a nats.CustomDialer.
func (w *deafWire) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	w.dials.Add(1)
	return &deafConn{Conn: c}, nil
}

// abandon ends reading from the connection; closing it does not reach the broker.
func (w *deafWire) abandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.conns[len(w.conns)-1].SetReadDeadline(time.Now())
}

func (w *deafWire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

type deafConn struct{ net.Conn }

func (c *deafConn) Close() error { return nil }

// publishKeyed publishes messages with the ids first..last, of three keys.
func (l *brokerLab) publishKeyed(first, last int) {
	l.t.Helper()
	var ms []*nats.Msg
	for i := first; i <= last; i++ {
		m := event("x", fmt.Sprint(i), "")
		m.Header.Set("Key", fmt.Sprint("k", i%3))
		ms = append(ms, m)
	}
	l.publish(ms...)
}
