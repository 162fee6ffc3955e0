package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A brokerStatus is how the broker stands for the consumers of an inbox, in
// the JSON of the status command.
type brokerStatus struct {
	Servers   []string         `json:"servers"`
	Connected bool             `json:"connected"`
	Error     *string          `json:"error"`
	Consumers []brokerConsumer `json:"consumers"`
}

// A brokerConsumer is a durable consumer on the broker.
type brokerConsumer struct {
	Consumer   string  `json:"consumer"`
	Stream     string  `json:"stream"`
	Durable    string  `json:"durable"`
	Lag        *uint64 `json:"lag"`         // messages that were not delivered yet
	AckPending *int    `json:"ack_pending"` // delivered, not acknowledged yet
	Error      *string `json:"error"`       // why the two are not known
}

// A durable is what a consumer reads from.
type durable struct {
	consumer, stream, name string
}

// durables are those of the configuration, or, without one, those that the
// file knows.
func durables(ctx context.Context, cfg *config.Config, ib *inbox.Inbox) ([]durable, error) {
	var list []durable
	if cfg != nil {
		for i := range cfg.Consumers {
			k := &cfg.Consumers[i]
			list = append(list, durable{k.Name, k.Stream, durableName(k)})
		}
		return list, nil
	}
	err := ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, `
			SELECT c.name, n.name, i.durable, max(i.id) -- of the last life of the stream
			  FROM inbox_stream i
			  JOIN inbox_name c ON c.id = i.consumer
			  JOIN inbox_name n ON n.id = i.stream
			 GROUP BY i.consumer, i.stream
			 ORDER BY c.name, n.name`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var d durable
			var id int64
			if err := rows.Scan(&d.consumer, &d.stream, &d.name, &id); err != nil {
				return err
			}
			list = append(list, d)
		}
		return rows.Err()
	})
	return list, err
}

// durableName is the name that the library gives the durable consumer: those
// of the configuration have no characters that it would replace.
func durableName(k *config.Consumer) string {
	if k.Durable != "" {
		return k.Durable
	}
	return k.Name
}

// readBroker asks for each durable consumer. Each answer has until limit.
func readBroker(ctx context.Context, l *link, servers []string, list []durable, limit time.Duration) *brokerStatus {
	s := &brokerStatus{Servers: servers, Connected: true, Consumers: []brokerConsumer{}}
	for _, d := range list {
		c := brokerConsumer{Consumer: d.consumer, Stream: d.stream, Durable: d.name}
		if info, err := askConsumer(ctx, l, d, limit); err != nil {
			text := oneLine(err)
			c.Error = &text
		} else {
			c.Lag, c.AckPending = &info.NumPending, &info.NumAckPending
		}
		s.Consumers = append(s.Consumers, c)
	}
	return s
}

// unreachable is how the broker stands when it cannot be asked.
func unreachable(servers []string, err error) *brokerStatus {
	text := oneLine(err)
	if servers == nil {
		servers = []string{}
	}
	return &brokerStatus{Servers: servers, Error: &text, Consumers: []brokerConsumer{}}
}

// oneLine is an error of several lines in one.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func askConsumer(ctx context.Context, l *link, d durable, limit time.Duration) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := l.js.Consumer(ctx, d.stream, d.name)
	if err != nil {
		return nil, l.explain(err, "$JS.API.CONSUMER.INFO."+d.stream+"."+d.name)
	}
	return c.CachedInfo(), nil
}

// noJetStream reports whether there is no JetStream to ask.
func noJetStream(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// explain says more of an error of the JetStream API, on a subject of it.
func (l *link) explain(err error, subject string) error {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return errors.New("the stream is not there")
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return errors.New("the durable consumer is not there")
	case noJetStream(err):
		return fmt.Errorf("JetStream does not answer: it is not enabled for this account, or in another domain: %w", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		if said := l.said(); said != nil {
			return fmt.Errorf("no answer: %w", said)
		}
		return fmt.Errorf("no answer in time; may this user publish to %s?", subject)
	}
	return err
}

// text is one line on the connection.
func (s *brokerStatus) text() string {
	if s.Error != nil && len(s.Servers) == 0 {
		return "not asked: " + *s.Error
	}
	if s.Error != nil {
		return "not reachable: " + *s.Error
	}
	return "connected to " + strings.Join(s.Servers, ",")
}

// print writes what waits on the broker, if it was asked.
func (s *brokerStatus) print(p *printer) {
	if s == nil || len(s.Consumers) == 0 {
		return
	}
	p.printf("\nOn the broker:\n\n")
	t := newTable(p, column{name: "CONSUMER"}, column{name: "STREAM"}, column{name: "DURABLE"},
		column{name: "LAG", right: true}, column{name: "ACK PENDING", right: true}, column{})
	for _, c := range s.Consumers {
		if c.Error != nil {
			t.row(c.Consumer, c.Stream, c.Durable, "-", "-", *c.Error)
			continue
		}
		t.row(c.Consumer, c.Stream, c.Durable, comma(*c.Lag), comma(*c.AckPending), "")
	}
	t.flush()
}
