package gateway

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/sqlhandler"
	"github.com/nats-io/nats.go/jetstream"
)

// A consumer is one of the configuration, at work.
type consumer struct {
	*inbox.Consumer
	work atomic.Pointer[work] // what a reload may exchange
}

// work is what a consumer does with a message.
type work struct {
	schema  *config.PayloadSchema // nil: any payload
	handler *sqlhandler.Handler
}

// newWork compiles what consumer number i does.
func newWork(cfg *config.Config, i int) (*work, error) {
	h, path := cfg.HandlerOf(i)
	handler, err := h.Compile()
	if err != nil {
		return nil, cfg.SQLProblems(path, err)
	}
	schema, err := cfg.Consumers[i].PayloadSchema()
	if err != nil {
		return nil, cfg.At(fmt.Sprintf("$.consumers[%d].schema", i), err)
	}
	return &work{schema, handler}, nil
}

// prepare compiles the statements against the tables of ib.
func (w *work) prepare(ctx context.Context, ib *inbox.Inbox, cfg *config.Config, i int) error {
	var found error
	err := ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		found = w.handler.Prepare(ctx, tx)
		return nil
	})
	if err != nil {
		return err
	}
	if found != nil {
		_, path := cfg.HandlerOf(i)
		return cfg.SQLProblems(path, found)
	}
	return nil
}

func (w *work) handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	if w.schema != nil {
		if err := w.schema.Check(m.Payload); err != nil {
			return inbox.Permanent(err)
		}
	}
	return w.handler.Handle(ctx, tx, m)
}

// handle is the inbox's handler.
func (c *consumer) handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	return c.work.Load().handle(ctx, tx, m)
}

// consumerOptions are the options that cannot change while the inbox is open.
func consumerOptions(k *config.Consumer) *inbox.ConsumerOptions {
	o := &inbox.ConsumerOptions{
		Retry: inbox.RetryPolicy{
			Initial: time.Duration(k.Retry.Initial), Max: time.Duration(k.Retry.Max),
			Multiplier: k.Retry.Multiplier, MaxAttempts: k.Retry.Attempts,
		},
		DeadPasses: k.DeadPasses, DropPayload: k.DropPayload, CanonicalJSON: k.CanonicalJSON,
		IgnoreConflicts: k.Conflicts == "ignore",
	}
	if j := k.Retry.Jitter; j != nil {
		o.Retry.Jitter = *j
		if *j == 0 {
			o.Retry.Jitter = -1
		}
	}
	return o
}

func subscribeOptions(k *config.Consumer) (*inbox.SubscribeOptions, error) {
	o := &inbox.SubscribeOptions{
		Durable: k.Durable, Subjects: k.Subjects,
		Identity:   inbox.Identity{Header: k.Identity.Header, JSONPath: k.Identity.JSON, Content: k.Identity.Content},
		StoreFirst: k.StoreFirst,
		Start:      inbox.Start(k.Start),
		AckWait:    time.Duration(k.AckWait), Prefetch: k.Prefetch, PrefetchBytes: int(k.PrefetchBytes),
	}
	switch {
	case k.Key.Header != "":
		o.Key = inbox.KeyFromHeader(k.Key.Header)
	case k.Key.JSON != "":
		key, err := inbox.KeyFromJSON(k.Key.JSON)
		if err != nil {
			return nil, err
		}
		o.Key = key
	}
	if s := k.CreateStream; s != nil {
		o.CreateStream = &jetstream.StreamConfig{
			Name: k.Stream, Subjects: s.Subjects, Replicas: max(s.Replicas, 1),
			MaxAge: time.Duration(s.MaxAge), MaxBytes: limit(int64(s.MaxBytes)), MaxMsgs: limit(s.MaxMsgs), MaxMsgSize: int32(limit(int64(s.MaxMsgSize))),
			Duplicates: time.Duration(s.Duplicates),
		}
		if s.Storage == "memory" {
			o.CreateStream.Storage = jetstream.MemoryStorage
		}
		if s.Discard == "new" {
			o.CreateStream.Discard = jetstream.DiscardNew
		}
	}
	return o, nil
}

// limit is n, or NATS's word for none.
func limit(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

// Deliver gives a consumer a message as if it had come from its stream, but for
// its identity. key, if not nil, is its ordering key.
func (g *Gateway) Deliver(ctx context.Context, consumer string, m inbox.Message, key *string) (inbox.Outcome, error) {
	cfg := g.config()
	for i := range cfg.Consumers {
		k := &cfg.Consumers[i]
		if k.Name != consumer {
			continue
		}
		opts, err := subscribeOptions(k)
		if err != nil {
			return 0, err
		}
		switch {
		case key != nil:
			m.Key = *key
		case opts.Key != nil:
			if m.Key, err = opts.Key(&m); err != nil {
				m.Key = ""
			}
		}
		return g.consumers[consumer].Process(ctx, m)
	}
	return 0, fmt.Errorf("the configuration has no consumer %q", consumer)
}

// HandlerOf makes the handler that a consumer has by the configuration, for one
// who is not the gateway.
func HandlerOf(cfg *config.Config, consumer string) (inbox.Handler, error) {
	for i := range cfg.Consumers {
		if cfg.Consumers[i].Name == consumer {
			w, err := newWork(cfg, i)
			if err != nil {
				return nil, err
			}
			return w.handle, nil
		}
	}
	return nil, fmt.Errorf("the configuration %s has no consumer %q: its handler is not known", cfg.Name(), consumer)
}
