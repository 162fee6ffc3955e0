package main

import "github.com/spf13/cobra"

const resumeHelp = `End a pause: the consumer's messages run again, those that waited first.

The program that owns the file may run; it notices within a second. To resume
what is not paused is no error; an unknown consumer is, with exit status 1.`

func newResume() *cobra.Command {
	return newSwitch(false, "resume", "End a pause", resumeHelp,
		`  edge-consumer resume --db orders.db orders
  edge-consumer resume --db orders.db orders --json`)
}
