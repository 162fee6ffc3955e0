package inbox

// The sequences accounted for, and their comparison with the stream.

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

func TestAudit_Compare(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	l.through(1, 9)
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
