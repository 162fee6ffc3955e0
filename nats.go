package inbox

// The subscriber: a durable pull consumer of JetStream, supervised.
//
//	bind   find the stream and the durable consumer, or put it back; compare
//	       what the broker says was acknowledged with what the file has
//	pull   ask for as many messages as there is room for (pull.go)
//
// Whatever ends pull leads back to bind. What must stay true: a message is
// acknowledged only when the transaction that owns it is on disk; nothing
// that the broker thinks was acknowledged is missing from the file.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// SubscribeOptions for Consumer.Subscribe. The zero value, and nil, mean the
// defaults.
type SubscribeOptions struct {
	// Durable names the durable consumer on the broker. Default: the
	// consumer's name, with what NATS does not allow replaced by "_".
	Durable string
	// Subjects filters the stream. Default: all of it.
	Subjects []string
	// Identity says how messages are told apart; see there.
	Identity Identity
	// Key gives the ordering key of a message, "" for none; see KeyFromJSON
	// and KeyFromHeader. A message for which it fails is stored dead with the
	// reason. It may be called from several goroutines.
	Key func(*Message) (string, error)
	// StoreFirst stores messages and leaves it to Run to apply them, as
	// Receive does.
	StoreFirst bool
	// Start says where the durable consumer begins when it is made new and this
	// file never had a message of the stream. Default: with all the messages
	// that the stream has. Otherwise what the file accounts for decides.
	Start Start
	// CreateStream makes the stream when it is not there. By default it must
	// be: one made here would have nobody's limits.
	CreateStream *jetstream.StreamConfig
	// AckWait is how long the broker waits for an acknowledgement before it
	// delivers again. Messages that wait longer here tell it so. Default 30 s.
	AckWait time.Duration
	// Prefetch bounds the messages that were delivered and are not yet
	// acknowledged. Default 8192.
	Prefetch int
	// PrefetchBytes bounds their size, to within half as much again, or one
	// message that is larger. Default 32 MiB.
	PrefetchBytes int
}

// A Start is where a consumer begins: the first of these that is set. What
// lies before counts as skipped.
type Start struct {
	New      bool      // with what the stream gets from now on
	Sequence uint64    // with this one
	Time     time.Time // with the first message that is not older
}

func (o *SubscribeOptions) setDefaults(c *Consumer) error {
	if o.Durable == "" {
		o.Durable = strings.Map(func(r rune) rune {
			if strings.ContainsRune(" .*>/\\\t", r) {
				return '_'
			}
			return r
		}, c.name)
	}
	if strings.ContainsAny(o.Durable, " .*>/\\\t\r\n") {
		return fmt.Errorf("inbox: durable name %q: no spaces, dots, slashes, * or >", o.Durable)
	}
	if o.AckWait == 0 {
		o.AckWait = 30 * time.Second
	}
	if o.Prefetch == 0 {
		o.Prefetch = 8192
	}
	if o.PrefetchBytes == 0 {
		o.PrefetchBytes = 32 << 20
	}
	if o.AckWait < 100*time.Millisecond || o.Prefetch < 1 || o.PrefetchBytes < 1 {
		return fmt.Errorf("inbox: ack_wait (SubscribeOptions.AckWait in Go) is %v (at least 100ms), prefetch %d and prefetch_bytes %d (at least 1)", o.AckWait, o.Prefetch, o.PrefetchBytes)
	}
	return o.Identity.compile()
}

// KeyFromJSON takes the ordering key from a JSON payload, a string or a
// number, by a path in the syntax of SQLite's JSON functions: $.order.id. A
// message without it has no key.
func KeyFromJSON(path string) (func(*Message) (string, error), error) {
	p, err := parseJSONPath(path)
	if err != nil {
		return nil, fmt.Errorf("inbox: key path: %w", err)
	}
	return func(m *Message) (string, error) {
		v, err := p.lookup(m.Payload)
		if errors.Is(err, errPathAbsent) {
			return "", nil
		}
		return v, err
	}, nil
}

// KeyFromHeader takes the ordering key from a header, its name in any case. A
// message without it has no key.
func KeyFromHeader(name string) func(*Message) (string, error) {
	return func(m *Message) (string, error) { return m.Headers.Get(name), nil }
}

// NATSOptions are the connection options that a consumer which nobody visits
// needs: it starts with the broker away, never stops reconnecting, and does
// not take refused credentials for an answer (by default two refusals end a
// connection for good).
func NATSOptions() []nats.Option {
	return []nats.Option{
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(time.Second),
		nats.ReconnectJitter(500*time.Millisecond, 2*time.Second),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(20 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// A subscription is one running Subscribe.
type subscription struct {
	c      *Consumer
	js     jetstream.JetStream
	nc     *nats.Conn
	stream string
	opts   SubscribeOptions
	prefix string // of the JetStream API
	nak    []byte
	// ctx ends with the subscription, not with the connection: jobs for the
	// writer are waited for, so that what they found is alerted.
	ctx context.Context

	status   chan nats.Status
	inflight inflight

	// Owned by the goroutine of Subscribe.
	acct        *account
	created     int64
	durable     jetstream.ConsumerConfig // as the broker has it
	down        bool                     // the broker was alerted as unusable
	storageWait time.Duration            // before the file is tried again
	cursor      cursor
	line        *line // of this stretch of pulling
}

// subscribed holds what this process's subscriptions have taken: a consumer
// has one subscription to a stream, for two would each account for what the
// other has to deliver; and a durable has one, for two would share its
// messages out between them.
var subscribed sync.Map

type (
	consumerOfStream struct {
		c      *Consumer
		stream string
	}
	durableOfStream struct {
		ib              *Inbox
		stream, durable string
	}
)

// A cursor is where the durable consumer stands in the stream: after it has
// delivered stream sequence seq as its delivery number dseq, the next new
// message it delivers, as dseq+1, comes next in the stream, so what lies
// between was never ours. It holds while deliveries come without a break.
type cursor struct {
	seq, dseq uint64
	valid     bool
	broken    bool // there was a break: the stream must be asked about what lies before it
	passed    bool // there was one, and with a key nothing that comes behind it is taken
}

// Subscribe consumes a JetStream stream until ctx ends: it inserts and
// applies each message, and acknowledges it after the commit. It blocks;
// when ctx ends it stops pulling, commits and acknowledges what was
// delivered, and returns nil. Stream and broker may come and go meanwhile
// and need not be there at the start: each trouble is alerted and waited
// for. It returns an error only for what waiting cannot mend: wrong options,
// a durable consumer that acknowledges in another way, a connection that was
// closed for good, ErrClosed.
//
// A failed message is stored and acknowledged: Run retries it. Connect with
// NATSOptions. A consumer has one subscription to a stream at a time.
func (c *Consumer) Subscribe(ctx context.Context, js jetstream.JetStream, stream string, opts *SubscribeOptions) error {
	s := &subscription{c: c, js: js, nc: js.Conn(), stream: stream}
	if opts != nil {
		s.opts = *opts
	}
	if stream == "" {
		return errors.New("inbox: Subscribe needs the name of a stream")
	}
	if err := s.opts.setDefaults(c); err != nil {
		return err
	}
	switch o := js.Options(); {
	case o.Domain != "":
		s.prefix = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		s.prefix = strings.TrimSuffix(o.APIPrefix, ".") + "."
	default:
		s.prefix = "$JS.API."
	}
	for key, why := range map[any]string{
		consumerOfStream{c, stream}:                   "give that subscription all the subjects, or use another consumer",
		durableOfStream{c.ib, stream, s.opts.Durable}: "durable " + s.opts.Durable + " is taken: set another durable (SubscribeOptions.Durable in Go)",
	} {
		if _, taken := subscribed.LoadOrStore(key, true); taken {
			return fmt.Errorf("inbox: consumer %q: stream %s is subscribed to already: %s", c.name, stream, why)
		}
		defer subscribed.Delete(key)
	}
	done, err := c.ib.begin()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ib.ctx, cancel)()
	s.nak = fmt.Appendf(nil, `-NAK {"delay":%d}`, min(nakDelay, s.opts.AckWait).Nanoseconds())
	s.ctx = ctx
	s.inflight.init()
	s.status = s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer s.nc.RemoveStatusListener(s.status)

	stop := s.keepAlive()
	defer stop()
	err = s.run(ctx)
	s.inflight.wait(s.opts.AckWait)
	if s.nc.IsConnected() {
		_ = s.nc.FlushTimeout(5 * time.Second) // the acks are on the wire
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// fatalError is what waiting cannot mend.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

var (
	// Reasons for pull to end that are no trouble.
	errPaused    = errors.New("inbox: the consumer is paused")
	errReconnect = errors.New("inbox: the connection was made anew")
	errLookAgain = errors.New("inbox: the deliveries came with a break")

	errConnectionLost = errors.New("inbox: the connection to the broker was lost")
)

const bindBackoffMax = 15 * time.Second

func (s *subscription) run(ctx context.Context) error {
	backoff := time.Duration(0)
	for {
		if paused, switched := s.c.pausing(); paused {
			select {
			case <-switched:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		err := s.bind(ctx)
		if err == nil {
			backoff = 0
			s.up()
			err = s.pull(ctx)
		}
		var fatal *fatalError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &fatal):
			return fatal.err
		case errors.Is(err, ErrClosed):
			return err
		case s.nc.IsClosed():
			return fmt.Errorf("inbox: consumer %q: %w", s.c.name, nats.ErrConnectionClosed)
		case errors.Is(err, errPaused), errors.Is(err, errReconnect), errors.Is(err, errLookAgain):
			continue
		case isStorage(err):
			s.awaitStorage(ctx, err)
			continue
		}
		s.trouble(err)
		backoff = min(max(2*backoff, 100*time.Millisecond), bindBackoffMax)
		t := time.NewTimer(backoff/2 + rand.N(backoff/2+1))
		select {
		case <-t.C:
		case <-s.status: // the connection changed: another matter
			backoff = 0
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (s *subscription) trouble(err error) {
	if !s.down {
		s.down = true
		s.c.ib.alert(Alert{Kind: AlertBroker, Consumer: s.c.name, Stream: s.stream, Err: err, Detail: "trying again until it works"})
	}
}

func (s *subscription) up() {
	if s.down {
		s.down = false
		s.c.ib.alert(Alert{Kind: AlertRestored, Consumer: s.c.name, Stream: s.stream, Detail: "consuming again"})
	}
}

// awaitStorage waits until the file can be written again. Nothing is pulled
// meanwhile; what was delivered and not acknowledged comes again.
func (s *subscription) awaitStorage(ctx context.Context, err error) {
	s.c.ib.alert(Alert{Kind: AlertStorage, Consumer: s.c.name, Stream: s.stream, Err: err, Detail: "pulling stopped until the file can be written"})
	if s.inflight.progress.Swap(false) {
		s.storageWait = 0
	}
	for ctx.Err() == nil {
		s.storageWait = min(max(2*s.storageWait, 250*time.Millisecond), pollBackoffMax)
		t := time.NewTimer(s.storageWait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if err := s.c.ib.do(ctx, (*writer).probe); err == nil {
			s.c.ib.alert(Alert{Kind: AlertRestored, Consumer: s.c.name, Stream: s.stream, Detail: "the file can be written again"})
			return
		}
	}
}

var qProbe = newQuery(`UPDATE inbox_schema SET version = version`)

// probe writes a page.
func (w *writer) probe() error {
	if _, err := w.conn.exec(qProbe); err != nil {
		return w.fail("probing the file", err)
	}
	return nil
}
