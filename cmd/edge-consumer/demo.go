package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

const demoHelp = `Watch messages take effect exactly once: real GitHub events go through a NATS
JetStream into a SQLite file, all in this one process, without configuration
and without a network.

Among them are messages that the producer publishes twice, one that no handler
can apply, and one that reuses an identity for another content. Halfway the
consumer's connection is cut while messages are in flight; its acknowledgements
are lost, and a second consumer goes on where the broker thinks the first was.

Then the whole stream is read again and compared with the business tables: the
proof does not rest on the program's own counters. The database is kept, the
stream is not. 1,000 messages need about 30 MB of disk meanwhile.

The exit status is 0 only if the proof holds.`

type demoOptions struct {
	messages int
	dir      string
	json     bool
}

func newDemo() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch messages take effect exactly once, and prove it",
		Long:  demoHelp,
		Example: `  edge-consumer demo
  edge-consumer demo --messages 100000
  edge-consumer demo --json | jq .lost`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error { return runDemo(ctx, o, s) }),
	}
	f := cmd.Flags()
	f.IntVar(&o.messages, "messages", 10_000, "how many distinct good events to publish, 1 to 1000000")
	f.StringVar(&o.dir, "dir", "", "directory for the database, made if need be (default a new one for temporary files)")
	f.BoolVar(&o.json, "json", false, "print the proof as one JSON object")
	return cmd
}

// A demo is one run of the command.
type demo struct {
	messages int
	db       string
	broker   *broker
	progress *progress

	published atomic.Int64
	delivered atomic.Int64 // outcomes
	repeated  atomic.Int64 // outcomes that were duplicates

	cable    cable         // of the first life
	cutAfter int64         // outcomes
	cutDone  chan struct{} // closed when the cable was cut
}

func runDemo(ctx context.Context, o demoOptions, s stdio) (err error) {
	if o.messages < 1 || o.messages > 1_000_000 {
		return exitf(exitUsage, "--messages is %d: use 1 to 1000000", o.messages)
	}
	db, err := demoFile(o.dir)
	if err != nil {
		return err
	}
	p, took, err := playDemo(ctx, o.messages, db, newProgress(s.err))
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted before the proof; the database so far is %s", db)
	case err != nil:
		return err
	case o.json:
		err = writeJSON(s.out, p)
	default:
		err = p.print(s.out, took)
	}
	if err == nil && !p.holds() {
		err = exitf(exitNotHeld, "the proof does not hold: %s", p.problems[0])
	}
	return err
}

// demoFile is the path of the database, which must not be there yet.
func demoFile(dir string) (string, error) {
	if dir == "" {
		temp, err := os.MkdirTemp("", "edge-consumer-demo-")
		if err != nil {
			return "", err
		}
		dir = temp
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	db := filepath.Join(dir, "demo.db")
	if _, err := os.Lstat(db); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is there already: remove it, or use another --dir", db)
	}
	return db, nil
}

// playDemo publishes, consumes in two lives, and proves. took is how long
// the first two lasted.
func playDemo(ctx context.Context, messages int, db string, pr *progress) (p *proof, took time.Duration, err error) {
	d := &demo{
		messages: messages, db: db, progress: pr,
		cutAfter: max(1, int64(messages)/2), cutDone: make(chan struct{}),
	}
	if d.broker, err = startBroker(ctx, filepath.Dir(db)); err != nil {
		return nil, 0, err
	}
	defer d.broker.stop()
	nc, js, err := d.broker.connect(nil)
	if err != nil {
		return nil, 0, err
	}
	defer nc.Close()

	start := time.Now()
	pr.say("publishing %s messages and consuming them ...", comma(planned(messages)))
	if err := d.play(ctx, js); err != nil {
		return nil, 0, err
	}
	took = time.Since(start)
	pr.say("reading the stream again and comparing it with the business tables ...")
	p, err = proveDemo(ctx, js, db)
	return p, took, err
}

// play publishes beside two lives of the consumer. Whatever fails first
// ends the rest.
func (d *demo) play(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := d.progress.watch(d.standing)
	defer stop()

	publishing := make(chan struct{})
	var publisher sync.WaitGroup
	publisher.Go(func() {
		if err := publish(ctx, js, d.messages, &d.published); err != nil {
			cancel(err)
			return
		}
		close(publishing)
	})
	err := d.firstLife(ctx, cancel)
	if err == nil {
		d.progress.say("the connection was cut after %s: acknowledgements are lost; a second consumer goes on",
			plural(d.cutAfter, "message", "messages"))
		err = d.secondLife(ctx, cancel, js, publishing)
	}
	cancel(err)
	publisher.Wait()
	return err
}

// standing is a line of progress.
func (d *demo) standing() string {
	return fmt.Sprintf("published %s of %s, consumed %s, duplicates %s",
		comma(d.published.Load()), comma(planned(d.messages)), comma(d.delivered.Load()), comma(d.repeated.Load()))
}

func comma[N int | int64 | uint64](n N) string { return humanize.Comma(int64(n)) }
