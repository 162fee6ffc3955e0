package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
	"edge.example/inbox/cmd/edge-consumer/internal/sdnotify"
	"edge.example/inbox/cmd/edge-consumer/internal/web"
	"github.com/spf13/cobra"
)

const runHelp = `Consume as the configuration says, until SIGTERM or SIGINT.

It starts without the broker and without the network, and waits for both. Every
message is stored and applied in one transaction of the SQLite file, and
acknowledged after its commit.

SIGHUP reads the configuration again: handlers, schemas, subscriptions, space
limits and the log level change while it runs; what cannot is named in the log
and changes at the next start; a file that is wrong changes nothing.

At the first SIGTERM or SIGINT it stops pulling, commits, acknowledges and
ends, within shutdown_timeout; a second one ends it at once. Nothing is lost
either way: what was not acknowledged is delivered again.`

func newRun() *cobra.Command {
	var c *configuration
	cmd := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Consume as the configuration says",
		Long:  runHelp,
		Example: `  edge-consumer run -c edge.yaml
  edge-consumer run -c edge.yaml --nats nats://hub:4222 --log-level debug
  EDGE_DATABASE_PATH=/data/edge.db edge-consumer run -c edge.yaml`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			return runDaemon(ctx, c, cfg, s)
		}),
	}
	c = configFlag(cmd)
	c.settingFlags(cmd)
	return cmd
}

// A service is the command run at work.
type service struct {
	c     *configuration
	log   *slog.Logger
	level *slog.LevelVar
	g     *gateway.Gateway

	hup      chan os.Signal
	stopping atomic.Bool
}

func runDaemon(ctx context.Context, c *configuration, cfg *config.Config, s stdio) (err error) {
	d := &service{c: c, hup: make(chan os.Signal, 1)}
	signal.Notify(d.hup, syscall.SIGHUP) // from the beginning: it must not end the process
	defer signal.Stop(d.hup)
	d.log, d.level = logger(cfg, s.err)
	for _, w := range cfg.Misspelled(os.Environ()) {
		d.log.Warn(w)
	}
	alerts := web.NewAlerts()
	d.g, err = gateway.Open(ctx, cfg, gateway.Options{Log: d.log, Lookup: os.LookupEnv, Alert: alerts.Count})
	if err != nil {
		return configError(err)
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, d.g.Close())
		}
	}()
	source, err := d.source(ctx, alerts)
	if err != nil {
		return err
	}
	server, err := web.Listen(ctx, cfg.HTTP, source, d.log)
	if err != nil {
		return err
	}
	var beside sync.WaitGroup
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	beside.Go(func() {
		if err := server.Run(stop); err != nil {
			d.log.Error("health and metrics are gone", "error", err)
		}
	})
	beside.Go(func() { d.reloads(stop) })
	beside.Go(func() { d.notify(stop) })
	defer func() { cancel(); beside.Wait() }()

	d.log.Info("running", "config", cfg.Name(), "database", d.g.Inbox().Path(), "servers", d.g.Servers(),
		"consumers", len(cfg.Consumers), "http", address(server))
	d.told(sdnotify.Ready(d.standing()))
	limit := time.Duration(cfg.ShutdownTimeout)
	err, finished := within(ctx, limit, func() error { return d.g.Run(ctx) }, func() {
		d.stopping.Store(true)
		d.log.Info("stopping: what was delivered is committed and acknowledged", "limit", limit.String())
		d.told(sdnotify.Stopping("stopping"))
	})
	if !finished {
		closed = true // it is in use: the process ends without it
		return fmt.Errorf("the clean stop took longer than %v; stopped at once: what was not acknowledged is delivered again", limit)
	}
	if err == nil {
		d.log.Info("stopped")
	}
	return err
}

func address(s *web.Server) string {
	if s.Addr() == nil {
		return "off"
	}
	return s.Addr().String()
}

// source is what the server shows.
func (d *service) source(ctx context.Context, alerts *web.Alerts) (web.Source, error) {
	v, err := readVersions(ctx)
	if err != nil {
		return web.Source{}, err
	}
	return web.Source{
		Stats: d.g.Inbox().Stats,
		Alive: d.g.Alive,
		Storage: func() error {
			if d.stopping.Load() {
				return errors.New("the service is stopping")
			}
			return d.g.Storage()
		},
		DiskFree: d.g.DiskFree,
		Broker: func() web.Broker {
			now := d.g.Broker()
			b := web.Broker{Connected: now.Connected, Since: now.Since}
			switch {
			case now.Refused:
				b.Err = now.Err
			case now.Err != nil:
				b.Detail = now.Err.Error()
			}
			return b
		},
		Consumers: func() map[string]web.Consumer {
			m := map[string]web.Consumer{}
			for name, s := range d.g.Consumers() {
				m[name] = web.Consumer{State: s.State, Err: s.Err}
			}
			return m
		},
		Alerts: alerts, Version: v.Version, Versions: v,
	}, nil
}

// reloads reads the configuration again at each SIGHUP.
func (d *service) reloads(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.hup:
		}
		d.told(sdnotify.Reloading())
		d.reload(ctx)
		d.told(sdnotify.Ready(d.standing()))
	}
}

func (d *service) reload(ctx context.Context) {
	cfg, err := d.c.load()
	var changes, later []string
	if err == nil {
		changes, later, err = d.g.Reload(ctx, cfg)
	}
	if err != nil {
		d.log.Error("the configuration is wrong; going on with the one before", "config", d.c.file, "error", err)
		return
	}
	setLevel(d.level, cfg)
	for _, change := range changes {
		d.log.Info("reloaded: " + change)
	}
	for _, what := range later {
		d.log.Warn("reloaded: this changes at the next start: " + what)
	}
	d.log.Info("the configuration was read again", "config", d.c.file, "changes", len(changes), "at_next_start", len(later))
}

// notify keeps systemd informed, and its watchdog quiet while the writer works.
func (d *service) notify(ctx context.Context) {
	every := 10 * time.Second
	dog, err := sdnotify.WatchdogInterval()
	d.told(err)
	if dog > 0 {
		every = min(every, dog)
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if dog > 0 {
			if err := d.g.Alive(); err != nil {
				d.log.Error("the writer makes no progress; systemd will start the service anew", "error", err)
			} else {
				d.told(sdnotify.Alive())
			}
		}
		d.told(sdnotify.Status(d.standing()))
	}
}

// told logs that systemd could not be told something.
func (d *service) told(err error) {
	if err != nil {
		d.log.Warn("systemd was not told", "error", err)
	}
}

// standing is one line for systemctl status.
func (d *service) standing() string {
	waiting, states := 0, d.g.Consumers()
	for _, s := range states {
		if s.Err != nil {
			waiting++
		}
	}
	broker := d.g.Broker()
	switch err := d.g.Storage(); {
	case err != nil:
		return fmt.Sprintf("storage: %v", err)
	case broker.Refused:
		return fmt.Sprintf("the broker refuses us: %v", broker.Err)
	case !broker.Connected:
		return fmt.Sprintf("the broker is away since %s; messages wait there", broker.Since.UTC().Format(time.RFC3339))
	case waiting > 0:
		return fmt.Sprintf("%d of %d consumers wait", waiting, len(states))
	}
	return fmt.Sprintf("consuming, %s", plural(int64(len(states)), "consumer", "consumers"))
}

// within runs fn, which ends some time after ctx, and gives up on it when that
// takes longer than limit. stopping is called when ctx ends.
func within(ctx context.Context, limit time.Duration, fn func() error, stopping func()) (err error, finished bool) {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err, true
	case <-ctx.Done():
	}
	stopping()
	select {
	case err := <-done:
		return err, true
	case <-time.After(limit):
		return nil, false
	}
}
