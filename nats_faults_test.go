package inbox

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

func TestSubscribe_StreamDeletedAndRecreated(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, nil)
	same := func(n int) {
		t.Helper()
		for range n { // identity by sequence: the new stream has the same sequences
			l.publish(event("x", "", "same"))
		}
	}
	same(5)
	l.applied(5)
	l.settled("c")
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	l.eventually(func() bool { return l.alerts.count(AlertBroker) == 1 }, "alerted")
	l.addStream(evStream, "ev")
	same(3)
	l.applied(8)
	l.settled("c")
	assert.Equal(t, 1, l.alerts.count(AlertStreamNew))
	assert.Equal(t, 1, l.alerts.count(AlertRestored))
	assert.Zero(t, l.alerts.count(AlertConsumerNew), "the durable consumer went with its stream")

	// At once, before anybody notices.
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	l.addStream(evStream, "ev")
	same(2)
	l.applied(10)
	l.settled("c")
	assert.Equal(t, 2, l.alerts.count(AlertStreamNew))
	as := l.audit()
	require.Len(t, as, 3)
	for i, want := range []uint64{5, 3, 2} {
		assert.Equal(t, []Interval{{1, want}}, as[i].Accounted)
		assert.EqualValues(t, want, as[i].Completed)
		assert.Equal(t, i == 2, as[i].Current)
	}
	assert.Zero(t, l.stats("c").Duplicates)
}

// The stream is made anew while the subscriber agrees with the broker: its
// durable consumer is on another stream than the one it had looked at.
func TestSubscribe_StreamMadeAnewWhileBinding(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	anew := func() {}
	alert := l.opts.Observer.Alert
	l.close()
	l.opts.Observer = &Observer{Alert: func(a Alert) {
		alert(a)
		if a.Kind == AlertConsumerNew {
			anew()
			anew = func() {}
		}
	}}
	l.open()
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.publish(event("x", "", "same"), event("x", "", "same"), event("x", "", "same"))
	l.applied(3)
	l.settled("c")
	stop()
	require.NoError(t, l.js.DeleteConsumer(ctxBG, evStream, "c"))
	anew = func() {
		assert.NoError(t, l.js.DeleteStream(ctxBG, evStream))
		l.addStream(evStream, "ev")
	}
	l.subscribe(c, nil)
	l.eventually(func() bool { return l.alerts.count(AlertConsumerNew) > 0 }, "binding")
	for range 4 { // identity by place: these are new messages
		l.publish(event("x", "", "same"))
	}
	l.applied(7)
	l.settled("c")
	as := l.audit()
	require.Len(t, as, 2)
	require.NoError(t, as[1].Compare(ctxBG, l.js))
	assert.Equal(t, []Interval{{1, 4}}, as[1].Accounted)
}

// A power cut damaged the file of the stream. The broker knows it no more; and
// to the consumer of the one made anew it gives the state of the old one's.
func TestSubscribe_StreamLostItsFile(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	cfg := evConfig(evStream, "ev")
	stop := l.subscribe(c, &SubscribeOptions{CreateStream: &cfg})
	l.publishN(1, 40)
	l.applied(40)
	l.settled("c")
	stop()
	files := filepath.Join(l.srv.Raw().JetStreamConfig().StoreDir, "$G", "streams", evStream)
	l.stopBroker()
	require.NoError(t, os.Truncate(filepath.Join(files, "meta.sum"), 0))
	require.NoError(t, os.RemoveAll(filepath.Join(files, "msgs")))
	l.srv.Start()
	l.subscribe(c, &SubscribeOptions{CreateStream: &cfg})
	l.eventually(func() bool { return l.info("c") != nil }, "made anew")
	l.publishN(41, 48)
	l.applied(48)
	l.once(1, 48)
}

func TestSubscribe_ConsumerDeleted(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	deleteConsumer := func() { require.NoError(t, l.js.DeleteConsumer(ctxBG, evStream, "c")) }
	l.publishN(1, 10)
	l.applied(10)
	l.settled("c")
	deleteConsumer()
	l.eventually(func() bool { return l.info("c") != nil }, "put back")
	assert.Equal(t, jetstream.DeliverByStartSequencePolicy, l.info("c").Config.DeliverPolicy)
	assert.EqualValues(t, 11, l.info("c").Config.OptStartSeq)
	assert.Equal(t, 1, l.alerts.count(AlertConsumerNew))
	l.publishN(11, 15)
	l.applied(15)
	l.settled("c")

	// While nobody subscribes, with messages that nobody has taken.
	stop()
	l.publishN(16, 20)
	deleteConsumer()
	l.subscribe(c, nil)
	l.applied(20)
	assert.EqualValues(t, 5, l.settled("c").Delivered.Consumer, "only what is new is delivered")
	assert.EqualValues(t, 16, l.info("c").Config.OptStartSeq)
	assert.Equal(t, 2, l.alerts.count(AlertConsumerNew))
	l.once(1, 20)
	l.accounted(20)
	assert.Zero(t, l.stats("c").Duplicates)
}

// The durable consumer is lost while the first of the messages on their way
// cannot be stored: it is put back at the gap.
func TestSubscribe_ConsumerDeletedAboveAGap(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.publishN(1, 5)
	l.applied(5)
	stop()
	l.forget(3)
	require.NoError(t, l.js.DeleteConsumer(ctxBG, evStream, "c"))
	l.subscribe(c, nil)
	l.applied(5)
	l.settled("c")
	assert.EqualValues(t, 3, l.info("c").Config.OptStartSeq)
	l.once(1, 5)
	l.accounted(5)
}

// forget takes message seq out of the file, as if it had never come.
func (l *lab) forget(seq int) {
	l.t.Helper()
	require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
		for _, q := range []string{
			`DELETE FROM effects WHERE seq = (SELECT seq FROM inbox_message WHERE stream_seq = ?1)`,
			`DELETE FROM inbox_message WHERE stream_seq = ?1`,
			`UPDATE inbox_consumer SET completed = completed - 1 WHERE ?1 > 0`,
			`INSERT INTO inbox_range SELECT stream, ?1 + 1, last_seq FROM inbox_range WHERE first_seq < ?1 AND last_seq > ?1`,
			`UPDATE inbox_range SET last_seq = ?1 - 1 WHERE first_seq < ?1 AND last_seq >= ?1`,
		} {
			if _, err := w.conn.exec(query{text: q}, int64(seq)); err != nil {
				return w.fail(q, err)
			}
		}
		for _, a := range w.opened {
			a.stale = true
		}
		return nil
	}))
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
	l.publishN(1, 10)
	l.applied(10)
	l.settled("c")
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

// A broker that loses the end of its stream gives the same sequences to other
// messages.
func TestSubscribe_ReissuedSequences(t *testing.T) {
	t.Parallel()
	const first, lost = 40, 5
	for name, tc := range map[string]struct {
		others int // published before the consumer looks again
		filter bool
		ids    bool // the messages have ids; else they are told apart by their sequence
		direct bool
	}{
		"none yet":             {others: 0, ids: true},
		"none yet, no ids":     {others: 0},
		"fewer than were lost": {others: 3, ids: true},
		"fewer than were lost, no ids, direct get":   {others: 3, direct: true},
		"as many as were lost":                       {others: lost, ids: true},
		"as many as were lost, no ids":               {others: lost},
		"more than were lost":                        {others: 9, ids: true, direct: true},
		"more than were lost, no ids":                {others: 9},
		"with a filter, fewer than were lost":        {others: 2, filter: true, ids: true},
		"with a filter, more than were lost, no ids": {others: 9, filter: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newBrokerLab(t, nil)
			if tc.direct {
				cfg := evConfig(evStream, "ev")
				cfg.AllowDirect = true
				_, err := l.js.UpdateStream(ctxBG, cfg)
				require.NoError(t, err)
			}
			c := l.consumer("c", nil, nil)
			opts := &SubscribeOptions{}
			if tc.filter {
				opts.Subjects = []string{"ev.ours"}
			}
			ours, all := 0, uint64(0)
			publish := func(prefix string, n int) {
				t.Helper()
				var ms []*nats.Msg
				for i := range n {
					id := ""
					if tc.ids {
						id = fmt.Sprint(prefix, i)
					}
					if tc.filter && i%3 == 0 {
						ms = append(ms, event("theirs", id, prefix))
						continue
					}
					ms = append(ms, event("ours", id, prefix))
					ours++
				}
				all = max(l.publish(ms...), all)
			}
			line := newWire()
			l.subscribe(c, opts, line.option())
			publish("first", first)
			l.applied(ours)
			l.settled("c")
			l.stopBroker()
			restore := l.srv.SaveFiles()
			l.srv.Start()
			publish("lost", lost)
			l.applied(ours)
			l.settled("c")

			line.cut()
			l.stopBroker()
			restore()
			l.srv.Start()
			all = 0
			publish("other", tc.others)
			line.mend()
			l.eventually(func() bool { return l.alerts.count(AlertStreamReissued) == 1 }, "noticed")
			publish("more", 4)
			l.applied(ours)
			l.settled("c")
			assert.EqualValues(t, first+tc.others+4, all)
			assert.Equal(t, 1, l.alerts.count(AlertStreamReissued))

			as := l.audit()
			require.Len(t, as, 2)
			assert.Equal(t, []int{0, 1}, []int{as[0].Epoch, as[1].Epoch})
			assert.False(t, as[0].Current)
			assert.True(t, as[1].Current)
			assert.True(t, as[0].Created.Equal(as[1].Created), "it is the same stream")
			require.NoError(t, as[1].Compare(ctxBG, l.js))
			assert.Empty(t, as[1].Missing)
			assert.Empty(t, as[1].OnBroker)
			if !tc.filter {
				assert.Equal(t, []Interval{{1, first + lost}}, as[0].Accounted)
				assert.Equal(t, []Interval{{1, all}}, as[1].Accounted)
			}
			assert.LessOrEqual(t, l.stats("c").Duplicates, int64(2*lost+2), "not all is taken again")
			assert.Zero(t, l.stats("c").Conflicts)
			assert.Zero(t, l.alerts.count(AlertMissing))
		})
	}
}

// The producers know of the loss and publish again what was lost.
func TestSubscribe_ReissuedAndRepublished(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	line := newWire()
	l.subscribe(c, nil, line.option())
	l.publishN(1, 40)
	l.applied(40)
	l.settled("c")
	l.stopBroker()
	restore := l.srv.SaveFiles()
	l.srv.Start()
	l.publishN(41, 45)
	l.applied(45)
	l.settled("c")
	line.cut()
	l.stopBroker()
	restore()
	l.srv.Start()
	l.publishN(46, 46) // where 41 was
	l.publishN(42, 45) // where they were before, the identity says
	l.publishN(41, 41)
	l.publishN(47, 50)
	line.mend()
	l.applied(50)
	l.once(1, 50)
	l.settled("c")
	as := l.audit()
	require.Len(t, as, 2)
	assert.Equal(t, []Interval{{1, 50}}, as[1].Accounted)
	assert.GreaterOrEqual(t, as[1].Duplicates, int64(5))
}

// The broker loses its tail twice, the second time within what it reissued.
func TestSubscribe_ReissuedTwice(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, nil)
	l.publishN(1, 10)
	l.applied(10)
	l.settled("c")
	l.stopBroker()
	restore := l.srv.SaveFiles()
	for i := range 2 {
		l.srv.Start()
		l.publishN(11+20*i, 30+20*i)
		l.applied(30 + 20*i)
		l.settled("c")
		l.stopBroker()
		restore()
	}
	l.srv.Start()
	l.publishN(51, 60)
	l.applied(60)
	l.once(1, 60)
	l.settled("c")
	assert.Equal(t, 2, l.alerts.count(AlertStreamReissued))
	as := l.audit()
	require.Len(t, as, 3)
	assert.Equal(t, []Interval{{1, 20}}, as[2].Accounted)
}

// The broker loses its tail twice, with nothing delivered in between: what it
// then gives the sequences to is not taken for known, even when it lost the
// consumer too.
func TestSubscribe_ReissuedTwiceInARow(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	line := newWire()
	l.subscribe(c, nil, line.option())
	var copies []func()
	for last := 10; last <= 30; last += 10 {
		l.publishN(last-9, last)
		l.applied(last)
		l.settled("c")
		l.stopBroker()
		copies = append(copies, l.srv.SaveFiles())
		l.srv.Start()
	}
	l.stopBroker()
	copies[1]()
	l.srv.Start()
	l.eventually(func() bool { return l.alerts.count(AlertStreamReissued) == 1 }, "noticed")
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting > 0 }, "pulling")
	line.cut()
	l.stopBroker()
	copies[0]()
	l.srv.Start()
	l.eventually(l.nc.IsConnected, "the producer is connected")
	require.NoError(t, l.js.DeleteConsumer(ctxBG, evStream, "c"))
	l.publishN(31, 35) // where 11 to 15 were
	line.mend()
	l.applied(35)
	l.once(1, 35)
	l.settled("c")
	as := l.audit()
	assert.Equal(t, []Interval{{1, 15}}, as[len(as)-1].Accounted)
}

// The broker is put back to what it was before its stream was made anew: the
// account of that earlier life is the current one again.
func TestSubscribe_EarlierLifeComesBack(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.subscribe(c, nil)
	l.publishN(1, 10)
	l.applied(10)
	l.settled("c")
	l.stopBroker()
	restore := l.srv.SaveFiles()
	l.srv.Start()
	l.eventually(l.nc.IsConnected, "the producer is connected")
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	l.addStream(evStream, "ev")
	l.publishN(11, 15)
	l.applied(15)
	l.settled("c")
	l.stopBroker()
	restore()
	l.srv.Start()
	l.publishN(16, 20)
	l.applied(20)
	l.once(1, 20)
	l.settled("c")
	current := 0
	for _, a := range l.audit() {
		if a.Current {
			current++
			require.NoError(t, a.Compare(ctxBG, l.js))
			assert.Empty(t, a.Missing)
			assert.Equal(t, []Interval{{1, 15}}, a.Accounted)
		}
	}
	assert.Equal(t, 1, current)
	assert.Zero(t, l.alerts.count(AlertMissing))
	assert.Zero(t, l.alerts.count(AlertStreamReissued), "it lost nothing")
}

// The process ends between the new epoch and the consumer that is to begin
// again for it: the old consumer's word is not taken for the new epoch.
func TestSubscribe_ReissuedAndInterrupted(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.publishN(1, 10)
	l.applied(10)
	l.settled("c")
	stop()
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		_, err := w.conn.exec(query{text: `
			INSERT INTO inbox_stream (consumer, stream, created, epoch, durable)
			SELECT consumer, stream, created, 1, durable FROM inbox_stream`})
		return err
	}))
	l.subscribe(c, nil)
	l.publishN(11, 12)
	l.applied(12)
	l.once(1, 12)
	l.settled("c")
	assert.Equal(t, 1, l.alerts.count(AlertMissing))
	as := l.audit()
	require.Len(t, as, 2)
	assert.Equal(t, []Interval{{1, 12}}, as[1].Accounted)
	assert.EqualValues(t, 10, as[1].Duplicates)
	assert.Zero(t, as[1].Skipped)
}

// The file is put back from an older copy: what was acknowledged since is
// fetched again.
func TestSubscribe_FileRestoredFromOlderCopy(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	session := func(last int) {
		t.Helper()
		stop := l.subscribe(l.consumer("c", nil, nil), nil)
		l.eventually(func() bool { return l.effects("") == last }, "applied up to %d", last)
		l.settled("c")
		stop()
		l.close()
	}
	l.publishN(1, 5)
	session(5)
	copied, err := os.ReadFile(l.path)
	require.NoError(t, err)
	l.open()
	l.publishN(6, 10)
	session(10)
	require.NoError(t, os.WriteFile(l.path, copied, 0o600))
	l.open()
	require.Equal(t, 5, l.effects(""))
	l.publishN(11, 12)
	session(12)
	assert.Equal(t, 1, l.alerts.count(AlertMissing))
	l.open()
	l.once(1, 12)
	l.accounted(12)

	// Without any new message, too.
	l.close()
	require.NoError(t, os.WriteFile(l.path, copied, 0o600))
	l.open()
	session(12)
	assert.Equal(t, 2, l.alerts.count(AlertMissing))
	l.open()
	l.once(1, 12)
	l.accounted(12)
}

// Some acknowledged sequences are gone, between others.
func TestSubscribe_MissingInTheMiddle(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.publishN(1, 9)
	l.applied(9)
	l.settled("c")
	stop()
	l.forget(3)
	l.forget(7)
	require.Equal(t, 7, l.effects(""))
	l.subscribe(c, nil)
	l.applied(9)
	l.once(1, 9)
	l.settled("c")
	l.accounted(9)
	assert.Equal(t, 1, l.alerts.count(AlertMissing))
	assert.EqualValues(t, 5, l.stats("c").Duplicates, "what came again with them")
}

func TestSubscribe_MissingWithAFilter(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	opts := &SubscribeOptions{Subjects: []string{"ev.a", "ev.c"}}
	stop := l.subscribe(c, opts)
	l.publish(event("a", "1", ""), event("b", "", ""), event("c", "2", ""), event("b", "", ""), event("a", "3", ""))
	l.applied(3)
	l.settled("c")
	stop()
	l.forget(3)
	l.subscribe(c, opts)
	l.applied(3)
	l.once(1, 3)
	l.settled("c")
	assert.EqualValues(t, 2, l.accounted(5).Skipped)
	assert.Equal(t, 1, l.alerts.count(AlertMissing))
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
			db, err := sql.Open("sqlite", "file:"+l.path+"?_txlock=immediate")
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
			l.eventually(func() bool { return l.ib.w.q.length() == 7 }, "all wait for the writer")
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
	l.publishKeyed(3)
	l.applied(3)
	l.settled("c")
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumWaiting == 2 }, "pulling")
	line.abandon()
	l.eventually(func() bool { return line.dials.Load() == 2 }, "connected again")
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && (ci.NumWaiting == 4 || ci.Config.OptStartSeq == 4) }, "pulling again")
	var ms []*nats.Msg
	for i := range 30 {
		m := event("x", fmt.Sprint("later ", i), "")
		m.Header.Set("Key", fmt.Sprint("k", i%3))
		ms = append(ms, m)
	}
	l.publish(ms...)
	l.applied(33)
	l.inOrder()
	l.settled("c")
	l.accounted(33)
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

// Shutdown in the middle of the traffic: what was committed is acknowledged.
func TestSubscribe_Shutdown(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, func(o *Options) { o.MaxGroup = 50 })
	const n = 1500
	c, release := l.slowConsumer(400)
	l.publishN(1, n)
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	_, js := l.srv.Connect(clientOptions()...)
	go func() { done <- c.Subscribe(ctx, js, evStream, &SubscribeOptions{Prefetch: 500}) }()
	l.eventually(func() bool { return l.effects("") >= 300 }, "in the middle")
	cancel()
	release()
	require.NoError(t, <-done)
	was := l.effects("")
	require.Less(t, was, n, "in the middle")
	l.eventually(func() bool { return l.info("c").AckFloor.Stream == uint64(was) }, "everything committed is acknowledged")
	l.close()
	l.open()
	c = l.consumer("c", nil, nil)
	l.subscribe(c, nil) // with an AckWait of half a minute
	l.applied(n)
	l.once(1, n)
	l.settled("c")
	assert.Zero(t, l.stats("c").Duplicates, "nothing that was applied came again")
	l.accounted(n)
}

// What had come when the subscription ends is taken, also what the writer's
// queue had no room for.
func TestSubscribe_ShutdownTakesWhatCame(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, func(o *Options) { o.QueueLength = 10 })
	c, release := l.slowConsumer(1)
	l.publishN(1, 100)
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	_, js := l.srv.Connect(clientOptions()...)
	go func() { done <- c.Subscribe(ctx, js, evStream, &SubscribeOptions{Prefetch: 40}) }()
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumAckPending == 40 }, "as many as there is room for")
	l.notPulling("c")
	assert.LessOrEqual(t, l.ib.w.q.length(), 10)
	cancel()
	release()
	require.NoError(t, <-done)
	assert.Equal(t, 40, l.effects(""))
	l.eventually(func() bool { return l.info("c").AckFloor.Stream == 40 }, "acknowledged")
	l.accounted(40)
}

func init() { helpers["subscribe"] = subscribeHelper }

// subscribeHelper is a process that consumes the stream until SIGTERM comes.
// At the message number INBOX_TEST_AT of its life it says so on standard
// output and does what INBOX_TEST_DO says.
func subscribeHelper() {
	at, _ := strconv.Atoi(os.Getenv("INBOX_TEST_AT"))
	do := os.Getenv("INBOX_TEST_DO")
	ctx, stop := signal.NotifyContext(ctxBG, syscall.SIGTERM)
	defer stop()
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(1)
		}
	}
	hung := false // on the writer's goroutine
	opts := &Options{Logger: slog.New(slog.DiscardHandler), CacheSize: 4 << 20, MaxGroup: 50}
	opts.Observer = &Observer{Committed: func(int, time.Duration) {
		if hung {
			fmt.Println("there")
			select {} // committed, not acknowledged
		}
	}}
	ib, err := Open(ctx, os.Getenv("INBOX_TEST_PATH"), opts)
	must(err)
	count := 0
	c, err := ib.Consumer("c", func(hctx context.Context, tx *Tx, m *Message) error {
		if count++; count == at {
			switch do {
			case "terminate":
				fmt.Println("there")
				<-ctx.Done()
			case "kill in the transaction":
				fmt.Println("there")
				select {}
			case "kill after the commit":
				hung = true
			}
		}
		return apply(hctx, tx, m)
	}, nil)
	must(err)
	nc, err := nats.Connect(os.Getenv("INBOX_TEST_URL"), NATSOptions()...)
	must(err)
	js, err := jetstream.New(nc)
	must(err)
	var wg sync.WaitGroup
	wg.Go(func() { must(ib.Run(ctx)) })
	must(c.Subscribe(ctx, js, evStream, helperSubscription()))
	wg.Wait()
	must(ib.Close())
	nc.Close()
}

func helperSubscription() *SubscribeOptions {
	return &SubscribeOptions{Key: KeyFromHeader("Key"), AckWait: 2 * time.Second, Prefetch: 300}
}

// startHelper starts subscribeHelper on the closed file of l, and returns
// when it is in the middle of the traffic.
func (l *brokerLab) startHelper(at int, do string) *exec.Cmd {
	l.t.Helper()
	exe, err := os.Executable()
	require.NoError(l.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "INBOX_TEST_HELPER=subscribe", "INBOX_TEST_PATH="+l.path, "INBOX_TEST_URL="+l.srv.URL(),
		"INBOX_TEST_AT="+strconv.Itoa(at), "INBOX_TEST_DO="+do)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, cmd.Start())
	l.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(l.t, err)
	require.Equal(l.t, "there\n", line)
	return cmd
}

// publishKeyed publishes the messages 1..n, of three keys.
func (l *brokerLab) publishKeyed(n int) {
	l.t.Helper()
	var ms []*nats.Msg
	for i := range n {
		m := event("x", fmt.Sprint(i+1), "")
		m.Header.Set("Key", fmt.Sprint("k", i%3))
		ms = append(ms, m)
	}
	l.publish(ms...)
}

func TestSubscribe_SIGTERM(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGTERM here")
	}
	const n = 2000
	l := newBrokerLab(t, nil)
	l.close()
	l.publishKeyed(n)
	cmd := l.startHelper(500, "terminate")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "it ends by itself, without an error")

	l.open()
	was := l.effects("")
	require.GreaterOrEqual(t, was, 500, "what was taken is committed")
	require.Less(t, was, n, "in the middle")
	assert.EqualValues(t, was, l.info("c").AckFloor.Stream, "and acknowledged")
	l.accounted(uint64(was))
	l.subscribe(l.consumer("c", nil, nil), helperSubscription())
	l.applied(n)
	l.once(1, n)
	l.inOrder()
	l.settled("c")
	assert.Zero(t, l.stats("c").Duplicates, "nothing that was applied came again")
	l.accounted(n)
}

func TestSubscribe_Killed(t *testing.T) {
	t.Parallel()
	const n = 1500
	l := newBrokerLab(t, nil)
	l.close()
	l.publishKeyed(n)
	for _, do := range []string{"kill in the transaction", "kill after the commit"} {
		cmd := l.startHelper(400, do)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	}
	l.open()
	was := l.effects("")
	require.Greater(t, was, 500)
	require.Less(t, was, n)
	assert.Less(t, l.info("c").AckFloor.Stream, uint64(was), "the last commit was not acknowledged")
	l.audit()
	l.subscribe(l.consumer("c", nil, nil), helperSubscription())
	l.applied(n)
	l.once(1, n)
	l.inOrder()
	l.settled("c")
	l.accounted(n)
	assert.Zero(t, l.alerts.count(AlertMissing))
}
