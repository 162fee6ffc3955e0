package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// demoConsumer is the name of the consumer.
const demoConsumer = "github"

// A life is one run of a consumer process, as far as the inbox and the broker
// can tell: an inbox opened, a connection, a subscription.
type life struct {
	nc      *nats.Conn
	ib      *inbox.Inbox
	cancel  context.CancelFunc
	running sync.WaitGroup
	ended   chan error // what Subscribe returned
}

// firstLife consumes until the cable is cut, and then stops without having
// said to the broker what it did.
func (d *demo) firstLife(ctx context.Context, fail context.CancelCauseFunc) error {
	l, err := d.begin(ctx, fail, &d.cable)
	if err != nil {
		return err
	}
	select {
	case <-d.cutDone:
	case err = <-l.ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.nc.Close() // at once, where a clean stop would acknowledge first
	if e := l.end(); err == nil {
		err = e
	}
	return err
}

// secondLife consumes until the broker has nothing left and nothing waits in
// the inbox. Its first acknowledgements get lost too, one in twenty of all:
// those messages are delivered again.
func (d *demo) secondLife(ctx context.Context, fail context.CancelCauseFunc, js jetstream.JetStream, publishing <-chan struct{}) error {
	flaky := &cable{}
	flaky.lose.Store(max(d.cutAfter/10, 1))
	l, err := d.begin(ctx, fail, flaky)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for done := false; err == nil && !done; {
		select {
		case err = <-l.ended:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-tick.C:
			select {
			case <-publishing:
				done, err = drained(ctx, js, l.ib)
			default:
			}
		}
	}
	if e := l.end(); err == nil {
		err = e
	}
	return err
}

// drained reports whether everything was delivered, acknowledged and applied.
func drained(ctx context.Context, js jetstream.JetStream, ib *inbox.Inbox) (bool, error) {
	c, err := js.Consumer(ctx, demoStream, demoConsumer)
	if err != nil {
		return false, fmt.Errorf("asking the broker what is left: %w", err)
	}
	if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
		return false, nil
	}
	st, err := ib.Stats(ctx)
	return err == nil && st.Consumers[demoConsumer].Pending == 0, err
}

// begin opens the inbox and subscribes.
func (d *demo) begin(ctx context.Context, fail context.CancelCauseFunc, c *cable) (_ *life, err error) {
	l := &life{ended: make(chan error, 1)}
	ctx, l.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			_ = l.end()
		}
	}()
	l.ib, err = inbox.Open(ctx, d.db, &inbox.Options{
		// The dead message and the conflict are there on purpose; trouble
		// with the disk ends the demo.
		Logger:   slog.New(slog.DiscardHandler),
		Observer: &inbox.Observer{Delivered: d.observe, Alert: func(a inbox.Alert) { alerted(a, fail) }},
	})
	if err != nil {
		return nil, err
	}
	handler, err := writeGateway(filepath.Dir(d.db))
	if err != nil {
		return nil, fmt.Errorf("the gateway's configuration: %w", err)
	}
	if err := l.ib.Update(ctx, createTables); err != nil {
		return nil, fmt.Errorf("making the business tables: %w", err)
	}
	consumer, err := l.ib.Consumer(demoConsumer, handler.Handle, nil)
	if err != nil {
		return nil, err
	}
	key, err := inbox.KeyFromJSON("$.repository.full_name")
	if err != nil {
		return nil, err
	}
	var js jetstream.JetStream
	if l.nc, js, err = d.broker.connect(c); err != nil {
		return nil, err
	}
	l.running.Go(func() { _ = l.ib.Run(ctx) })
	l.running.Go(func() {
		l.ended <- consumer.Subscribe(ctx, js, demoStream, &inbox.SubscribeOptions{
			Key: key,
			// What the first life did not acknowledge comes again soon, and
			// is not too much. In earnest, keep the defaults.
			AckWait: time.Second, Prefetch: 500,
		})
	})
	return l, nil
}

// end stops what begin began.
func (l *life) end() error {
	l.cancel()
	l.running.Wait()
	if l.nc != nil {
		l.nc.Close()
	}
	if l.ib == nil {
		return nil
	}
	return l.ib.Close()
}

// observe counts what came, for the progress line, and cuts the cable when it
// is time: after the commit and before the acknowledgement.
func (d *demo) observe(_ string, o inbox.Outcome) {
	if o == inbox.Duplicate {
		d.repeated.Add(1)
	}
	if d.delivered.Add(1) == d.cutAfter {
		d.cable.cut()
		close(d.cutDone)
	}
}

func alerted(a inbox.Alert, fail context.CancelCauseFunc) {
	if a.Kind == inbox.AlertStorage {
		fail(fmt.Errorf("the database: %w", a.Err))
	}
}
