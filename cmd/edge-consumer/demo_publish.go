package main

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"edge.example/inbox/testdata/github"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
)

// Of every demoRepeatEvery messages one is published a second time, a little
// later: a producer that did not hear its acknowledgement does that.
const (
	demoRepeatEvery = 20
	demoRepeatAfter = 7
)

// planned is how many messages the demo publishes: n good ones, the repeats,
// the poison and the conflict.
func planned(n int) int { return n + (n+demoRepeatEvery-1)/demoRepeatEvery + 2 }

// A template is an event to make messages of.
type template struct {
	kind    string // "push", "issues.opened"
	source  string
	payload []byte
}

// templates are the real events, and one that no handler can apply.
func templates() (good []template, poison template, err error) {
	events, err := github.Events()
	if err != nil {
		return nil, poison, err
	}
	const source = "https://github.com"
	for _, e := range events {
		t := template{kind: e.Name, source: source, payload: e.Payload}
		if e.Action != "" {
			t.kind += "." + e.Action
		}
		ev, err := parseEvent(e.Payload)
		if err != nil {
			return nil, poison, fmt.Errorf("%s: %w", e.File, err)
		}
		if name := ev.Repository.FullName; name != "" {
			t.source += "/" + name
		}
		good = append(good, t)
	}
	return good, template{"push", source, []byte(`["an array", "is not", "a GitHub event"]`)}, nil
}

// message makes a CloudEvent in binary mode: the payload as it is, the
// identity in headers. There is no Nats-Msg-Id: with one, the stream itself
// would drop what is published again within two minutes, and show nothing.
func (t *template) message() *nats.Msg {
	id := ulid.Make()
	return &nats.Msg{
		Subject: "github." + t.kind,
		Header: nats.Header{
			"ce-specversion": {"1.0"},
			"ce-id":          {id.String()},
			"ce-source":      {t.source},
			"ce-type":        {"com.github." + t.kind},
			"ce-time":        {ulid.Time(id.Time()).UTC().Format("2006-01-02T15:04:05.000Z")},
			"content-type":   {"application/json"},
		},
		Data: t.payload,
	}
}

// demoMessages are what the demo publishes: n distinct good events, repeats
// and the poison among them, and at the end one that has the identity of the
// first with another content.
func demoMessages(good []template, poison template, n int) iter.Seq[*nats.Msg] {
	return func(yield func(*nats.Msg) bool) {
		var first, repeat *nats.Msg
		for i := range n {
			m := good[i%len(good)].message()
			if i == 0 {
				first = m
			}
			if i%demoRepeatEvery == 0 {
				repeat = m
			}
			if !yield(m) {
				return
			}
			if repeat != nil && (i%demoRepeatEvery == demoRepeatAfter || i == n-1) {
				if !yield(again(repeat)) {
					return
				}
				repeat = nil
			}
			if i == n/2 && !yield(poison.message()) {
				return
			}
		}
		conflict := again(first)
		conflict.Data = good[1].payload
		yield(conflict)
	}
}

// again is the same message for another publish.
func again(m *nats.Msg) *nats.Msg {
	return &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
}

// publish publishes the demo's messages, counts them, and returns when the
// stream has stored all of them.
func publish(ctx context.Context, js jetstream.JetStream, n int, count *atomic.Int64) error {
	good, poison, err := templates()
	if err != nil {
		return err
	}
	var acks []jetstream.PubAckFuture
	for m := range demoMessages(good, poison, n) {
		if err := ctx.Err(); err != nil {
			return err
		}
		ack, err := js.PublishMsgAsync(m, jetstream.WithStallWait(30*time.Second))
		if err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
		if acks = append(acks, ack); len(acks) == 1000 {
			if err := stored(ctx, acks); err != nil {
				return err
			}
			acks = acks[:0]
		}
		count.Add(1)
	}
	return stored(ctx, acks)
}

// stored waits for the stream's acknowledgements.
func stored(ctx context.Context, acks []jetstream.PubAckFuture) error {
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return fmt.Errorf("publishing: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
