package inbox

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A throttle keeps one kind of trouble from filling the disk with its log: a
// handler that fails for every message, say. It lets some lines of each key
// through a minute; the first one of the next says how many were left out.
type throttle struct {
	mu    sync.Mutex
	since time.Time
	lines map[string]int
}

const (
	throttleLines  = 10
	throttleWindow = time.Minute
)

// allow reports whether a line of key may be written, and how many of the
// window before were not.
func (t *throttle) allow(key string) (ok bool, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.since) >= throttleWindow {
		old := t.lines
		t.since, t.lines = now, map[string]int{}
		for k, n := range old {
			if n > throttleLines {
				t.lines[k] = throttleLines - n // negative: left out, to be told
			}
		}
	}
	if n := t.lines[key]; n < 0 {
		left = -n
		t.lines[key] = 0
	}
	t.lines[key]++
	return t.lines[key] <= throttleLines, left
}

// say logs, within the throttle.
func (ib *Inbox) say(level slog.Level, key, msg string, args ...any) {
	ok, left := ib.throttle.allow(key)
	if !ok {
		return
	}
	if left > 0 {
		args = append(args, "left_out", left)
	}
	ib.log.Log(context.Background(), level, msg, args...)
}
