package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// A lab is where one case is measured.
type lab struct {
	settings
	ctx    context.Context
	out    io.Writer
	result *result
	atEnd  []func()
}

func (l *lab) close() {
	for i := len(l.atEnd) - 1; i >= 0; i-- {
		l.atEnd[i]()
	}
	l.atEnd = nil
}

// folder is a new one; remove takes it away.
func (l *lab) folder() (dir string, remove func()) {
	dir = get(os.MkdirTemp(l.dir, ""))
	return dir, func() { must(os.RemoveAll(dir)) }
}

// few is n, or q in the quick form.
func (l *lab) few(n, q int) int {
	if l.quick {
		return q
	}
	return n
}

// A contender takes part in a case.
type contender struct {
	name string
	part int // it gets this part of the messages, or the case would take hours
	// run handles n messages, checks that each took effect once, and says how
	// long it took.
	run func(n int) time.Duration
}

// sideBySide lets the contenders take turns and records the rates.
func (l *lab) sideBySide(at string, x float64, messages int, cs []contender) {
	for round := range l.rounds {
		for _, c := range cs {
			n := max(messages/max(c.part, 1), min(messages, 20))
			runtime.GC()
			took := c.run(n)
			rate := float64(n) / took.Seconds()
			fmt.Fprintf(l.out, "%s round %d: %-28s %10.0f msg/s  (%d in %v)\n", at, round+1, c.name, rate, n, took.Round(time.Millisecond))
			l.result.point(c.name, at, x).add("msg/s", rate)
			must(l.ctx.Err())
		}
	}
}

// edgeConsumer is the path of the program, built once for a case.
func (l *lab) edgeConsumer() string {
	if l.binary == "" {
		l.binary = filepath.Join(l.dir, "edge-consumer")
		cmd := exec.CommandContext(l.ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", l.binary, "./cmd/edge-consumer")
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require(err == nil, "building edge-consumer: %v\n%s", err, out)
	}
	return l.binary
}

// within waits until cond holds.
func within(limit time.Duration, what string, cond func() bool) {
	for deadline := time.Now().Add(limit); !cond(); time.Sleep(time.Millisecond) {
		require(time.Now().Before(deadline), "not within %v: %s", limit, what)
	}
}

// patience is how long a run may take before something is wrong.
const patience = 20 * time.Minute

// await waits for what a consumer's goroutine reports at its end.
func await(done <-chan error) {
	select {
	case err := <-done:
		must(err)
	case <-time.After(patience):
		must(fmt.Errorf("not done within %v", patience))
	}
}
