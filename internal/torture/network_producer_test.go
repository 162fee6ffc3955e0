//go:build linux || darwin

package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A content is the payload of a message.
type content struct {
	ID      string `json:"id,omitempty"`   // its identity, whichever way the producer tells it
	Once    string `json:"once,omitempty"` // it has none but its place: it is published once
	Version int    `json:"version"`        // not 0: the same identity with another content
}

// publication is message number i: every producer says who it is in another way.
func publication(r *rand.Rand, i, version int, once string) *nats.Msg {
	m := &nats.Msg{Subject: "lab.x", Header: nats.Header{}}
	c := content{ID: fmt.Sprintf("m%06d", i), Version: version}
	switch {
	case i%19 == 0:
		c.ID = "bad" + c.ID
	case i%17 == 0:
		c.ID = "flaky" + c.ID
	}
	if i%3 == 0 {
		m.Header.Set("Key", fmt.Sprint("k", i%7))
	}
	switch i % 5 {
	case 0:
		c.ID, c.Once = "", once
	case 1:
		m.Header.Set("Nats-Msg-Id", c.ID)
	case 2: // in the payload only
	case 3:
		m.Header.Set("ce-id", c.ID)
		m.Header.Set("ce-source", "lab")
	default:
		m.Header.Set("ce-id", c.ID)
		m.Header.Set("ce-source", "lab")
		m.Header.Set("Nats-Msg-Id", fmt.Sprint(r.Uint64())) // another one each time
	}
	m.Data, _ = json.Marshal(c)
	return m
}

// produce publishes until it is stopped: each message about twice.
func (n *network) produce(r *rand.Rand) (stop func()) {
	nc, err := nats.Connect(n.srv.URL(), n.client()...)
	require.NoError(n.t, err)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(time.Second))
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		defer nc.Close()
		next, once := 0, 0
		for ctx.Err() == nil {
			for range 20 + r.IntN(80) {
				i, version := next, 0
				if r.IntN(2) == 0 && next > 0 {
					i -= 1 + r.IntN(min(next, 500))
				} else {
					next++
				}
				if r.IntN(100) == 0 {
					version = 1
				}
				once++
				_, _ = js.PublishMsgAsync(publication(r, i, version, fmt.Sprint("once", once)))
			}
			select {
			case <-js.PublishAsyncComplete():
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			// What is published is no flood, whatever this machine can take.
			for time.Sleep(10 * time.Millisecond); ctx.Err() == nil && n.behind() > 5000; time.Sleep(10 * time.Millisecond) {
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	n.t.Cleanup(stop)
	return stop
}

// behind is how many messages the broker has that it did not yet deliver: all
// of them, while the durable consumer is not there.
func (n *network) behind() uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := n.js.Stream(ctx, stream)
	if err != nil {
		return 0 // nobody can publish either
	}
	c, err := s.Consumer(ctx, "c")
	if err != nil {
		return s.CachedInfo().State.Msgs
	}
	return c.CachedInfo().NumPending
}
