package inbox_test

import (
	"context"
	"os"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What the Example needs around it: a broker, a producer, patience.

func startBroker() (url string, shutdown func()) {
	dir := tempDir()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: dir})
	check(err)
	go srv.Start()
	srv.ReadyForConnections(10 * time.Second)
	return srv.ClientURL(), func() { srv.Shutdown(); srv.WaitForShutdown(); os.RemoveAll(dir) }
}

func tempDir() string {
	dir, err := os.MkdirTemp("", "inbox-example")
	check(err)
	return dir
}

func publishOrders(nc *nats.Conn, js jetstream.JetStream) {
	ctx := context.Background()
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	check(err)
	for _, order := range []struct{ id, body string }{
		{"1", `{"sku":"tea","qty":2}`},
		{"1", `{"sku":"tea","qty":2}`}, // the producer's retry
		{"2", `{"sku":"tea","qty":3}`},
	} {
		m := nats.NewMsg("orders.new")
		m.Header.Set("ce-source", "shop")
		m.Header.Set("ce-id", order.id)
		m.Data = []byte(order.body)
		_, err := js.PublishMsg(ctx, m)
		check(err)
	}
}

func waitFor(ib *inbox.Inbox, deliveries int64) {
	for {
		s, err := ib.Stats(context.Background())
		check(err)
		if c := s.Consumers["orders"]; c.Applied+c.Duplicates >= deliveries {
			return
		}
	}
}
