package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestModel drives the inbox with random deliveries, redeliveries, failures,
// retries, crashes and clock moves, beside a simple model of what must be true.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "model")
		require.NoError(rt, err)
		m := &model{t: rt, path: filepath.Join(dir, "inbox.db"), clock: newFakeClock(), known: map[string]*modelMessage{}}
		m.passes = rapid.Bool().Draw(rt, "DeadPasses")
		m.groupTime = rapid.SampledFrom([]time.Duration{0, 1}).Draw(rt, "group time")
		m.open()
		defer func() { _ = m.ib.Close() }() // rapid may end a run early
		require.NoError(rt, m.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, `
				CREATE TABLE effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL);
				CREATE TABLE uniq (x UNIQUE); INSERT INTO uniq VALUES (1)`)
			return err
		}))
		rt.Repeat(map[string]func(*rapid.T){
			"deliver": m.deliver,
			"group":   m.group,
			"retry":   func(t *rapid.T) { m.round() },
			"clock": func(t *rapid.T) {
				m.clock.add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, -time.Hour, 87600 * time.Hour, -87600 * time.Hour}).Draw(t, "by"))
			},
			"redrive": m.redrive,
			"pause":   m.pause,
			"segment": func(t *rapid.T) { require.NoError(t, m.ib.do(ctxBG, jumpSegment)) },
			"crash":   func(t *rapid.T) { m.crash() },
			"restart": func(t *rapid.T) { require.NoError(t, m.ib.Close()); m.open() },
			"":        func(t *rapid.T) { m.check() },
		})
		m.finish()
		require.NoError(rt, m.ib.Close())
	})
}

// A modelMessage is what the model knows of a message.
type modelMessage struct {
	content  string
	key      string
	does     string // how the handler behaves
	arrival  int
	maybe    bool // a crash came before its outcome: it may be there or not
	discards bool
}

type model struct {
	t         *rapid.T
	path      string
	clock     *fakeClock
	passes    bool
	groupTime time.Duration
	ib        *Inbox
	c         *Consumer
	known     map[string]*modelMessage
	n         int
	healed    bool
}

func (m *model) open() {
	ib, err := Open(ctxBG, m.path, &Options{CacheSize: 1 << 20, Logger: slog.New(slog.DiscardHandler), clock: clock{m.clock.now}, groupTime: m.groupTime})
	require.NoError(m.t, err)
	m.ib = ib
	m.c, err = ib.Consumer("c", m.handle, &ConsumerOptions{DeadPasses: m.passes, Retry: RetryPolicy{MaxAttempts: 3}})
	require.NoError(m.t, err)
}

func (m *model) handle(ctx context.Context, tx *Tx, msg *Message) error {
	if err := apply(ctx, tx, msg); err != nil {
		return err
	}
	if m.healed {
		return nil
	}
	switch m.known[msg.ID].does {
	case "fails":
		return errors.New("fails")
	case "is refused":
		return Permanent(errors.New("refused"))
	case "panics":
		panic("panics")
	case "ends the transaction":
		_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO uniq VALUES (1)`)
		return err
	case "fails once":
		if msg.Attempt == 1 {
			return errors.New("fails once")
		}
	}
	return nil
}

// draw makes a message: a new one, or one that was delivered before.
func (m *model) draw(t *rapid.T) Message {
	id := fmt.Sprint("m", rapid.IntRange(0, 12).Draw(t, "id"))
	content := rapid.SampledFrom([]string{"x", "x", "x", "other"}).Draw(t, "content")
	mm := m.known[id]
	if mm == nil {
		m.n++
		mm = &modelMessage{
			content: content, arrival: m.n,
			key:  rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"),
			does: rapid.SampledFrom([]string{"", "", "", "fails", "fails once", "is refused", "panics", "ends the transaction"}).Draw(t, "does"),
		}
		m.known[id] = mm
		return Message{ID: id, Key: mm.key, Payload: []byte(content)}
	}
	return Message{ID: id, Key: mm.key, Payload: []byte(content)}
}

// expect holds an outcome to the model.
func (m *model) expect(msg Message, isNew bool, o Outcome) {
	mm := m.known[msg.ID]
	switch {
	case mm.maybe && (o == Applied || o == Pending || o == Dead):
		m.n++
		mm.arrival, mm.content, mm.maybe = m.n, string(msg.Payload), false
	case mm.maybe && o == Duplicate:
		mm.content, mm.maybe = string(msg.Payload), false
	case mm.maybe && o == Conflict:
		mm.maybe = false
	case isNew:
		require.Contains(m.t, []Outcome{Applied, Pending, Dead}, o)
	case mm.content == string(msg.Payload):
		require.Equal(m.t, Duplicate, o)
	default:
		require.Equal(m.t, Conflict, o)
	}
}

func (m *model) deliver(t *rapid.T) {
	before := m.n
	msg := m.draw(t)
	process := m.c.Process
	if rapid.Bool().Draw(t, "receive") {
		process = m.c.Receive
	}
	o, err := process(ctxBG, msg)
	require.NoError(t, err)
	m.expect(msg, m.n > before && !m.known[msg.ID].maybe, o)
}

// group delivers several messages in one transaction.
func (m *model) group(t *rapid.T) {
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = m.ib.do(ctxBG, func(*writer) error { close(held); <-free; return nil })
	}()
	<-held
	type result struct {
		msg   Message
		isNew bool
		o     Outcome
		err   error
	}
	n := rapid.SampledFrom([]int{2, 3, 8, minBare + 8}).Draw(t, "n")
	results := make([]result, n)
	done := make(chan struct{}, n)
	for i := range n {
		before := m.n
		msg := m.draw(t)
		results[i] = result{msg: msg, isNew: m.n > before}
		require.NoError(t, m.c.Submit(ctxBG, msg, func(o Outcome, err error) {
			results[i].o, results[i].err = o, err
			done <- struct{}{}
		}))
	}
	close(free)
	for range n {
		<-done
	}
	for _, r := range results {
		require.NoError(t, r.err)
		m.expect(r.msg, r.isNew, r.o)
	}
}

// crash loses what is in the queue.
func (m *model) crash() {
	w := m.ib.w
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = m.ib.do(ctxBG, func(*writer) error { close(held); <-free; return nil })
	}()
	<-held
	msg := m.draw(m.t)
	if mm := m.known[msg.ID]; mm.arrival == m.n {
		mm.maybe = mm.maybe || !m.stored(msg.ID)
	}
	require.NoError(m.t, m.c.Submit(ctxBG, msg, func(Outcome, error) {}))
	w.q.mu.Lock()
	w.q.jobs, w.q.bytes = nil, 0
	w.q.mu.Unlock()
	close(free)
	require.NoError(m.t, m.ib.Close())
	m.open()
}

func (m *model) stored(id string) bool {
	n := 0
	require.NoError(m.t, m.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		return rx.QueryRowContext(ctx, `SELECT count(*) FROM inbox WHERE message_id = ?`, id).Scan(&n)
	}))
	return n > 0
}

// round is one round of the poller, and what it lets go.
func (m *model) round() {
	nothing := func(*writer) error { return nil }
	require.NoError(m.t, m.ib.do(ctxBG, nothing))
	conn, err := m.ib.readers.Conn(ctxBG)
	require.NoError(m.t, err)
	defer conn.Close()
	_, _, err = m.ib.poller.round(ctxBG, conn)
	require.NoError(m.t, err)
	require.NoError(m.t, m.ib.do(ctxBG, nothing))
}

func (m *model) redrive(t *rapid.T) {
	sel := Selection{Consumer: "c", All: true}
	if rapid.Bool().Draw(t, "discard") {
		require.NoError(t, m.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
			rows, err := rx.QueryContext(ctx, `SELECT message_id FROM inbox WHERE status = 'dead'`)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					return err
				}
				m.known[id].discards = true
			}
			return rows.Err()
		}))
		_, err := m.ib.Discard(ctxBG, sel)
		require.NoError(t, err)
		return
	}
	_, err := m.ib.Retry(ctxBG, sel)
	require.NoError(t, err)
}

func (m *model) pause(t *rapid.T) {
	if m.c.Paused() {
		require.NoError(t, m.ib.Resume(ctxBG, "c"))
	} else {
		require.NoError(t, m.ib.Pause(ctxBG, "c"))
	}
}

// check holds the open file to the invariants.
func (m *model) check() {
	require.NoError(m.t, m.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		checkModelInvariants(m.t, rx, m.passes)
		return nil
	}))
}

func checkModelInvariants(t *rapid.T, rx *Rx, passes bool) {
	for name, q := range map[string]string{
		"once": `SELECT count(*) FROM inbox_message m WHERE (SELECT count(*) FROM effects e WHERE e.seq = m.seq) <> (m.status = 4)`,
		"counters": `SELECT count(*) FROM inbox_consumer c WHERE (c.pending, c.dead, c.completed, c.discarded) IS NOT
			(SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 3), count(*) FILTER (WHERE status = 4), count(*) FILTER (WHERE status = 5) FROM inbox_message)`,
		"attempts": `SELECT count(*) FROM inbox_message WHERE attempts > 3`,
		"order": `SELECT count(*) FROM effects a JOIN inbox_message x ON x.seq = a.seq JOIN effects b JOIN inbox_message y ON y.seq = b.seq
			 WHERE x.key = y.key AND x.seq < y.seq AND a.n > b.n AND NOT ` + fmt.Sprint(passes),
		"overtaken": `SELECT count(*) FROM inbox_message x JOIN inbox_message y ON x.key = y.key AND x.seq < y.seq
			 WHERE x.status IN (1, 3) AND y.status = 4 AND NOT ` + fmt.Sprint(passes),
	} {
		var n int
		require.NoError(t, rx.QueryRowContext(ctxBG, q).Scan(&n), name)
		require.Zero(t, n, name)
	}
}

// finish lets every handler succeed: then everything must get done.
func (m *model) finish() {
	if m.c.Paused() {
		require.NoError(m.t, m.ib.Resume(ctxBG, "c"))
	}
	require.NoError(m.t, m.ib.do(ctxBG, func(*writer) error { m.healed = true; return nil }))
	_, err := m.ib.Retry(ctxBG, Selection{Consumer: "c", All: true})
	require.NoError(m.t, err)
	for range 40 {
		m.clock.add(2 * time.Hour)
		m.round()
	}
	m.check()
	for id, mm := range m.known {
		var status sql.NullString
		require.NoError(m.t, m.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
			return rx.QueryRowContext(ctx, `SELECT max(status) FROM inbox WHERE message_id = ?`, id).Scan(&status)
		}))
		switch {
		case mm.maybe && !status.Valid:
		case mm.discards && status.String == "discarded":
		default:
			require.Equal(m.t, "completed", status.String, "%s (%+v) vanished or waits for ever", id, mm)
		}
	}
}
