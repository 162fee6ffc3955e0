//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A version is a message with one of its contents; see idOf.
type version struct{ id, body string }

// held is everything that the broker holds.
func (n *network) held() (vs []version) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := n.js.Stream(ctx, stream)
	require.NoError(n.t, err)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	require.NoError(n.t, err)
	for left := c.CachedInfo().NumPending; left > 0; {
		batch, err := c.Fetch(int(min(left, 1000)))
		require.NoError(n.t, err)
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			require.NoError(n.t, err)
			body := string(m.Data())
			vs = append(vs, version{idOf(body, place{meta.Sequence.Stream, meta.Timestamp.UnixNano()}), body})
			left--
		}
		require.NoError(n.t, batch.Error())
	}
	require.NoError(n.t, s.DeleteConsumer(ctx, c.CachedInfo().Name))
	return vs
}

// audit holds the accounts to the broker's word.
func (n *network) audit() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := n.js.Stream(ctx, stream)
	require.NoError(n.t, err)
	as, err := n.life.ib.Audit(ctx)
	require.NoError(n.t, err)
	for _, a := range as {
		if a.Unexplained != 0 {
			n.row.Corrupt++
		}
		require.Zero(n.t, a.Unexplained, "%+v", a)
		// An account is current until a later one begins. A broker that went back
		// to an earlier life of the stream, and lost nothing of it, has no later one.
		if a.Current && a.Created.Equal(s.CachedInfo().Created) {
			require.NoError(n.t, a.Compare(ctx, n.js))
			if len(a.Missing) > 0 {
				n.row.Lost++
			}
			require.Empty(n.t, a.Missing)
			require.Empty(n.t, a.OnBroker)
		}
	}
}

// inspect looks at the closed file.
func (n *network) inspect(held []version) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", n.path)
	require.NoError(n.t, err)
	defer db.Close()

	// What the file has: of each message the content that counts, and those refused.
	rows, err := db.Query(`
		SELECT message_id, payload, 0 FROM inbox_message
		UNION ALL SELECT m.message_id, c.payload, 1 FROM inbox_conflict c JOIN inbox_message m ON m.seq = c.message`)
	require.NoError(n.t, err)
	defer rows.Close()
	known := map[version]bool{}
	row := map[string]bool{} // by its content
	for rows.Next() {
		var v version
		var refused bool
		require.NoError(n.t, rows.Scan(&v.id, &v.body, &refused))
		known[v] = true
		if !refused {
			row[v.body] = true
		}
	}
	require.NoError(n.t, rows.Err())
	lost := func(how string, v version) {
		// Without an id of its own it is like no other: it is not refused.
		if once := !strings.HasPrefix(v.body, `{"id"`); once && !row[v.body] || !once && !known[v] {
			n.row.Lost++
			n.t.Errorf("%s, and the file does not have it: %v", how, v)
		}
	}
	for _, v := range held {
		lost("the broker holds it", v)
	}
	for p := range n.acked {
		lost("it was acknowledged", version{idOf(n.sent[p], p), n.sent[p]})
	}

	if err := violation(ctx, db); err != nil {
		n.row.Corrupt++
		n.t.Error(err)
	}
	var twice int
	require.NoError(n.t, db.QueryRow(`
		SELECT count(*) FROM (SELECT 1 FROM effects
		 GROUP BY coalesce(CAST(body AS TEXT) ->> 'id', CAST(body AS TEXT) ->> 'once') HAVING count(*) > 1)`).Scan(&twice))
	if twice > 0 {
		n.row.Twice += twice
		n.t.Errorf("%d messages took effect twice", twice)
	}
	n.inOrder(db)
}

// inOrder holds the effects of each key to the order of the stream, in each of
// its lives, whatever another client of the durable took first.
func (n *network) inOrder(db *sql.DB) {
	type line struct {
		key  string
		life int64
	}
	last := map[line]int64{}
	rows, err := db.Query(`
		SELECT m.key, m.stream, m.stream_seq, e.body FROM effects e JOIN inbox_message m ON m.seq = e.seq
		 WHERE m.key IS NOT NULL ORDER BY e.n`)
	require.NoError(n.t, err)
	defer rows.Close()
	for rows.Next() {
		var l line
		var seq int64
		var body string
		require.NoError(n.t, rows.Scan(&l.key, &l.life, &seq, &body))
		if seq < last[l] {
			n.row.Corrupt++
			n.t.Errorf("out of order: key %s, sequence %d after %d: %s", l.key, seq, last[l], body)
		}
		last[l] = max(last[l], seq)
	}
	require.NoError(n.t, rows.Err())
}

// take lets another client take messages from the durable, and hand them back
// or forget them.
func (n *network) take(count int, back bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	nc, err := nats.Connect(n.srv.URL(), n.client()...)
	require.NoError(n.t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(n.t, err)
	c, err := js.Consumer(ctx, stream, "c")
	if err != nil {
		return // it is not there just now
	}
	batch, err := c.Fetch(count, jetstream.FetchMaxWait(time.Second))
	if err != nil {
		return
	}
	for m := range batch.Messages() {
		if back {
			_ = m.Nak()
		}
	}
}
