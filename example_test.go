package inbox_test

import (
	"context"
	"fmt"
	"log"
	"path/filepath"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A whole consumer of a JetStream stream: placeOrder and run are the README's.
// The producer publishes one order twice, and it takes effect once.
func Example() {
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a program
	defer stop()
	broker := startBroker() // an embedded nats-server; yours is elsewhere
	defer broker.stop()

	nc, err := nats.Connect(broker.url, inbox.NATSOptions()...)
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)
	publishOrders(js) // order 1 twice, order 2 once

	path := filepath.Join(broker.dir, "edge.db")
	done := make(chan error)
	go func() { done <- run(ctx, js, path) }()
	waitFor(path, 3) // deliveries
	stop()
	check(<-done)

	ib, err := inbox.Open(context.Background(), path, &inbox.Options{Guest: true})
	check(err)
	defer ib.Close()
	check(ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
		var sold int
		err := rx.QueryRowContext(ctx, `SELECT sold FROM stock WHERE sku = 'tea'`).Scan(&sold)
		fmt.Println("tea sold:", sold)
		return err
	}))
	// Output: tea sold: 5
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
