package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

const (
	trafficStream  = "LAB"
	trafficDurable = "c"
	trafficBacklog = 300 // messages that may wait for the gateway
)

// traffic is a producer that publishes what was not confirmed until it is, and
// much of it twice; and a witness, who hears the acknowledgements that the
// gateway sends to the broker.
type traffic struct {
	r  *rand.Rand
	js jetstream.JetStream

	mu        sync.Mutex
	made      int               // messages so far
	stored    map[uint64]string // the message by each sequence that the broker confirmed
	confirmed map[string]bool   // messages that it confirmed
	conflicts map[string]bool   // those that it confirmed with another content too
	acked     map[uint64]bool   // sequences whose acknowledgement was heard
	acks      int               // heard

	stopping chan struct{}
	stopped  chan struct{}
}

func newTraffic(t *testing.T, url string, r *rand.Rand) *traffic {
	nc, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	p := &traffic{
		r: r, stored: map[uint64]string{}, confirmed: map[string]bool{}, conflicts: map[string]bool{}, acked: map[uint64]bool{},
		stopping: make(chan struct{}), stopped: make(chan struct{}),
	}
	p.js, err = jetstream.New(nc, jetstream.WithPublishAsyncTimeout(3*time.Second))
	require.NoError(t, err)
	sub, err := nc.Subscribe("$JS.ACK."+trafficStream+".>", p.hear)
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	go p.publish()
	return p
}

// hear takes note of an acknowledgement: its subject names the message.
func (p *traffic) hear(m *nats.Msg) {
	meta, err := (&nats.Msg{Sub: m.Sub, Reply: m.Subject}).Metadata()
	if err != nil || string(m.Data) != "+ACK" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked[meta.Sequence.Stream] = true
	p.acks++
}

func (p *traffic) heard() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acks
}

// An item is one message to publish.
type item struct {
	id       string
	msg      *nats.Msg
	conflict bool
}

// trafficMessage is the i-th message: some have a key, some fail at first,
// some always.
func trafficMessage(i int, content string) item {
	kind, id := "good", fmt.Sprintf("m%06d", i)
	switch {
	case i%19 == 0:
		kind, id = "bad", fmt.Sprintf("bad%06d", i)
	case i%23 == 0:
		kind = "flaky"
	}
	body := map[string]any{"n": i, "kind": kind, "text": content + strings.Repeat("x", i*37%1900)}
	if i%3 == 0 {
		body["key"] = fmt.Sprint("k", i%7)
	}
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	// No Nats-Msg-Id: the stream itself would drop what is published again.
	return item{id: id, msg: &nats.Msg{
		Subject: "lab.t", Data: data,
		Header: nats.Header{"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {"lab"}, "ce-type": {"t"}},
	}}
}

// publish publishes batches until it is stopped; it ends with all confirmed.
func (p *traffic) publish() {
	defer close(p.stopped)
	for {
		select {
		case <-p.stopping:
			return
		default:
		}
		if n, err := p.waiting(); err != nil || n > trafficBacklog {
			time.Sleep(5 * time.Millisecond)
			if err == nil {
				continue
			}
		}
		var batch []item
		for range 1 + p.r.IntN(40) {
			switch n := p.r.IntN(20); {
			case n < 3 && p.made > 0:
				batch = append(batch, trafficMessage(p.r.IntN(p.made), ""))
			case n < 4 && p.made > 100:
				it := trafficMessage(p.r.IntN(p.made-50), "another content ")
				it.conflict = true
				batch = append(batch, it)
			default:
				batch = append(batch, trafficMessage(p.made, ""))
				p.made++
			}
		}
		for len(batch) > 0 {
			batch = p.confirm(batch)
		}
	}
}

// confirm publishes a batch and returns what was not confirmed.
func (p *traffic) confirm(batch []item) (left []item) {
	futures := make([]jetstream.PubAckFuture, len(batch))
	for i, it := range batch {
		// Headers are the client's from then on.
		m := nats.Msg{Subject: it.msg.Subject, Header: nats.Header{}, Data: it.msg.Data}
		for k, v := range it.msg.Header {
			m.Header[k] = v
		}
		futures[i], _ = p.js.PublishMsgAsync(&m, jetstream.WithStallWait(time.Second))
	}
	for i, f := range futures {
		if f == nil {
			left = append(left, batch[i])
			continue
		}
		select {
		case ack := <-f.Ok():
			p.mu.Lock()
			p.stored[ack.Sequence] = batch[i].id
			p.confirmed[batch[i].id] = true
			if batch[i].conflict {
				p.conflicts[batch[i].id] = true
			}
			p.mu.Unlock()
		case <-f.Err():
			left = append(left, batch[i])
		}
	}
	if len(left) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// waiting is how many messages the gateway has not acknowledged.
func (p *traffic) waiting() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := p.js.Consumer(ctx, trafficStream, trafficDurable)
	if err != nil {
		return 0, err
	}
	ci := c.CachedInfo()
	return ci.NumPending + uint64(ci.NumAckPending), nil
}

// drained: the broker has delivered its last message, and all were
// acknowledged. (What a consumer says of its pending ones is 0 for a moment
// when it has just been made.) standing is what it says.
func (p *traffic) drained() (done bool, standing string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	stream, err := p.js.Stream(ctx, trafficStream)
	if err != nil {
		return false, err.Error()
	}
	c, err := stream.Consumer(ctx, trafficDurable)
	if err != nil {
		return false, err.Error()
	}
	ci, last := c.CachedInfo(), stream.CachedInfo().State.LastSeq
	return ci.NumPending == 0 && ci.NumAckPending == 0 && ci.Delivered.Stream >= last,
		fmt.Sprintf("last sequence %d, delivered %d, acknowledged up to %d, %d pending, %d unacknowledged",
			last, ci.Delivered.Stream, ci.AckFloor.Stream, ci.NumPending, ci.NumAckPending)
}

// stop ends the publishing, with all confirmed.
func (p *traffic) stop() error {
	close(p.stopping)
	select {
	case <-p.stopped:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("the broker does not confirm any more")
	}
}

// onBroker are the messages that the stream has.
func (p *traffic) onBroker(ctx context.Context) (map[string]bool, error) {
	stream, err := p.js.Stream(ctx, trafficStream)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for left := stream.CachedInfo().State.Msgs; left > 0; {
		batch, err := consumer.Fetch(int(min(left, 1000)))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			have[m.Headers().Get("ce-id")] = true
			left--
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
	}
	return have, nil
}
