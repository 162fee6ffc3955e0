package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// drawable makes a console obey the sequences that draw, which terminals do
// elsewhere. restore puts it back.
func drawable(out *os.File) (restore func(), err error) {
	console := windows.Handle(out.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return nil, err
	}
	if err := windows.SetConsoleMode(console, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING); err != nil {
		return nil, fmt.Errorf("this console cannot be drawn on (%w): use status instead", err)
	}
	return func() { _ = windows.SetConsoleMode(console, mode) }, nil
}
