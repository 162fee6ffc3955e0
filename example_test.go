package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"path/filepath"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// placeOrder is a handler: it changes the database, through tx, and nothing
// else.
func placeOrder(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	var order struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	if err := json.Unmarshal(m.Payload, &order); err != nil {
		return inbox.Permanent(err) // no retry can mend it: the message is dead, and visible
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO stock (sku, sold) VALUES (?, ?)
		ON CONFLICT (sku) DO UPDATE SET sold = sold + excluded.sold`, order.SKU, order.Qty)
	return err
}

// A consumer of a JetStream stream, whole: the producer publishes one order
// twice, and it takes effect once.
func Example() {
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a program
	defer stop()

	url, shutdown := startBroker() // an embedded nats-server; yours is elsewhere
	defer shutdown()
	nc, err := nats.Connect(url, inbox.NATSOptions()...)
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)

	ib, err := inbox.Open(ctx, filepath.Join(tempDir(), "edge.db"), nil)
	check(err)
	defer ib.Close()
	check(ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, sold INTEGER NOT NULL)`)
		return err
	}))

	orders, err := ib.Consumer("orders", placeOrder, nil)
	check(err)
	go ib.Run(ctx) // retries what failed
	subscribed := make(chan error)
	go func() {
		subscribed <- orders.Subscribe(ctx, js, "ORDERS", &inbox.SubscribeOptions{
			CreateStream: &jetstream.StreamConfig{Subjects: []string{"orders.>"}},
		})
	}()

	publishOrders(nc, js) // order 1 twice, order 2 once
	waitFor(ib, 3)        // deliveries
	stop()
	check(<-subscribed)

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
