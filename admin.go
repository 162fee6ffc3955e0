package inbox

// What operators do to messages: Retry, Replay, Discard, Pause, Resume. All
// act on the same row, never on a copy, and work for the owner and for a
// guest; the owner notices a guest's change within a second.

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Selection says which messages of a consumer are meant. IDs, the time
// range, or All must be given: an empty Selection is an error, so that a
// forgotten field does not mean everything.
type Selection struct {
	Consumer string
	// IDs are message IDs; with Source (as the inbox view shows it) only
	// those of that source.
	IDs    []string
	Source string
	// From and To bound the time a message was received: From <= t < To.
	// A zero bound is open.
	From, To time.Time
	All      bool
}

func (s *Selection) check() error {
	byTime := !s.From.IsZero() || !s.To.IsZero()
	switch {
	case s.Consumer == "":
		return fmt.Errorf("%w: Selection.Consumer is empty", ErrUnknownConsumer)
	case len(s.IDs) == 0 && !byTime && !s.All:
		return errors.New("inbox: the Selection is empty: give IDs, a time range, or All")
	case s.All && (len(s.IDs) > 0 || byTime):
		return errors.New("inbox: a Selection of All has no IDs and no time range")
	case s.Source != "" && len(s.IDs) == 0:
		return errors.New("inbox: Selection.Source goes with IDs")
	}
	return nil
}

// Retry makes dead messages pending: due now, with all their attempts before
// them. It returns how many. ErrNoMatch: IDs were given and none is dead.
func (ib *Inbox) Retry(ctx context.Context, sel Selection) (n int, err error) {
	n, _, err = ib.change(ctx, sel, statusDead, func(c *writeConn, now int64, r chosen) (bool, error) {
		_, err := c.exec(qRequeue, r.seq, now)
		return true, err
	}, statusPending)
	return n, err
}

// Replay makes completed messages pending: their handlers run again, which is
// the intention. Messages of the same key run in their order of arrival. It
// returns how many. Messages whose payload was dropped cannot be replayed:
// they are left alone, and the error is ErrNoPayload with their number, beside
// the count of those that could.
func (ib *Inbox) Replay(ctx context.Context, sel Selection) (n int, err error) {
	n, left, err := ib.change(ctx, sel, statusCompleted, func(c *writeConn, now int64, r chosen) (bool, error) {
		if !r.hasPayload {
			return false, nil
		}
		_, err := c.exec(qRequeue, r.seq, now)
		return true, err
	}, statusPending)
	if left > 0 && err == nil {
		err = fmt.Errorf("%w: %d messages left alone", ErrNoPayload, left)
	}
	return n, err
}

// Discard gives dead messages up for good: payload and headers are removed,
// the identity stays known, so that a redelivery is a duplicate. The next
// message of the key may go. It returns how many.
func (ib *Inbox) Discard(ctx context.Context, sel Selection) (n int, err error) {
	n, _, err = ib.change(ctx, sel, statusDead, func(c *writeConn, now int64, r chosen) (bool, error) {
		if _, err := c.exec(qDiscard, r.seq, now); err != nil || r.key == "" {
			return true, err
		}
		_, err := c.releaseKey(r.consumer, r.key, true, now)
		return true, err
	}, statusDiscarded)
	return n, err
}

// Pause makes a consumer take no more messages: what comes by Process or
// Receive is stored and waits, a subscription leaves its messages on the
// broker. It lasts until Resume, over restarts.
func (ib *Inbox) Pause(ctx context.Context, consumer string) error {
	return ib.setPaused(ctx, consumer, 1)
}

// Resume ends Pause.
func (ib *Inbox) Resume(ctx context.Context, consumer string) error {
	return ib.setPaused(ctx, consumer, 0)
}

var (
	qConsumerID = newQuery(`
		SELECT c.consumer FROM inbox_name n JOIN inbox_consumer c ON c.consumer = n.id
		 WHERE n.kind = 1 AND n.name = ?1`)
	qPause   = newQuery(`UPDATE inbox_consumer SET paused = ?2 WHERE consumer = ?1`)
	qRequeue = newQuery(`
		UPDATE inbox_message SET status = 1, attempts = 0, failures = 0, processed_at = NULL, next_at = ?2, retry_delay = 0
		 WHERE seq = ?1`)
	qDiscard = newQuery(`
		UPDATE inbox_message SET status = 5, processed_at = ?2, next_at = NULL, retry_delay = NULL, payload = NULL, headers = NULL
		 WHERE seq = ?1`)
	qChooseRange = newQuery(`
		SELECT seq, key, payload IS NOT NULL FROM inbox_message
		 WHERE consumer = ?1 AND status = ?2 AND seq > ?3
		   AND received_at >= ?4 AND received_at < ?5
		 ORDER BY seq LIMIT ?6`)
	qChooseSeq = newQuery(`SELECT seq, key, payload IS NOT NULL FROM inbox_message WHERE seq = ?1 AND status = ?2`)
	qChooseID  = newQuery(`
		WITH RECURSIVE segment (n) AS (
			SELECT (SELECT max(seq) FROM inbox_message) >> 13
			 UNION ALL SELECT n - 1 FROM segment WHERE n > 0)
		SELECT m.seq
		  FROM segment CROSS JOIN inbox_message m ON m.seq >> 13 = n AND m.message_id = ?3 AND m.consumer = ?1
		       CROSS JOIN inbox_name s ON s.id = m.source
		 WHERE m.status = ?2
		   AND (?4 = '' OR ?4 = CASE s.kind WHEN 11 THEN 'nats-msg-id:' || s.name
		                                    WHEN 12 THEN 'header:' || s.name
		                                    WHEN 13 THEN 'json:' || s.name
		                                    WHEN 14 THEN 'content:' || s.name
		                                    WHEN 15 THEN 'sequence:' || s.name
		                                    ELSE s.name END)
		   AND m.received_at >= ?5 AND m.received_at < ?6
		 ORDER BY m.seq`)
)

// chosen is a row that a Selection chose.
type chosen struct {
	consumer, seq int64
	key           string
	hasPayload    bool
}

// changeBatch bounds the rows changed in one transaction, so that messages
// are not kept waiting.
const changeBatch = 500

// lookupBatch bounds the ids looked up in one: each in every segment, of which
// there are 1,221 at ten million messages.
const lookupBatch = 50

// change runs do on every chosen row that has status from; do reports whether
// the row then has status to. It returns how many have, and how many were
// left alone.
func (ib *Inbox) change(ctx context.Context, sel Selection, from status,
	do func(c *writeConn, now int64, r chosen) (bool, error), to status) (total, left int, err error) {
	if err := sel.check(); err != nil {
		return 0, 0, err
	}
	lo, hi := int64(-1<<63), int64(1<<63-1)
	if !sel.From.IsZero() {
		lo = sel.From.UnixMilli()
	}
	if !sel.To.IsZero() {
		hi = sel.To.UnixMilli()
	}
	// Ids are looked up first, all of them: what is changed is changed in the
	// order of arrival, and an id that was named twice is one message.
	var seqs []int64
	for ids := range slices.Chunk(sel.IDs, lookupBatch) {
		err := ib.admin(ctx, func(c *writeConn, _ int64) error {
			consumer, err := c.consumerID(sel.Consumer)
			var v [1]driver.Value
			var found []int64 // this may run again
			for _, id := range ids {
				if err == nil {
					err = c.each(qChooseID, v[:], func() error {
						found = append(found, v[0].(int64))
						return nil
					}, consumer, int64(from), id, sel.Source, lo, hi)
				}
			}
			if err == nil {
				seqs = append(seqs, found...)
			}
			return err
		})
		if err != nil {
			return 0, 0, err
		}
	}
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	for after, more := int64(0), true; more; {
		n, alone := 0, 0
		some := seqs[:min(len(seqs), changeBatch)]
		err := ib.admin(ctx, func(c *writeConn, now int64) error {
			consumer, err := c.consumerID(sel.Consumer)
			if err != nil {
				return err
			}
			var rows []chosen
			var v [3]driver.Value
			add := func() error {
				rows = append(rows, chosen{consumer: consumer, seq: v[0].(int64), key: text(v[1]), hasPayload: v[2] == int64(1)})
				return nil
			}
			if len(sel.IDs) > 0 {
				for _, seq := range some {
					if err := c.each(qChooseSeq, v[:], add, seq, int64(from)); err != nil {
						return err
					}
				}
				more = len(seqs) > len(some)
			} else {
				if err := c.each(qChooseRange, v[:], add, consumer, int64(from), after, lo, hi, int64(changeBatch)); err != nil {
					return err
				}
				more = len(rows) == changeBatch
			}
			n = 0
			for _, r := range rows {
				changed, err := do(c, now, r)
				if err != nil {
					return err
				}
				if changed {
					n++
				}
			}
			var d counts
			d.status(from, int64(-n))
			d.status(to, int64(n))
			if len(rows) > 0 {
				after = rows[len(rows)-1].seq
			}
			alone = len(rows) - n
			return c.addCounts(consumer, &d)
		})
		if err != nil {
			return total, left, err
		}
		total += n
		left += alone
		seqs = seqs[len(some):]
	}
	if total+left == 0 && len(sel.IDs) > 0 {
		return 0, 0, fmt.Errorf("%w: consumer %q", ErrNoMatch, sel.Consumer)
	}
	return total, left, nil
}

func (ib *Inbox) setPaused(ctx context.Context, consumer string, paused int64) error {
	return ib.admin(ctx, func(c *writeConn, now int64) error {
		id, err := c.consumerID(consumer)
		if err != nil {
			return err
		}
		_, err = c.exec(qPause, id, paused)
		return err
	})
}

func (c *writeConn) consumerID(name string) (int64, error) {
	var v [1]driver.Value
	found, err := c.queryRow(qConsumerID, v[:], name)
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("%w: %q", ErrUnknownConsumer, name)
	}
	return v[0].(int64), nil
}

// admin runs fn in a transaction, as the owner or as a guest.
func (ib *Inbox) admin(ctx context.Context, fn func(c *writeConn, now int64) error) error {
	if ib.guest == nil {
		return ib.do(ctx, func(w *writer) error {
			err := fn(w.conn, w.now)
			switch {
			case errors.Is(err, ErrUnknownConsumer): // found before anything was written
				return err
			case err != nil:
				return w.fail("an administrative change", err)
			}
			w.wake(w.now)
			return w.loadConsumers()
		})
	}
	ib.guestMu.Lock()
	defer ib.guestMu.Unlock()
	if ib.closing.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := ib.guest.exclusively(func() error { return fn(ib.guest, ib.opts.clock.now().UnixMilli()) })
	if isStorage(err) {
		return storageError("an administrative change", err)
	}
	return err
}
