package main

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mikestefanello/backlite"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"maragu.dev/goqite"
)

// Job queues on SQLite, used as an inbox: a message from JetStream becomes a job
// and is acknowledged; a worker makes the business INSERT. Each is tuned as its
// documentation says; all take their messages from JetStream in batches, one
// transaction a batch, which is more than most programs would do for them.

const peerBatch = 100

// fetch takes n messages in batches and acknowledges those that store has stored.
func fetch(b *broker, durable string, n int, store func([]jetstream.Msg) error) error {
	c := b.consumer(durable)
	for taken := 0; taken < n; {
		batch, err := c.Fetch(min(peerBatch, n-taken), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		var ms []jetstream.Msg
		for m := range batch.Messages() {
			ms = append(ms, m)
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if err := store(ms); err != nil {
			return err
		}
		for _, m := range ms {
			if err := m.Ack(); err != nil {
				return err
			}
		}
		taken += len(ms)
	}
	return nil
}

func idOf(m jetstream.Msg) string { return m.Headers().Get(jetstream.MsgIDHeader) }

// inTx runs fn in a transaction.
func inTx(db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

//go:embed goqite.sql
var goqiteSchema string

// goqiteQueue: goqite knows no identity, so a table of seen ones stands before it,
// in the same transaction. Receiving, the business INSERT and deleting share one
// transaction too (ReceiveTx, DeleteTx), so nothing acts twice. One connection, as
// its README has it: more only contend.
func goqiteQueue(b *broker, e *events) contender {
	return contender{name: "goqite", part: 20, run: func(n int) time.Duration {
		db, remove := b.l.database()
		defer remove()
		get(db.Exec(goqiteSchema))
		d := newLedger(db, false)
		q := goqite.New(goqite.NewOpts{DB: db, Name: "orders", Timeout: time.Minute})
		ctx, cancel := context.WithCancel(b.l.ctx)
		defer cancel()
		handled := newCounter(n)
		start := time.Now()
		var worker sync.WaitGroup
		worker.Go(func() {
			for ctx.Err() == nil {
				found := false
				err := inTx(db, func(tx *sql.Tx) error {
					err := takeFromGoqite(context.WithoutCancel(ctx), q, tx, d.order)
					found = err == nil
					return err
				})
				switch {
				case err != nil && !errors.Is(err, errNothing):
					handled.done <- err
					return
				case found:
					handled.one()
				default:
					time.Sleep(time.Millisecond)
				}
			}
		})
		must(fetch(b, "goqite", n, func(ms []jetstream.Msg) error {
			return inTx(db, func(tx *sql.Tx) error {
				for _, m := range ms {
					res, err := tx.Stmt(d.seen).Exec(idOf(m))
					if err != nil {
						return err
					}
					if fresh, _ := res.RowsAffected(); fresh == 0 {
						continue
					}
					body := append(append([]byte(idOf(m)), 0), m.Data()...)
					if err := q.SendTx(b.l.ctx, tx, goqite.Message{Body: body}); err != nil {
						return err
					}
				}
				return nil
			})
		}))
		await(handled.done)
		b.awaitAcked("goqite", n)
		took := time.Since(start)
		cancel()
		worker.Wait()
		b.forget("goqite")
		requireOrders(db, e.different(n))
		return took
	}}
}

var errNothing = errors.New("nothing waits")

// takeFromGoqite takes one message and makes the business INSERT for it.
func takeFromGoqite(ctx context.Context, q *goqite.Queue, tx *sql.Tx, order *sql.Stmt) error {
	m, err := q.ReceiveTx(ctx, tx)
	if err != nil {
		return err
	}
	if m == nil {
		return errNothing
	}
	id, body, _ := bytes.Cut(m.Body, []byte{0})
	if _, err := tx.Stmt(order).Exec(string(id), body); err != nil {
		return err
	}
	return q.DeleteTx(ctx, tx, m.ID)
}

type riverArgs struct {
	ID   string `json:"id" river:"unique"`
	Body []byte `json:"body"`
}

func (riverArgs) Kind() string { return "order" }
func (riverArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	db      *sql.DB
	order   *sql.Stmt
	handled *counter
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	err := inTx(w.db, func(tx *sql.Tx) error {
		if _, err := tx.Stmt(w.order).Exec(job.Args.ID, job.Args.Body); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riversqlite.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.handled.one()
	}
	return err
}

// riverQueue: jobs unique by the message's id, inserted by InsertMany, completed in
// the transaction of the business INSERT. One connection, as the driver's
// documentation advises; FetchCooldown ("throughput is limited by this value") at
// its least; a hundred workers, as in its examples.
func riverQueue(b *broker, e *events) contender {
	return contender{name: "River", part: 50, run: func(n int) time.Duration {
		db, remove := b.l.database()
		defer remove()
		driver := riversqlite.New(db)
		quiet := slog.New(slog.DiscardHandler)
		migrator := get(rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet}))
		get(migrator.Migrate(b.l.ctx, rivermigrate.DirectionUp, nil))
		handled := newCounter(n)
		workers := river.NewWorkers()
		river.AddWorker(workers, &riverWorker{db: db, order: get(db.Prepare(insertOrder)), handled: handled})
		client := get(river.NewClient(driver, &river.Config{
			Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
			Workers:       workers,
			Logger:        quiet,
			FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 10 * time.Millisecond,
		}))
		ctx, cancel := context.WithCancel(b.l.ctx)
		defer cancel()
		must(client.Start(ctx))
		start := time.Now()
		must(fetch(b, "river", n, func(ms []jetstream.Msg) error {
			params := make([]river.InsertManyParams, len(ms))
			for i, m := range ms {
				params[i].Args = riverArgs{idOf(m), m.Data()}
			}
			_, err := client.InsertMany(ctx, params)
			return err
		}))
		await(handled.done)
		b.awaitAcked("river", n)
		took := time.Since(start)
		must(client.Stop(context.Background()))
		b.forget("river")
		requireOrders(db, e.different(n))
		return took
	}}
}

type backliteTask struct {
	ID   string
	Body []byte
}

func (backliteTask) Config() backlite.QueueConfig {
	return backlite.QueueConfig{Name: "orders", MaxAttempts: 5, Backoff: time.Second, Timeout: time.Minute}
}

// backliteQueue: tasks are added in bulk. Backlite removes a task in a transaction of
// its own after the processor returned, so the processor keeps what it has seen:
// else a crash in between would make it act twice. Its dispatcher looks for idle
// workers every 100 ms, so many workers (500) are what makes it fast.
func backliteQueue(b *broker, e *events) contender {
	return contender{name: "backlite", part: 50, run: func(n int) time.Duration {
		db, remove := b.l.database()
		defer remove()
		d := newLedger(db, false)
		client := get(backlite.NewClient(backlite.ClientConfig{DB: db, NumWorkers: 500, ReleaseAfter: 10 * time.Minute}))
		must(client.Install())
		handled := newCounter(n)
		client.Register(backlite.NewQueue(func(_ context.Context, t backliteTask) error {
			err := d.apply(t.Body, t.ID)
			if err == nil {
				handled.one()
			}
			return err
		}))
		ctx, cancel := context.WithCancel(b.l.ctx)
		defer cancel()
		client.Start(ctx)
		start := time.Now()
		must(fetch(b, "backlite", n, func(ms []jetstream.Msg) error {
			tasks := make([]backlite.Task, len(ms))
			for i, m := range ms {
				tasks[i] = backliteTask{idOf(m), m.Data()}
			}
			_, err := client.Add(tasks...).Ctx(ctx).Save()
			return err
		}))
		await(handled.done)
		b.awaitAcked("backlite", n)
		took := time.Since(start)
		limit, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		require(client.Stop(limit), "backlite did not stop: %v", errors.New("workers still busy"))
		b.forget("backlite")
		requireOrders(db, e.different(n))
		return took
	}}
}
