package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/spf13/cobra"
)

const topHelp = `Watch an inbox in a terminal, drawn anew every second: what status shows, with
rates per second. With a configuration, or --nats or --context, the lag on the
broker too; a broker that is away is waited for.

The rates are differences of the totals in the file: they count what the daemon
does, and are there whether it runs or not. q or Ctrl-C ends.`

func newTop() *cobra.Command {
	var db *database
	var broker *brokerFlags
	cmd := &cobra.Command{
		Use:   "top --db FILE",
		Short: "Watch the inbox in a terminal",
		Long:  topHelp,
		Example: `  edge-consumer top -c edge.yaml
  edge-consumer top --db orders.db`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			screen, err := newScreen(s)
			if err != nil {
				return err
			}
			ib, err := db.open(ctx)
			if err != nil {
				return err
			}
			defer ib.Close()
			t := &top{ib: ib, screen: screen}
			t.cfg, err = db.configured()
			if err == nil && (t.cfg != nil || broker.given()) {
				t.dialer, err = broker.dialer(t.cfg, os.LookupEnv)
			}
			switch {
			case err != nil && broker.given():
				return err
			case err != nil: // a secret that only the service has, say
				t.broker.Store(unreachable(nil, err))
			}
			return t.run(ctx, s.in)
		}),
	}
	db = databaseFlag(cmd)
	broker = newBrokerFlags(cmd)
	return cmd
}

// topEvery is how often the screen is drawn.
const topEvery = time.Second

// A top is the command at work.
type top struct {
	ib     *inbox.Inbox
	cfg    *config.Config   // nil: none
	dialer *natsconn.Dialer // nil: the broker is not asked
	screen *screen

	broker atomic.Pointer[brokerStatus] // the last answer
	last   sample                       // the last look that succeeded
}

// run draws until a key, a signal or the end of the input ends it. A terminal
// that goes away (SIGHUP) is a way out too, on which it is restored.
func (t *top) run(ctx context.Context, in io.Reader) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	if err := t.look(ctx); err != nil { // said on the ordinary screen
		return err
	}
	if err := t.screen.enter(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.screen.leave()) }()
	over := make(chan struct{})
	go func() { defer t.screen.rescue(); readKeys(in, over) }()
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { defer t.screen.rescue(); t.watchBroker(watch) }()

	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for trouble := error(nil); ; {
		if err := t.draw(trouble); err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if trouble = t.look(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// readKeys closes over at a key that ends, or the end of the input.
func readKeys(in io.Reader, over chan<- struct{}) {
	defer close(over)
	const ctrlC = 3
	key := make([]byte, 1)
	for {
		if _, err := in.Read(key); err != nil {
			return
		}
		if key[0] == 'q' || key[0] == 'Q' || key[0] == ctrlC {
			return
		}
	}
}

// look reads the file and keeps what is needed for the rates.
func (t *top) look(ctx context.Context) error {
	now := time.Now()
	report, err := readStatus(ctx, t.ib, now)
	if err != nil {
		return err
	}
	t.last = t.last.next(now, report)
	return nil
}

// watchBroker asks the broker as often as the screen is drawn, so that a slow
// answer does not hold it up.
func (t *top) watchBroker(ctx context.Context) {
	if t.dialer == nil {
		return
	}
	servers := t.dialer.Servers()
	t.broker.Store(unreachable(servers, errors.New("connecting")))
	l := &link{}
	var err error
	if l.nc, l.js, err = t.dialer.Connect("edge-consumer top", l.options()...); err != nil {
		t.broker.Store(unreachable(servers, err))
		return
	}
	defer l.close()
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for {
		t.broker.Store(t.askBroker(ctx, l, servers))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (t *top) askBroker(ctx context.Context, l *link, servers []string) *brokerStatus {
	if !l.nc.IsConnected() {
		err := l.nc.LastError()
		if err == nil {
			err = errors.New("not connected yet")
		}
		return unreachable(servers, err)
	}
	list, err := durables(ctx, t.cfg, t.ib)
	if err != nil {
		return unreachable(servers, fmt.Errorf("what to ask for is not known: %w", err))
	}
	return readBroker(ctx, l, servers, list, statusAnswer)
}
