package inbox

// Pulling, by the JetStream wire API (ADR-13 of nats-architecture-and-design)
// rather than through nats.go's Consume. The reason is one message: an empty
// payload with a "Status: 400" header, which any producer can publish, is
// taken for a word of the server there and ends the consumption for good. Here
// the reply subject tells: a stored message has one to acknowledge it by, the
// server's own words have none.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	pullExpires   = 30 * time.Second // how long the server keeps a request
	pullHeartbeat = 5 * time.Second  // how often it says that it still does
	nakDelay      = 5 * time.Second  // after trouble with the disk; AckWait, when that is shorter
	restLimit     = 5 * time.Second  // for what came last to find room in the writer's queue
)

var (
	ackAck      = []byte("+ACK")
	ackProgress = []byte("+WPI")
)

// ackPrefix begins the reply subject of a message from a stream.
const ackPrefix = "$JS.ACK."

// pull consumes until ctx ends or something needs bind to look again.
func (s *subscription) pull(ctx context.Context) error {
	ch := make(chan *nats.Msg, s.opts.Prefetch+1024)
	s.inflight.trouble.Store(nil)
	s.line = &line{}
	var open []request
	var queue []*delivery // came while the writer's queue was full
	defer func() {
		if len(open) > 0 && s.nc.IsConnected() {
			// What is on its way still comes: UNSUB, and a PING behind it.
			for _, r := range open {
				_ = r.sub.Drain()
			}
			_ = s.nc.FlushTimeout(time.Second)
		}
		for _, r := range open {
			_ = r.sub.Unsubscribe()
		}
		s.rest(queue, ch)
	}()

	// Two requests at most are open, for half of the room each: while one is
	// being answered the other waits at the broker. It may limit them further.
	half, bytesHalf, expires := max(s.opts.Prefetch/2, 1), max(s.opts.PrefetchBytes/2, 1), pullExpires
	if n := s.durable.MaxRequestBatch; n > 0 {
		half = min(half, n)
	}
	if n := s.durable.MaxRequestMaxBytes; n > 0 {
		bytesHalf = min(bytesHalf, n)
	}
	if d := s.durable.MaxRequestExpires; d > 0 {
		expires = min(expires, d)
	}
	var came, big bool // since the last request; a message larger than half the bytes is next
	heard := time.NewTimer(2 * pullHeartbeat)
	defer heard.Stop()
	look := time.NewTicker(s.opts.AckWait)
	defer look.Stop()
	for {
		paused, switched := s.c.pausing()
		if paused {
			return errPaused
		}
		wanted := 0
		for _, r := range open {
			wanted += r.left
		}
		count, bytes := s.inflight.load()
		if len(open) < 2 && wanted+count+half <= s.opts.Prefetch && bytes <= s.opts.PrefetchBytes/2 && (!big || len(open) == 0) {
			r := request{left: half}
			body := map[string]any{"batch": half, "max_bytes": bytesHalf, "expires": expires, "idle_heartbeat": min(pullHeartbeat, expires/3)}
			if big {
				r.left, body["batch"] = 1, 1
				delete(body, "max_bytes")
			}
			if err := s.ask(&r, body, ch); err != nil {
				return fmt.Errorf("inbox: asking for messages: %w", err)
			}
			open, came, big = append(open, r), false, false
			continue
		}
		var full <-chan struct{}
		var err error
		if queue, full, err = s.hand(queue); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-switched:
		case <-full:
		case st := <-s.status:
			if st == nats.CONNECTED {
				return errReconnect
			}
			return errConnectionLost
		case <-s.inflight.room:
			if err := s.inflight.trouble.Load(); err != nil {
				return *err
			}
		case <-heard.C:
			if len(open) > 0 {
				return fmt.Errorf("inbox: nothing heard from the broker for %v", 2*pullHeartbeat)
			}
			heard.Reset(2 * pullHeartbeat)
		case <-look.C:
			if s.cursor.broken && count == 0 && len(ch) == 0 {
				return errLookAgain
			}
		case m := <-ch:
			heard.Reset(2 * pullHeartbeat)
			ended := false
			i := slices.IndexFunc(open, func(r request) bool { return r.sub == m.Sub })
			if strings.HasPrefix(m.Reply, ackPrefix) {
				came = true
				if i >= 0 {
					open[i].left--
					ended = open[i].left == 0
				}
				if d := s.delivery(m); d != nil {
					queue = append(queue, d)
				} else if s.cursor.passed {
					return fmt.Errorf("inbox: durable consumer %s of %s gave a message to another client, or to a connection that was lost: beginning again there, to keep the order of keys", s.opts.Durable, s.stream)
				}
			} else if i >= 0 {
				var tooBig bool
				if ended, tooBig, err = s.word(m); err != nil {
					return err
				}
				big = tooBig && !came || big && !came
			}
			if ended {
				_ = m.Sub.Unsubscribe()
				open = slices.Delete(open, i, i+1)
			}
		}
	}
}

// A request for messages that the broker is answering. Each has a subject of
// its own: the broker serves several in turn, message by message.
type request struct {
	sub  *nats.Subscription
	left int // messages still to come
}

// ask sends r; what comes goes to ch.
func (s *subscription) ask(r *request, body map[string]any, ch chan *nats.Msg) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if r.sub, err = s.nc.ChanSubscribe(s.nc.NewInbox(), ch); err != nil {
		return err
	}
	if err = s.nc.PublishRequest(s.prefix+"CONSUMER.MSG.NEXT."+s.stream+"."+s.opts.Durable, r.sub.Subject, text); err != nil {
		_ = r.sub.Unsubscribe()
	}
	return err
}

// hand hands deliveries to the writer, without waiting. When its queue has no
// room for the first of those left, full is closed once it may have.
func (s *subscription) hand(ds []*delivery) (left []*delivery, full <-chan struct{}, err error) {
	n := 0
	for n < len(ds) {
		if full, err = s.c.ib.w.q.offer(ds[n]); full != nil || err != nil {
			break
		}
		n++
	}
	return slices.Delete(ds, 0, n), full, err
}

// rest takes what had been delivered when pulling ended: it is cheaper to
// commit it than to wait for its redelivery. When one cannot be taken, nor are
// those behind it: the order of keys is kept.
func (s *subscription) rest(queue []*delivery, ch chan *nats.Msg) {
	ctx, cancel := context.WithTimeout(context.Background(), restLimit)
	defer cancel()
	left := false
	take := func(d *delivery) {
		if left = left || s.inflight.trouble.Load() != nil || s.c.ib.w.q.push(ctx, d) != nil; left {
			s.settled(d, ErrClosed)
		}
	}
	for _, d := range queue {
		take(d)
	}
	for !left {
		select {
		case m := <-ch:
			if strings.HasPrefix(m.Reply, ackPrefix) {
				if d := s.delivery(m); d != nil {
					take(d)
				}
			}
		default:
			return
		}
	}
}

// word reads a message of the server's own. ended: the request it answers is
// over; tooBig: because the next message is larger than the request allowed.
func (s *subscription) word(m *nats.Msg) (ended, tooBig bool, err error) {
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	lower := strings.ToLower(text)
	switch {
	case status == "404", status == "408": // no messages, or the time is over
		return true, false, nil
	case status == "409" && strings.Contains(lower, "maxbytes"):
		return true, true, nil
	case status == "409" && (strings.Contains(lower, "leadership change") || strings.Contains(lower, "batch completed")):
		return true, false, nil
	case status == "100", status == "": // idle heartbeat; or nobody's word
		return false, false, nil
	case status == "503":
		return false, false, fmt.Errorf("inbox: stream %s or its durable consumer %s is not there", s.stream, s.opts.Durable)
	}
	return false, false, fmt.Errorf("inbox: the broker answered: %s %s", status, text)
}

// delivery makes the writer's job of a message from the stream; nil when none
// can be made of it, or must not: cursor.passed.
func (s *subscription) delivery(raw *nats.Msg) *delivery {
	meta, err := raw.Metadata()
	if err != nil {
		s.c.ib.log.Error("message with an unreadable reply subject", "consumer", s.c.name, "subject", raw.Subject, "error", err)
		return nil
	}
	s.cursor.passed = s.cursor.passed || s.opts.Key != nil && meta.Sequence.Consumer != s.cursor.dseq+1
	if s.cursor.passed {
		return nil
	}
	d := &delivery{
		c: s.c, ctx: s.c.ctx, store: s.opts.StoreFirst, line: s.line,
		m: Message{
			Subject: raw.Subject, Headers: Header(raw.Header), Payload: raw.Data,
			Stream: s.stream, StreamSeq: meta.Sequence.Stream,
		},
		sub: s, reply: raw.Reply,
		pos: position{acct: s.acct, created: s.created, seq: meta.Sequence.Stream, from: meta.Sequence.Stream, time: meta.Timestamp.UnixNano()},
	}
	m := &d.m
	m.pos = &d.pos
	// One that the broker could not deliver at first comes as if it were new.
	isNew := meta.NumDelivered == 1 && m.pos.seq > s.cursor.seq
	s.cursor.valid = s.cursor.valid && meta.Sequence.Consumer == s.cursor.dseq+1
	if s.cursor.valid && isNew {
		m.pos.from = s.cursor.seq + 1
	}
	s.cursor.broken = s.cursor.broken || !s.cursor.valid
	s.cursor.dseq = meta.Sequence.Consumer
	if isNew {
		s.cursor.seq, s.cursor.valid = m.pos.seq, true
	}

	if err := s.opts.Identity.identify(m); err != nil {
		m.invalid = err.Error()
	} else if s.opts.Key != nil {
		if m.Key, err = s.opts.Key(m); err != nil {
			m.Key, m.invalid = "", fmt.Sprintf("no ordering key: %v", err)
		}
	}

	if err := d.prepare(); err != nil {
		s.c.ib.alert(Alert{Kind: AlertDead, Consumer: s.c.name, Stream: s.stream, MessageID: m.ID, Err: err, Detail: "left on the broker"})
		return nil
	}
	d.inflight = s.inflight.add(raw.Reply, m.size())
	return d
}

// settled acknowledges d, or asks for it again when err kept it out of the file.
func (s *subscription) settled(d *delivery, err error) {
	switch {
	case err == nil:
		_ = s.nc.Publish(d.reply, ackAck) // lost: it comes again, a duplicate
		if d.outcome != Duplicate {
			s.inflight.progress.Store(true)
		}
	case errors.Is(err, ErrClosed):
		// Left to AckWait.
	default:
		_ = s.nc.Publish(d.reply, s.nak)
		trouble := err // err itself would be on the heap for every message
		s.inflight.trouble.Store(&trouble)
	}
	s.inflight.remove(d.inflight)
}

// inflight are the messages that came and are not settled.
type inflight struct {
	mu       sync.Mutex
	n        uint64
	bytes    int
	waiting  map[uint64]waiting
	room     chan struct{} // holds a token when there is more room, or trouble
	trouble  atomic.Pointer[error]
	progress atomic.Bool // some were committed, for the first time
}

type waiting struct {
	reply string
	bytes int
	since time.Time
}

func (f *inflight) init() {
	f.waiting = map[uint64]waiting{}
	f.room = make(chan struct{}, 1)
}

func (f *inflight) add(reply string, bytes int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	f.bytes += bytes
	f.waiting[f.n] = waiting{reply, bytes, time.Now()}
	return f.n
}

func (f *inflight) remove(n uint64) {
	f.mu.Lock()
	f.bytes -= f.waiting[n].bytes
	delete(f.waiting, n)
	f.mu.Unlock()
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// load is how many they are, and their bytes.
func (f *inflight) load() (count, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting), f.bytes
}

// wait waits until all are settled, or for limit.
func (f *inflight) wait(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for count, _ := f.load(); count > 0; count, _ = f.load() {
		select {
		case <-f.room:
		case <-t.C:
			return
		}
	}
}

// keepAlive tells the broker of messages that wait long: they are being
// worked on.
func (s *subscription) keepAlive() (stop func()) {
	every := s.opts.AckWait / 3
	t := time.NewTicker(every)
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			s.inflight.mu.Lock()
			var replies []string
			for _, w := range s.inflight.waiting {
				if time.Since(w.since) >= every {
					replies = append(replies, w.reply)
				}
			}
			s.inflight.mu.Unlock()
			for _, r := range replies {
				_ = s.nc.Publish(r, ackProgress)
			}
		}
	}()
	return func() { t.Stop(); close(done); <-finished }
}
