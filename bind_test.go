package inbox

// What the subscriber and the broker agree on: the durable consumer, where it
// starts, its filter, its limits.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
