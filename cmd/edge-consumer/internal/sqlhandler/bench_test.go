package sqlhandler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

// BenchmarkHandlers compares SQL handlers with the same handlers in Go: 20,000
// messages of 256 bytes each, submitted without waiting, five rounds by turns.
// sql/go is the median of the ratios within each round.
func BenchmarkHandlers(b *testing.B) {
	type order struct {
		Order    string `json:"order"`
		Customer string `json:"customer"`
		Total    int64  `json:"total"`
	}
	for _, bc := range []struct {
		name       string
		statements []Statement
		inGo       inbox.Handler
	}{
		{"insert", []Statement{{SQL: `INSERT INTO raw (id, body) VALUES (:id, :data)`}},
			func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO raw (id, body) VALUES (?, ?)`, m.ID, m.Payload)
				return err
			}},
		{"three fields", []Statement{{SQL: `
				INSERT INTO orders (id, customer, total)
				VALUES (:data ->> '$.order', :data ->> '$.customer', :data ->> '$.total')`}},
			func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
				var o order
				if err := json.Unmarshal(m.Payload, &o); err != nil {
					return inbox.Permanent(err)
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, total) VALUES (?, ?, ?)`, o.Order, o.Customer, o.Total)
				return err
			}},
		{"when and two statements", []Statement{
			{When: `:subject = 'orders.placed'`, SQL: `INSERT INTO orders (id, customer, total) VALUES (:data ->> '$.order', :data ->> '$.customer', :data ->> '$.total')`},
			{SQL: `INSERT INTO sums (customer, total) VALUES (:data ->> '$.customer', :data ->> '$.total')
				ON CONFLICT (customer) DO UPDATE SET total = total + excluded.total`}},
			func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
				var o order
				if err := json.Unmarshal(m.Payload, &o); err != nil {
					return inbox.Permanent(err)
				}
				if m.Subject == "orders.placed" {
					if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, total) VALUES (?, ?, ?)`, o.Order, o.Customer, o.Total); err != nil {
						return err
					}
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO sums (customer, total) VALUES (?, ?)
					ON CONFLICT (customer) DO UPDATE SET total = total + excluded.total`, o.Customer, o.Total)
				return err
			}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			h, err := New(bc.statements, nil)
			require.NoError(b, err)
			var ratios, inSQL, inGo []float64
			for range 5 {
				s, g := rate(b, h.Handle), rate(b, bc.inGo)
				inSQL, inGo, ratios = append(inSQL, s), append(inGo, g), append(ratios, s/g)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(middle(inSQL), "sql-msg/s")
			b.ReportMetric(middle(inGo), "go-msg/s")
			b.ReportMetric(middle(ratios), "sql/go")
		})
	}
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// rate is how many messages a second h takes.
func rate(b *testing.B, h inbox.Handler) float64 {
	const n = 20_000
	ib, err := inbox.Open(b.Context(), filepath.Join(b.TempDir(), "x.db"), &inbox.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	defer ib.Close()
	require.NoError(b, ib.Update(b.Context(), func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `
			CREATE TABLE raw (id TEXT, body BLOB);
			CREATE TABLE orders (id TEXT, customer TEXT, total INTEGER);
			CREATE TABLE sums (customer TEXT PRIMARY KEY, total INTEGER)`)
		return err
	}))
	c, err := ib.Consumer("c", h, nil)
	require.NoError(b, err)
	messages := make([]inbox.Message, n)
	for i := range messages {
		body := fmt.Sprintf(`{"order": "A-%08d", "customer": "customer-%d", "total": %d, "note": "%0*d"}`, i, i%100, i, 170, 0)
		messages[i] = inbox.Message{ID: fmt.Sprintf("%08d", i), Subject: "orders.placed", Payload: []byte(body)}
	}
	left, all := n, make(chan struct{})
	start := time.Now()
	for _, m := range messages {
		require.NoError(b, c.Submit(b.Context(), m, func(o inbox.Outcome, err error) {
			if err != nil || o != inbox.Applied {
				b.Error(o, err)
			}
			if left--; left == 0 {
				close(all)
			}
		}))
	}
	<-all
	return n / time.Since(start).Seconds()
}
