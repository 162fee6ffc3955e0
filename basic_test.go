package inbox

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func BenchmarkSubmit(b *testing.B) {
	ib, err := Open(context.Background(), filepath.Join(b.TempDir(), "x.db"), nil)
	require.NoError(b, err)
	defer ib.Close()
	require.NoError(b, ib.Update(context.Background(), func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE orders(id INTEGER PRIMARY KEY, body BLOB)`)
		return err
	}))
	c, err := ib.Consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders(body) VALUES(?)`, m.Payload)
		return err
	}, nil)
	require.NoError(b, err)
	pl := make([]byte, 256)
	ids := make([]string, b.N)
	for i := range ids {
		x := uint64(i) * 0x9E3779B97F4A7C15
		ids[i] = fmt.Sprintf("%016x%016x", x, x>>7)
	}
	done := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		last := i == b.N-1
		err := c.Submit(context.Background(), Message{ID: ids[i], Source: "s", Payload: pl}, func(o Outcome, err error) {
			if o != Applied {
				b.Error(o, err)
			}
			if last {
				close(done)
			}
		})
		require.NoError(b, err)
	}
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	s, _ := ib.Stats(context.Background())
	b.Logf("%+v avg group %.0f", s.Consumers, s.GroupSizes.Sum/float64(s.GroupSizes.Count))
}
