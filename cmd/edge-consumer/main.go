// Command edge-consumer runs the transactional inbox of edge.example/inbox
// without any Go to write, and shows what it promises.
//
// Each command is in a file of its own, as a function of (context, arguments,
// stdin, stdout, stderr) that returns an error with an exit code; root.go
// lists them. Data goes to stdout, everything else to stderr.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends the context. From then on signals have their
	// default action again, so a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
