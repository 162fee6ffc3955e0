//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
	sqlite3 "modernc.org/sqlite/lib"
)

// A fault is a way to fail: SQLite's code for what the system may answer.
type fault struct {
	kind OpKind
	code int32
	name string
}

// EIO, ENOSPC and NOMEM for each kind of operation, where SQLite can be told so.
var faults = []fault{
	{Write, sqlite3.SQLITE_IOERR_WRITE, "EIO"},
	{Write, sqlite3.SQLITE_FULL, "ENOSPC"},
	{Write, sqlite3.SQLITE_NOMEM, "NOMEM"},
	{Read, sqlite3.SQLITE_IOERR_READ, "EIO"},
	{Read, sqlite3.SQLITE_IOERR_CORRUPTFS, "EUCLEAN"},
	{Read, sqlite3.SQLITE_IOERR_SHORT_READ, "SHORT_READ"},
	{Read, sqlite3.SQLITE_NOMEM, "NOMEM"},
	{Sync, sqlite3.SQLITE_IOERR_FSYNC, "EIO"},
	{Sync, sqlite3.SQLITE_FULL, "ENOSPC"},
	{Truncate, sqlite3.SQLITE_IOERR_TRUNCATE, "EIO"},
	{Truncate, sqlite3.SQLITE_FULL, "ENOSPC"},
	{Open, sqlite3.SQLITE_CANTOPEN, "EIO"},
	{Open, sqlite3.SQLITE_FULL, "ENOSPC"},
	{Open, sqlite3.SQLITE_NOMEM, "NOMEM"},
	{Lock, sqlite3.SQLITE_IOERR_LOCK, "EIO"},
	{Lock, sqlite3.SQLITE_BUSY, "BUSY"},
	{Lock, sqlite3.SQLITE_NOMEM, "NOMEM"},
	{Shm, sqlite3.SQLITE_IOERR_SHMMAP, "EIO"},
	{Shm, sqlite3.SQLITE_IOERR_SHMSIZE, "ENOSPC"},
	{Shm, sqlite3.SQLITE_NOMEM, "NOMEM"},
	{Stat, sqlite3.SQLITE_IOERR_FSTAT, "EIO"},
	{Delete, sqlite3.SQLITE_IOERR_DELETE, "EIO"},
}

// TestIOFaults makes the n-th read, write, sync, … fail, once or until the disk
// is mended, for every n: the inbox neither acknowledges what is not stored, nor
// crashes, nor hangs, nor applies twice; and then it goes on by itself.
func TestIOFaults(t *testing.T) {
	r := row(t, "I/O faults")
	for _, f := range faults {
		for _, once := range []bool{true, false} {
			if f.code == sqlite3.SQLITE_BUSY && !once {
				continue // SQLite's own waiting: each opening would take its time limit
			}
			t.Run(fmt.Sprintf("%s %s once=%v", f.kind, f.name, once), func(t *testing.T) {
				t.Parallel() // each waits for a disk most of its time
				step := 1
				if !*long && (f.kind == Write || f.kind == Read) {
					step = 13
				}
				for n := 1; ; n += step {
					if hit := faulty(t, f, int64(n), once); !hit || t.Failed() {
						break
					}
					r.Lock()
					r.Faults++
					r.Unlock()
				}
			})
		}
	}
}

// faulty lets the n-th operation fail and reports whether there was one.
func faulty(t *testing.T, f fault, n int64, once bool) (hit bool) {
	dir := scratch(t)
	defer os.RemoveAll(dir)
	disk, unwatch := Watch(dir)
	defer unwatch()
	var count atomic.Int64
	disk.Fail(func(k OpKind, _ string) int32 {
		if k != f.kind {
			return 0
		}
		if at := count.Add(1); at == n || at > n && !once {
			return f.code
		}
		return 0
	})
	where := fmt.Sprintf("%s %s %d", f.kind, f.name, n)
	all := messages(0, 24)
	acked := map[string]bool{}
	var l *life
	var err, refused error
	deliver := func() {
		for at := 0; at < len(all); at += 6 {
			if l == nil {
				if l, err = open(t, path(dir), nil); err != nil {
					l = nil // it is tried again
					continue
				}
				l.fails(all[1].ID, 1)
				l.run()
			}
			for i, o := range l.outcomes(all[at : at+6]) {
				if o == nil {
					acked[all[at+i].ID] = true
				} else {
					refused = o
				}
			}
		}
	}
	deliver()
	if l != nil && n%2 == 0 { // a checkpoint, by a clean end
		_ = l.close()
		l = nil
	}
	disk.Fail(nil)
	hit = count.Load() >= n
	// What was acknowledged is there, whatever else happened.
	if len(acked) > 0 {
		db, err := sql.Open("sqlite", path(dir)+"?_busy_timeout=5000")
		require.NoError(t, err, where)
		known, err := ids(context.Background(), db)
		require.NoError(t, err, where)
		require.NoError(t, db.Close())
		for id := range acked {
			require.True(t, known[id], "%s: message %s was acknowledged and is not there", where, id)
		}
	}
	// The disk is well again: everything is delivered once more.
	for deadline := time.Now().Add(20 * time.Second); ; {
		deliver()
		if l != nil && len(acked) == len(all) {
			break
		}
		require.True(t, time.Now().Before(deadline), "%s: it does not go on: %v, %v", where, err, refused)
	}
	l.idle()
	require.NoError(t, l.close(), where)
	v := &viewer{t, dir}
	require.NoError(t, v.inspect(acked), where)
	require.NoError(t, v.complete(all), where)
	return hit
}

// outcomes delivers messages together; nil for those that were taken.
func (l *life) outcomes(ms []inbox.Message) []error {
	errs := make([]error, len(ms))
	done := make(chan struct{}, len(ms))
	for i, m := range ms {
		err := l.c.Submit(context.Background(), m, func(_ inbox.Outcome, err error) {
			errs[i] = err
			done <- struct{}{}
		})
		if err != nil {
			errs[i] = err
			done <- struct{}{}
		}
	}
	for range ms {
		<-done
	}
	return errs
}

// TestIOFaults_Readers makes what is read beside the writer fail in the same
// way: when the disk is mended, readers are well too.
func TestIOFaults_Readers(t *testing.T) {
	r := row(t, "I/O faults, readers")
	for _, f := range faults {
		if f.kind != Read && f.kind != Open && f.kind != Shm && f.kind != Lock || f.code == sqlite3.SQLITE_BUSY {
			continue
		}
		for n := int64(1); ; n++ {
			dir := scratch(t)
			disk, unwatch := Watch(dir)
			l, err := open(t, path(dir), nil)
			require.NoError(t, err)
			l.group(messages(1, 6)...)
			read := func() error {
				return l.ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
					var n int
					return rx.QueryRowContext(ctx, `SELECT count(*) FROM inbox JOIN effects USING (seq)`).Scan(&n)
				})
			}
			if n%2 == 0 { // a reader that must read the schema again
				require.NoError(t, read())
				require.NoError(t, l.ib.Update(context.Background(), func(ctx context.Context, tx *inbox.Tx) error {
					_, err := tx.ExecContext(ctx, `CREATE TABLE later (n INTEGER PRIMARY KEY)`)
					return err
				}))
			}
			checkpoint(t, path(dir), "TRUNCATE") // read from the database, not from its log
			var count atomic.Int64
			nth := (n + 1) / 2
			disk.Fail(func(k OpKind, _ string) int32 {
				if k == f.kind && count.Add(1) >= nth {
					return f.code
				}
				return 0
			})
			for range 3 {
				_ = read()
			}
			disk.Fail(nil)
			_ = read() // it may find out only now
			for range 3 {
				require.NoError(t, read(), "%s %s %d", f.kind, f.name, n)
			}
			require.NoError(t, l.close())
			unwatch()
			if count.Load() >= nth {
				r.Faults++
			} else if n%2 == 1 {
				break
			}
		}
	}
}

// TestIOFaults_Poller makes reading fail until the poller has met it: when the
// disk is mended, retries go on, and it says so.
func TestIOFaults_Poller(t *testing.T) {
	r := row(t, "I/O faults, poller")
	for _, f := range faults {
		if f.kind != Read {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // its first wait is a second
			dir := scratch(t)
			disk, unwatch := Watch(dir)
			waits, goOn := make(chan struct{}), make(chan struct{})
			l, err := openWith(t, path(dir), nil, &inbox.Options{Observer: &inbox.Observer{Alert: func(a inbox.Alert) {
				switch a.Detail {
				case "retries wait":
					close(waits)
				case "retries go on":
					close(goOn)
				}
			}}})
			require.NoError(t, err)
			all := messages(1, 6)
			l.fails(all[0].ID, 1)
			l.group(all...)
			disk.Fail(func(k OpKind, _ string) int32 {
				if k == Read {
					return f.code
				}
				return 0
			})
			l.run()
			within(t, waits, "the poller met "+f.name)
			disk.Fail(nil)
			l.idle()
			within(t, goOn, "it said that it goes on after "+f.name)
			require.NoError(t, l.close())
			unwatch()
			v := &viewer{t, dir}
			require.NoError(t, v.complete(all), f.name)
			r.Lock()
			r.Faults++
			r.Unlock()
		})
	}
}

// within waits for what must happen soon.
func within(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it did not happen", what)
	}
}
