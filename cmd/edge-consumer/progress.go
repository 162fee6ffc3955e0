package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

// A progress tells how far long work has come: on a terminal by one line that
// is written over and over, elsewhere by a line every few seconds.
type progress struct {
	w   io.Writer
	tty bool

	mu    sync.Mutex
	drawn bool // the cursor is on a line to be written over
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, tty: ok && isatty.IsTerminal(f.Fd())}
}

// say prints a line that stays.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// watch prints line() again and again until stop is called.
func (p *progress) watch(line func() string) (stop func()) {
	every := 3 * time.Second
	if p.tty {
		every = 100 * time.Millisecond
	}
	done := make(chan struct{})
	var finished sync.WaitGroup
	finished.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				p.draw(line())
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		finished.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clear()
	})
}

func (p *progress) draw(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty {
		fmt.Fprintln(p.w, line)
		return
	}
	fmt.Fprint(p.w, "\r\x1b[K", line)
	p.drawn = true
}

// clear takes the line to be written over away. The caller holds the lock.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}
