package inbox_test

// What the inbox costs. Every peer does the same work in the same process on
// the same disk, by turns, so that a machine whose speed changes within
// minutes changes it for all of them: compare the ratios, not the figures.
//
//	inbox        JetStream → Subscribe → applied and acknowledged
//	handwritten  JetStream → nats.go's Consume, one database/sql transaction a message (its id,
//	             the business INSERT), ack
//	bareloop     no JetStream: the message (id, hash, payload) and the business INSERT in
//	             transactions of 500 and of 2000, the bound
//
// INBOX_BENCH_MESSAGES sets the messages of a round (default 100,000).

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

const (
	benchPayload = 256
	benchRounds  = 5
	benchOrders  = `CREATE TABLE orders (id TEXT NOT NULL, body BLOB NOT NULL)`
	benchOrder   = `INSERT INTO orders (id, body) VALUES (?, ?)`
	benchSeen    = `INSERT INTO seen (id) VALUES (?) ON CONFLICT DO NOTHING`
	benchKept    = `INSERT INTO seen (id, hash, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`
)

func benchMessages(b *testing.B) int {
	n, err := strconv.Atoi(cmp(os.Getenv("INBOX_BENCH_MESSAGES"), "100000"))
	require.NoError(b, err)
	return n
}

func cmp(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// benchIDs are random, like UUIDv4, the worst order for an index; or ordered,
// like UUIDv7 and ULIDs.
func benchIDs(n int, ordered bool) []string {
	ids := make([]string, n)
	for i := range ids {
		hi, lo := rand.Uint64(), rand.Uint64()
		if ordered {
			hi = uint64(i) << 20
		}
		ids[i] = fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xfff, lo>>48&0x3fff|0x8000, lo&0xffffffffffff)
	}
	return ids
}

func benchBody() []byte {
	body := make([]byte, benchPayload)
	for i := range body {
		body[i] = byte('a' + rand.N(26))
	}
	return body
}

// A peer handles n messages and says how long it took.
type peer struct {
	name string
	n    int
	run  func(b *testing.B, n int) time.Duration
}

func BenchmarkEndToEnd(b *testing.B) {
	b.Run("ids=random", func(b *testing.B) { sideBySide(b, false) })
	b.Run("ids=ordered", func(b *testing.B) { sideBySide(b, true) })
}

func sideBySide(b *testing.B, ordered bool) {
	n := benchMessages(b)
	ids := benchIDs(n, ordered)
	js := benchStream(b, ids)
	peers := []peer{
		{"inbox", n, func(b *testing.B, n int) time.Duration { return endToEnd(b, js, n) }},
		{"handwritten", n / 10, func(b *testing.B, n int) time.Duration { return handwritten(b, js, n) }},
		{"bareloop=500", n, func(b *testing.B, n int) time.Duration { return bareLoop(b, ids[:n], 500) }},
		{"bareloop=2000", n, func(b *testing.B, n int) time.Duration { return bareLoop(b, ids[:n], 2000) }},
	}
	rate, allocs := make([][]float64, len(peers)), make([][]float64, len(peers))
	for range benchRounds {
		for i, p := range peers {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			took := p.run(b, p.n)
			runtime.ReadMemStats(&after)
			rate[i] = append(rate[i], float64(p.n)/took.Seconds())
			allocs[i] = append(allocs[i], float64(after.Mallocs-before.Mallocs)/float64(p.n))
		}
	}
	// The rounds are over: the sub-benchmarks report.
	for i, p := range peers {
		b.Run(p.name, func(b *testing.B) {
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rate[i]), "msg/s")
			b.ReportMetric(median(allocs[i]), "allocs/msg") // the NATS server's included
			b.ReportMetric(ratio(rate[0], rate[i]), "inbox/this")
		})
	}
}

// ratio is the median of the ratios within each round.
func ratio(a, b []float64) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return median(r)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// benchStream starts a server and publishes one message for each id.
func benchStream(b *testing.B, ids []string) jetstream.JetStream {
	b.Helper()
	_, js := natstest.Start(b, nil).Connect()
	_, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "BENCH", Subjects: []string{"bench.>"}, Duplicates: 100 * time.Millisecond})
	require.NoError(b, err)
	body := benchBody()
	for i, id := range ids {
		m := nats.NewMsg("bench.order")
		m.Header.Set(jetstream.MsgIDHeader, id)
		m.Data = body
		_, err := js.PublishMsgAsync(m)
		require.NoError(b, err)
		if i%2000 == 1999 || i == len(ids)-1 {
			<-js.PublishAsyncComplete()
		}
	}
	s, err := js.Stream(b.Context(), "BENCH")
	require.NoError(b, err)
	require.EqualValues(b, len(ids), s.CachedInfo().State.Msgs)
	return js
}

// awaitAcked waits until the broker has the acknowledgement of every message.
func awaitAcked(b *testing.B, js jetstream.JetStream, durable string, n int) {
	b.Helper()
	c, err := js.Consumer(b.Context(), "BENCH", durable)
	require.NoError(b, err)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		info, err := c.Info(b.Context())
		require.NoError(b, err)
		if info.NumAckPending == 0 && info.AckFloor.Stream >= uint64(n) {
			return
		}
		require.True(b, time.Now().Before(deadline), "not acknowledged: %+v", info)
	}
}

// endToEnd takes the first n messages of the stream through an inbox.
func endToEnd(b *testing.B, js jetstream.JetStream, n int) time.Duration {
	applied, all := 0, make(chan struct{})
	ib, c := benchInbox(b, &inbox.Observer{Delivered: func(_ string, o inbox.Outcome) {
		if applied++; applied == n {
			close(all)
		}
	}})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- c.Subscribe(ctx, js, "BENCH", nil) }()
	select {
	case <-all:
	case err := <-done:
		b.Fatal(err)
	}
	awaitAcked(b, js, "orders", n)
	took := time.Since(start)
	cancel()
	require.NoError(b, <-done)
	stats, err := ib.Stats(b.Context())
	require.NoError(b, err)
	require.EqualValues(b, n, stats.Consumers["orders"].Applied)
	require.NoError(b, ib.Close())
	require.NoError(b, js.DeleteConsumer(b.Context(), "BENCH", "orders"))
	return took
}

// benchInbox opens an inbox whose handler makes one INSERT.
func benchInbox(b *testing.B, o *inbox.Observer) (*inbox.Inbox, *inbox.Consumer) {
	b.Helper()
	ib, err := inbox.Open(b.Context(), filepath.Join(b.TempDir(), "inbox.db"), &inbox.Options{Observer: o, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	b.Cleanup(func() { ib.Close() })
	require.NoError(b, ib.Update(b.Context(), func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, benchOrders)
		return err
	}))
	c, err := ib.Consumer("orders", func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
		_, err := tx.ExecContext(ctx, benchOrder, m.ID, m.Payload)
		return err
	}, nil)
	require.NoError(b, err)
	return ib, c
}

// A benchDB is what one writes without this package: the same driver with the
// same pragmas (and its Fdatasync, which is for the whole process), and two
// prepared statements.
type benchDB struct {
	*sql.DB
	seen, order *sql.Stmt
	keep        bool // the message too, as an inbox does for audit and replay
}

func openBenchDB(b *testing.B, keep bool) *benchDB {
	b.Helper()
	params := url.Values{
		"_txlock": {"immediate"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"1"},
		"_pragma": {"temp_store(MEMORY)", "cache_size(-12288)", "wal_autocheckpoint(8000)"},
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "bench.db")+"?"+params.Encode())
	require.NoError(b, err)
	db.SetMaxOpenConns(1)
	_, err = db.Exec(`CREATE TABLE seen (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, hash BLOB, body BLOB); ` + benchOrders)
	require.NoError(b, err)
	d := &benchDB{DB: db, keep: keep}
	d.seen, err = db.Prepare(map[bool]string{false: benchSeen, true: benchKept}[keep])
	require.NoError(b, err)
	d.order, err = db.Prepare(benchOrder)
	require.NoError(b, err)
	return d
}

// group applies messages in one transaction.
func (d *benchDB) group(ids []string, body []byte) error {
	tx, err := d.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	seen, order := tx.Stmt(d.seen), tx.Stmt(d.order)
	for _, id := range ids {
		args := []any{id}
		if d.keep {
			hash := sha256.Sum256(body)
			args = append(args, hash[:], body)
		}
		res, err := seen.Exec(args...)
		if err != nil {
			return err
		}
		if n, _ := res.RowsAffected(); n == 0 {
			continue // a duplicate
		}
		if _, err := order.Exec(id, body); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// handwritten takes the first n messages of the stream through a consumer as
// a competent programmer writes it: one transaction a message.
func handwritten(b *testing.B, js jetstream.JetStream, n int) time.Duration {
	db := openBenchDB(b, false)
	defer db.Close()
	start := time.Now()
	c, err := js.CreateConsumer(b.Context(), "BENCH", jetstream.ConsumerConfig{Durable: "handwritten", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(b, err)
	taken, all := 0, make(chan error, 1)
	consuming, err := c.Consume(func(m jetstream.Msg) {
		if taken == n {
			return
		}
		err := db.group([]string{m.Headers().Get(jetstream.MsgIDHeader)}, m.Data())
		if err == nil {
			err = m.Ack()
		}
		if taken++; taken == n || err != nil {
			taken = n
			all <- err
		}
	})
	require.NoError(b, err)
	require.NoError(b, <-all)
	took := time.Since(start)
	consuming.Stop()
	require.NoError(b, js.DeleteConsumer(b.Context(), "BENCH", "handwritten"))
	return took
}

// bareLoop is the bound: the statements alone, in groups.
func bareLoop(b *testing.B, ids []string, group int) time.Duration {
	db, body := openBenchDB(b, true), benchBody()
	defer db.Close()
	start := time.Now()
	for chunk := range slices.Chunk(ids, group) {
		require.NoError(b, db.group(chunk, body))
	}
	return time.Since(start)
}

// BenchmarkProcess: callers that wait for their commit. The more of them, the
// more share one.
func BenchmarkProcess(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			_, c := benchInbox(b, nil)
			byCallers(b, callers, c.Process, inbox.Applied)
		})
	}
}

// BenchmarkReceive stores and leaves the handler to Run.
func BenchmarkReceive(b *testing.B) {
	_, c := benchInbox(b, nil)
	byCallers(b, 256, c.Receive, inbox.Pending)
}

func byCallers(b *testing.B, callers int, call func(context.Context, inbox.Message) (inbox.Outcome, error), want inbox.Outcome) {
	ids, body := benchIDs(b.N, false), benchBody()
	var next, wrong atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if o, err := call(b.Context(), inbox.Message{ID: ids[i-1], Payload: body}); err != nil || o != want {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	require.Zero(b, wrong.Load())
	perSecond(b)
}

// BenchmarkSubmit: one caller that does not wait.
func BenchmarkSubmit(b *testing.B) {
	_, c := benchInbox(b, nil)
	submitAll(b, c, benchIDs(b.N, false), inbox.Applied)
}

// BenchmarkDuplicates: messages that were all applied before.
func BenchmarkDuplicates(b *testing.B) {
	_, c := benchInbox(b, nil)
	known := benchIDs(10_000, false)
	submitAll(b, c, known, inbox.Applied)
	ids := make([]string, b.N)
	for i := range ids {
		ids[i] = known[rand.N(len(known))]
	}
	submitAll(b, c, ids, inbox.Duplicate)
}

func submitAll(b *testing.B, c *inbox.Consumer, ids []string, want inbox.Outcome) {
	b.Helper()
	body := []byte("the same content for all, so that a known id is no conflict")
	left, wrong, all := len(ids), 0, make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	b.StartTimer()
	for _, id := range ids {
		require.NoError(b, c.Submit(b.Context(), inbox.Message{ID: id, Payload: body}, func(o inbox.Outcome, err error) {
			if err != nil || o != want {
				wrong++
			}
			if left--; left == 0 {
				close(all)
			}
		}))
	}
	<-all
	b.StopTimer()
	require.Zero(b, wrong)
	perSecond(b)
}

func perSecond(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
