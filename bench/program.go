package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The program edge-consumer, with the business INSERT as its SQL handler.

const programConfig = `
database: {path: edge.db}
nats: {url: %q}
migrations: migrations
http: {listen: "off"}
log: {level: warn, format: json}
consumers:
  - name: orders
    stream: %s
    sql:
      - INSERT INTO orders (id, body) VALUES (:id, :data)
`

// A daemon is edge-consumer run as a process.
type daemon struct {
	cmd  *exec.Cmd
	done chan error
}

// program starts one on a file in dir.
func (l *lab) program(dir, url string) *daemon {
	must(os.MkdirAll(filepath.Join(dir, "migrations"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "migrations", "0001_orders.sql"), []byte(makeOrders+";\n"), 0o644))
	must(os.WriteFile(filepath.Join(dir, "edge.yaml"), fmt.Appendf(nil, programConfig, url, stream), 0o644))
	cmd := exec.Command(l.edgeConsumer(), "run", "-c", filepath.Join(dir, "edge.yaml"))
	cmd.Stdout, cmd.Stderr = l.out, os.Stderr
	must(cmd.Start())
	d := &daemon{cmd, make(chan error, 1)}
	go func() { d.done <- cmd.Wait() }()
	return d
}

// alive fails when the program ended by itself.
func (d *daemon) alive() {
	select {
	case err := <-d.done:
		must(fmt.Errorf("edge-consumer ended: %v", err))
	default:
	}
}

func (d *daemon) stop() {
	must(d.cmd.Process.Signal(os.Interrupt))
	must(<-d.done)
}

// requireProgramOrders looks into the file that it left.
func requireProgramOrders(dir string, want int) {
	db := get(sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "edge.db"))+"?mode=ro"))
	defer db.Close()
	requireOrders(db, want)
}

// ackFloor is up to where the durable consumer "orders" is acknowledged; 0 when it
// is not there.
func (b *broker) ackFloor(ctx context.Context) int {
	c, err := b.js.Consumer(ctx, stream, "orders")
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0
	}
	must(err)
	return int(c.CachedInfo().AckFloor.Stream)
}

func sqlHandler(b *broker, e *events) contender {
	return contender{name: "edge inbox, SQL handler", run: func(n int) time.Duration {
		dir, remove := b.l.folder()
		defer remove()
		start := time.Now()
		d := b.l.program(dir, b.url)
		acked := func() int { d.alive(); return b.ackFloor(b.l.ctx) }
		var first int
		within(patience, "the first tenth", func() bool { first = acked(); return first >= n/10 })
		if first < n && n >= 10_000 { // with few messages the first tenth is all of them
			start = time.Now()
		} else {
			first = 0
		}
		within(patience, "all", func() bool { return acked() >= n })
		took := time.Since(start) * time.Duration(n) / time.Duration(n-first)
		d.stop()
		requireProgramOrders(dir, e.different(n))
		b.forget("orders")
		return took
	}}
}
