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
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
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
	// CreateStream makes the stream when it is not there. By default it must
	// be: one made here would have nobody's limits.
	CreateStream *jetstream.StreamConfig
	// AckWait is how long the broker waits for an acknowledgement before it
	// delivers again. Messages that wait longer here tell it so. Default 30 s.
	AckWait time.Duration
	// Prefetch bounds the messages that were delivered and are not yet
	// acknowledged. Default 4096.
	Prefetch int
	// PrefetchBytes bounds their size, to within half as much again, or one
	// message that is larger. Default 32 MiB.
	PrefetchBytes int
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
		o.Prefetch = 4096
	}
	if o.PrefetchBytes == 0 {
		o.PrefetchBytes = 32 << 20
	}
	if o.AckWait < 100*time.Millisecond || o.Prefetch < 1 || o.PrefetchBytes < 1 {
		return fmt.Errorf("inbox: SubscribeOptions: AckWait is %v (at least 100ms), Prefetch %d and PrefetchBytes %d (at least 1)", o.AckWait, o.Prefetch, o.PrefetchBytes)
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

	nak []byte

	status   chan nats.Status
	inflight inflight

	// Owned by the goroutine of Subscribe.
	acct        *account
	created     int64
	durable     jetstream.ConsumerConfig // as the broker has it
	down        bool                     // the broker was alerted as unusable
	storageWait time.Duration            // before the file is tried again
	cursor      cursor
}

// subscribed holds every subscriptionKey of this process that is in use: two
// subscriptions would each account for what the other has to deliver.
var subscribed sync.Map

type subscriptionKey struct {
	c      *Consumer
	stream string
}

// A cursor is where the durable consumer stands in the stream: after it has
// delivered stream sequence seq as its delivery number dseq, the next new
// message it delivers, as dseq+1, comes next in the stream, so what lies
// between was never ours. It holds while deliveries come without a break.
type cursor struct {
	seq, dseq uint64
	valid     bool
	broken    bool // there was a break: the stream must be asked about what lies before it
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
	key := subscriptionKey{c, stream}
	if _, taken := subscribed.LoadOrStore(key, true); taken {
		return fmt.Errorf("inbox: consumer %q is subscribed to stream %s already: give that subscription all the Subjects, or use another consumer", c.name, stream)
	}
	defer subscribed.Delete(key)
	done, err := c.ib.begin()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ib.ctx, cancel)()
	s.nak = fmt.Appendf(nil, `-NAK {"delay":%d}`, min(nakDelay, s.opts.AckWait).Nanoseconds())
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
		s.pauseFor(ctx, backoff/2+rand.N(backoff/2+1))
	}
}

// pauseFor waits, but not longer than until the connection changes.
func (s *subscription) pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.status:
	case <-ctx.Done():
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

// bind finds the stream and the durable consumer and brings them and the file
// to one opinion. It gives up when the connection breaks: the reply to a
// request that was under way then would be waited for in vain.
func (s *subscription) bind(ctx context.Context) error {
	for stale := true; stale; {
		select {
		case <-s.status:
		default:
			stale = false
		}
	}
	if !s.nc.IsConnected() {
		return errors.New("inbox: not connected to the broker") // its URL may hold a password
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	done := make(chan struct{})
	broken := make(chan bool, 1)
	go func() {
		for {
			select {
			case st := <-s.status:
				if st != nats.CONNECTED {
					cancel()
					broken <- true
					return
				}
			case <-done:
				broken <- false
				return
			}
		}
	}()
	err := s.agree(ctx)
	close(done)
	if <-broken {
		return errConnectionLost
	}
	return err
}

func (s *subscription) agree(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.opts.CreateStream != nil {
		cfg := *s.opts.CreateStream
		cfg.Name = s.stream
		stream, err = s.js.CreateStream(ctx, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("inbox: stream %s is not there: create it, or set CreateStream: %w", s.stream, err)
	}
	if err != nil {
		return fmt.Errorf("inbox: stream %s: %w", s.stream, err)
	}
	info := stream.CachedInfo()
	s.created = info.Created.UnixNano()

	known, err := s.openAccount(ctx)
	if err != nil {
		return err
	}
	start := uint64(0) // where a consumer put back must start; 0: keep it
	if lost, at, err := s.lostTail(ctx, stream, info, known); err != nil {
		return err
	} else if lost {
		if known, err = s.reissued(ctx, at); err != nil {
			return err
		}
		start = known.resume(info.State.FirstSeq)
		s.c.ib.alert(Alert{Kind: AlertStreamReissued, Consumer: s.c.name, Stream: s.stream,
			Detail: fmt.Sprintf("what follows sequence %d is taken for new messages", at)})
	}

	consumer, err := stream.Consumer(ctx, s.opts.Durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if start == 0 {
			start = known.resume(info.State.FirstSeq)
		}
		if len(known.ranges) > 0 {
			s.c.ib.alert(Alert{Kind: AlertConsumerNew, Consumer: s.c.name, Stream: s.stream,
				Detail: fmt.Sprintf("durable %s was not there; put back at sequence %d", s.opts.Durable, start)})
		}
		return s.create(ctx, stream, info, start, jetstream.ConsumerConfig{Durable: s.opts.Durable, AckPolicy: jetstream.AckExplicitPolicy})
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return s.unfit("it is a push consumer")
	case err != nil:
		return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
	}
	ci := consumer.CachedInfo()
	if ci.Config.AckPolicy != jetstream.AckExplicitPolicy {
		return s.unfit(fmt.Sprintf("its policy is %s", ci.Config.AckPolicy))
	}
	if start == 0 {
		if start, err = s.reconcile(ctx, stream, info, ci, known); err != nil {
			return err
		}
	}
	if start == 0 && s.opts.Key != nil && ci.NumAckPending > 0 {
		// What was delivered and did not reach the file would come again after
		// AckWait, behind later messages of its key: begin again there.
		if next := known.resume(info.State.FirstSeq); next <= ci.Delivered.Stream {
			start = next
		}
	}
	if start != 0 {
		if err := stream.DeleteConsumer(ctx, s.opts.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
		}
		return s.create(ctx, stream, info, start, ci.Config)
	}
	s.cursor = cursor{seq: ci.Delivered.Stream, dseq: ci.Delivered.Consumer, valid: true, broken: ci.NumAckPending > 0}
	s.durable = ci.Config
	if cfg := s.inLine(ci.Config); !reflect.DeepEqual(cfg, ci.Config) {
		return s.put(ctx, "bringing into line", cfg, ci.Config.MaxAckPending, stream.UpdateConsumer)
	}
	return nil
}

// unfit is for a durable consumer that cannot be used nor be brought into line.
func (s *subscription) unfit(why string) error {
	return &fatalError{fmt.Errorf("inbox: durable consumer %s of %s must be a pull consumer with explicit acknowledgement, %s: delete it, or use another Durable",
		s.opts.Durable, s.stream, why)}
}

// create makes the durable consumer, to start at a stream sequence.
func (s *subscription) create(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, start uint64, cfg jetstream.ConsumerConfig) error {
	cfg = s.inLine(cfg)
	cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = jetstream.DeliverAllPolicy, 0, nil
	s.cursor = cursor{valid: true}
	if start > max(info.State.FirstSeq, 1) {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, start
		s.cursor.seq = start - 1
	}
	return s.put(ctx, "making", cfg, 0, stream.CreateConsumer)
}

// codeMaxAckPending is the API's error for more than the server allows.
const codeMaxAckPending = 10121

// put writes the durable consumer's configuration. A server may limit
// MaxAckPending: then it is fallback, 0 for what the server thinks right.
func (s *subscription) put(ctx context.Context, doing string, cfg jetstream.ConsumerConfig, fallback int,
	write func(context.Context, jetstream.ConsumerConfig) (jetstream.Consumer, error)) error {
	consumer, err := write(ctx, cfg)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeMaxAckPending {
		cfg.MaxAckPending = fallback
		consumer, err = write(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("inbox: %s durable consumer %s of %s: %w", doing, s.opts.Durable, s.stream, err)
	}
	s.durable = consumer.CachedInfo().Config
	return nil
}

// filter is how a consumer's configuration spells the subjects: servers before
// 2.10 know only one.
func (s *subscription) filter() (one string, many []string) {
	if len(s.opts.Subjects) == 1 {
		return s.opts.Subjects[0], nil
	}
	return "", s.opts.Subjects
}

// maxAckPending leaves room for what is on its way again.
func (s *subscription) maxAckPending() int { return 2*s.opts.Prefetch + 1000 }

// inLine is cfg with all that the promise needs; the rest stays as it is.
func (s *subscription) inLine(cfg jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	cfg.AckWait, cfg.BackOff = s.opts.AckWait, nil
	cfg.MaxDeliver, cfg.InactiveThreshold, cfg.HeadersOnly = -1, 0, false
	if cfg.MaxAckPending >= 0 && cfg.MaxAckPending < s.maxAckPending() {
		cfg.MaxAckPending = s.maxAckPending()
	}
	have := cfg.FilterSubjects
	if cfg.FilterSubject != "" {
		have = []string{cfg.FilterSubject}
	}
	if !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(s.opts.Subjects))) {
		cfg.FilterSubject, cfg.FilterSubjects = s.filter()
	}
	return cfg
}

// lostTail notices a broker that lost the end of its stream (a power cut
// before its sync, a copy restored): the stream ends before what we have, or
// has another message where our last one was. at is a sequence up to which
// the stream still is what it was.
func (s *subscription) lostTail(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, known accounted) (lost bool, at uint64, err error) {
	if known.tail == 0 {
		return false, 0, nil
	}
	if info.State.LastSeq >= known.tail {
		m, err := stream.GetMsg(ctx, known.tail)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return false, 0, nil // removed by a limit, or by someone
		case err != nil:
			return false, 0, fmt.Errorf("inbox: reading sequence %d of %s: %w", known.tail, s.stream, err)
		case m.Time.UnixNano() == known.tailAt:
			return false, 0, nil
		}
	}
	// The stream may have grown again since, so its length does not tell where
	// the two histories part. Look back, in ever longer steps, for a message
	// that is in both. What is taken again is a duplicate by its identity.
	first, last := max(info.State.FirstSeq, 1), min(info.State.LastSeq, known.tail)
	for back := uint64(0); last >= first+back; back = 2*back + 1 {
		have, err := s.have(ctx, stream, last-back, known.tailAt)
		if err != nil {
			return false, 0, fmt.Errorf("inbox: reading sequence %d of %s: %w", last-back, s.stream, err)
		}
		if have {
			return true, last - back, nil
		}
	}
	return true, first - 1, nil
}

var qHave = newQuery(`
	SELECT 1 FROM inbox_message
	 WHERE consumer = ?1 AND source = ?2 AND message_id = ?3
	   AND hash = ?4 AND stream = ?5 AND stream_seq = ?6`)

// have reports whether the message that the stream has at a sequence is the
// one that this file took by it, not later than at a time of the broker.
func (s *subscription) have(ctx context.Context, stream jetstream.Stream, seq uint64, until int64) (have bool, err error) {
	raw, err := stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return false, nil
	case err != nil:
		return false, err
	case raw.Time.UnixNano() > until:
		return false, nil
	}
	m := Message{
		Headers: Header(raw.Header), Payload: raw.Data, Stream: s.stream,
		pos: &position{created: s.created, seq: seq, time: raw.Time.UnixNano()},
	}
	_ = s.opts.Identity.identify(&m) // one that is no use has an identity too
	hash := contentHash(m.Payload, s.c.opts.CanonicalJSON)
	err = s.c.ib.do(ctx, func(w *writer) error {
		source, err := w.name(int64(m.rule), m.Source)
		if err != nil {
			return err
		}
		var v [1]driver.Value
		if have, err = w.conn.queryRow(qHave, v[:], s.c.id, source, m.ID, hash[:], s.acct.id, int64(seq)); err != nil {
			return w.fail("comparing the stream with the file", err)
		}
		return nil
	})
	return have, err
}

// reconcile looks for sequences that the broker holds for acknowledged and
// the file does not have: its file was put back from an older copy, say. It
// returns where the consumer must start again, or 0.
func (s *subscription) reconcile(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, ci *jetstream.ConsumerInfo, known accounted) (start uint64, err error) {
	floor := ci.AckFloor.Stream
	if ci.NumAckPending == 0 { // it stands at the last one delivered, behind which some were skipped
		floor = max(floor, ci.Delivered.Stream)
	}
	if len(known.ranges) == 0 {
		if floor == 0 {
			return 0, nil
		}
		if ci.Delivered.Consumer > 0 || ci.Config.DeliverPolicy != jetstream.DeliverAllPolicy {
			// Somebody consumed up to here before this file was made.
			s.c.ib.alert(Alert{Kind: AlertConsumerNew, Consumer: s.c.name, Stream: s.stream,
				Detail: fmt.Sprintf("durable %s was there before this file; going on after sequence %d", s.opts.Durable, floor)})
		}
		return 0, s.skip(ctx, span{1, floor})
	}
	for _, gap := range known.ranges.gaps(1, floor) {
		missing, err := nextMessage(ctx, stream, max(gap.first, info.State.FirstSeq), s.opts.Subjects)
		if err != nil {
			return 0, fmt.Errorf("inbox: looking for sequence %d of %s: %w", gap.first, s.stream, err)
		}
		if missing == 0 || missing > gap.last {
			if err := s.skip(ctx, gap); err != nil {
				return 0, err
			}
			continue
		}
		s.c.ib.alert(Alert{Kind: AlertMissing, Consumer: s.c.name, Stream: s.stream,
			Detail: fmt.Sprintf("sequence %d was acknowledged but is not in the file; consuming again from there", missing)})
		return missing, nil
	}
	return 0, nil
}

// nextMessage is the first sequence at or after seq that matches one of the
// subjects and still is in the stream; 0 when there is none.
func nextMessage(ctx context.Context, stream jetstream.Stream, seq uint64, subjects []string) (next uint64, err error) {
	if len(subjects) == 0 {
		subjects = []string{">"}
	}
	for _, subject := range subjects {
		m, err := stream.GetMsg(ctx, max(seq, 1), jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return 0, err
		case next == 0 || m.Sequence < next:
			next = m.Sequence
		}
	}
	return next, nil
}

// accounted is a copy of an account, for goroutines other than the writer's.
type accounted struct {
	ranges spans
	tail   uint64
	tailAt int64
}

// resume is the first sequence not accounted for, at or after first.
func (k accounted) resume(first uint64) uint64 {
	first = max(first, 1)
	if len(k.ranges) == 0 {
		return first
	}
	last := k.ranges[len(k.ranges)-1].last
	if gaps := k.ranges.gaps(first, last); len(gaps) > 0 {
		return gaps[0].first
	}
	return max(first, last+1)
}

var (
	qStreamFind = newQuery(`
		SELECT id, epoch FROM inbox_stream
		 WHERE consumer = ?1 AND stream = ?2 AND created = ?3 ORDER BY epoch DESC LIMIT 1`)
	qStreamAny = newQuery(`SELECT 1 FROM inbox_stream WHERE consumer = ?1 AND stream = ?2 LIMIT 1`)
	qStreamAdd = newQuery(`INSERT INTO inbox_stream (consumer, stream, created, epoch, durable) VALUES (?1, ?2, ?3, ?4, ?5)`)
	qDurable   = newQuery(`UPDATE inbox_stream SET durable = ?2 WHERE id = ?1 AND durable <> ?2`)
	qRangeCopy = newQuery(`
		INSERT INTO inbox_range (stream, first_seq, last_seq)
		SELECT ?2, first_seq, min(last_seq, ?3) FROM inbox_range WHERE stream = ?1 AND first_seq <= ?3`)
	qSkippedCopy = newQuery(`
		UPDATE inbox_stream SET skipped = (SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM inbox_range WHERE stream = ?1)
		 WHERE id = ?1`)
)

// openAccount finds the account of this life of the stream, or begins it.
func (s *subscription) openAccount(ctx context.Context) (known accounted, err error) {
	var acct *account
	isNew := false
	err = s.c.ib.do(ctx, func(w *writer) error {
		stream, err := w.name(kindStream, s.stream)
		if err != nil {
			return err
		}
		var v [2]driver.Value
		found, err := w.conn.queryRow(qStreamFind, v[:], s.c.id, stream, s.created)
		if err != nil {
			return w.fail("finding the account of a stream", err)
		}
		if found {
			acct = w.accountOf(v[0].(int64))
			if _, err := w.conn.exec(qDurable, acct.id, s.opts.Durable); err != nil {
				return w.fail("naming the durable consumer", err)
			}
		} else {
			if isNew, err = w.conn.queryRow(qStreamAny, v[:1], s.c.id, stream); err != nil {
				return w.fail("finding the account of a stream", err)
			}
			if acct, err = w.addAccount(s.c.id, stream, s.created, 0, s.opts.Durable); err != nil {
				return err
			}
		}
		known, err = acct.copy(w)
		return err
	})
	if err != nil {
		return accounted{}, err
	}
	s.acct = acct
	if isNew {
		s.c.ib.alert(Alert{Kind: AlertStreamNew, Consumer: s.c.name, Stream: s.stream,
			Detail: "the stream was deleted and made anew: its sequences begin again"})
	}
	return known, nil
}

// reissued begins a new epoch of the same stream: up to sequence at all is as
// it was.
func (s *subscription) reissued(ctx context.Context, at uint64) (known accounted, err error) {
	var acct *account
	err = s.c.ib.do(ctx, func(w *writer) error {
		stream, err := w.name(kindStream, s.stream)
		if err != nil {
			return err
		}
		var v [2]driver.Value
		if _, err := w.conn.queryRow(qStreamFind, v[:], s.c.id, stream, s.created); err != nil {
			return w.fail("finding the account of a stream", err)
		}
		old, epoch := v[0].(int64), v[1].(int64)
		if acct, err = w.addAccount(s.c.id, stream, s.created, epoch+1, s.opts.Durable); err != nil {
			return err
		}
		if _, err := w.conn.exec(qRangeCopy, old, acct.id, int64(at)); err != nil {
			return w.fail("beginning a new epoch of a stream", err)
		}
		// Their rows stay with the old epoch.
		if _, err := w.conn.exec(qSkippedCopy, acct.id); err != nil {
			return w.fail("beginning a new epoch of a stream", err)
		}
		known, err = acct.copy(w)
		return err
	})
	if err != nil {
		return accounted{}, err
	}
	s.acct = acct
	return known, nil
}

func (w *writer) addAccount(consumer, stream, created, epoch int64, durable string) (*account, error) {
	var v [1]driver.Value
	_, err := w.conn.exec(qStreamAdd, consumer, stream, created, epoch, durable)
	if err == nil {
		_, err = w.conn.queryRow(qLastRow, v[:])
	}
	if err != nil {
		return nil, w.fail("beginning the account of a stream", err)
	}
	return w.accountOf(v[0].(int64)), nil
}

// accountOf is the one account with a number: there are never two opinions.
func (w *writer) accountOf(id int64) *account {
	a := w.opened[id]
	if a == nil {
		a = &account{id: id, stale: true}
		w.opened[id] = a
	}
	return a
}

// copy reads the account as this transaction sees it.
func (a *account) copy(w *writer) (accounted, error) {
	if a.stale {
		if err := a.load(w); err != nil {
			return accounted{}, err
		}
		// Should this transaction be lost, so is what was read in it.
		w.accounts[a] = struct{}{}
	}
	return accounted{slices.Clone(a.ranges), a.tail, a.tailAt}, nil
}

// skip accounts for sequences that were never ours.
func (s *subscription) skip(ctx context.Context, sp span) error {
	a := s.acct
	return s.c.ib.do(ctx, func(w *writer) error {
		if a.stale {
			if err := a.load(w); err != nil {
				return err
			}
		}
		a.skipped += int64(a.add(sp.first, sp.last))
		w.accounts[a] = struct{}{}
		return nil
	})
}
