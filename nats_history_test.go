package inbox

// A broker whose stream is not the one it was: made anew, damaged, put back to
// an old copy, its sequences given to other messages.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	var anew func()
	l.close()
	l.opts.Observer = &Observer{Alert: func(a Alert) {
		if a.Kind == AlertConsumerNew && anew != nil {
			anew()
			anew = nil
		}
		l.alerts.add(a)
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
	l.eventually(func() bool { return l.alerts.count(AlertConsumerNew) > 0 }, "bound, after the stream was made anew")
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
	l.through(1, 40)
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
	l.through(1, 40)
	l.stopBroker()
	restore := l.srv.SaveFiles()
	l.srv.Start()
	l.through(41, 45)
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
	l.through(1, 10)
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
		l.through(last-9, last)
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
	l.through(1, 10)
	l.stopBroker()
	restore := l.srv.SaveFiles()
	l.srv.Start()
	l.eventually(l.nc.IsConnected, "the producer is connected")
	require.NoError(t, l.js.DeleteStream(ctxBG, evStream))
	l.addStream(evStream, "ev")
	l.through(11, 15)
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
	l.through(1, 10)
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
