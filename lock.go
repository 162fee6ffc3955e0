package inbox

import "fmt"

// lockHeldError says who holds the process lock.
type lockHeldError struct {
	path string
	pid  int // 0: not known
}

func (e *lockHeldError) Error() string {
	if e.pid > 0 {
		return fmt.Sprintf("inbox: %s is held by process %d", e.path, e.pid)
	}
	return fmt.Sprintf("inbox: %s is held by another process", e.path)
}
