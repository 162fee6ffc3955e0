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

type broker struct {
	url, dir string
	stop     func()
}

func startBroker() broker {
	dir, err := os.MkdirTemp("", "inbox-example")
	check(err)
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: dir})
	check(err)
	go srv.Start()
	srv.ReadyForConnections(10 * time.Second)
	return broker{srv.ClientURL(), dir, func() { srv.Shutdown(); srv.WaitForShutdown(); os.RemoveAll(dir) }}
}

func publishOrders(js jetstream.JetStream) {
	ctx := context.Background()
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
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

// waitFor looks on as a guest, as an operator would, until so many deliveries
// have come to their outcome.
func waitFor(path string, deliveries int64) {
	var s inbox.Stats
	for c := s.Consumers["orders"]; c.Applied+c.Duplicates < deliveries; c = s.Consumers["orders"] {
		guest, err := inbox.Open(context.Background(), path, &inbox.Options{Guest: true})
		if err != nil {
			continue // not made yet
		}
		s, err = guest.Stats(context.Background())
		check(err)
		check(guest.Close())
	}
}
