package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRehearse: what a handler would do is shown, and undone; beside the owner
// and by it.
func TestRehearse(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`
		CREATE TABLE stock (sku TEXT PRIMARY KEY, n REAL, note BLOB) WITHOUT ROWID;
		CREATE TABLE log (what TEXT, twice AS (what || what));
		INSERT INTO stock VALUES ('bolt', 3, x'00'), ('nut', 1, NULL);
		CREATE TRIGGER logged AFTER UPDATE ON stock BEGIN INSERT INTO log VALUES ('updated ' || NEW.sku); END`)
	c := l.consumer("c", nil, nil)
	drop := l.consumer("drop", nil, &ConsumerOptions{DropPayload: true})
	for _, c := range []*Consumer{c, drop} {
		_, err := c.Process(ctxBG, Message{ID: "1", Source: "s", Type: "sold", Key: "k", Payload: []byte("p"), Headers: Header{"A": {"b"}}})
		require.NoError(t, err)
	}
	seq := value[int64](l, `SELECT seq FROM inbox WHERE consumer = 'c'`)
	guest, err := Open(ctxBG, l.path, &Options{Guest: true})
	require.NoError(t, err)
	defer guest.Close()

	var got Message
	sell := func(ctx context.Context, tx *Tx, m *Message) error {
		got = *m
		if _, err := tx.ExecContext(ctx, `UPDATE stock SET n = n - 1 WHERE sku = 'bolt'`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM stock WHERE sku = 'nut'`)
		return err
	}
	for name, ib := range map[string]*Inbox{"owner": l.ib, "guest": guest} {
		r, err := ib.Rehearse(ctxBG, seq, sell)
		require.NoError(t, err, name)
		assert.Equal(t, Rehearsal{Source: "s", MessageID: "1", Changes: []RowChange{
			{"update", "stock", []string{"sku", "n", "note"}, []any{"bolt", 3.0, []byte{0}}, []any{"bolt", 2.0, []byte{0}}},
			{"insert", "log", []string{"what"}, nil, []any{"updated bolt"}},
			{"delete", "stock", []string{"sku", "n", "note"}, []any{"nut", 1.0, nil}, nil},
		}}, r, name)
		assert.Equal(t, "sold p k b", got.Type+" "+string(got.Payload)+" "+got.Key+" "+got.Headers.Get("a"), name)
		assert.Equal(t, 2, got.Attempt, name)
		assert.Len(t, got.IdempotencyKey(), 64)

		r, err = ib.Rehearse(ctxBG, seq, func(ctx context.Context, tx *Tx, m *Message) error { return errors.New("no") })
		require.NoError(t, err, name)
		assert.EqualError(t, r.Err, "no", name)
		assert.Empty(t, r.Changes, name)

		r, err = ib.Rehearse(ctxBG, seq, func(ctx context.Context, tx *Tx, m *Message) error {
			_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO stock VALUES ('bolt', 1, 1)`)
			return err
		})
		require.NoError(t, err, name)
		assert.ErrorContains(t, r.Err, "UNIQUE", name)

		r, err = ib.Rehearse(ctxBG, seq, func(ctx context.Context, tx *Tx, m *Message) error {
			_, err := tx.ExecContext(ctx, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500) INSERT INTO log SELECT i FROM n`)
			return err
		})
		require.NoError(t, err, name)
		assert.Len(t, r.Changes, 1000, name)
		assert.Equal(t, 500, r.More, name)

		_, err = ib.Rehearse(ctxBG, seq, func(ctx context.Context, tx *Tx, m *Message) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		})
		require.NoError(t, err, name)
		_, err = ib.Rehearse(ctxBG, 99, sell)
		assert.ErrorIs(t, err, ErrNoMatch, name)
		_, err = ib.Rehearse(ctxBG, value[int64](l, `SELECT seq FROM inbox WHERE consumer = 'drop'`), sell)
		assert.ErrorIs(t, err, ErrNoPayload, name)

		assert.Equal(t, 4.0, value[float64](l, `SELECT sum(n) FROM stock`), name)
		assert.Zero(t, value[int](l, `SELECT count(*) FROM log`), name)
		assert.Equal(t, "completed", value[string](l, `SELECT status FROM inbox WHERE consumer = 'c'`), name)
	}
	// Nothing of it stays: the next message is applied as ever.
	_, err = c.Process(ctxBG, Message{ID: "2"})
	require.NoError(t, err)
}
