//go:build linux || darwin

package torture

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const streamName = "sim"

// A hub is the broker, and what its stream holds as far as it was told to keep
// it.
type hub struct {
	srv *natstest.Server
	url string
	up  bool
	nc  *nats.Conn
	js  jetstream.JetStream

	created int64               // of the stream, ns; 0: there is none
	holds   map[uint64]*publish // by sequence
	copies  []hubCopy

	restores atomic.Int64 // how often it was put back to one
}

type hubCopy struct {
	restore func()
	created int64
	holds   map[uint64]*publish
}

// A publish is one message that the broker has confirmed.
type publish struct {
	message
	hash string
	must map[*gateway]bool // it was acknowledged before it went away
}

// A message is what a producer means to send.
type message struct {
	id      string // "": it has none, and gets one by its place in the stream
	key     string
	does    string
	payload string
}

// invalid messages are stored dead, without an attempt.
func (m message) invalid() bool { return m.does == "no key" || m.does == "no id" }

func newHub(t testing.TB, dir string) (*hub, error) {
	h := &hub{srv: natstest.New(t, func(o *server.Options) { o.StoreDir = filepath.Join(dir, "hub") })}
	if err := h.start(); err != nil {
		return nil, err
	}
	h.url = h.srv.URL()
	return h, h.create()
}

func ctx10() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

func (h *hub) start() (err error) {
	if h.up {
		return nil
	}
	h.srv.Start()
	h.up = true
	if h.nc, err = nats.Connect(h.srv.URL()); err != nil {
		return err
	}
	h.js, err = jetstream.New(h.nc)
	return err
}

func (h *hub) stop() {
	if h.up {
		h.nc.Close()
		h.srv.Stop()
		h.up = false
	}
}

func (h *hub) create() error {
	ctx, cancel := ctx10()
	defer cancel()
	s, err := h.js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{"sim.>"}})
	if err != nil {
		return err
	}
	h.created, h.holds = s.CachedInfo().Created.UnixNano(), map[uint64]*publish{}
	return nil
}

func (h *hub) remove() error {
	ctx, cancel := ctx10()
	defer cancel()
	h.created, h.holds = 0, nil
	return h.js.DeleteStream(ctx, streamName)
}

// save keeps a copy of all that the hub has stored.
func (h *hub) save() error {
	up := h.up
	h.stop()
	h.copies = append(h.copies, hubCopy{h.srv.SaveFiles(), h.created, maps.Clone(h.holds)})
	if !up {
		return nil
	}
	return h.start()
}

// restore goes back to a copy.
func (h *hub) restore(n int) error {
	h.stop()
	h.restores.Add(1)
	c := h.copies[n]
	c.restore()
	h.created, h.holds = c.created, maps.Clone(c.holds)
	return h.start()
}

func (h *hub) publish(m message) (*publish, error) {
	ctx, cancel := ctx10()
	defer cancel()
	msg := &nats.Msg{Subject: "sim.x", Data: []byte(m.payload), Header: nats.Header{"does": {m.does}}}
	if m.id != "" {
		msg.Header.Set("ce-source", "sim")
		msg.Header.Set("ce-id", m.id)
	} else {
		msg.Header.Set("Content-Type", "application/cloudevents+json")
	}
	if m.key != "" {
		msg.Header.Set("key", m.key)
	}
	if m.payload == "" { // looks like a word of the server's
		msg.Header.Set("Status", "400")
	}
	ack, err := h.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(msg.Data)
	p := &publish{message: m, hash: hex.EncodeToString(sum[:]), must: map[*gateway]bool{}}
	if m.id == "" {
		s, err := h.js.Stream(ctx, streamName)
		if err != nil {
			return nil, err
		}
		raw, err := s.GetMsg(ctx, ack.Sequence)
		if err != nil {
			return nil, err
		}
		p.id = fmt.Sprintf("%d/%d/%d", h.created, ack.Sequence, raw.Time.UnixNano())
	}
	h.holds[ack.Sequence] = p
	return p, nil
}

// purge removes all but the last few messages.
func (h *hub) purge(keep int) error {
	ctx, cancel := ctx10()
	defer cancel()
	s, err := h.js.Stream(ctx, streamName)
	if err != nil {
		return err
	}
	seqs := slices.Sorted(maps.Keys(h.holds))
	keep = min(keep, len(seqs))
	for _, seq := range seqs[:len(seqs)-keep] {
		delete(h.holds, seq)
	}
	if keep == 0 {
		return s.Purge(ctx)
	}
	return s.Purge(ctx, jetstream.WithPurgeKeep(uint64(keep)))
}

// consumer is how the broker stands with a gateway; nil when it does not know it.
func (h *hub) consumer(g *gateway) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := ctx10()
	defer cancel()
	c, err := h.js.Consumer(ctx, streamName, g.name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", g.name, err)
	}
	return c.CachedInfo(), nil
}

// oblige notes what the gateways have acknowledged: it must be found with them
// even when the stream does not have it any more.
func (h *hub) oblige(gs []*gateway) error {
	if !h.up || h.created == 0 {
		return nil
	}
	for _, g := range gs {
		info, err := h.consumer(g)
		if err != nil {
			return err
		}
		for seq, p := range h.holds {
			if info != nil && seq <= info.AckFloor.Stream {
				p.must[g] = true
			}
		}
	}
	return nil
}

// forget deletes what the broker knows of a gateway.
func (h *hub) forget(g *gateway) error {
	ctx, cancel := ctx10()
	defer cancel()
	err := h.js.DeleteConsumer(ctx, streamName, g.name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}
