package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// The proof holds two things against each other that know nothing of each
// other: what the broker stored (the evidence) and what is in the file. What
// the program counted while it ran has no part in it.

type (
	identity struct{ source, id string }
	hash     [sha256.Size]byte
	tally    struct{ events, issuesOpen int64 }
)

// sent is what the stream has under one identity, and what the file made of it.
type sent struct {
	content hash   // of the first message
	others  []hash // other contents under the same identity
	good    bool   // the first one is an event

	rows int // in the business table
	dead bool
}

// evidence is what the messages of a stream must have come to.
type evidence struct {
	messages     int // in the stream
	bytes        uint64
	repeats      int // with an identity and a content that an earlier one has
	good         int // identities whose first message is an event
	conflicts    int // contents refused
	messageOf    map[identity]*sent
	repositories map[string]tally

	read map[hash]content // payloads repeat: each is parsed once
}

// content is what a payload says.
type content struct {
	good       bool
	repository string
}

func newEvidence() *evidence {
	return &evidence{messageOf: map[identity]*sent{}, repositories: map[string]tally{}, read: map[hash]content{}}
}

// add takes the next message of the stream.
func (e *evidence) add(id identity, eventType string, payload []byte) {
	e.messages++
	e.bytes += uint64(len(payload))
	sum := hash(sha256.Sum256(payload))
	s := e.messageOf[id]
	switch {
	case s == nil:
	case s.content == sum || slices.Contains(s.others, sum):
		e.repeats++
		return
	default:
		s.others = append(s.others, sum)
		e.conflicts++
		return
	}
	c, known := e.read[sum]
	if !known {
		ev, err := parseEvent(payload)
		c = content{err == nil, ev.Repository.FullName}
		e.read[sum] = c
	}
	e.messageOf[id] = &sent{content: sum, good: c.good}
	if !c.good {
		return
	}
	e.good++
	if c.repository != "" {
		t := e.repositories[c.repository]
		t.events++
		t.issuesOpen += issuesOpened(eventType)
		e.repositories[c.repository] = t
	}
}

// readStream reads all of a stream from the broker.
func readStream(ctx context.Context, js jetstream.JetStream, stream string) (*evidence, error) {
	ev := newEvidence()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", stream, err)
	}
	last := s.CachedInfo().State.LastSeq
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("reading stream %s: %w", stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("reading stream %s: %w", stream, err)
	}
	defer messages.Stop()
	for at := uint64(0); at < last; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("reading stream %s after sequence %d: %w", stream, at, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("reading stream %s after sequence %d: %w", stream, at, err)
		}
		at = meta.Sequence.Stream
		h := m.Headers()
		ev.add(identity{h.Get("ce-source"), h.Get("ce-id")}, h.Get("ce-type"), m.Data())
	}
	return ev, nil
}

func (h hash) String() string { return hex.EncodeToString(h[:]) }
