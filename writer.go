package inbox

// The writer. One goroutine owns the one writing connection; everything that
// changes the file is a job in its queue.
//
//	push ─► queue ─► take what waits ─► BEGIN IMMEDIATE
//	                                      job 1: INSERT, SAVEPOINT, handler, RELEASE
//	                                      job 2: …
//	                                    COMMIT ─► settle: callers are told, acks go out
//
// It never waits for a group to fill. While one group is being committed the
// next one gathers, so a slow disk makes larger groups, not slower messages.
//
// What must stay true:
//   - A job is settled without error only after COMMIT returned nil.
//   - No statement runs outside the transaction: when one of the things that
//     end a whole transaction has happened (the guard knows), the group is
//     given up and replayed, one job a transaction, and only the job at fault
//     is charged.
//   - What the writer remembers of the file (names, ranges, counters) is what
//     the last commit left there: it is forgotten when a transaction is not
//     committed.

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A job is one change to the file, sharing a transaction with others.
type job interface {
	// take is called when the writer takes the job; false: its caller has
	// given it up, and it is dropped unsettled.
	take() bool
	// apply makes the change. An error concerns this job alone, which has
	// then left no trace in the transaction; but *lostError ends the group.
	apply(w *writer) error
	// charge is called when this job, alone in its transaction, ended it.
	// It reports whether applying the job again would record that.
	charge(err error) bool
	// settle is called once: with nil after the commit, or with what kept
	// the job out of the file.
	settle(err error)
	// size is what the job weighs in memory, in bytes.
	size() int
}

// A lostError says that the whole transaction is gone, and why.
type lostError struct{ cause error }

func (e *lostError) Error() string {
	return fmt.Sprintf("inbox: the transaction was ended by: %v", e.cause)
}
func (e *lostError) Unwrap() error { return e.cause }

// errTimeLimit is the cause when the watchdog interrupted a statement.
var errTimeLimit = errors.New("inbox: a statement ran longer than statement_timeout (Options.StatementTimeout in Go)")

type writer struct {
	// Immutable.
	path  string
	opts  *Options
	q     *queue
	done  chan struct{} // closed when the last job is settled
	alert func(Alert)
	poke  func(at int64) // there is, or will be, something due
	stats *writerStats

	settled chan settlement // to the settler

	// For other goroutines to look at.
	goid    atomic.Int64          // of the writer goroutine
	telling atomic.Int64          // id of the settler goroutine while it tells callers
	guarded atomic.Pointer[guard] // conn's guard, nil without a connection
	running atomic.Bool           // a group is under way: the watchdog is awake
	latest  atomic.Int64          // the time of the last transaction that was committed, ms

	// Owned by the writer goroutine.
	conn      *writeConn // nil after the connection was given up
	group     []job
	errs      []error
	rest      []job // of a replay: those whose turn has not come
	at        int   // the job whose turn it is
	alone     bool  // a replay: no followers join
	bare      bool  // this group's deliveries have no savepoints
	careful   int   // large groups to come before the next bare one
	penalty   int   // what careful will be after the next failure in a bare one
	finished  bool
	now       int64        // the time of this transaction, ms
	nowValue  driver.Value // the same, as every row binds it
	nextSeq   int64
	names     map[nameKey]int64
	counts    map[int64]*counts
	opened    map[int64]*account    // by number
	accounts  map[*account]struct{} // touched in this transaction
	due       int64                 // the earliest due time made in this transaction
	version   driver.Value          // PRAGMA data_version: has a guest written? nil: look
	consumers map[int64]*Consumer
	watchdog  *time.Timer
}

type settlement struct {
	jobs []job
	errs []error
}

type nameKey struct {
	kind int64
	name string
}

// maxNames bounds the names remembered; all are forgotten when there are more.
const maxNames = 10_000

// start takes over conn.
func (w *writer) start(conn *writeConn) {
	w.use(conn)
	w.settled = make(chan settlement, 4)
	w.done = make(chan struct{})
	w.consumers = map[int64]*Consumer{}
	w.opened = map[int64]*account{}
	w.penalty = 1
	w.forget()
	if w.opts.StatementTimeout > 0 {
		w.watch()
	}
	go w.settler()
	go w.run(nil)
}

// run is the writer goroutine. It first does what another left undone.
func (w *writer) run(resume func()) {
	defer w.exited()
	w.goid.Store(goroutineID())
	if resume != nil {
		resume()
	}
	for {
		w.group = w.q.take(w.group[:0], w.opts.MaxGroup, w.opts.MaxGroupBytes)
		if len(w.group) == 0 {
			break
		}
		w.commitGroup()
	}
	w.finished = true
}

// exited is deferred by run. When run did not finish, a handler called
// runtime.Goexit, which nobody can stop: this goroutine ends, another takes
// over, and the handler's message is charged.
func (w *writer) exited() {
	if w.finished {
		close(w.settled)
		return
	}
	_ = w.conn.leave()
	w.giveUp()
	jobs, guilty := append(slices.Clone(w.group), w.rest...), w.at
	go w.run(func() { w.replay(jobs, guilty, ErrGoexit) })
}

// commitGroup commits w.group, or replays it.
func (w *writer) commitGroup() {
	w.group = slices.DeleteFunc(w.group, func(j job) bool { return !j.take() })
	if len(w.group) == 0 {
		return
	}
	first := len(w.group)
	w.alone = false
	w.bare = w.careful == 0 && first >= minBare
	err := w.transact()
	if failed, ok := errors.AsType[*bareError](err); ok {
		w.group[w.at].charge(failed.cause) // its handler need not run again
		w.group = w.group[:first]
		w.bare, w.careful, w.penalty = false, w.penalty, min(2*w.penalty, maxPenalty)
		err = w.transact()
	} else if w.bare {
		w.penalty = max(w.penalty/2, 1)
	}
	if first >= minBare {
		w.careful = max(w.careful-1, 0)
	}
	var lost *lostError
	if !errors.As(err, &lost) {
		w.settle(err)
		return
	}
	// Followers go back to the poller: their rows say that they are due.
	jobs, guilty := slices.Clone(w.group[:first]), -1
	if !isStorage(err) && w.at < first && (len(w.group) == 1 || errors.Is(err, errTimeLimit)) {
		guilty = w.at // no need to run it again to know
	}
	w.replay(jobs, guilty, lost.cause)
}

// replay gives each job a transaction of its own.
func (w *writer) replay(jobs []job, guilty int, cause error) {
	w.alone, w.bare = true, false
	var stop error // the disk is in such trouble that the next job is no use
	for i, j := range jobs {
		w.group, w.rest = append(w.group[:0], j), jobs[i+1:]
		err := stop
		switch {
		case i == guilty:
			err = &lostError{cause}
		case stop == nil:
			err = w.transact()
		}
		var lost *lostError
		if errors.As(err, &lost) && !isStorage(err) {
			err = lost.cause
			if j.charge(err) {
				err = w.transact()
			}
		}
		if isStorage(err) {
			err = storageError("writing", err)
			if code(err) != codeFull {
				stop = err
			}
		}
		w.settle(err)
	}
	w.rest = nil
}

// transact runs w.group in one transaction. A *lostError means that nothing
// of it happened and that w.at is the job in whose turn it ended.
func (w *writer) transact() (err error) {
	start := time.Now()
	defer func() {
		if suspect(err) {
			w.drop()
		}
	}()
	w.errs = w.errs[:0]
	w.at = 0
	if err := w.begin(); err != nil {
		return storageError("beginning a transaction", err)
	}
	if w.watchdog != nil {
		w.running.Store(true)
		w.watchdog.Reset(w.opts.StatementTimeout)
		defer func() { w.running.Store(false); w.watchdog.Stop() }()
	}
	for ; w.at < len(w.group); w.at++ {
		err := w.group[w.at].apply(w)
		if isLost(err) || isBare(err) {
			w.giveUp()
			return err
		}
		w.errs = append(w.errs, err)
	}
	if err := w.flush(); err != nil {
		w.giveUp()
		return &lostError{err}
	}
	if err := w.conn.commit(); err != nil {
		return w.commitFailed(err)
	}
	w.committed(time.Since(start))
	return nil
}

// begin opens the transaction, and the connection if there is none.
func (w *writer) begin() error {
	if w.conn == nil {
		conn, err := openWriteConn(w.path, w.opts)
		if err != nil {
			return err
		}
		w.use(conn)
		w.version = nil
	}
	w.now = w.opts.clock.now().UnixMilli()
	w.nowValue = w.now
	w.due = 0
	w.conn.lost = false
	if _, err := w.conn.exec(qBegin); err != nil {
		return err
	}
	return w.notice()
}

var qDataVersion = newQuery(`PRAGMA data_version`)

// clockSlack is how far a clock may go back, in milliseconds, before due times
// are looked at: it is steered all the time.
const clockSlack = 1000

// notice reads again what another process may have changed, and mends due
// times when the clock went back. It runs inside the transaction, so nothing
// changes behind it.
func (w *writer) notice() error {
	var v [1]driver.Value
	_, err := w.conn.queryRow(qDataVersion, v[:])
	if err == nil && (v[0] != w.version || w.now < w.latest.Load()-clockSlack) {
		if err = w.loadConsumers(); err == nil {
			_, err = w.conn.exec(qClock, w.now)
		}
		w.version = v[0]
	}
	if err != nil {
		w.giveUp()
	}
	return err
}

// commitFailed sorts the errors of COMMIT. A deferred constraint leaves the
// transaction open: it can be rolled back, and one of the jobs is at fault.
// Anything else may or may not be on disk.
func (w *writer) commitFailed(err error) error {
	if code(err) == codeConstraint {
		w.at = 0
		w.giveUp()
		return &lostError{err}
	}
	w.giveUp()
	w.drop() // read the truth from the disk
	w.alert(Alert{Kind: AlertStorage, Err: err})
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, storageError("committing", err))
}

// committed makes what the transaction changed the writer's memory.
func (w *writer) committed(took time.Duration) {
	clear(w.accounts)
	w.latest.Store(w.now)
	w.stats.group(len(w.group), took)
	if w.due != 0 {
		w.poke(w.due)
	}
}

// giveUp rolls back, and forgets what is not on disk. When even ROLLBACK
// fails, so does the connection.
func (w *writer) giveUp() {
	err := w.conn.rollback()
	for a := range w.accounts {
		a.stale = true
	}
	w.forget()
	w.version = nil
	if err != nil {
		w.drop()
	}
}

// drop closes the connection; the next group opens another.
func (w *writer) drop() {
	if w.conn != nil {
		w.guarded.Store(nil)
		_ = w.conn.close()
		w.conn = nil
	}
}

func (w *writer) forget() {
	w.names = map[nameKey]int64{}
	w.counts = map[int64]*counts{}
	w.accounts = map[*account]struct{}{}
	w.nextSeq = 0
}

// fail is for an error of the writer's own statements: the transaction
// cannot be trusted to be what the writer thinks, so it is given up.
func (w *writer) fail(doing string, err error) error {
	if isStorage(err) {
		return &lostError{storageError(doing, err)}
	}
	return &lostError{fmt.Errorf("inbox: %s: %w", doing, err)}
}

// settle passes w.group on to the settler, with err for all of them or, when
// it is nil, with what became of each.
func (w *writer) settle(err error) {
	errs := w.errs
	if err != nil {
		errs = make([]error, len(w.group))
		for i, j := range w.group {
			errs[i] = err
			if d, ok := j.(*delivery); ok && d.line != nil && d.m.Key != "" {
				d.line.refuse(d.m.Key, err)
			}
		}
	}
	w.settled <- settlement{w.group, errs}
	w.group, w.errs = nil, nil
}

// settler tells the callers, in order, away from the writer's path.
func (w *writer) settler() {
	defer close(w.done)
	id := goroutineID()
	for s := range w.settled {
		w.telling.Store(id)
		for i, j := range s.jobs {
			j.settle(s.errs[i])
		}
		w.telling.Store(0)
	}
}

// use makes conn the writer's connection.
func (w *writer) use(conn *writeConn) {
	w.conn = conn
	w.guarded.Store(conn.guard)
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
	tx := newTx(c.conn, w.now)
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

var (
	qFindName = newQuery(`SELECT id FROM inbox_name WHERE kind = ?1 AND name = ?2`)
	qAddName  = newQuery(`INSERT INTO inbox_name (kind, name) VALUES (?1, ?2)`)
	qLastRow  = newQuery(`SELECT last_insert_rowid()`)
	qMaxSeq   = newQuery(`SELECT coalesce(max(seq), 0) FROM inbox_message`)
)

// name is the number of a name, given on first use.
func (w *writer) name(kind int64, name string) (int64, error) {
	k := nameKey{kind, name}
	if id, ok := w.names[k]; ok {
		return id, nil
	}
	if len(w.names) > maxNames {
		clear(w.names)
	}
	var v [1]driver.Value
	found, err := w.conn.queryRow(qFindName, v[:], kind, name)
	if err == nil && !found {
		if _, err = w.conn.exec(qAddName, kind, name); err == nil {
			_, err = w.conn.queryRow(qLastRow, v[:])
		}
	}
	if err != nil {
		return 0, w.fail("naming "+name, err)
	}
	id := v[0].(int64)
	w.names[k] = id
	return id, nil
}

// seq is the next arrival number. It is used up when its row is written.
func (w *writer) seq() (int64, error) {
	if w.nextSeq == 0 {
		var v [1]driver.Value
		if _, err := w.conn.queryRow(qMaxSeq, v[:]); err != nil {
			return 0, w.fail("reading the last sequence", err)
		}
		w.nextSeq = v[0].(int64) + 1
	}
	return w.nextSeq, nil
}

// wake notes that a row is due at a time; the poller hears of it after the commit.
func (w *writer) wake(at int64) {
	if w.due == 0 || at < w.due {
		w.due = max(at, 1)
	}
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
