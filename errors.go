package inbox

import (
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
)

// Errors of Open.
var (
	// ErrLocked is returned when another process (or another Inbox in this
	// one) owns the file. Use Options.Guest to work beside the owner.
	ErrLocked = errors.New("inbox: the file is owned by another process")

	// ErrNewerSchema is returned when a newer version of this package wrote
	// the file. Nothing is changed; use that version.
	ErrNewerSchema = errors.New("inbox: the file was written by a newer version")

	// ErrForeignSchema is returned when the file holds tables with our names
	// (inbox, inbox_*) that this package did not make.
	ErrForeignSchema = errors.New("inbox: the file has tables of another program under our names")

	// ErrCorrupt is returned when the file is not a SQLite database, or is a
	// damaged one.
	ErrCorrupt = errors.New("inbox: the file is not a sound SQLite database")

	// ErrNotFile is returned when the path names a directory or a device.
	ErrNotFile = errors.New("inbox: the path is not a file")

	// ErrReadOnly is returned when the file, or its directory, cannot be written.
	ErrReadOnly = errors.New("inbox: the file cannot be written")

	// ErrNetworkFS is returned when the file lies on a network file system,
	// whose locks and shared memory SQLite's WAL cannot trust.
	ErrNetworkFS = errors.New("inbox: the file is on a network file system")
)

// Errors of an open Inbox.
var (
	// ErrClosed is returned after Close was called.
	ErrClosed = errors.New("inbox: closed")

	// ErrInHandler is returned to a handler that calls back into its own
	// inbox (Process, Receive, Submit, Update, Close): the one writer is busy
	// running that handler, so it could only wait for itself. Use tx. The
	// callbacks of Submit and of an Observer get it too.
	ErrInHandler = errors.New("inbox: called from a handler or callback of the same inbox; a handler uses its tx")

	// ErrGuest is returned when a guest asks for what only the owner does.
	ErrGuest = errors.New("inbox: a guest does not process messages")

	// ErrStorage is returned (wrapped, with the cause) when the disk or the
	// file failed: full, read error, locked for too long. Nothing was stored;
	// the message must come again. Nobody is charged with a failed attempt.
	ErrStorage = errors.New("inbox: storage failed")

	// ErrOutcomeUnknown is returned, beside ErrStorage, when COMMIT itself
	// failed: the transaction may or may not be on disk. Do not acknowledge;
	// on redelivery the identity decides.
	ErrOutcomeUnknown = errors.New("inbox: commit failed, its outcome is unknown")

	// ErrInvalidMessage is returned by Process, Receive and Submit for a
	// message that cannot be stored: no ID, say, or a payload beyond the limit.
	ErrInvalidMessage = errors.New("inbox: invalid message")

	// ErrUnknownConsumer is returned when a name is not that of a consumer.
	ErrUnknownConsumer = errors.New("inbox: unknown consumer")

	// ErrNoPayload is returned by Replay when rows were asked for whose
	// payload was dropped at completion.
	ErrNoPayload = errors.New("inbox: the payload was not kept")

	// ErrNoMatch is returned by Retry, Replay and Discard when they were
	// given message IDs and none of them is there in the needed status.
	ErrNoMatch = errors.New("inbox: no such message in the needed status")
)

// Errors a handler can meet.
var (
	// ErrTxDone is returned by a Tx, and by what was made from it, once its
	// handler has returned.
	ErrTxDone = errors.New("inbox: the transaction is over: a Tx ends with its handler")

	// ErrTxLost is returned by every statement after one that ended the whole
	// transaction (RAISE(ROLLBACK), a full disk, a time limit): running it
	// would commit by itself.
	ErrTxLost = errors.New("inbox: an earlier statement ended the transaction")

	// ErrDenied is returned for a statement that a handler may not run:
	// transaction control, ATTACH, DETACH, VACUUM, PRAGMA, or a write to the
	// inbox's own tables.
	ErrDenied = errors.New("inbox: statement not allowed")

	// ErrRowsLeaked is charged to a handler that returned with open Rows.
	ErrRowsLeaked = errors.New("inbox: the handler left Rows open")

	// ErrGoexit is charged to a handler that ended its goroutine with
	// runtime.Goexit (as testing.T.FailNow does).
	ErrGoexit = errors.New("inbox: the handler called runtime.Goexit")
)

// A PanicError is the error charged to a handler that panicked.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // the goroutine's stack
}

func (e *PanicError) Error() string { return fmt.Sprintf("inbox: the handler panicked: %v", e.Value) }

// Permanent marks err as one that no retry can mend: the message is dead at
// once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, permanent: true}
}

// RetryAfter marks err as one to be tried again after d (at least), in place
// of the consumer's backoff. The attempt counts. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, after: max(d, 0), hasAfter: true}
}

// Outage marks err as the outage of something the handler needs, not as a
// fault of the message: it is tried again with the consumer's backoff, and
// the attempt does not count towards its limit. Outage(nil) is nil.
func Outage(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, outage: true}
}

// verdict is what a handler says of its own error.
type verdict struct {
	err       error
	permanent bool
	outage    bool
	hasAfter  bool
	after     time.Duration
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// verdictOf collects every mark in err's chain: they may be nested.
func verdictOf(err error) (v verdict) {
	for {
		var w *verdict
		if !errors.As(err, &w) {
			return v
		}
		v.permanent = v.permanent || w.permanent
		v.outage = v.outage || w.outage
		if w.hasAfter && !v.hasAfter {
			v.hasAfter, v.after = true, w.after
		}
		err = w.err
	}
}

// SQLite's primary result codes (https://www.sqlite.org/rescode.html).
const (
	codeBusy       = 5
	codeNoMem      = 7
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeProtocol   = 15
	codeConstraint = 19
	codeAuth       = 23
	codeNotADB     = 26
)

// code is the primary SQLite result code in err's chain, 0 if there is none.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isStorage tells trouble with the disk or the file from trouble that a
// statement made: only the latter is charged to a message.
func isStorage(err error) bool {
	switch code(err) {
	case codeBusy, codeNoMem, codeReadOnly, codeIOErr, codeCorrupt,
		codeFull, codeCantOpen, codeProtocol, codeNotADB:
		return true
	}
	return errors.Is(err, ErrStorage)
}

// suspect tells trouble after which a connection is not to be trusted: what it
// remembers of the file, pages and schema, may be what a failed read left there.
func suspect(err error) bool {
	return isStorage(err) && code(err) != codeBusy && code(err) != codeFull
}

// storageError wraps err so that errors.Is finds ErrStorage.
func storageError(doing string, err error) error {
	if errors.Is(err, ErrStorage) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrStorage, doing, err)
}
