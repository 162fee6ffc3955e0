package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Options for Open. The zero value, and nil, mean the defaults.
type Options struct {
	// Guest opens the file beside its owner, or without one: to read, and for
	// short administrative writes (Retry, Replay, Discard, Pause, Resume). A
	// guest does not process messages and does not change the schema.
	Guest bool

	// CacheSize is the memory of SQLite's page cache of the writing connection,
	// in bytes. Default 24 MiB, taken as it is needed. The inbox itself needs
	// little of it (segments.go), and with less it is faster; tables of the
	// program's own that are changed all over need more: with one of a million
	// rows changed at random, 128 MiB were 1.07 times as fast as 32 MiB, and
	// 1.26 times as fast as 16 MiB.
	CacheSize int64

	// MaxGroup bounds the messages in one transaction. Default 2000. The
	// writer never waits for a group to fill, and commits one that takes long
	// as far as it has come: after 16 times what the last commit took, but
	// not before 100 ms and within a second.
	MaxGroup int
	// MaxGroupBytes bounds their size. Default 16 MiB.
	MaxGroupBytes int

	// QueueLength bounds the messages that wait for the writer. Default
	// 8192. More make Process, Receive, Submit and Update wait.
	QueueLength int
	// QueueBytes bounds their size. Default 64 MiB.
	QueueBytes int

	// StatementTimeout bounds a statement that runs away in a handler: when
	// one handler call lasts longer, the statement it is running is
	// interrupted (noticed between one and two times this long). A write that
	// is interrupted ends the transaction: its group is replayed and the
	// message charged. Default 30 s, negative for none.
	StatementTimeout time.Duration

	// Logger gets what operators should read: ten lines a minute at most of
	// each kind of trouble of each consumer. Default slog.Default(). It never
	// gets a payload.
	Logger *slog.Logger
	// Observer is told what happens; see there.
	Observer *Observer

	clock     clock         // tests set another
	groupTime time.Duration // and another one than the writer finds right
}

// clock is where the inbox reads the time of day.
type clock struct {
	now func() time.Time
}

func (o *Options) setDefaults() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxGroup, 2000)
	def(&o.MaxGroupBytes, 16<<20)
	def(&o.QueueLength, 8192)
	def(&o.QueueBytes, 64<<20)
	if o.CacheSize == 0 {
		o.CacheSize = 24 << 20
	}
	if o.StatementTimeout == 0 {
		o.StatementTimeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.clock.now == nil {
		o.clock.now = time.Now
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"CacheSize", o.CacheSize}, {"MaxGroup", int64(o.MaxGroup)}, {"MaxGroupBytes", int64(o.MaxGroupBytes)},
		{"QueueLength", int64(o.QueueLength)}, {"QueueBytes", int64(o.QueueBytes)},
	} {
		if f.v < 0 {
			return fmt.Errorf("inbox: Options.%s is %d: it cannot be negative", f.name, f.v)
		}
	}
	return nil
}

// An Inbox is an open inbox file. All its methods are safe for use by any
// number of goroutines.
type Inbox struct {
	path string
	opts *Options
	log  *slog.Logger

	throttle throttle // of log lines

	readers *sql.DB
	lock    *fileLock // nil for a guest
	w       *writer   // nil for a guest
	poller  *poller   // nil for a guest

	guestMu sync.Mutex
	guest   *writeConn // nil for the owner

	mu        sync.Mutex
	consumers map[string]*Consumer // nil while one is being registered

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
	running atomic.Bool
	work    sync.WaitGroup // Run, subscriptions, sealing
}

// Open opens the inbox in the SQLite file at path, and makes the file (mode
// 0600) and its tables when they are not there. The same file may hold the
// program's own tables. The caller becomes the file's owner until Close; see
// Options.Guest for a second process.
//
// It blocks while it brings the schema up to date and reads what it must have in
// memory of known identities: 3 bytes for each message kept. Its errors are ErrLocked,
// ErrNotFile, ErrReadOnly, ErrCorrupt, ErrNetworkFS, ErrNewerSchema and
// ErrForeignSchema, wrapped with what was found, and errors of the system.
func Open(ctx context.Context, path string, opts *Options) (_ *Inbox, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	abs, _, err := checkPath(path, o.Guest)
	if err != nil {
		return nil, err
	}
	ib := &Inbox{path: abs, opts: &o, log: o.Logger, consumers: map[string]*Consumer{}}
	ib.ctx, ib.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			ib.cancel()
			if ib.readers != nil {
				ib.readers.Close()
			}
			if ib.lock != nil {
				_ = ib.lock.release()
			}
		}
	}()
	if !o.Guest {
		if ib.lock, err = acquireLock(abs + "-lock"); err != nil {
			var held *lockHeldError
			if errors.As(err, &held) {
				return nil, fmt.Errorf("%w: %w", ErrLocked, err)
			}
			return nil, fmt.Errorf("%w: %w", ErrReadOnly, err)
		}
	}
	conn, err := openWriteConn(abs, &o)
	if err != nil {
		return nil, err
	}
	if err := conn.migrate(abs, o.Guest); err != nil {
		return nil, errors.Join(err, conn.close())
	}
	if ib.readers, err = openReaders(abs, &o); err != nil {
		return nil, errors.Join(err, conn.close())
	}
	if o.Guest {
		ib.guest = conn
		return ib, nil
	}
	ib.poller = newPoller(ib)
	ib.w = &writer{
		path: abs, opts: &o,
		q:     newQueue(o.QueueLength, o.QueueBytes),
		alert: ib.alert,
		poke:  ib.poller.poke,
		stats: newWriterStats(o.Observer),
	}
	if err := ib.w.load(conn, ib.log); err != nil {
		return nil, errors.Join(openError(abs, err), conn.close())
	}
	ib.w.start(conn)
	ib.work.Go(func() { ib.sealing(ib.ctx) })
	ib.work.Go(func() { ib.checkpointing(ib.ctx) })
	return ib, nil
}

// Path is the absolute path of the file.
func (ib *Inbox) Path() string { return ib.path }

// Close stops taking work (later calls get ErrClosed), finishes what was
// taken, makes Run and Subscribe return, moves the write-ahead log into the
// database and gives the file up. It blocks until that is done. Closing again
// does nothing. From a handler it is ErrInHandler.
func (ib *Inbox) Close() error {
	if ib.w != nil && ib.w.onWriter() {
		return ErrInHandler
	}
	if ib.closing.Swap(true) {
		return nil
	}
	ib.cancel()
	if ib.guest != nil {
		ib.guestMu.Lock()
		defer ib.guestMu.Unlock()
		return errors.Join(ib.readers.Close(), ib.guest.close())
	}
	ib.work.Wait()
	ib.w.q.close()
	<-ib.w.done
	err := ib.readers.Close()
	if c := ib.w.conn; c != nil {
		// A guest that reads just now only keeps the log from being cut back.
		_, cerr := c.exec(query{text: `PRAGMA wal_checkpoint(TRUNCATE)`})
		err = errors.Join(err, cerr, c.close())
	}
	return errors.Join(err, ib.lock.release())
}

// inHandler reports whether a call with ctx comes from a handler of ib.
func (ib *Inbox) inHandler(ctx context.Context) bool {
	return ctx.Value(handlerKey{}) == ib || ib.w != nil && ib.w.onWriter()
}

// Update runs fn in a transaction on the one writer, in turn with the
// messages, and returns after the commit: for the program's own writes. When
// fn returns an error, or panics, what it did through tx is undone and the
// error (or a *PanicError) is returned. Like a handler, fn may run again when
// a neighbour ends the shared transaction, so it acts only through tx.
//
// It blocks until its turn is over; a ctx that ends before that makes Update
// return its error, and fn does not run if it had not started. Errors are
// fn's, ErrClosed, ErrGuest, ErrInHandler, ErrStorage and ErrOutcomeUnknown.
func (ib *Inbox) Update(ctx context.Context, fn func(context.Context, *Tx) error) error {
	if ib.opts.Guest {
		return ErrGuest
	}
	hctx := context.WithValue(context.WithoutCancel(ctx), handlerKey{}, ib)
	return ib.do(ctx, func(w *writer) error { return w.inSavepoint(hctx, fn) })
}

// View runs fn with a consistent snapshot of the database, beside the writer
// and any number of other readers. Statements end when ctx does. A snapshot
// that is held for long keeps the write-ahead log from being cut back.
func (ib *Inbox) View(ctx context.Context, fn func(context.Context, *Rx) error) error {
	if ib.closing.Load() {
		return ErrClosed
	}
	conn, err := ib.readers.Conn(ctx)
	var tx *sql.Tx
	if err == nil {
		defer func() { giveBack(conn, err) }()
		tx, err = conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	}
	if err != nil {
		if ib.closing.Load() {
			return ErrClosed
		}
		return fmt.Errorf("inbox: beginning to read: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	err = fn(ctx, &Rx{q: tx})
	return err
}

// giveBack gives a reader back to its pool. After trouble with the disk it is
// closed instead: what it remembers of the file may be what a failed read left.
func giveBack(conn *sql.Conn, err error) {
	if suspect(err) {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = conn.Close()
}

// do runs fn on the writer, as a job.
func (ib *Inbox) do(ctx context.Context, fn func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ib.closing.Load() {
		return ErrClosed
	}
	if ib.inHandler(ctx) {
		return ErrInHandler
	}
	t := &task{fn: fn, done: make(chan error, 1)}
	if err := ib.w.q.push(ctx, t); err != nil {
		return err
	}
	select {
	case err := <-t.done:
		return err
	case <-ctx.Done():
		if t.state.CompareAndSwap(0, jobAbandoned) {
			return ctx.Err()
		}
		select {
		case err := <-t.done:
			return err
		default:
			return ctx.Err()
		}
	}
}

// A task is the job of Update and of the inbox's own chores.
type task struct {
	fn    func(*writer) error
	done  chan error
	state atomic.Int32
}

func (t *task) size() int             { return 256 }
func (t *task) take() bool            { return t.state.CompareAndSwap(0, jobTaken) }
func (t *task) charge(error) bool     { return false }
func (t *task) apply(w *writer) error { return t.fn(w) }
func (t *task) settle(err error)      { t.done <- err }
