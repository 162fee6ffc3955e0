//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package inbox

import (
	"errors"
	"fmt"
	"runtime"
)

// fileLock lets one process at a time use a database. There is none here: the
// standard library has no lock for this system that is safe to rely on, and to
// go on without one would risk the data.
type fileLock struct{}

func acquireLock(path string) (*fileLock, error) {
	return nil, fmt.Errorf("inbox: lock %s: file locks on %s: %w", path, runtime.GOOS, errors.ErrUnsupported)
}

func (l *fileLock) release() error { return nil }
