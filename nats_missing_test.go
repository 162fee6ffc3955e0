package inbox

// What the broker holds for acknowledged, or has forgotten, and the file says
// otherwise.

import (
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSubscribe_ConsumerDeleted(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.subscribe(c, nil)
	deleteConsumer := func() { require.NoError(t, l.js.DeleteConsumer(ctxBG, evStream, "c")) }
	l.through(1, 10)
	deleteConsumer()
	l.eventually(func() bool { return l.info("c") != nil }, "put back")
	assert.Equal(t, jetstream.DeliverByStartSequencePolicy, l.info("c").Config.DeliverPolicy)
	assert.EqualValues(t, 11, l.info("c").Config.OptStartSeq)
	assert.Equal(t, 1, l.alerts.count(AlertConsumerNew))
	l.through(11, 15)

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
	l.through(1, 9)
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
