package main

import (
	"errors"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// A screen draws on a terminal, in its alternate screen: what was there comes
// back. On every way out leave restores it.
type screen struct {
	in, out *os.File

	mu    sync.Mutex
	state *term.State // as it was; nil outside enter and leave
	modes func()      // restores what enter changed of the output; may be nil
}

// newScreen is an error of usage where there is no terminal.
func newScreen(s stdio) (*screen, error) {
	in, inOK := s.in.(*os.File)
	out, outOK := s.out.(*os.File)
	if !inOK || !outOK || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil, exitf(exitUsage, "top needs a terminal, to draw on and to read keys from: use status instead")
	}
	return &screen{in: in, out: out}, nil
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J" // alternate screen, no cursor, no wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

func (s *screen) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	modes, err := drawable(s.out)
	if err != nil {
		return err
	}
	state, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		if modes != nil {
			modes()
		}
		return err
	}
	s.state, s.modes = state, modes
	_, err = s.out.WriteString(enterScreen)
	if err != nil {
		err = errors.Join(err, s.restore())
	}
	return err
}

// leave may be called again, and does nothing then.
func (s *screen) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restore()
}

func (s *screen) restore() error {
	if s.state == nil {
		return nil
	}
	_, err := s.out.WriteString(leaveScreen)
	err = errors.Join(err, term.Restore(int(s.in.Fd()), s.state))
	if s.modes != nil {
		s.modes()
	}
	s.state = nil
	return err
}

// rescue is deferred in goroutines: a panic there ends the program without
// another chance to restore the terminal.
func (s *screen) rescue() {
	if r := recover(); r != nil {
		_ = s.leave()
		panic(r)
	}
}

// draw shows the lines that fit. The terminal is raw: a new line needs a
// carriage return.
func (s *screen) draw(text string) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if _, height, err := term.GetSize(int(s.out.Fd())); err == nil && height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.out.WriteString("\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J")
	return err
}
