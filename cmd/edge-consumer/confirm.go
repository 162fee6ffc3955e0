package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
)

// onTerminal reports whether somebody can answer.
func onTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// confirmed asks the question. Only y and yes are a yes; an end of the input
// is a no.
func confirmed(ctx context.Context, s stdio, question string) (bool, error) {
	fmt.Fprintf(s.err, "%s [y/N] ", visible(question))
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // reading cannot be interrupted: the goroutine ends with the program
		line, err := bufio.NewReader(s.in).ReadString('\n')
		answers <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.err)
		return false, ctx.Err()
	case a := <-answers:
		if a.err != nil && a.err != io.EOF {
			return false, fmt.Errorf("reading the answer: %w", a.err)
		}
		if a.err == io.EOF {
			fmt.Fprintln(s.err)
		}
		switch strings.ToLower(strings.TrimSpace(a.line)) {
		case "y", "yes":
			return true, nil
		}
		return false, nil
	}
}
