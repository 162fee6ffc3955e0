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
// Slow handlers make smaller ones: a group that takes long is committed as far
// as it has come.
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
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
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
	grew    chan struct{}   // the log, by checkpointStep

	// For other goroutines to look at.
	goid    atomic.Int64          // of the writer goroutine
	telling atomic.Int64          // id of the settler goroutine while it tells callers
	guarded atomic.Pointer[guard] // conn's guard, nil without a connection
	running atomic.Bool           // a group is under way: the watchdog is awake
	latest  atomic.Int64          // the time of the last transaction that was committed, ms

	// Owned by the writer goroutine.
	conn     *writeConn // nil after the connection was given up
	group    []job
	errs     []error
	later    []job         // taken, and left to the next group
	rest     []job         // of a replay: those whose turn has not come
	first    int           // jobs of the group that were taken; followers are behind them
	at       int           // the job whose turn it is
	alone    bool          // a replay: no followers join
	bare     bool          // this group's deliveries have no savepoints
	careful  int           // large groups to come before the next bare one
	penalty  int           // what careful will be after the next failure in a bare one
	lasted   time.Duration // the last COMMIT
	finished bool
	now      int64        // the time of this transaction, ms
	nowValue driver.Value // the same, as every row binds it
	nextSeq  int64
	batch    batch // messages that are inserted ahead of their turn
	segments
	names     map[nameKey]int64
	counts    map[int64]*counts
	opened    map[int64]*account    // by number
	accounts  map[*account]struct{} // touched in this transaction
	asked     int                   // conn's pagesWritten when grew was told last
	due       int64                 // the earliest due time made in this transaction
	version   driver.Value          // PRAGMA data_version: has a guest written? nil: look
	consumers map[int64]*Consumer
	watchdog  *time.Timer
}

type settlement struct {
	jobs []job
	errs []error
}

// start takes over conn.
func (w *writer) start(conn *writeConn) {
	w.use(conn)
	w.settled = make(chan settlement, 4)
	w.grew = make(chan struct{}, 1)
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
		if len(w.later) > 0 {
			time.Sleep(w.groupTime() / othersShare)
			w.group, w.later = w.later, nil
			w.commitGroup()
			continue
		}
		w.group = w.q.take(w.group[:0], w.opts.MaxGroup, w.opts.MaxGroupBytes)
		if len(w.group) == 0 {
			break
		}
		w.group = slices.DeleteFunc(w.group, func(j job) bool { return !j.take() })
		if len(w.group) > 0 {
			w.commitGroup()
		}
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

// commitGroup commits w.group, but for what it leaves to w.later, or replays it.
func (w *writer) commitGroup() {
	w.first = len(w.group)
	large := w.first >= minBare
	w.alone = false
	w.bare = w.careful == 0 && large
	err := w.transact()
	if failed, ok := errors.AsType[*bareError](err); ok {
		w.group[w.at].charge(failed.cause) // its handler need not run again
		w.group = w.group[:w.first]
		w.bare, w.careful, w.penalty = false, w.penalty, min(2*w.penalty, maxPenalty)
		err = w.transact()
	} else if w.bare {
		w.penalty = max(w.penalty/2, 1)
	}
	if large {
		w.careful = max(w.careful-1, 0)
	}
	var lost *lostError
	if !errors.As(err, &lost) {
		w.settle(err)
		return
	}
	// Followers go back to the poller: their rows say that they are due.
	jobs, guilty := slices.Clone(w.group[:w.first]), -1
	if !isStorage(err) && w.at < w.first && (len(w.group) == 1 || errors.Is(err, errTimeLimit)) {
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

// A group is committed when it has taken 16 times as long as the last COMMIT
// did, so that commits cost a sixteenth of the time; but not before 100 ms, and
// after a second however slow the disk is: so long do its callers wait for each
// other, and other processes that want to write for all of them.
const (
	minGroupTime       = 100 * time.Millisecond
	maxGroupTime       = time.Second
	groupTimePerCommit = 16

	// Between the parts of a group a twentieth of the time is left to other
	// processes: SQLite's lock is nobody's turn, and one that waits for it
	// only looks now and then.
	othersShare = 20
)

// groupTime is how long the turns of the jobs of a group may take.
func (w *writer) groupTime() time.Duration {
	if w.opts.groupTime != 0 {
		return w.opts.groupTime
	}
	return min(max(groupTimePerCommit*w.lasted, minGroupTime), maxGroupTime)
}

// cut leaves the jobs whose turn has not come to the next group. Followers are
// not among them: when this transaction is lost, so are the rows that they are of.
func (w *writer) cut() {
	w.later = w.group[w.at:max(w.at, w.first)]
	w.group, w.first = w.group[:w.at:w.at], min(w.at, w.first)
}

// transact runs w.group in one transaction; what does not fit into its time is
// moved to w.later. A *lostError means that nothing of it happened and that
// w.at is the job in whose turn it ended.
func (w *writer) transact() (err error) {
	start := time.Now()
	defer func() {
		w.batch.end()
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
	end := time.Now().Add(w.groupTime())
	for ; w.at < len(w.group); w.at++ {
		if w.at > 0 && w.at >= w.batch.to && !time.Now().Before(end) {
			w.cut()
			break
		}
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
	began := time.Now()
	if err := w.conn.commit(); err != nil {
		return w.commitFailed(err)
	}
	w.lasted = time.Since(began)
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
	w.segmentsCommitted()
	w.latest.Store(w.now)
	w.stats.group(len(w.group), took)
	if w.due != 0 {
		w.poke(w.due)
	}
	if n := w.conn.pagesWritten(); n-w.asked >= checkpointStep {
		w.asked = n
		select {
		case w.grew <- struct{}{}:
		default:
		}
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
	w.keeping = nil
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
	w.asked = 0
	w.guarded.Store(conn.guard)
}

// wake notes that a row is due at a time; the poller hears of it after the commit.
func (w *writer) wake(at int64) {
	if w.due == 0 || at < w.due {
		w.due = max(at, 1)
	}
}
