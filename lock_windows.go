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

// errSharingViolation is ERROR_SHARING_VIOLATION, which package syscall lacks.
const errSharingViolation = syscall.Errno(32)

// fileLock lets one process at a time use a database.
//
// It is a file of its own beside the database, as on every system. It is locked
// by being open: nobody else can open it for writing meanwhile. The system
// closes it when its holder ends, however it ends.
type fileLock struct {
	f *os.File
}

// acquireLock takes the lock at path without waiting and creates the file if
// needed. It returns a *lockHeldError if the lock is taken, by this process too.
func acquireLock(path string) (*fileLock, error) {
	// The file is emptied below, so a link must not lead to some other file.
	// For a directory CreateFile would only say that access is denied.
	if fi, err := os.Lstat(path); err == nil {
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			return nil, fmt.Errorf("inbox: lock file %s is a symbolic link", path)
		case fi.IsDir():
			return nil, fmt.Errorf("inbox: lock file %s is a directory", path)
		case !fi.Mode().IsRegular():
			return nil, fmt.Errorf("inbox: lock file %s is not a regular file", path)
		}
	}
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("inbox: open lock file %q: %w", path, err)
	}
	// os.OpenFile always lets others write. Sharing the file for reading only is
	// what makes the lock, and still lets the loser read the PID.
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, syscall.FILE_SHARE_READ,
		nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	// Windows sets ERROR_ALREADY_EXISTS on success too, so the handle decides.
	if h == syscall.InvalidHandle {
		if errors.Is(err, errSharingViolation) {
			return nil, &lockHeldError{path: path, pid: readLockPID(path)}
		}
		return nil, fmt.Errorf("inbox: open lock file: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(h), path)
	// The PID only helps the loser name the holder. A full disk must not keep
	// anyone from opening the database, so failing to write it is no error.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &fileLock{f: f}, nil
}

// release gives the lock up. Releasing it again does nothing. The file stays,
// as on every system.
func (l *fileLock) release() error {
	if err := l.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("inbox: unlock %s: %w", l.f.Name(), err)
	}
	return nil
}

// readLockPID returns the PID in the lock file, 0 if there is none. The newline
// must be there, so that a PID is not taken for its first digits.
func readLockPID(path string) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	line, _, ok := strings.Cut(string(buf[:n]), "\n")
	pid, err := strconv.Atoi(line)
	if !ok || err != nil || pid < 0 {
		return 0
	}
	return pid
}
