// Package gateway runs the consumers of a configuration: it opens the database,
// brings the business tables up to date, connects to the broker and keeps every
// consumer subscribed until it is told to stop.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options for Open.
type Options struct {
	Log *slog.Logger
	// Lookup finds environment variables: os.LookupEnv.
	Lookup func(string) (string, bool)
	// Alert, if set, hears of every alert.
	Alert func(inbox.Alert)
}

// A Gateway is a configuration at work.
type Gateway struct {
	log    *slog.Logger
	alert  func(inbox.Alert)
	dialer *natsconn.Dialer
	ib     *inbox.Inbox
	space  *gate // shut while the disk has too little space

	asked atomic.Int64 // when the writer was asked for an answer, ns; 0: it gave it

	reloading sync.Mutex // one reload at a time

	mu        sync.Mutex
	cfg       *config.Config
	consumers map[string]*consumer
	broker    brokerState
	storage   error // why the last write failed
	trouble   map[string]error
	runs      *running // nil before Run and once it ends
}

type brokerState struct {
	connected bool
	since     time.Time
	err       error
	refused   bool // err is what somebody has to mend
	said      map[string]time.Time
}

// refusals are the errors of a broker that does not want us.
var refusals = []error{
	nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
}

func refused(err error) bool {
	return slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) })
}

// sayAgain is how long the same trouble of the connection is not logged again.
const sayAgain = time.Minute

// reported is called with what the NATS client reports by the way, each time it
// tries: the log gets it now and then.
func (g *Gateway) reported(err error) {
	g.mu.Lock()
	b := &g.broker
	if refused(err) {
		b.err, b.refused = err, true
	}
	now := time.Now()
	maps.DeleteFunc(b.said, func(_ string, at time.Time) bool { return now.Sub(at) > sayAgain })
	_, silent := b.said[err.Error()]
	if !silent {
		b.said[err.Error()] = now
	}
	g.mu.Unlock()
	if !silent {
		g.log.Warn("the NATS connection reports", "error", err)
	}
}

// Open opens the database of cfg, applies the migrations, and prepares every
// statement of every consumer. The broker is not needed yet.
func Open(ctx context.Context, cfg *config.Config, o Options) (g *Gateway, err error) {
	g = &Gateway{
		log: o.Log, alert: o.Alert, space: newGate(), cfg: cfg,
		consumers: map[string]*consumer{}, trouble: map[string]error{},
		broker: brokerState{since: time.Now(), said: map[string]time.Time{}},
	}
	if g.dialer, err = natsconn.New(&cfg.NATS, o.Lookup); err != nil {
		return nil, cfg.At("$.nats", err)
	}
	migrations, err := readMigrations(cfg.Migrations)
	if err != nil {
		return nil, cfg.At("$.migrations", err)
	}
	options := inbox.Options{
		CacheSize: int64(cfg.Database.CacheSize), StatementTimeout: time.Duration(cfg.Database.StatementTimeout),
		Logger: o.Log, Observer: &inbox.Observer{Alert: g.alerted},
	}
	if err := g.migrate(ctx, cfg, migrations, options); err != nil {
		return nil, err
	}
	ib, err := inbox.Open(ctx, cfg.Database.Path, &options)
	if err != nil {
		return nil, err
	}
	g.ib = ib
	defer func() {
		if err != nil {
			err = errors.Join(err, ib.Close())
		}
	}()
	works, err := prepareAll(ctx, g.ib, cfg)
	if err != nil {
		return nil, err
	}
	g.warnOfRenamed(ctx, cfg)
	for i := range cfg.Consumers {
		if err := g.register(&cfg.Consumers[i], works[i]); err != nil {
			return nil, cfg.At(fmt.Sprintf("$.consumers[%d]", i), err)
		}
	}
	return g, nil
}

// migrate applies the migrations to the file before the consumers have it, for
// these may take longer than a handler's statement: an index on a large table.
func (g *Gateway) migrate(ctx context.Context, cfg *config.Config, ms []migration, o inbox.Options) (err error) {
	if len(ms) == 0 {
		return nil
	}
	o.StatementTimeout = -1
	ib, err := inbox.Open(ctx, cfg.Database.Path, &o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ib.Close()) }()
	applied, err := migrate(ctx, ib, ms)
	for _, name := range applied {
		g.log.Info("migration applied", "file", name)
	}
	if err != nil {
		return cfg.At("$.migrations", err)
	}
	return nil
}

// prepareAll makes what each consumer does, or says all that is wrong.
func prepareAll(ctx context.Context, ib *inbox.Inbox, cfg *config.Config) ([]*work, error) {
	var works []*work
	var all config.Problems
	for i := range cfg.Consumers {
		w, err := newWork(cfg, i)
		if err == nil {
			err = w.prepare(ctx, ib, cfg, i)
		}
		var problems config.Problems
		switch {
		case errors.As(err, &problems):
			all = append(all, problems...)
		case err != nil:
			return nil, err
		}
		works = append(works, w)
	}
	if len(all) > 0 {
		return nil, all.Unique()
	}
	return works, nil
}

// register makes the inbox's consumer.
func (g *Gateway) register(k *config.Consumer, w *work) error {
	c := &consumer{}
	c.work.Store(w)
	var err error
	if c.Consumer, err = g.ib.Consumer(k.Name, c.handle, consumerOptions(k)); err != nil {
		return err
	}
	g.consumers[k.Name] = c
	return nil
}

// Inbox is the database.
func (g *Gateway) Inbox() *inbox.Inbox { return g.ib }

// Close closes the database. Run must have returned.
func (g *Gateway) Close() error { return g.ib.Close() }

// running is what Run has started.
type running struct {
	ctx  context.Context
	js   jetstream.JetStream
	wg   sync.WaitGroup
	subs map[string]context.CancelFunc
}

// Run consumes until ctx ends; then it stops pulling, commits and acknowledges
// what was delivered, and returns. It does not return because of the broker.
func (g *Gateway) Run(ctx context.Context) error {
	nc, js, err := g.dialer.Connect("edge-consumer",
		nats.ConnectHandler(func(*nats.Conn) { g.connection(true, nil) }),
		nats.ReconnectHandler(func(*nats.Conn) { g.connection(true, nil) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { g.connection(false, err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			g.connection(false, err)
			if refused(err) {
				g.reported(err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			g.log.Warn("the NATS connection reports", "error", err)
		}),
	)
	if err != nil {
		return err
	}
	defer nc.Close()
	if nc.IsConnected() {
		g.connection(true, nil)
	}
	g.lookAtSpace(&g.config().Database)
	r := &running{ctx: ctx, js: js, subs: map[string]context.CancelFunc{}}
	g.mu.Lock()
	g.runs = r
	for i := range g.cfg.Consumers {
		g.start(r, g.cfg.Consumers[i])
	}
	g.mu.Unlock()
	r.wg.Go(func() { g.watchSpace(ctx) })
	r.wg.Go(func() { g.watchWriter(ctx) })
	err = g.ib.Run(ctx)
	g.mu.Lock()
	g.runs = nil // no reload starts more
	for _, stop := range r.subs {
		stop()
	}
	g.mu.Unlock()
	r.wg.Wait()
	return err
}

// start subscribes a consumer. g.mu is held.
func (g *Gateway) start(r *running, k config.Consumer) {
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	r.subs[k.Name] = func() { cancel(); <-done }
	c := g.consumers[k.Name]
	r.wg.Go(func() {
		defer close(done)
		defer cancel()
		g.subscribe(ctx, r.js, c, &k)
	})
}

const resubscribeMax = time.Minute

// subscribe keeps a consumer subscribed while there is space. What the library
// gives up (a durable consumer that is unfit, say) is tried again: somebody may
// mend it.
func (g *Gateway) subscribe(ctx context.Context, js jetstream.JetStream, c *consumer, k *config.Consumer) {
	backoff := time.Duration(0)
	for {
		if !g.space.wait(ctx) {
			return
		}
		opts, err := subscribeOptions(k)
		if err == nil {
			err = g.space.while(ctx, func(ctx context.Context) error { return c.Subscribe(ctx, js, k.Stream, opts) })
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil { // the gate was shut
			continue
		}
		g.setTrouble(k.Name, err)
		g.log.Error("the consumer cannot consume; trying again", "consumer", k.Name, "stream", k.Stream, "error", err)
		backoff = min(max(2*backoff, time.Second), resubscribeMax)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		g.setTrouble(k.Name, nil)
	}
}

func (g *Gateway) setTrouble(consumer string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble[consumer] = err
}

func (g *Gateway) connection(up bool, err error) {
	g.mu.Lock()
	changed, closing := g.broker.connected != up, g.runs == nil
	if changed {
		g.broker.since = time.Now()
	}
	g.broker.connected = up
	if up {
		g.broker.err, g.broker.refused = nil, false
	} else if err != nil && !g.broker.refused {
		g.broker.err = err
	}
	g.mu.Unlock()
	switch {
	case changed && up:
		g.log.Info("connected to the broker", "servers", g.dialer.Servers())
	case changed && !closing:
		g.log.Warn("the connection to the broker was lost; messages wait there", "error", err)
	}
}

// alerted notes what an alert says of how we stand.
func (g *Gateway) alerted(a inbox.Alert) {
	g.mu.Lock()
	switch a.Kind {
	case inbox.AlertStorage:
		g.storage = a.Err
	case inbox.AlertBroker:
		g.trouble[a.Consumer] = a.Err
	case inbox.AlertRestored:
		g.storage = nil
		delete(g.trouble, a.Consumer)
	}
	g.mu.Unlock()
	if g.alert != nil {
		g.alert(a)
	}
}

// Servers are the broker's URLs, for messages.
func (g *Gateway) Servers() []string { return g.dialer.Servers() }

// Broker is how the connection stands.
type Broker struct {
	Connected bool
	Since     time.Time
	Err       error // why it is not connected
	Refused   bool  // the broker does not want us: somebody has to mend that
}

// Broker says how the connection stands.
func (g *Gateway) Broker() Broker {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Broker{g.broker.connected, g.broker.since, g.broker.err, g.broker.refused}
}

// Storage says why nothing is written now.
func (g *Gateway) Storage() error {
	if err := g.space.reason(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.storage
}

// ConsumerState is how a consumer of the configuration stands.
type ConsumerState struct {
	State string // consuming, paused, waiting
	Err   error  // why it waits
}

// Consumers are the consumers of the configuration.
func (g *Gateway) Consumers() map[string]ConsumerState {
	shut := g.space.reason()
	g.mu.Lock()
	defer g.mu.Unlock()
	states := map[string]ConsumerState{}
	for _, k := range g.cfg.Consumers {
		s := ConsumerState{State: "consuming"}
		switch c := g.consumers[k.Name]; {
		case c != nil && c.Paused():
			s.State = "paused"
		case shut != nil:
			s = ConsumerState{"waiting", shut}
		case g.trouble[k.Name] != nil && g.broker.connected:
			s = ConsumerState{"waiting", g.trouble[k.Name]}
		case !g.broker.connected:
			s.State = "waiting"
		}
		states[k.Name] = s
	}
	return states
}

// dir is the folder of the database.
func (g *Gateway) dir() string { return filepath.Dir(g.ib.Path()) }

// DiskFree is the space left on the disk of the database.
func (g *Gateway) DiskFree() (uint64, error) { return DiskFree(g.dir()) }

// wedged is how long the writer may take for nothing before something is wrong:
// longer than a group of slow handlers, whose statements are bounded.
const wedged = 2 * time.Minute

// watchWriter asks the writer for nothing, now and then.
func (g *Gateway) watchWriter(ctx context.Context) {
	for ctx.Err() == nil {
		g.asked.Store(time.Now().UnixNano())
		_ = g.ib.Update(ctx, func(context.Context, *inbox.Tx) error { return nil }) // an error is an answer
		g.asked.Store(0)
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
		}
	}
}

// Alive says why the process should be started anew: nothing gets through the
// writer any more. A full disk is no reason, for then it answers.
func (g *Gateway) Alive() error {
	if at := g.asked.Load(); at != 0 && time.Since(time.Unix(0, at)) > wedged {
		return fmt.Errorf("the writer has not answered for %v", wedged)
	}
	return nil
}
