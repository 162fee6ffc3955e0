package main

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// handwritten is the consumer as a competent programmer writes it: nats.go's
// Consume, one transaction a message (its id, the business INSERT), then the
// acknowledgement. fails: these fail at the first attempt, are rolled back, and
// come again after retryAfter; it must then get all the messages of the stream.
func handwritten(b *broker, e *events, part int, fails func(id string) bool) contender {
	return contender{name: "hand-written", part: part, run: func(n int) time.Duration {
		db, remove := b.l.database()
		defer remove()
		d := newLedger(db, false)
		failed := map[string]bool{}
		took := b.consume("handwritten", n, func(m jetstream.Msg) (taken bool, err error) {
			id := m.Headers().Get(jetstream.MsgIDHeader)
			if fails != nil && fails(id) && !failed[id] {
				failed[id] = true
				tx := get(db.Begin())
				get(tx.Stmt(d.seen).Exec(id))
				get(tx.Stmt(d.order).Exec(id, m.Data()))
				must(tx.Rollback())
				return false, m.NakWithDelay(retryAfter)
			}
			if err := d.apply(m.Data(), id); err != nil {
				return true, err
			}
			return true, m.Ack()
		}, jetstream.PullMaxMessages(max(min(500, maxOnTheWay/len(e.body)), 1)))
		requireOrders(db, e.different(n))
		return took
	}}
}

// maxOnTheWay are the bytes that are asked for at a time. nats.go asks for 500
// messages; of large ones that is more than the server has waiting for a client
// (max_pending, 64 MB) before it ends the connection.
const maxOnTheWay = 32 << 20

// retryAfter is how long a failed message waits, for all contenders.
const retryAfter = 100 * time.Millisecond

// bareLoop is the upper bound of what one connection of database/sql can do:
// the message (id, hash, payload) and the business INSERT, in groups, without a
// broker.
func bareLoop(l *lab, e *events, group int, name string) contender {
	return contender{name: name, run: func(n int) time.Duration {
		db, remove := l.database()
		defer remove()
		d := newLedger(db, true)
		start := time.Now()
		for chunk := range slices.Chunk(e.ids[:n], group) {
			must(d.apply(e.body, chunk...))
		}
		took := time.Since(start)
		requireOrders(db, e.different(n))
		return took
	}}
}

// brokerOnly is the other bound: consume and acknowledge, no database.
func brokerOnly(b *broker) contender {
	return contender{name: "JetStream alone", run: func(n int) time.Duration {
		return b.consume("nothing", n, func(m jetstream.Msg) (bool, error) { return true, m.Ack() }, jetstream.PullMaxMessages(8192))
	}}
}

// consume takes n messages by nats.go's Consume and says how long that took, until
// the broker had all acknowledgements. fn says whether it took one, or only gave
// it back.
func (b *broker) consume(durable string, n int, fn func(jetstream.Msg) (taken bool, err error), opts ...jetstream.PullConsumeOpt) time.Duration {
	start := time.Now()
	c := b.consumer(durable)
	left, all := n, make(chan error, 1)
	consuming := get(c.Consume(func(m jetstream.Msg) {
		if left == 0 {
			return
		}
		taken, err := fn(m)
		if taken {
			left--
		}
		if err != nil {
			left = 0
		}
		if left == 0 {
			all <- err
		}
	}, opts...))
	await(all)
	b.awaitAcked(durable, n)
	took := time.Since(start)
	consuming.Stop()
	<-consuming.Closed()
	b.forget(durable)
	return took
}

// A counter closes done when it has counted to n.
type counter struct {
	mu   sync.Mutex
	left int
	done chan error
}

func newCounter(n int) *counter { return &counter{left: n, done: make(chan error, 1)} }

func (c *counter) one() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.done <- nil
	}
}
