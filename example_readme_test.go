package inbox_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"edge.example/inbox"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A handler changes the database, through tx, and nothing else.
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

func run(ctx context.Context, js jetstream.JetStream, path string) error {
	ib, err := inbox.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer ib.Close()
	err = ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error { // your own tables, in the same file
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, sold INTEGER NOT NULL)`)
		return err
	})
	if err != nil {
		return err
	}
	orders, err := ib.Consumer("orders", placeOrder, nil)
	if err != nil {
		return err
	}
	go ib.Run(ctx)                                  // retries what failed
	return orders.Subscribe(ctx, js, "ORDERS", nil) // until ctx ends
}

// TestREADME holds the README to the code above, which the Example runs.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	code, err := os.ReadFile("example_readme_test.go")
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(readme), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	_, want, _ := strings.Cut(string(code), ")\n\n// A handler")
	want, _, _ = strings.Cut(want, "\n// TestREADME")
	assert.Equal(t, "// A handler"+want, block)
}
