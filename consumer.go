package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// An Outcome is what one delivery came to.
type Outcome int

const (
	// Applied: the message took effect.
	Applied Outcome = iota + 1
	// Pending: it is stored and will be tried (again) by Run.
	Pending
	// Dead: it is stored and was given up; Retry or Discard it.
	Dead
	// Duplicate: its identity was known already; this delivery changed
	// nothing. The row says how the message stands.
	Duplicate
	// Conflict: its identity was known with another content. Both versions
	// are kept, this one was not applied.
	Conflict
)

func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Pending:
		return "pending"
	case Dead:
		return "dead"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return "unknown"
}

// A Handler applies one message. It runs inside a transaction that other
// messages share, on the inbox's one writer: it changes only the database,
// only through tx, and does not wait for anything else. It may run again: when
// that transaction is lost, when a neighbour fails, after an error of its own.
// Whatever it did through tx is then undone, whatever else it did is not. The
// view inbox may show messages of the same transaction as completed whose turn
// comes only after this one.
//
// An error makes the message pending, to be tried again with the consumer's
// backoff; see Permanent, RetryAfter and Outage. A panic is such an error.
type Handler func(ctx context.Context, tx *Tx, m *Message) error

// ConsumerOptions tell how a consumer treats its messages. The zero value is
// what a careful operator would choose.
type ConsumerOptions struct {
	// Retry is the schedule after failures.
	Retry RetryPolicy
	// DeadPasses lets later messages of a key pass a dead one. By default a
	// dead message blocks its key until Retry or Discard: order is kept.
	DeadPasses bool
	// DropPayload drops payload and headers when a message completes. By
	// default they are kept, for audit and Replay.
	DropPayload bool
	// CanonicalJSON compares JSON payloads by their canonical form (RFC 8785)
	// when the same identity comes again, so that the order of keys and white
	// space do not make a conflict.
	CanonicalJSON bool
	// IgnoreConflicts treats the same identity with another content as a
	// duplicate. By default it is a Conflict: kept, counted, alerted.
	IgnoreConflicts bool
}

// A Consumer is a named logical handler. Each consumer has its own row for
// every message: two consumers can take the same message. All its methods
// are safe for use by any number of goroutines.
type Consumer struct {
	ib      *Inbox
	name    string
	id      int64
	handler Handler
	opts    ConsumerOptions
	ctx     context.Context // for handlers of messages that came by Submit or the poller

	paused   atomic.Bool
	mu       sync.Mutex
	switched chan struct{} // closed, and replaced, when paused changes
}

// Consumer registers the handler h under name and makes Run retry its
// pending messages. The name is stored: it must stay the same over restarts.
// Names are 1 to 200 bytes without control characters. It fails for a name
// registered already, and on a guest (ErrGuest). It blocks for one commit.
func (ib *Inbox) Consumer(name string, h Handler, opts *ConsumerOptions) (*Consumer, error) {
	if name == "" || len(name) > 200 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, fmt.Errorf("inbox: consumer name %q: use 1 to 200 bytes without control characters", name)
	}
	if h == nil {
		return nil, fmt.Errorf("inbox: consumer %q has no handler", name)
	}
	if ib.opts.Guest {
		return nil, ErrGuest
	}
	c := &Consumer{ib: ib, name: name, handler: h, switched: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	if err := c.opts.Retry.setDefaults(); err != nil {
		return nil, fmt.Errorf("inbox: consumer %q: %w", name, err)
	}
	c.ctx = context.WithValue(context.Background(), handlerKey{}, ib)
	ib.mu.Lock()
	if _, taken := ib.consumers[name]; taken {
		ib.mu.Unlock()
		return nil, fmt.Errorf("inbox: consumer %q is registered already", name)
	}
	ib.consumers[name] = nil // reserved
	ib.mu.Unlock()
	err := ib.do(context.Background(), func(w *writer) error { return w.register(c) })
	ib.mu.Lock()
	defer ib.mu.Unlock()
	if err != nil {
		delete(ib.consumers, name)
		return nil, err
	}
	ib.consumers[name] = c
	ib.poller.poke(1)
	return c, nil
}

// Name is the name the consumer was registered with.
func (c *Consumer) Name() string { return c.name }

// Paused reports whether the consumer is paused; see Inbox.Pause.
func (c *Consumer) Paused() bool { return c.paused.Load() }

func (c *Consumer) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused.Swap(paused) != paused {
		close(c.switched)
		c.switched = make(chan struct{})
	}
}

// pausing reports whether the consumer is paused, and the channel that is
// closed when that changes.
func (c *Consumer) pausing() (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused.Load(), c.switched
}

// Process inserts m and applies it, in one transaction, and returns after the
// commit. err == nil: the inbox owns m, whatever the outcome; acknowledge it.
// err != nil: nothing is stored (but see ErrOutcomeUnknown); let it come
// again.
//
// When ctx ends first, Process returns its error: a message still waiting for
// its turn is then dropped; one whose turn has come is carried through, and a
// redelivery finds its row.
func (c *Consumer) Process(ctx context.Context, m Message) (Outcome, error) {
	return c.deliver(ctx, m, false)
}

// Receive stores m, to be applied by Run, and returns after the commit. It is
// Process for work that may take its time: the sender of a webhook, say, is
// answered as soon as the message is safe. Outcome, errors and ctx as there.
func (c *Consumer) Receive(ctx context.Context, m Message) (Outcome, error) {
	return c.deliver(ctx, m, true)
}

func (c *Consumer) deliver(ctx context.Context, m Message, store bool) (Outcome, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if c.ib.inHandler(ctx) {
		return 0, ErrInHandler
	}
	m.rule, m.invalid, m.pos = ruleProducer, "", nil
	d, err := c.delivery(m)
	if err != nil {
		return 0, err
	}
	d.store = store
	d.ctx = context.WithValue(context.WithoutCancel(ctx), handlerKey{}, c.ib)
	type result struct {
		o   Outcome
		err error
	}
	done := make(chan result, 1)
	d.done = func(o Outcome, err error) { done <- result{o, err} }
	if err := c.ib.w.q.push(ctx, d); err != nil {
		return 0, err
	}
	select {
	case r := <-done:
		return r.o, r.err
	case <-ctx.Done():
		if d.abandon() {
			return 0, ctx.Err()
		}
		select {
		case r := <-done: // it was just done
			return r.o, r.err
		default:
			return 0, ctx.Err()
		}
	}
}

// Submit is Process without waiting: it puts m in the writer's queue, in
// order, and returns; done is called after the commit, with what Process
// would have returned. It blocks only while the queue is full
// (Options.QueueLength, QueueBytes), until ctx ends. When it returns an error,
// done is not called. Calls of done come one after the other, in order of
// submission; a slow one holds up those after it. Payload and headers must
// not be changed before done is called.
func (c *Consumer) Submit(ctx context.Context, m Message, done func(Outcome, error)) error {
	if c.ib.inHandler(ctx) {
		return ErrInHandler
	}
	m.rule, m.invalid, m.pos = ruleProducer, "", nil
	return c.submit(ctx, m, done)
}

// submit is Submit for the inbox's own subscriber.
func (c *Consumer) submit(ctx context.Context, m Message, done func(Outcome, error)) error {
	d, err := c.delivery(m)
	if err != nil {
		return err
	}
	d.ctx, d.done = c.ctx, done
	return c.ib.w.q.push(ctx, d)
}

// delivery makes the writer's job of m.
func (c *Consumer) delivery(m Message) (*delivery, error) {
	d := &delivery{c: c, m: m}
	return d, d.prepare()
}

// prepare does what need not take the writer's time: checks, and the columns
// that the message decides alone.
func (d *delivery) prepare() error {
	c, m := d.c, &d.m
	if c.ib.opts.Guest {
		return ErrGuest
	}
	if err := m.validate(); err != nil {
		return err
	}
	m.consumer = c.name
	d.hash = contentHash(m.Payload, c.opts.CanonicalJSON)
	d.cols = columns{
		id: m.ID, hash: d.hash[:], subject: orNull(m.Subject), key: orNull(m.Key),
		headers: orNull(encodeHeaders(m.Headers)), payload: orEmpty(m.Payload),
		footprint: newFootprint(identityDigest(m.consumer, m.rule, m.Source, m.ID)),
	}
	return nil
}

// handlerKey is the context key under which a handler's context has its inbox.
type handlerKey struct{}
