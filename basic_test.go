package inbox_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestQuick(t *testing.T) {
	s := natstest.Start(t, nil)
	_, js := s.Connect()
	ctx, cancel := context.WithCancel(context.Background())
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	ib, err := inbox.Open(ctx, filepath.Join(t.TempDir(), "x.db"), nil)
	require.NoError(t, err)
	require.NoError(t, ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE orders(id INTEGER PRIMARY KEY, body BLOB)`)
		return err
	}))
	c, err := ib.Consumer("c", func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders(body) VALUES(?)`, m.Payload)
		return err
	}, nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- c.Subscribe(ctx, js, "ORDERS", nil) }()
	for range 1000 {
		_, err := js.PublishAsync("orders.new", []byte("hello"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		st, err := ib.Stats(ctx)
		return err == nil && st.Consumers["c"].Applied == 1000
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	st, _ := ib.Stats(context.Background())
	t.Logf("%+v", st)
	require.NoError(t, ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
		var a, b int
		var n string
		require.NoError(t, rx.QueryRowContext(ctx, `SELECT stream, first_seq, last_seq FROM inbox_streams`).Scan(&n, &a, &b))
		t.Log(n, a, b)
		return nil
	}))
	require.NoError(t, ib.Close())
}
