package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"edge.example/inbox"
)

// An insideOut is an inbox under measurement.
type insideOut struct {
	ib *inbox.Inbox
	c  *inbox.Consumer
}

// openInbox opens an inbox with the consumer "orders", whose handler makes the
// business INSERT. wrap, if not nil, stands around the handler.
func openInbox(ctx context.Context, dir string, o inbox.Options, co inbox.ConsumerOptions, wrap func(inbox.Handler) inbox.Handler) *insideOut {
	o.Logger = slog.New(slog.DiscardHandler)
	ib := get(inbox.Open(ctx, filepath.Join(dir, "inbox.db"), &o))
	must(ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		var n int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'orders'`).Scan(&n)
		if err == nil && n == 0 {
			_, err = tx.ExecContext(ctx, makeOrders)
		}
		return err
	}))
	h := func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
		_, err := tx.ExecContext(ctx, insertOrder, m.ID, m.Payload)
		return err
	}
	if wrap != nil {
		h = wrap(h)
	}
	return &insideOut{ib, get(ib.Consumer("orders", h, &co))}
}

// rx lets requireOrders read.
type rx struct {
	ctx context.Context
	*inbox.Rx
}

func (r rx) QueryRow(q string, args ...any) *sql.Row { return r.QueryRowContext(r.ctx, q, args...) }

func (in *insideOut) requireOrders(ctx context.Context, want int) {
	must(in.ib.View(ctx, func(ctx context.Context, r *inbox.Rx) error {
		requireOrders(rx{ctx, r}, want)
		return nil
	}))
}

// oursOptions change what the usual run does.
type oursOptions struct {
	sub     inbox.SubscribeOptions
	fails   func(id string) bool // these fail at the first attempt
	consume inbox.ConsumerOptions
}

// ours takes all the messages of the stream through an inbox.
func ours(b *broker, e *events, o oursOptions) contender {
	return contender{name: "edge inbox", run: func(n int) time.Duration {
		ctx, cancel := context.WithCancel(b.l.ctx)
		defer cancel()
		dir, remove := b.l.folder()
		defer remove()
		applied, all := 0, make(chan struct{})
		obs := &inbox.Observer{Delivered: func(_ string, out inbox.Outcome) {
			if out == inbox.Pending {
				return // its retry is told too
			}
			if applied++; applied == n {
				close(all)
			}
		}}
		in := openInbox(ctx, dir, inbox.Options{Observer: obs}, o.consume, failFirst(o.fails))
		var running sync.WaitGroup
		if o.fails != nil || e.subjects != nil {
			running.Go(func() { must(in.ib.Run(ctx)) })
		}
		ended := make(chan error, 1)
		sub := o.sub
		start := time.Now()
		go func() { ended <- in.c.Subscribe(ctx, b.js, stream, &sub) }()
		select {
		case <-all:
		case err := <-ended:
			must(cmpErr(err))
		case <-time.After(patience):
			must(errors.New("not all were applied"))
		}
		b.awaitAcked("orders", n)
		took := time.Since(start)
		cancel()
		must(<-ended)
		running.Wait()
		in.requireOrders(b.l.ctx, e.different(n))
		must(in.ib.Close())
		b.forget("orders")
		return took
	}}
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("the subscription ended")
	}
	return err
}

var errFirst = errors.New("the first attempt fails")

// failFirst lets the first attempt of some messages fail.
func failFirst(fails func(id string) bool) func(inbox.Handler) inbox.Handler {
	if fails == nil {
		return nil
	}
	return func(h inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
			if err := h(ctx, tx, m); err != nil {
				return err
			}
			if m.Attempt == 1 && fails(m.ID) {
				return errFirst
			}
			return nil
		}
	}
}

// byCallers calls for each event, from several goroutines that wait for their
// commit.
func byCallers(callers, n int, call func(i int) error) time.Duration {
	var next atomic.Int64
	failed := make(chan error, callers)
	var wg sync.WaitGroup
	start := time.Now()
	for range callers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := call(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		must(err)
	default:
	}
	return took
}

// outcome turns an outcome other than the wanted one into an error.
func outcome(o inbox.Outcome, err error, want inbox.Outcome) error {
	if err == nil && o != want {
		err = fmt.Errorf("outcome %v, not %v", o, want)
	}
	return err
}
