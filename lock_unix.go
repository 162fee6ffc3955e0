//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// fileLock lets one process at a time use a database.
//
// It is a file of its own beside the database, never the database file: SQLite
// uses POSIX locks, and a process loses all of those on a file as soon as it
// closes any descriptor of that file. The system drops the lock when its holder
// ends, however it ends.
type fileLock struct {
	f *os.File
}

// acquireLock takes the lock at path without waiting and creates the file if
// needed. It returns a *lockHeldError if the lock is taken, by this process too.
func acquireLock(path string) (*fileLock, error) {
	// O_NOFOLLOW: the file is emptied below, so a link planted at path must not
	// lead to some other file. os.OpenFile adds O_CLOEXEC; without it a child
	// that outlives this process would keep the lock.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		// Systems disagree on the error for a link, and none of them is clear.
		if fi, lerr := os.Lstat(path); lerr == nil && fi.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("inbox: lock file %s is a symbolic link", path)
		}
		return nil, fmt.Errorf("inbox: open lock file: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("inbox: open lock file: %w", err)
	}
	if !fi.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("inbox: lock file %s is not a regular file", path)
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = &lockHeldError{path: path, pid: readLockPID(f)}
		_ = f.Close()
		return nil, err
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("inbox: lock %s: %w", path, err)
	}
	// The PID only helps the loser name the holder. A full disk must not keep
	// anyone from opening the database, so failing to write it is no error.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &fileLock{f: f}, nil
}

// release gives the lock up. Releasing it again does nothing.
//
// The file stays: another process may have opened it already, and would then
// lock a deleted file while a third one creates and locks a new one.
func (l *fileLock) release() error {
	// Unlock before closing: a child being forked right now shares the lock
	// until its exec, so closing alone might leave it held for a moment.
	err := flock(l.f, syscall.LOCK_UN)
	cerr := l.f.Close()
	if errors.Is(cerr, os.ErrClosed) {
		return nil // released before
	}
	if err = errors.Join(err, cerr); err != nil {
		return fmt.Errorf("inbox: unlock %s: %w", l.f.Name(), err)
	}
	return nil
}

// flock calls flock(2) on f, again if a signal interrupts it.
func flock(f *os.File, how int) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lerr error
	err = c.Control(func(fd uintptr) {
		for {
			lerr = syscall.Flock(int(fd), how)
			if lerr != syscall.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return lerr
}

// readLockPID returns the PID in the lock file, 0 if there is none. The newline
// must be there, so that a PID is not taken for its first digits.
func readLockPID(f *os.File) int {
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	line, _, ok := strings.Cut(string(buf[:n]), "\n")
	pid, err := strconv.Atoi(line)
	if !ok || err != nil || pid < 0 {
		return 0
	}
	return pid
}
