package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// A brokerFlags is what a command beside the daemon is told of the broker. It
// connects as the daemon does: the same configuration, contexts, environment
// and credentials, through natsconn.
type brokerFlags struct {
	url     string
	context string
}

func newBrokerFlags(cmd *cobra.Command) *brokerFlags {
	b := &brokerFlags{}
	f := cmd.Flags()
	f.StringVar(&b.url, "nats", "", "NATS server `URLs`, with commas between them")
	f.StringVar(&b.context, "context", "", "`name` of a context of the nats CLI")
	return b
}

// given reports whether the command line names a broker.
func (b *brokerFlags) given() bool { return b.url != "" || b.context != "" }

// dialer puts together where to connect to. The flags go before cfg, which may
// be nil. Its errors are errors of usage.
func (b *brokerFlags) dialer(cfg *config.Config, lookup func(string) (string, bool)) (*natsconn.Dialer, error) {
	var c natsconn.Config
	if cfg != nil {
		c = cfg.NATS
	}
	if b.url != "" {
		c.URL = natsconn.URLs{b.url}
	}
	if b.context != "" {
		c.Context = b.context
	}
	d, err := natsconn.New(&c, lookup)
	switch {
	case err == nil:
		return d, nil
	case cfg != nil && !b.given():
		return nil, configError(cfg.At("$.nats", err))
	}
	return nil, &exitError{exitUsage, err}
}

// connectTimeout bounds the wait for one server.
const connectTimeout = 4 * time.Second

// A link is a connection for the time of one command.
type link struct {
	nc *nats.Conn
	js jetstream.JetStream

	mu  sync.Mutex
	err error // the last that came without being asked for
}

// connectNow connects within limit or not at all. The caller closes the link.
func connectNow(ctx context.Context, d *natsconn.Dialer, name string, limit time.Duration) (*link, error) {
	l := &link{}
	done := make(chan error, 1)
	go func() { // connecting cannot be interrupted
		var err error
		l.nc, l.js, err = d.Connect(name, append(l.options(), nats.RetryOnFailedConnect(false), nats.Timeout(min(limit, connectTimeout)))...)
		done <- err
	}()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return l, nil
	case <-ctx.Done():
		go func() {
			if <-done == nil {
				l.nc.Close()
			}
		}()
		if err := context.Cause(ctx); err != context.DeadlineExceeded {
			return nil, err
		}
		return nil, fmt.Errorf("NATS cannot be reached at %v: no answer within %v", d, limit)
	}
}

// options keep what the server says without being asked, a refused permission
// say: a request that it concerns just stays without an answer.
func (l *link) options() []nats.Option {
	return []nats.Option{nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
	})}
}

// said is the last that the server said without being asked.
func (l *link) said() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) close() { l.nc.Close() }
