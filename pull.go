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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	pullExpires   = 30 * time.Second // how long the server keeps a request
	pullHeartbeat = 5 * time.Second  // how often it says that it still does
	nakDelay      = 5 * time.Second  // after trouble with the disk
)

var (
	ackAck      = []byte("+ACK")
	ackProgress = []byte("+WPI")
	ackNak      = []byte(fmt.Sprintf(`-NAK {"delay":%d}`, nakDelay.Nanoseconds()))
)

// ackPrefix begins the reply subject of a message from a stream.
const ackPrefix = "$JS.ACK."

// pull consumes until ctx ends or something needs bind to look again.
func (s *subscription) pull(ctx context.Context) error {
	inbox := s.nc.NewInbox()
	ch := make(chan *nats.Msg, s.opts.Prefetch+1024)
	sub, err := s.nc.ChanSubscribe(inbox+".*", ch)
	if err != nil {
		return fmt.Errorf("inbox: subscribing: %w", err)
	}
	s.inflight.trouble.Store(nil)
	defer func() {
		_ = sub.Unsubscribe()
		s.rest(ch)
	}()

	wanted := 0 // messages asked for and not yet come
	heard := time.NewTimer(2 * pullHeartbeat)
	defer heard.Stop()
	for n := 1; ; {
		// Ask for what there is room for, a quarter of it at least.
		if room := s.opts.Prefetch - wanted - s.inflight.count(); room > 0 && (wanted == 0 || room >= (s.opts.Prefetch+3)/4) {
			body, _ := json.Marshal(map[string]int64{
				"batch": int64(room), "expires": pullExpires.Nanoseconds(), "idle_heartbeat": pullHeartbeat.Nanoseconds(),
			})
			if err := s.nc.PublishRequest(s.prefix+"CONSUMER.MSG.NEXT."+s.stream+"."+s.opts.Durable, inbox+"."+strconv.Itoa(n), body); err != nil {
				return fmt.Errorf("inbox: asking for messages: %w", err)
			}
			n++
			wanted += room
		}
		paused, switched := s.c.pausing()
		if paused {
			return errPaused
		}
		select {
		case <-ctx.Done():
			return nil
		case <-switched:
		case st := <-s.status:
			if st == nats.CONNECTED {
				return errReconnect
			}
			return errors.New("inbox: the connection to the broker was lost")
		case <-s.inflight.room:
			if err := s.inflight.trouble.Load(); err != nil {
				return *err
			}
		case <-heard.C:
			if wanted > 0 {
				return fmt.Errorf("inbox: nothing heard from the broker for %v", 2*pullHeartbeat)
			}
			heard.Reset(2 * pullHeartbeat)
		case m := <-ch:
			heard.Reset(2 * pullHeartbeat)
			if strings.HasPrefix(m.Reply, ackPrefix) {
				wanted = max(wanted-1, 0)
				if err := s.deliver(ctx, m); err != nil {
					return err
				}
				continue
			}
			ended, err := s.word(m)
			if err != nil {
				return err
			}
			wanted = max(wanted-ended, 0)
		}
	}
}

// rest takes what had been delivered when pulling ended: it is cheaper to
// commit it than to wait for its redelivery.
func (s *subscription) rest(ch chan *nats.Msg) {
	for {
		select {
		case m := <-ch:
			if strings.HasPrefix(m.Reply, ackPrefix) && s.inflight.trouble.Load() == nil {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				err := s.deliver(ctx, m)
				cancel()
				if err != nil {
					return
				}
			}
		default:
			return
		}
	}
}

// word reads a message of the server's own. When it ends a request, ended is
// how many messages that one still wanted.
func (s *subscription) word(m *nats.Msg) (ended int, err error) {
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	lower := strings.ToLower(text)
	switch {
	case status == "404", status == "408", // no messages, or the time is over
		status == "409" && (strings.Contains(lower, "leadership change") || strings.Contains(lower, "batch completed")):
		n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			n = s.opts.Prefetch // an old server does not say: ask anew
		}
		return n, nil
	case status == "100", status == "": // idle heartbeat; or nobody's word
		return 0, nil
	case status == "503":
		return 0, fmt.Errorf("inbox: stream %s or its durable consumer %s is not there", s.stream, s.opts.Durable)
	}
	return 0, fmt.Errorf("inbox: the broker answered: %s %s", status, text)
}

// deliver hands a message from the stream to the writer. It returns an error
// only when the inbox cannot take more.
func (s *subscription) deliver(ctx context.Context, raw *nats.Msg) error {
	meta, err := raw.Metadata()
	if err != nil {
		s.c.ib.log.Error("message with an unreadable reply subject", "consumer", s.c.name, "subject", raw.Subject, "error", err)
		return nil
	}
	m := Message{
		Subject: raw.Subject, Headers: Header(raw.Header), Payload: raw.Data,
		Stream: s.stream, StreamSeq: meta.Sequence.Stream,
		pos: &position{acct: s.acct, created: s.created, seq: meta.Sequence.Stream, from: meta.Sequence.Stream, time: meta.Timestamp.UnixNano()},
	}
	first := meta.NumDelivered == 1
	if s.cursor.valid && meta.Sequence.Consumer == s.cursor.dseq+1 {
		if first && m.pos.seq > s.cursor.seq {
			m.pos.from = s.cursor.seq + 1
		}
	} else {
		s.cursor.valid = false
	}
	s.cursor.dseq = meta.Sequence.Consumer
	if first {
		s.cursor.seq, s.cursor.valid = m.pos.seq, true
	}

	if err := s.opts.Identity.identify(&m); err != nil {
		m.invalid = err.Error()
	} else if s.opts.Key != nil {
		if m.Key, err = s.opts.Key(&m); err != nil {
			m.Key, m.invalid = "", fmt.Sprintf("no ordering key: %v", err)
		}
	}

	d, err := s.c.delivery(m)
	if err != nil {
		s.c.ib.alert(Alert{Kind: AlertDead, Consumer: s.c.name, Stream: s.stream, MessageID: m.ID, Err: err, Detail: "left on the broker"})
		return nil
	}
	n := s.inflight.add(raw.Reply)
	d.ctx, d.store = s.c.ctx, s.opts.StoreFirst
	d.done = func(_ Outcome, err error) {
		switch {
		case err == nil:
			_ = s.nc.Publish(raw.Reply, ackAck) // lost: it comes again, a duplicate
		case errors.Is(err, ErrClosed):
			// Left to AckWait.
		default:
			_ = s.nc.Publish(raw.Reply, ackNak)
			s.inflight.trouble.Store(&err)
		}
		s.inflight.remove(n)
	}
	if err := s.c.ib.w.q.push(ctx, d); err != nil {
		s.inflight.remove(n)
		return err
	}
	return nil
}

// inflight are the messages that were handed to the writer and are not settled.
type inflight struct {
	mu      sync.Mutex
	n       uint64
	reply   map[uint64]waiting
	room    chan struct{} // holds a token when there is more room, or trouble
	trouble atomic.Pointer[error]
}

type waiting struct {
	reply string
	since time.Time
}

func (f *inflight) init() {
	f.reply = map[uint64]waiting{}
	f.room = make(chan struct{}, 1)
}

func (f *inflight) add(reply string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	f.reply[f.n] = waiting{reply, time.Now()}
	return f.n
}

func (f *inflight) remove(n uint64) {
	f.mu.Lock()
	delete(f.reply, n)
	f.mu.Unlock()
	select {
	case f.room <- struct{}{}:
	default:
	}
}

func (f *inflight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.reply)
}

// wait waits until all are settled, or for limit.
func (f *inflight) wait(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for f.count() > 0 {
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
			for _, w := range s.inflight.reply {
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
