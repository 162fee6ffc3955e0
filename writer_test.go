package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWriter_DiskFull: nobody is charged for a full disk, nothing is stored,
// and it goes on when there is room again.
func TestWriter_DiskFull(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS fat (x)`); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO fat VALUES (zeroblob(?))`, len(m.Payload)*100); err != nil {
			return err
		}
		return apply(ctx, tx, m)
	}, nil)
	pages := func(n int) {
		require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
			_, err := w.conn.exec(query{text: fmt.Sprintf(`PRAGMA max_page_count = %d`, n)})
			return err
		}))
	}
	pages(100)
	ms := []Message{{ID: "small"}, {ID: "fat", Payload: make([]byte, 10_000)}, {ID: "small too"}}
	outs, errs := l.outcomes(c, ms...)
	assert.Equal(t, []Outcome{Applied, 0, Applied}, outs, "who fits is not held up")
	assert.NoError(t, errs[0])
	assert.ErrorIs(t, errs[1], ErrStorage)
	assert.NoError(t, errs[2])
	assert.Equal(t, "", l.status("fat"))
	pages(1 << 30)
	outs, errs = l.outcomes(c, ms...)
	assert.Equal(t, []Outcome{Duplicate, Applied, Duplicate}, outs)
	assert.Equal(t, []error{nil, nil, nil}, errs)
	assert.Equal(t, 1, value[int](l, `SELECT attempts FROM inbox WHERE message_id = 'fat'`))
}

// TestWriter_BareGroups: a large group runs without savepoints until a handler
// fails in it; then again with them, that handler excepted; and the more often
// that happened, the more groups that follow run with them at once.
func TestWriter_BareGroups(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	calls := map[string]int{}
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		calls[m.ID]++
		if err := apply(ctx, tx, m); err != nil || string(m.Payload) == "" {
			return err
		}
		return errors.New(string(m.Payload))
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Hour}})
	const size = minBare + 8
	next := 0
	// group runs one, the last of it with this payload, and says whether it ran bare.
	group := func(last string) bool {
		ms := make([]Message, size)
		for i := range ms {
			next++
			ms[i] = Message{ID: fmt.Sprint(next)}
		}
		ms[size-1].Payload = []byte(last)
		clear(calls)
		outs, errs := l.outcomes(c, ms...)
		twice := 0
		for i, m := range ms {
			require.NoError(t, errs[i])
			want := Applied
			if i == size-1 && last != "" {
				want = Pending
				require.Equal(t, 1, calls[m.ID], "who failed is charged once and not run again")
			}
			require.Equal(t, want, outs[i], m.ID)
			twice += calls[m.ID] - 1
		}
		require.Contains(t, []int{0, size - 1}, twice, "all the others ran again, or none")
		return twice > 0
	}
	var bare []int
	for i := range 40 {
		if group("fails") {
			bare = append(bare, i)
		}
	}
	assert.Equal(t, []int{0, 1, 3, 7, 15, 31}, bare, "each failure doubles the wait")
	for i := 0; !group("fails"); i++ {
		require.Less(t, i, 64)
	}
	for range 64 + 8 { // 63 groups run with savepoints; then each bare one halves what comes next
		group("")
	}
	assert.True(t, group("fails"))
	assert.True(t, group("fails"), "forgiven")
	assert.Equal(t, 1, value[int](l, `SELECT max(attempts) FROM inbox`))
	assert.Equal(t, value[int](l, `SELECT count(*) FROM inbox WHERE status = 'completed'`), l.effects(""))
}

// TestWriter_BareGroupMixed: all kinds of jobs share a group that began without
// savepoints, and two handlers fail in it.
func TestWriter_BareGroupMixed(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE log (name TEXT)`)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if err := apply(ctx, tx, m); err != nil {
			return err
		}
		if string(m.Payload) == "once" && m.Attempt == 1 || string(m.Payload) == "never" {
			return errors.New("not yet")
		}
		return nil
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Hour}})
	outs, _ := l.outcomes(c, Message{ID: "head", Key: "k", Payload: []byte("once")}, Message{ID: "follower", Key: "k"}, Message{ID: "old"})
	require.Equal(t, []Outcome{Pending, Pending, Applied}, outs)
	head := value[int64](l, `SELECT seq FROM inbox_message WHERE message_id = 'head'`)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		_, err := w.conn.exec(query{text: `UPDATE inbox_message SET next_at = 1 WHERE message_id = 'head'`})
		return err
	}))

	release := l.hold()
	var wg sync.WaitGroup
	submit := func(m Message, want Outcome) {
		wg.Add(1)
		require.NoError(t, c.Submit(ctxBG, m, func(o Outcome, err error) {
			defer wg.Done()
			assert.NoError(t, err, m.ID)
			assert.Equal(t, want, o, m.ID)
		}))
	}
	update := func(name string, fail error) {
		queued := l.ib.w.q.length()
		wg.Go(func() {
			err := l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
				if _, err := tx.ExecContext(ctx, `INSERT INTO log VALUES (?)`, name); err != nil {
					return err
				}
				return fail
			})
			assert.ErrorIs(t, err, fail)
		})
		l.eventually(func() bool { return l.ib.w.q.length() > queued }, "queued")
	}
	for i := range minBare {
		submit(Message{ID: fmt.Sprint("before ", i)}, Applied)
	}
	update("kept", nil)
	update("undone", errors.New("failed"))
	submit(Message{ID: "old"}, Duplicate)
	submit(Message{ID: "old", Payload: []byte("other")}, Conflict)
	submit(Message{ID: "third", Key: "k"}, Pending)
	submit(Message{ID: "bad", Payload: []byte("never")}, Pending)
	wg.Add(1)
	require.NoError(t, l.ib.w.q.push(ctxBG, &retry{c: c, seq: head, done: func(err error) { assert.NoError(t, err); wg.Done() }}))
	submit(Message{ID: "bad too", Payload: []byte("never")}, Pending)
	submit(Message{ID: "after"}, Applied)
	update("kept too", nil)
	release()
	wg.Wait()
	assert.Equal(t, []string{"kept", "kept too"}, values[string](l, `SELECT name FROM log`))
	assert.Equal(t, []string{"head", "follower", "third"},
		values[string](l, `SELECT e.id FROM effects e JOIN inbox_message m ON m.seq = e.seq WHERE m.key = 'k' ORDER BY e.n`))
	assert.Equal(t, []int{1, 1}, values[int](l, `SELECT attempts FROM inbox WHERE status = 'pending'`))
	assert.Equal(t, 1, value[int](l, `SELECT count FROM inbox_conflicts`))
	st := l.stats("c")
	assert.EqualValues(t, 1+minBare+1+3, st.Applied)
	assert.EqualValues(t, 3, st.Failures, "the head's and two")
}

// TestWriter_CommitHook: nothing but the writer's own COMMIT commits.
func TestWriter_CommitHook(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	err := l.ib.do(ctxBG, func(w *writer) error {
		w.conn.rollingBack = true
		_, err := w.conn.exec(qRollback)
		w.conn.rollingBack = false
		require.NoError(t, err)
		_, err = w.conn.exec(query{text: `INSERT INTO effects (seq, id) VALUES (1, 'alone')`})
		assert.Error(t, err, "it would have committed by itself")
		w.conn.lost = true
		return &lostError{errors.New("test")}
	})
	assert.ErrorContains(t, err, "test")
	assert.Zero(t, l.effects(""))
}

// TestWriter_Groups: what waits is committed together.
func TestWriter_Groups(t *testing.T) {
	t.Parallel()
	var sizes []int
	l := newLab(t, func(o *Options) {
		o.MaxGroup = 40
		o.MaxGroupBytes = 1 << 20
		o.Observer.Committed = func(n int, took time.Duration) { sizes = append(sizes, n); assert.Positive(t, took) }
	})
	c := l.consumer("c", nil, nil)
	var ms []Message
	for i := range 100 {
		ms = append(ms, Message{ID: fmt.Sprint(i)})
	}
	sizes = nil
	_, errs := l.outcomes(c, ms...)
	assert.NoError(t, errors.Join(errs...))
	l.close()
	assert.Equal(t, []int{1, 40, 40, 20}, sizes)
	l.open()
}

// TestWriter_GroupTime: a group that takes long is committed as far as it has
// come; what was inserted ahead of its turn has it first, and all have it once.
func TestWriter_GroupTime(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		n, bad int // bad: which one ends what is beside it, 0: none
		does   func(context.Context, *Tx) error
		sizes  []int
	}{
		"few":     {n: 5, sizes: []int{1, 1, 1, 1, 1, 1}},
		"batches": {n: 100, sizes: append([]int{1, 1, 16, 16, 16, 16, 16}, slices.Repeat([]int{1}, 19)...)},
		"one of a batch fails": {n: 34, bad: 5, sizes: slices.Repeat([]int{1}, 35),
			does: func(context.Context, *Tx) error { return errors.New("no") }},
		"one ends the transaction": {n: 5, bad: 3, sizes: []int{1, 1, 1, 1, 1, 1},
			does: func(ctx context.Context, tx *Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO effects (n, seq, id) VALUES (1, 1, ''), (1, 1, '')`)
				return err
			}},
		"one ends the writer": {n: 5, bad: 3, sizes: []int{1, 1, 1, 1, 1, 1},
			does: func(context.Context, *Tx) error { runtime.Goexit(); return nil }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var sizes []int
			l := newLab(t, func(o *Options) {
				o.groupTime = 1
				o.Observer.Committed = func(n int, _ time.Duration) { sizes = append(sizes, n) }
			})
			c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
				if m.ID == fmt.Sprint(tc.bad) {
					return tc.does(ctx, tx)
				}
				return apply(ctx, tx, m)
			}, nil)
			var ms []Message
			want := make([]Outcome, tc.n)
			for i := range tc.n {
				ms = append(ms, Message{ID: fmt.Sprint(i + 1)})
				want[i] = Applied
			}
			if tc.bad > 0 {
				want[tc.bad-1] = Pending
			}
			sizes = nil
			outs, errs := l.outcomes(c, ms...)
			assert.NoError(t, errors.Join(errs...))
			assert.Equal(t, want, outs)
			l.close()
			assert.Equal(t, tc.sizes, sizes)
			l.open()
			var ids []int
			for _, m := range ms {
				if m.ID != fmt.Sprint(tc.bad) {
					ids = append(ids, len(ids)+1)
				}
			}
			assert.Equal(t, ids, values[int](l, `SELECT n FROM effects ORDER BY seq`), "in order")
		})
	}
	for lasted, want := range map[time.Duration]time.Duration{
		0: 100 * time.Millisecond, 5 * time.Millisecond: 100 * time.Millisecond,
		30 * time.Millisecond: 480 * time.Millisecond, 10 * time.Second: time.Second,
	} {
		assert.Equal(t, want, (&writer{opts: &Options{}, lasted: lasted}).groupTime(), lasted)
	}
}

// TestWriter_GuestBesideSlowHandlers: another process gets to write, however much
// waits for the writer.
func TestWriter_GuestBesideSlowHandlers(t *testing.T) {
	t.Parallel()
	var groups atomic.Int64
	l := newLab(t, func(o *Options) {
		o.groupTime = 0
		o.Observer.Committed = func(int, time.Duration) { groups.Add(1) }
	})
	handling, ended := make(chan struct{}, 1), make(chan struct{})
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		select {
		case handling <- struct{}{}:
		default:
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Millisecond):
		}
		return apply(ctx, tx, m)
	}, nil)
	const n = 4000 // twenty seconds
	var left sync.WaitGroup
	left.Add(n)
	for i := range n {
		require.NoError(t, c.Submit(ctxBG, Message{ID: fmt.Sprint(i)}, func(Outcome, error) { left.Done() }))
	}
	<-handling
	g, err := Open(ctxBG, l.path, &Options{Guest: true})
	require.NoError(t, err)
	defer g.Close()
	before := groups.Load()
	for range 10 {
		<-handling // one that may be over
		<-handling
		_, err := g.Retry(ctxBG, Selection{Consumer: "c", All: true})
		assert.NoError(t, err)
	}
	assert.Less(t, groups.Load()-before, int64(30), "groups meanwhile")
	assert.Positive(t, l.ib.w.q.length(), "the writer had more to do")
	close(ended)
	left.Wait()
}

// TestWriter_FollowersEndWithTheirGroup: what a message lets go is never left to
// a later transaction, which would run it although its own had been lost.
func TestWriter_FollowersEndWithTheirGroup(t *testing.T) {
	t.Parallel()
	clk := newFakeClock()
	l := newLab(t, func(o *Options) { o.clock, o.groupTime = clock{clk.now}, 1 })
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "1" && m.Attempt == 1 {
			return errors.New("not yet")
		}
		return apply(ctx, tx, m)
	}, nil)
	for _, id := range []string{"1", "2"} {
		o, err := c.Process(ctxBG, Message{ID: id, Key: "k"})
		require.NoError(t, err)
		require.Equal(t, Pending, o)
	}
	clk.add(time.Hour)
	release := l.hold()
	seq := value[int64](l, `SELECT seq FROM inbox WHERE message_id = '1'`)
	require.NoError(t, l.ib.w.q.push(ctxBG, &retry{c: c, seq: seq}))
	release()
	o, err := c.Process(ctxBG, Message{ID: "3"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
	require.NoError(t, l.ib.do(ctxBG, func(*writer) error { return nil })) // nothing is left
	assert.Equal(t, []string{"1", "3"}, values[string](l, `SELECT id FROM effects ORDER BY n`))
	l.run()
	l.eventually(func() bool { return l.effects("2") == 1 }, "by the poller")
}

// sqlc's generated code, and most query builders, take this.
var _ interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
} = (*Tx)(nil)
