package inbox

// A turn is a user's function at work inside the writer's transaction: what it
// did is kept or undone, and what it must not do has no effect on others.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// errTimeLimit is the cause when the watchdog interrupted a statement.
var errTimeLimit = errors.New("inbox: a statement ran longer than statement_timeout (Options.StatementTimeout in Go)")

var (
	qSavepoint  = newQuery(`SAVEPOINT message`)
	qRollbackTo = newQuery(`ROLLBACK TO message`)
	qRelease    = newQuery(`RELEASE message`)
)

// A savepoint for each message costs two statements and page copies, and only a
// message that fails needs it. So a large group runs without at first; when a
// handler fails in it, it is rolled back and run again with them, the failed
// handler excepted, and so are some of the groups that follow: the more, the
// more often that happened lately.
const (
	minBare    = 32   // messages: a smaller group is not in a hurry
	maxPenalty = 1024 // groups
)

// A bareError says that such a group must run again, and why.
type bareError struct{ cause error }

func (e *bareError) Error() string { return e.cause.Error() }

func isBare(err error) bool {
	_, bare := errors.AsType[*bareError](err)
	return bare
}

// handle runs the handler of a new message and keeps what it did or undoes it.
// The error is the handler's, or one charged to it, or *lostError, or
// *bareError.
func (w *writer) handle(ctx context.Context, fn func(context.Context, *Tx) error) error {
	if !w.bare {
		return w.inSavepoint(ctx, fn)
	}
	err := w.inTurn(ctx, fn)
	if err != nil && !isLost(err) {
		err = &bareError{err}
	}
	return err
}

// inSavepoint runs fn, which is a user's, and keeps what it did or undoes it.
// The error is fn's, or one charged to it, or *lostError.
func (w *writer) inSavepoint(ctx context.Context, fn func(context.Context, *Tx) error) error {
	if _, err := w.conn.exec(qSavepoint); err != nil {
		return w.fail("SAVEPOINT", err)
	}
	err := w.inTurn(ctx, fn)
	if isLost(err) {
		return err
	}
	if err != nil {
		if _, e := w.conn.exec(qRollbackTo); e != nil {
			return w.fail("ROLLBACK TO", e)
		}
	}
	if _, e := w.conn.exec(qRelease); e != nil {
		return w.fail("RELEASE", e)
	}
	return err
}

// inTurn runs fn and says what became of it. What it did stays done.
func (w *writer) inTurn(ctx context.Context, fn func(context.Context, *Tx) error) error {
	c := w.conn
	tx := newTx(c, w.now)
	c.enter(tx)
	err := protect(func() error { return fn(ctx, tx) })
	if leak := c.leave(); err == nil {
		err = leak
	}
	tx.end()
	switch {
	case c.lost && c.timedOut:
		return &lostError{errTimeLimit}
	case c.lost && isStorage(c.cause):
		return &lostError{storageError("running a handler's statement", c.cause)}
	case c.lost:
		return &lostError{fmt.Errorf("the handler ended the whole transaction: %w", cmp.Or(c.cause, ErrTxLost))}
	case c.trouble != nil && err != nil:
		return &lostError{storageError("running a handler's statement", c.trouble)}
	case c.timedOut && err != nil: // a SELECT: only the statement ended
		err = fmt.Errorf("%w: %w", errTimeLimit, err)
	}
	return err
}

// protect turns a panic into an error.
func protect(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// goroutineID is the number in the first line of this goroutine's stack. It
// is used for one thing: a handler that calls its own inbox without passing
// its context on must get an error and not wait for itself.
func goroutineID() int64 {
	var buf [64]byte
	s := strings.TrimPrefix(string(buf[:runtime.Stack(buf[:], false)]), "goroutine ")
	n, _, _ := strings.Cut(s, " ")
	id, _ := strconv.ParseInt(n, 10, 64)
	return id
}

// onWriter reports whether the caller is a handler of this inbox, or a
// callback: waiting for the inbox there is waiting for oneself.
func (w *writer) onWriter() bool {
	inTurn := false
	if g := w.guarded.Load(); g != nil {
		_, inTurn = g.now()
	}
	telling := w.telling.Load()
	if !inTurn && telling == 0 {
		return false
	}
	id := goroutineID()
	return inTurn && id == w.goid.Load() || id == telling
}

// watch makes the watchdog: it interrupts the statement that is running when
// one handler call lasts longer than the limit (it notices between one and
// two limits). Its timer runs only while a group does.
func (w *writer) watch() {
	var last atomic.Uint64 // two calls may meet, when one is late
	w.watchdog = time.AfterFunc(time.Hour, func() {
		g := w.guarded.Load()
		if g == nil || !w.running.Load() {
			return
		}
		turn, inTurn := g.now()
		next := w.opts.StatementTimeout
		if inTurn && turn == last.Load() {
			g.interrupt(turn)
			next /= 10 // an interrupt between two statements is lost: again, soon
		}
		last.Store(turn)
		w.watchdog.Reset(next)
	})
	w.watchdog.Stop()
}
