package inbox

// The worker applies what is pending and due: failed messages after their
// wait, messages that were only received, replayed ones, and those that
// waited for an earlier one of their key. It asks the file what is due and
// hands the rows to the writer, which looks again before it runs a handler.
// Waiting costs nothing: no transaction, no goroutine, no memory a message.
//
// Due times are wall-clock times in the file. A clock that was set back is
// noticed and mended (see writer.notice), one that was set forward makes retries
// early, never late.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// pollEvery bounds how long a change made by another process, or a clock
	// that was set, goes unnoticed.
	pollEvery = time.Second
	// pollBatch bounds the rows handed to the writer at once.
	pollBatch = 500
	// pollBackoffMax is the longest wait while the disk is in trouble.
	pollBackoffMax = 30 * time.Second
)

type poller struct {
	ib   *Inbox
	kick chan struct{} // something may be due earlier than was thought

	mu   sync.Mutex
	next int64 // when the poller means to wake, ms
}

func newPoller(ib *Inbox) *poller {
	return &poller{ib: ib, kick: make(chan struct{}, 1)}
}

// poke says that a row is due at a time.
func (p *poller) poke(at int64) {
	p.mu.Lock()
	sooner := at < p.next
	p.mu.Unlock()
	if sooner {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// Run applies what is pending, whenever it is due, until ctx ends or the
// inbox is closed; then it returns nil. It is needed for every consumer, for
// a failed message waits for it. It returns an error only when it runs
// already, or on a guest (ErrGuest); trouble with the disk is alerted, and
// waited for.
func (ib *Inbox) Run(ctx context.Context) error {
	if ib.opts.Guest {
		return ErrGuest
	}
	if ib.running.Swap(true) {
		return errors.New("inbox: Run runs already")
	}
	defer ib.running.Store(false)
	done, err := ib.begin()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ib.ctx, cancel)()
	ib.poller.run(ctx)
	return nil
}

// begin counts a long call that Close waits for.
func (ib *Inbox) begin() (done func(), err error) {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	if ib.closing.Load() {
		return nil, ErrClosed
	}
	ib.work.Add(1)
	return ib.work.Done, nil
}

func (p *poller) run(ctx context.Context) {
	ib := p.ib
	timer := time.NewTimer(0)
	defer timer.Stop()
	var conn *sql.Conn
	drop := func() {
		if conn != nil {
			giveBack(conn, ErrStorage) // not back into the pool
			conn = nil
		}
	}
	defer drop()

	var version int64
	var backoff time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.kick:
		}

		// The writer looks at guests' changes and at the clock when it begins a
		// transaction: it must begin one.
		var err error
		if conn == nil {
			conn, err = ib.readers.Conn(ctx)
		}
		var v int64
		if err == nil {
			v, err = dataVersion(ctx, conn)
		}
		if err == nil && (v != version || ib.opts.clock.now().UnixMilli() < ib.w.latest.Load()-clockSlack) {
			if err = ib.do(ctx, func(*writer) error { return nil }); err == nil {
				version = v
			}
		}
		var tried int
		var next int64
		if err == nil {
			tried, next, err = p.round(ctx, conn)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if backoff == 0 {
				ib.alert(Alert{Kind: AlertStorage, Err: err, Detail: "retries wait"})
			}
			drop() // whatever is wrong with it, the next one may be well
			backoff = min(max(2*backoff, time.Second), pollBackoffMax)
			timer.Reset(backoff)
		default:
			if backoff != 0 {
				ib.alert(Alert{Kind: AlertRestored, Detail: "retries go on"})
			}
			backoff = 0
			wait := pollEvery
			if tried > 0 {
				wait = 0
			} else if next != 0 {
				wait = min(wait, max(time.Duration(next-ib.opts.clock.now().UnixMilli())*time.Millisecond, 0))
			}
			timer.Reset(wait)
		}
	}
}

func dataVersion(ctx context.Context, conn *sql.Conn) (v int64, err error) {
	err = conn.QueryRowContext(ctx, `PRAGMA data_version`).Scan(&v)
	return v, err
}

// round hands what is due to the writer and waits for it. It returns how many
// rows were tried, and when the next is due (0: none).
func (p *poller) round(ctx context.Context, conn *sql.Conn) (tried int, next int64, err error) {
	now := p.ib.opts.clock.now().UnixMilli()
	p.mu.Lock()
	p.next = 1<<63 - 1 // from here on every poke counts
	p.mu.Unlock()
	var batch []*retry
	for _, c := range p.ib.registered() {
		if c.paused.Load() {
			continue
		}
		seqs, err := due(ctx, conn, c.id, now)
		if err != nil {
			return 0, 0, fmt.Errorf("reading what is due: %w", err)
		}
		for _, seq := range seqs {
			batch = append(batch, &retry{c: c, seq: seq})
		}
	}
	if len(batch) == 0 {
		for _, c := range p.ib.registered() {
			var at sql.NullInt64
			err := conn.QueryRowContext(ctx, `
				SELECT next_at FROM inbox_message
				 WHERE status = 1 AND next_at IS NOT NULL AND consumer = ?1
				 ORDER BY next_at LIMIT 1`, c.id).Scan(&at)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return 0, 0, fmt.Errorf("reading what is due next: %w", err)
			}
			if at.Valid && !c.paused.Load() && (next == 0 || at.Int64 < next) {
				next = at.Int64
			}
		}
		return 0, next, nil
	}

	errs := make(chan error, len(batch))
	sent := 0
	for _, r := range batch {
		r.done = func(err error) { errs <- err }
		if err = p.ib.w.q.push(ctx, r); err != nil {
			break
		}
		sent++
	}
	for range sent {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	for _, r := range batch {
		if r.tried {
			tried++
		}
	}
	return tried, 0, err
}

// due lists the rows of a consumer that are due, the longest due first.
func due(ctx context.Context, conn *sql.Conn, consumer, now int64) (seqs []int64, err error) {
	rows, err := conn.QueryContext(ctx, `
		SELECT seq FROM inbox_message
		 WHERE status = 1 AND next_at IS NOT NULL AND consumer = ?1 AND next_at <= ?2
		 ORDER BY next_at, seq LIMIT ?3`, consumer, now, pollBatch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
	}
	return seqs, rows.Err()
}

// registered lists the consumers of this process, by name.
func (ib *Inbox) registered() []*Consumer {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	cs := make([]*Consumer, 0, len(ib.consumers))
	for _, c := range ib.consumers {
		if c != nil {
			cs = append(cs, c)
		}
	}
	slices.SortFunc(cs, func(a, b *Consumer) int { return int(a.id - b.id) })
	return cs
}
