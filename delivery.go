package inbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A delivery is the job of one message that came: by Process, Receive, Submit
// or from JetStream.
type delivery struct {
	c     *Consumer
	m     Message
	hash  [32]byte
	cols  columns // as insert binds them, made away from the writer
	store bool    // do not apply it now
	ctx   context.Context
	done  func(Outcome, error)

	// Of JetStream's deliveries; unset for others.
	sub      *subscription // it is told instead of done
	pos      position      // m.pos points to it
	reply    string        // the subject to acknowledge by
	inflight uint64        // its number among sub.inflight
	line     *line

	state   atomic.Int32 // waiting, taken or abandoned
	fault   error        // charged: this attempt failed, do not make it
	outcome Outcome
	cause   error // why it is pending or dead
}

// A line is the deliveries of one stretch of pulling, in the order of the
// stream. When the disk refuses one of them, those behind it of the same key
// must not overtake it: they are refused too, until pulling begins anew at
// what is missing. The writer owns it.
type line struct{ refused map[string]error }

func (l *line) refuse(key string, err error) {
	if l.refused == nil {
		l.refused = map[string]error{}
	}
	l.refused[key] = err
}

const (
	jobTaken     = 1
	jobAbandoned = 2
)

func (d *delivery) size() int           { return d.m.size() }
func (d *delivery) take() bool          { return d.state.CompareAndSwap(0, jobTaken) }
func (d *delivery) abandon() bool       { return d.state.CompareAndSwap(0, jobAbandoned) }
func (d *delivery) charge(e error) bool { d.fault = e; return true }

func (d *delivery) settle(err error) {
	o := d.outcome
	if err != nil {
		o = 0
	} else {
		d.c.report(o, &d.m, 1, d.cause)
	}
	if d.sub != nil {
		d.sub.settled(d, err)
		return
	}
	d.done(o, err)
}

// plan decides what becomes of the message, should it be new: r is its row.
func (d *delivery) plan(w *writer, r *row, seq int64) (err error) {
	c, m := d.c, &d.m
	*r = row{seq: seq, consumer: c.id, columns: &d.cols}
	if r.source, err = w.name(int64(m.rule), m.Source); err != nil {
		return err
	}
	if m.Type != "" {
		if r.typ, err = w.nameValue(kindType, m.Type); err != nil {
			return err
		}
	}
	if m.pos != nil {
		r.stream, r.streamSeq = m.pos.acct.id, int64(m.pos.seq)
	}
	blocked := false
	if m.Key != "" {
		if blocked, err = w.keyOpen(c.id, m.Key, r.seq, !c.opts.DeadPasses); err != nil {
			return err
		}
	}
	d.cause = nil
	switch {
	case m.invalid != "":
		d.outcome, d.cause = Dead, errors.New(m.invalid)
		r.status, r.lastError = statusDead, m.invalid
	case d.fault != nil:
		f := c.opts.Retry.decide(0, 0, d.fault, w.now, rand.Float64())
		d.outcome, d.cause = outcomeOf(f.status), d.fault
		r.status, r.attempts, r.failures = f.status, f.attempts, f.failures
		r.nextAt, r.delay, r.lastError = f.nextAt, f.delay, f.text
	case blocked:
		d.outcome = Pending
		r.status = statusPending
	case d.store || c.paused.Load():
		d.outcome = Pending
		r.status, r.nextAt, r.delay = statusPending, w.nowValue, int64(0)
	default:
		d.outcome = Applied
		r.status, r.attempts = statusCompleted, 1
	}
	r.keep = r.status != statusCompleted || !c.opts.DropPayload
	return nil
}

// refused is why the message must not overtake one that the disk refused.
func (d *delivery) refused() error {
	if d.line == nil {
		return nil
	}
	return d.line.refused[d.m.Key]
}

// apply inserts the message and, if nothing stands against it, applies it.
func (d *delivery) apply(w *writer) error {
	c, m := d.c, &d.m
	if err := d.refused(); err != nil {
		return err
	}
	r, stored, err := w.row(d)
	if err != nil {
		return err
	}
	var known int64
	var hash []byte
	if !stored {
		if known, hash, err = w.insert(r); err != nil {
			return err
		}
	}
	attempt := d.outcome == Applied
	n := w.count(c.id)
	if known != 0 {
		if err := d.known(w, known, hash, n); err != nil {
			return err
		}
		return w.account(m.pos, d.outcome)
	}
	if d.fault != nil {
		if err := w.attempted(r.seq, 1, errorText(d.fault)); err != nil {
			return err
		}
	}
	if attempt {
		m.Seq, m.Attempt, m.ReceivedAt = r.seq, 1, unixMilli(w.now)
		if err := w.handle(d.ctx, func(ctx context.Context, tx *Tx) error { return c.handler(ctx, tx, m) }); err != nil {
			if isLost(err) || isBare(err) {
				return err
			}
			f := c.opts.Retry.decide(0, 0, err, w.now, rand.Float64())
			if err := w.failed(r.seq, f, r.keep, r.headers, r.payload); err != nil {
				return err
			}
			if err := w.attempted(r.seq, 1, f.text); err != nil {
				return err
			}
			d.outcome, d.cause = outcomeOf(f.status), err
			r.status, r.nextAt = f.status, f.nextAt
		}
	}
	n.status(r.status, 1)
	if d.outcome == Applied {
		n.applied++
	}
	if d.fault != nil || attempt && d.outcome != Applied {
		n.failures++
	}
	if at, ok := r.nextAt.(int64); ok && r.status == statusPending {
		w.wake(at)
	}
	return w.account(m.pos, d.outcome)
}

// known is for an identity that is in the file already, in row seq.
func (d *delivery) known(w *writer, seq int64, hash []byte, n *counts) error {
	d.cause = nil
	if string(hash) == string(d.hash[:]) || d.c.opts.IgnoreConflicts {
		d.outcome = Duplicate
		n.duplicates++
		return w.duplicate(seq)
	}
	if err := w.conflict(seq, d.hash[:], d.m.Payload); err != nil {
		return err
	}
	d.outcome = Conflict
	n.conflicts++
	return nil
}

func outcomeOf(s status) Outcome {
	switch s {
	case statusCompleted:
		return Applied
	case statusDead:
		return Dead
	}
	return Pending
}

func isLost(err error) bool {
	_, lost := errors.AsType[*lostError](err)
	return lost
}

func (w *writer) nameValue(kind int64, name string) (driver.Value, error) {
	id, err := w.name(kind, name)
	return id, err
}

// A retry is the job of one pending message that is due.
type retry struct {
	c    *Consumer
	seq  int64
	done func(error) // may be nil

	fault   error
	tried   bool
	outcome Outcome
	cause   error
	m       Message
}

func (r *retry) size() int           { return 256 }
func (r *retry) take() bool          { return true }
func (r *retry) charge(e error) bool { r.fault = e; return true }

func (r *retry) settle(err error) {
	if err == nil && r.tried {
		r.c.report(r.outcome, &r.m, r.m.Attempt, r.cause)
	}
	if r.done != nil {
		r.done(err)
	}
}

// apply makes the next attempt, if the message still is due: it may have been
// discarded, paused or retried since the poller saw it.
func (r *retry) apply(w *writer) error {
	c := r.c
	r.tried = false
	s, found, err := w.loadMessage(r.seq)
	if err != nil {
		return err
	}
	if !found || s.status != statusPending || s.waiting || c.paused.Load() {
		return nil
	}
	if s.nextAt > w.now && s.nextAt-w.now <= s.delay {
		w.wake(s.nextAt)
		return nil
	}
	if s.m.Key != "" {
		blocked, err := w.keyOpen(c.id, s.m.Key, r.seq, !c.opts.DeadPasses)
		if err != nil {
			return err
		}
		if blocked {
			return w.keyHold(r.seq)
		}
	}
	r.m = s.m
	r.m.consumer = c.name
	r.m.Attempt = int(s.attempts) + 1
	r.tried, r.cause = true, r.fault
	if r.fault == nil {
		m := r.m // the handler's copy
		r.cause = w.inSavepoint(c.ctx, func(ctx context.Context, tx *Tx) error { return c.handler(ctx, tx, &m) })
		if isLost(r.cause) {
			return r.cause
		}
	}
	n := w.count(c.id)
	n.retries++
	n.status(statusPending, -1)
	if r.cause == nil {
		r.outcome = Applied
		if err := w.complete(r.seq, s.attempts+1, !c.opts.DropPayload); err != nil {
			return err
		}
		n.status(statusCompleted, 1)
		n.applied++
		return r.release(w, s.m.Key)
	}
	f := c.opts.Retry.decide(s.attempts, s.failures, r.cause, w.now, rand.Float64())
	if err := w.failed(r.seq, f, true, nil, nil); err != nil {
		return err
	}
	if err := w.attempted(r.seq, int64(r.m.Attempt), f.text); err != nil {
		return err
	}
	r.outcome = outcomeOf(f.status)
	n.failures++
	n.status(f.status, 1)
	if f.status == statusDead {
		return r.release(w, s.m.Key)
	}
	w.wake(f.nextAt.(int64))
	return nil
}

// release lets the next message of the key go, in this same group if it may.
func (r *retry) release(w *writer, key string) error {
	if key == "" {
		return nil
	}
	next, err := w.keyRelease(r.c.id, key, !r.c.opts.DeadPasses)
	if err != nil || next == 0 {
		return err
	}
	if !w.alone && len(w.group) < w.opts.MaxGroup {
		w.group = append(w.group, &retry{c: r.c, seq: next})
	}
	return nil
}

// report tells the observer and the log, after the commit.
func (c *Consumer) report(o Outcome, m *Message, attempt int, cause error) {
	if obs := c.ib.opts.Observer; obs != nil {
		if obs.Delivered != nil {
			obs.Delivered(c.name, o)
		}
		if cause != nil && obs.Failed != nil {
			obs.Failed(c.name, m.ID, attempt, cause)
		}
	}
	switch {
	case o == Dead:
		c.ib.alert(Alert{Kind: AlertDead, Consumer: c.name, Stream: m.Stream, MessageID: m.ID, Err: cause})
	case o == Conflict:
		c.ib.alert(Alert{Kind: AlertConflict, Consumer: c.name, Stream: m.Stream, MessageID: m.ID})
	case cause != nil:
		c.ib.say(slog.LevelWarn, "failed "+c.name, "attempt failed", "consumer", c.name, "message_id", m.ID, "outcome", o.String(), "attempt", attempt, "error", cause)
	}
}

func unixMilli(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
