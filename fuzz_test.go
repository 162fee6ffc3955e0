package inbox

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// FuzzProcess: whatever a message is made of, it is refused, or the handler
// sees the same at the first attempt and from the file.
func FuzzProcess(f *testing.F) {
	f.Add("id", "source", "type", "subject", "key", "Name", "value", []byte("payload"))
	f.Add("id", "", "", "", "", "", "", []byte(nil))
	f.Add("\x00", "\x00", "\x00", "\x00", "\x00", "\x00", "\x00", []byte("\x00"))
	f.Add("a\x00b", "\xff", "\xed\xa0\x80", "é", "k\x00", "a: b\r\n%41", "%0A\n: ", []byte{0xff})
	f.Add("", "", "", "", "", "", "", []byte{})
	l := newLab(f, nil)
	var first *Message
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error { first = m; return apply(ctx, tx, m) }, nil)
	f.Fuzz(func(t *testing.T, id, source, kind, subject, key, name, value string, payload []byte) {
		m := Message{ID: id, Source: source, Type: kind, Subject: subject, Key: key, Payload: payload}
		if name != "" || value != "" {
			m.Headers = Header{name: {value, ""}, name + "2": {value}}
		}
		first = nil
		outcome, err := c.Process(ctxBG, m)
		if id == "" {
			require.ErrorIs(t, err, ErrInvalidMessage)
			return
		}
		require.NoError(t, err)
		if outcome != Applied {
			require.Contains(t, []Outcome{Duplicate, Conflict}, outcome)
			return
		}
		// The file has it as it came.
		var again *Message
		r, err := l.ib.Rehearse(ctxBG, first.Seq, func(_ context.Context, _ *Tx, m *Message) error { again = m; return nil })
		require.NoError(t, err)
		require.NoError(t, r.Err)
		for _, got := range []*Message{first, again} {
			require.Equal(t, []string{id, source, kind, subject, key}, []string{got.ID, got.Source, got.Type, got.Subject, got.Key})
			require.Equal(t, string(payload), string(got.Payload))
			require.True(t, maps.EqualFunc(m.Headers, got.Headers, slices.Equal[[]string]), "%q, not %q", got.Headers, m.Headers)
		}
	})
}

// FuzzWire: whatever comes over the connection in the place of a message is
// told from the broker's own words by its reply subject, and read or refused;
// nothing of it panics or ends the consumption.
func FuzzWire(f *testing.F) {
	const stored = "$JS.ACK.S.d.1.7.3.1700000000000000000.0"
	f.Add(stored, "subject", "Nats-Msg-Id", "id", "", "", []byte("payload"))
	f.Add(stored, "subject", "Status", "400", "Description", "Bad Request", []byte(nil))
	f.Add("", "subject", "Status", "409", "Description", "Message Size Exceeds MaxBytes", []byte(nil))
	f.Add("", "subject", "Status", "100", "Nats-Last-Consumer", "1", []byte(nil))
	f.Add("$JS.ACK.", "subject", "ce-id", "%", "ce-source", "%zz", []byte("{}"))
	f.Add("$JS.ACK.x.y.S.d.1.18446744073709551615.18446744073709551615.-1.0", "", "", "", "", "", []byte(nil))
	f.Add(stored, "", "Content-Type", "application/cloudevents+json", "", "", []byte(`{"specversion":"1.0","id":"1","source":"s"}`))
	f.Add(stored, "", "Content-Type", "application/cloudevents+json", "", "", []byte(`{"id":`))
	l := newLab(f, nil)
	c := l.consumer("c", func(context.Context, *Tx, *Message) error { return nil }, nil)
	f.Fuzz(func(t *testing.T, reply, subject, n1, v1, n2, v2 string, payload []byte) {
		raw := &nats.Msg{Reply: reply, Subject: subject, Data: payload, Header: nats.Header{n1: {v1}, n2: {v2}}, Sub: &nats.Subscription{}}
		s := &subscription{c: c, stream: "S", line: &line{}, opts: SubscribeOptions{Durable: "d", AckWait: time.Second}}
		s.inflight.init()
		require.NoError(t, s.opts.Identity.compile())
		if _, tooBig, err := s.word(raw); tooBig {
			require.NoError(t, err)
		}
		d := s.delivery(raw)
		if _, err := raw.Metadata(); err != nil {
			require.Nil(t, d, "a message with no place in a stream")
			return
		}
		require.NotNil(t, d)
		if d.m.invalid != "" {
			require.NotEmpty(t, d.m.ID, "stored dead, under the name of its place")
		}
		count, bytes := s.inflight.load()
		require.Equal(t, []int{1, d.m.size()}, []int{count, bytes})
		d.settle(ErrClosed)
		count, bytes = s.inflight.load()
		require.Equal(t, []int{0, 0}, []int{count, bytes})
	})
}
