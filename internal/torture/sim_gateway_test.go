//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A gateway is one inbox on its own disk, with one consumer that subscribes to
// the hub's stream. Its name is the durable's.
type gateway struct {
	s    *simulation
	name string

	clock atomic.Int64 // what its clock is ahead of the real one, ns

	dir     string
	base    []Op // makes the files that were in dir at first
	disk    *Disk
	unwatch func()
	failing bool // the disk, or it may

	ib   *inbox.Inbox // nil: it is down
	nc   *nats.Conn
	js   jetstream.JetStream
	done sync.WaitGroup
	stop context.CancelFunc

	bound bool // since the hub was last put back
	known map[string]*fate
}

// A fate is what the simulation knows of a message in one gateway.
type fate struct {
	hash      string
	effects   int
	replays   [2]int  // at least, at most
	discarded [2]bool // certainly, perhaps
	retried   bool    // perhaps
}

func (g *gateway) fate(id string) *fate {
	f := g.known[id]
	if f == nil {
		f = &fate{}
		g.known[id] = f
	}
	return f
}

// mount gives the gateway a folder with files in it, on a disk that works.
func (g *gateway) mount(files Files) error {
	if g.unwatch != nil {
		g.unwatch()
	}
	var err error
	if g.dir, err = os.MkdirTemp(g.s.dir, g.name+"-"); err != nil {
		return err
	}
	if err := files.Write(g.dir); err != nil {
		return err
	}
	g.base = nil
	for name, b := range files {
		g.base = append(g.base, Op{Kind: Write, File: name, Data: b}, Op{Kind: Sync, File: name, Dir: true})
	}
	g.disk, g.unwatch = Watch(g.dir)
	g.failing = false
	return nil
}

// start takes the gateway into service. While its disk fails that may not work.
func (g *gateway) start() (err error) {
	if g.ib != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	opts := &inbox.Options{
		CacheSize: 1 << 20, Logger: slog.New(slog.DiscardHandler),
		Observer: &inbox.Observer{Alert: g.alert},
	}
	setClock(opts, func() time.Time { return time.Now().Add(time.Duration(g.clock.Load())) })
	ib, err := inbox.Open(ctx, path(g.dir), opts)
	defer func() {
		if err != nil {
			cancel()
			if ib != nil {
				_ = ib.Close()
			}
			if g.failing {
				err = nil
			} else {
				err = fmt.Errorf("%s does not start: %w", g.name, err)
			}
		}
	}()
	if err != nil {
		return err
	}
	err = ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL, body BLOB);
			CREATE INDEX IF NOT EXISTS effects_seq ON effects (seq);
			CREATE TABLE IF NOT EXISTS one (x UNIQUE); INSERT OR IGNORE INTO one VALUES (1)`)
		return err
	})
	if err != nil {
		return err
	}
	c, err := ib.Consumer(g.name, g.handle, &inbox.ConsumerOptions{
		Retry: inbox.RetryPolicy{Initial: 2 * time.Millisecond, Max: 10 * time.Millisecond, MaxAttempts: maxAttempts},
	})
	if err != nil {
		return err
	}
	nc, err := nats.Connect(g.s.hub.url, append(inbox.NATSOptions(), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))...)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return err
	}
	g.ib, g.nc, g.js, g.stop = ib, nc, js, cancel
	g.done.Go(func() {
		if err := ib.Run(ctx); err != nil {
			g.s.blame(fmt.Errorf("%s: Run: %w", g.name, err))
		}
	})
	g.done.Go(func() {
		err := c.Subscribe(ctx, js, streamName, &inbox.SubscribeOptions{Key: keyOf, AckWait: 500 * time.Millisecond, Prefetch: 64})
		if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			g.s.blame(fmt.Errorf("%s: Subscribe: %w", g.name, err))
		}
	})
	return nil
}

// close ends the gateway in good order.
func (g *gateway) close() error {
	if g.ib == nil {
		return nil
	}
	g.stop()
	g.done.Wait()
	err := g.ib.Close()
	g.nc.Close()
	g.ib = nil
	if err != nil && !g.failing {
		return fmt.Errorf("%s: Close: %w", g.name, err)
	}
	return nil
}

// kill cuts the power: what was not acknowledged before will never be, and the
// disk is one that the cut could have left.
func (g *gateway) kill(loss Loss, r *rand.Rand) error {
	if g.ib == nil {
		return nil
	}
	g.nc.Close()
	log := append(g.base, g.disk.Log()...)
	// The process lives on where nobody sees it, until it has ended.
	g.stop()
	g.done.Wait()
	_ = g.ib.Close()
	g.ib = nil
	if err := os.RemoveAll(g.dir); err != nil {
		return err
	}
	return g.mount(cut(log, loss, r))
}

// cut is what a power cut after all of log leaves.
func cut(log []Op, loss Loss, r *rand.Rand) Files {
	files := Files{}
	var last *Crash
	_ = Replay(log, func(_ int, c *Crash) error { last = c; return nil })
	if last != nil {
		files = last.Image(loss, r)
	}
	return files
}

// setClock gives an inbox another clock. The option is not for users, and so
// is not exported.
func setClock(o *inbox.Options, now func() time.Time) {
	f := reflect.ValueOf(o).Elem().FieldByName("clock").FieldByName("now")
	*(*func() time.Time)(f.Addr().UnsafePointer()) = now
}

func (g *gateway) alert(a inbox.Alert) {
	// No file here is ever put back from an older copy. A hub may be, and then
	// again from a newer one: it knows then of acknowledgements that the
	// account of the life between does not have.
	if a.Kind == inbox.AlertMissing && g.s.hub.restores.Load() < 2 {
		g.s.blame(fmt.Errorf("%s lost what it had acknowledged: %s", g.name, a.Detail))
	}
}

// maxAttempts a message has.
const maxAttempts = 4

// keyOf is the ordering key; the key "bad" is none.
func keyOf(m *inbox.Message) (string, error) {
	key := m.Headers.Get("key")
	if key == "bad" {
		return "", errors.New("bad")
	}
	return key, nil
}

func (g *gateway) handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	if m.Key != "" {
		var open int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM inbox WHERE key = ? AND seq < ? AND status NOT IN ('completed', 'discarded')`, m.Key, m.Seq).Scan(&open)
		if err != nil {
			return err
		}
		if open > 0 {
			g.s.blame(fmt.Errorf("%s: %s overtakes %d earlier messages of key %s", g.name, m.ID, open, m.Key))
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effects (seq, id, body) VALUES (?, ?, ?)`, m.Seq, m.ID, m.Payload); err != nil {
		return err
	}
	if g.s.healed.Load() {
		return nil
	}
	switch does := m.Headers.Get("does"); {
	case does == "never", does == "fails once" && m.Attempt == 1, does == "fails twice" && m.Attempt <= 2:
		return errHandler
	case does == "poison":
		return inbox.Permanent(errHandler)
	case does == "panics" && m.Attempt == 1:
		panic(errHandler)
	case does == "rolls back" && m.Attempt == 1:
		_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO one VALUES (1)`)
		return err
	}
	return nil
}

var errHandler = errors.New("the handler's own")

// attemptsOf is how many attempts a message has had when it is done with, and
// whether it is then dead.
func attemptsOf(does string) (attempts int, dead bool) {
	switch does {
	case "never":
		return maxAttempts, true
	case "poison":
		return 1, true
	case "fails twice":
		return 3, false
	case "fails once", "panics", "rolls back":
		return 2, false
	}
	return 1, false
}

// checkpoint moves the log into the database, by another's hand.
func (g *gateway) checkpoint(how string) error {
	db, err := sql.Open("sqlite", path(g.dir)+"?_busy_timeout=100")
	if err != nil {
		return err
	}
	defer db.Close()
	_, _ = db.Exec(`PRAGMA wal_checkpoint(` + how + `)`) // busy, or the disk fails
	return nil
}
