package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProcess_FirstTime(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("orders", func(ctx context.Context, tx *Tx, m *Message) error {
		assert.Equal(t, "o-1", m.ID)
		assert.Equal(t, "shop", m.Source)
		assert.Equal(t, "order.placed", m.Type)
		assert.Equal(t, "orders.new", m.Subject)
		assert.Equal(t, "customer-7", m.Key)
		assert.Equal(t, []byte(`{"total":5}`), m.Payload)
		assert.Equal(t, "de", m.Headers.Get("LANG"))
		assert.Equal(t, 1, m.Attempt)
		assert.Equal(t, tx.Now(), m.ReceivedAt)
		return apply(ctx, tx, m)
	}, nil)
	o, err := c.Process(ctxBG, Message{
		ID: "o-1", Source: "shop", Type: "order.placed", Subject: "orders.new", Key: "customer-7",
		Payload: []byte(`{"total":5}`), Headers: Header{"Lang": {"de"}},
	})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
	assert.Equal(t, 1, l.effects("o-1"))
	assert.Equal(t, "completed", l.status("o-1"))
	assert.Equal(t, `{"total":5}`, value[string](l, `SELECT payload FROM inbox`))
	assert.Equal(t, "shop", value[string](l, `SELECT source FROM inbox`))
	assert.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, value[string](l, `SELECT received_at FROM inbox`))
}

func TestProcess_SequentialDuplicate(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	for i, want := range []Outcome{Applied, Duplicate, Duplicate} {
		o, err := c.Process(ctxBG, Message{ID: "1", Payload: []byte("x")})
		require.NoError(t, err)
		assert.Equal(t, want, o, "delivery %d", i)
	}
	assert.Equal(t, 1, l.effects("1"))
}

func TestProcess_ConcurrentDuplicate(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	var applied, duplicates atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 100 {
		wg.Go(func() {
			<-start
			o, err := c.Process(ctxBG, Message{ID: "1", Payload: []byte("x")})
			assert.NoError(t, err)
			switch o {
			case Applied:
				applied.Add(1)
			case Duplicate:
				duplicates.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	assert.EqualValues(t, 1, applied.Load())
	assert.EqualValues(t, 99, duplicates.Load())
	assert.Equal(t, 1, l.effects("1"))
}

func TestProcess_TwoCopiesInOneGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	outs, errs := l.outcomes(c, Message{ID: "1"}, Message{ID: "2"}, Message{ID: "1"})
	assert.Equal(t, []error{nil, nil, nil}, errs)
	assert.Equal(t, []Outcome{Applied, Applied, Duplicate}, outs)
	assert.Equal(t, 1, l.effects("1"))
}

func TestProcess_RollbackAfterInsert(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	boom := errors.New("boom")
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if err := apply(ctx, tx, m); err != nil {
			return err
		}
		return boom
	}, nil)
	o, err := c.Process(ctxBG, Message{ID: "1", Payload: []byte("x")})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	assert.Zero(t, l.effects("1"), "the effect is undone")
	assert.Equal(t, "pending", l.status("1"), "the message is kept")
	assert.Equal(t, "boom", value[string](l, `SELECT last_error FROM inbox`))
	assert.Equal(t, 1, value[int](l, `SELECT attempts FROM inbox`))
	// A redelivery finds the row: it is known, though it is not done.
	o, err = c.Process(ctxBG, Message{ID: "1", Payload: []byte("x")})
	require.NoError(t, err)
	assert.Equal(t, Duplicate, o)
}

func TestProcess_ConsumersAreApart(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	a, b := l.consumer("a", nil, nil), l.consumer("b", nil, nil)
	for _, c := range []*Consumer{a, b} {
		o, err := c.Process(ctxBG, Message{ID: "1"})
		require.NoError(t, err)
		assert.Equal(t, Applied, o)
	}
	assert.Equal(t, 2, l.effects("1"))
	o, err := a.Process(ctxBG, Message{ID: "1", Source: "elsewhere"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o, "another source is another message")
}

func TestProcess_Conflict(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	ignore := l.consumer("ignore", nil, &ConsumerOptions{IgnoreConflicts: true})
	canonical := l.consumer("canonical", nil, &ConsumerOptions{CanonicalJSON: true})
	process := func(c *Consumer, payload string, want Outcome) {
		t.Helper()
		o, err := c.Process(ctxBG, Message{ID: "1", Payload: []byte(payload)})
		require.NoError(t, err)
		assert.Equal(t, want, o)
	}
	process(c, "first", Applied)
	process(c, "second", Conflict)
	process(c, "second", Conflict)
	process(c, "third", Conflict)
	process(c, "first", Duplicate)
	assert.Equal(t, 2, value[int](l, `SELECT count(*) FROM inbox_conflicts`))
	assert.Equal(t, 2, value[int](l, `SELECT count FROM inbox_conflicts WHERE refused_payload = CAST('second' AS BLOB)`))
	assert.Equal(t, "first", value[string](l, `SELECT payload FROM inbox WHERE consumer = 'c'`), "what was applied stays")
	l.eventually(func() bool { return l.alerts.count(AlertConflict) == 3 }, "alerts")

	process(ignore, "first", Applied)
	process(ignore, "second", Duplicate)

	process(canonical, `{"a":1,"b":2}`, Applied)
	process(canonical, `{ "b": 2.0, "a": 1 }`, Duplicate)
	process(canonical, `{"a":1,"b":3}`, Conflict)
	process(canonical, `not json`, Conflict)
}

func TestProcess_Payloads(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	seen := map[string][]byte{}
	fail := true
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if fail {
			return errors.New("not yet")
		}
		seen[m.ID] = m.Payload
		return apply(ctx, tx, m)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: 1e6}})
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	payloads := map[string][]byte{
		"nil": nil, "empty": {}, "nul": {0}, "nuls": []byte("a\x00b\x00"), "utf8": []byte("\xff\xfe\xc3("), "big": big,
		"weird id \x00\xff": []byte("x"), "a'b\"c;--": []byte("x"),
	}
	for id, p := range payloads {
		o, err := c.Process(ctxBG, Message{ID: id, Payload: p, Headers: Header{"k": {"\r\n%41", "\xff\x00"}}})
		require.NoError(t, err)
		require.Equal(t, Pending, o)
	}
	for id, p := range payloads { // the same content is a duplicate, nil and empty are the same
		o, err := c.Process(ctxBG, Message{ID: id, Payload: p})
		require.NoError(t, err)
		require.Equal(t, Duplicate, o, id)
	}
	// Once more, from the file.
	require.NoError(t, l.ib.Update(ctxBG, func(context.Context, *Tx) error { fail = false; return nil }))
	l.run()
	l.eventually(func() bool { return l.effects("") == len(payloads) }, "applied by the poller")
	require.NoError(t, l.ib.Update(ctxBG, func(context.Context, *Tx) error {
		for id, p := range payloads {
			assert.Equal(t, string(p), string(seen[id]), "%q", id)
		}
		return nil
	}))
	assert.Zero(t, value[int](l, `SELECT count(*) FROM inbox WHERE payload IS NULL`))
	_, err := c.Process(ctxBG, Message{ID: ""})
	assert.ErrorIs(t, err, ErrInvalidMessage)
	_, err = c.Process(ctxBG, Message{ID: "x", Payload: make([]byte, MaxPayload+1)})
	assert.ErrorIs(t, err, ErrInvalidMessage)
}

func TestProcess_DropPayload(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	fail := errors.New("fail")
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.Attempt == 1 && m.ID == "second try" {
			return fail
		}
		assert.Equal(t, "body", string(m.Payload))
		assert.Equal(t, "v", m.Headers.Get("h"))
		return apply(ctx, tx, m)
	}, &ConsumerOptions{DropPayload: true, Retry: RetryPolicy{Initial: 1e6}})
	m := Message{ID: "at once", Payload: []byte("body"), Headers: Header{"h": {"v"}}}
	o, err := c.Process(ctxBG, m)
	require.NoError(t, err)
	require.Equal(t, Applied, o)
	assert.Equal(t, 1, value[int](l, `SELECT payload IS NULL FROM inbox`))
	m.ID = "second try"
	o, err = c.Process(ctxBG, m)
	require.NoError(t, err)
	require.Equal(t, Pending, o)
	assert.Equal(t, "body", value[string](l, `SELECT payload FROM inbox WHERE status = 'pending'`))
	l.run()
	l.eventually(func() bool { return l.effects("second try") == 1 }, "retried")
	assert.Equal(t, 2, value[int](l, `SELECT count(*) FROM inbox WHERE payload IS NULL`))
	n, err := l.ib.Replay(ctxBG, Selection{Consumer: "c", All: true})
	assert.ErrorIs(t, err, ErrNoPayload)
	assert.Zero(t, n)
}

func TestReceive(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	o, err := c.Receive(ctxBG, Message{ID: "1", Payload: []byte("x")})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	assert.Zero(t, l.effects("1"))
	assert.Equal(t, "pending", l.status("1"))
	o, err = c.Receive(ctxBG, Message{ID: "1", Payload: []byte("x")})
	require.NoError(t, err)
	assert.Equal(t, Duplicate, o)
	l.run()
	l.eventually(func() bool { return l.status("1") == "completed" }, "applied by the poller")
	assert.Equal(t, 1, l.effects("1"))
}

func TestProcess_CancelledCaller(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	inHandler, goOn := make(chan struct{}), make(chan struct{})
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "slow" {
			close(inHandler)
			<-goOn
		}
		assert.NoError(t, ctx.Err(), "a handler does not see its caller go")
		return apply(ctx, tx, m)
	}, nil)
	cancelled, cancel := context.WithCancel(ctxBG)
	cancel()
	_, err := c.Process(cancelled, Message{ID: "never"})
	assert.ErrorIs(t, err, context.Canceled)

	ctx, cancel := context.WithCancel(ctxBG)
	errs := make(chan error, 2)
	go func() {
		_, err := c.Process(ctx, Message{ID: "slow"})
		errs <- err
	}()
	<-inHandler
	queued, cancelQueued := context.WithCancel(ctxBG)
	go func() {
		_, err := c.Process(queued, Message{ID: "queued"})
		errs <- err
	}()
	l.eventually(func() bool { return l.ib.w.q.length() == 1 }, "it waits in the queue")
	cancelQueued()
	assert.ErrorIs(t, <-errs, context.Canceled)
	cancel()
	assert.ErrorIs(t, <-errs, context.Canceled)
	close(goOn)
	l.update(`SELECT 1`) // the writer has come past
	assert.Equal(t, "completed", l.status("slow"), "whose turn had come is carried through")
	assert.Equal(t, "", l.status("queued"), "who was still waiting is dropped")
	assert.Equal(t, "", l.status("never"))
}

func TestQueue_IsBounded(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *Options) { o.QueueLength = 3; o.QueueBytes = 10 << 10 })
	c := l.consumer("c", nil, nil)
	release := l.hold()
	defer release()
	var done sync.WaitGroup
	submit := func(ctx context.Context, id string, size int) error {
		done.Add(1)
		err := c.Submit(ctx, Message{ID: id, Payload: make([]byte, size)}, func(Outcome, error) { done.Done() })
		if err != nil {
			done.Done()
		}
		return err
	}
	full := func(id string, size int) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctxBG)
		got := make(chan error, 1)
		go func() { got <- submit(ctx, id, size) }()
		select {
		case err := <-got:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		cancel()
		assert.ErrorIs(t, <-got, context.Canceled)
	}
	require.NoError(t, submit(ctxBG, "1", 6<<10))
	full("too many bytes", 6<<10)
	require.NoError(t, submit(ctxBG, "2", 0))
	require.NoError(t, submit(ctxBG, "3", 0))
	full("too many", 0)
	go func() {
		l.eventually(func() bool { return l.ib.w.q.length() == 3 }, "full")
		release()
	}()
	require.NoError(t, submit(ctxBG, "larger than the queue", 1<<20), "it has its turn when the queue is empty")
	done.Wait()
	assert.Equal(t, 4, l.effects(""))
}

func TestHandler_CallingItsOwnInbox(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	var c *Consumer
	c = l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		for name, ctx := range map[string]context.Context{"its context": ctx, "another context": ctxBG} {
			assert.ErrorIs(t, l.ib.Update(ctx, func(context.Context, *Tx) error { return nil }), ErrInHandler, name)
			_, err := c.Process(ctx, Message{ID: "inner"})
			assert.ErrorIs(t, err, ErrInHandler, name)
			_, err = c.Receive(ctx, Message{ID: "inner"})
			assert.ErrorIs(t, err, ErrInHandler, name)
			assert.ErrorIs(t, c.Submit(ctx, Message{ID: "inner"}, func(Outcome, error) {}), ErrInHandler, name)
			assert.ErrorIs(t, l.ib.Pause(ctx, "c"), ErrInHandler, name)
		}
		assert.ErrorIs(t, l.ib.Close(), ErrInHandler)
		return apply(ctx, tx, m)
	}, nil)
	o, err := c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
	require.NoError(t, l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		assert.ErrorIs(t, l.ib.Update(ctx, func(context.Context, *Tx) error { return nil }), ErrInHandler)
		return nil
	}))
	// A callback would wait for itself as well.
	called := make(chan error, 1)
	require.NoError(t, c.Submit(ctxBG, Message{ID: "2"}, func(Outcome, error) {
		called <- l.ib.Update(ctxBG, func(context.Context, *Tx) error { return nil })
	}))
	assert.ErrorIs(t, <-called, ErrInHandler)
	// Another inbox may be called.
	other := newLab(t, nil)
	oc := other.consumer("c", nil, nil)
	d := l.consumer("d", func(ctx context.Context, tx *Tx, m *Message) error {
		_, err := oc.Process(ctx, Message{ID: m.ID})
		return errors.Join(err, apply(ctx, tx, m))
	}, nil)
	o, err = d.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	assert.Equal(t, Applied, o)
}

func TestView(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`INSERT INTO effects (seq, id) VALUES (0, 'x')`)
	require.NoError(t, l.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		var n int
		require.NoError(t, rx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n))
		assert.Equal(t, 1, n)
		l.update(`DELETE FROM effects`)
		require.NoError(t, rx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n))
		assert.Equal(t, 1, n, "a snapshot")
		for _, q := range []string{`DELETE FROM effects RETURNING 1`, `PRAGMA query_only = 0`, `INSERT INTO effects (seq, id) VALUES (1, 'y') RETURNING 1`} {
			rows, err := rx.QueryContext(ctx, q)
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
				rows.Close()
			}
			if q[0] != 'P' {
				assert.Error(t, err, q)
			}
		}
		st, err := rx.PrepareContext(ctx, `SELECT count(*) FROM effects WHERE id = ?`)
		require.NoError(t, err)
		require.NoError(t, st.QueryRowContext(ctx, "x").Scan(&n))
		assert.Equal(t, 1, n)
		return nil
	}))
	boom := errors.New("boom")
	assert.ErrorIs(t, l.ib.View(ctxBG, func(context.Context, *Rx) error { return boom }), boom)
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	boom := errors.New("boom")
	err := l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (seq, id) VALUES (9, 'undone')`)
		require.NoError(t, err)
		return boom
	})
	assert.ErrorIs(t, err, boom)
	var p *PanicError
	err = l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error { panic("ouch") })
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "ouch", p.Value)
	assert.Contains(t, string(p.Stack), "inbox_test.go")
	assert.Zero(t, l.effects(""))
	err = l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO effects (n, seq, id) VALUES (1, NULL, 'x')`)
		return err
	})
	assert.ErrorContains(t, err, "NOT NULL", "it ended the transaction, and hears why")
}

func TestClose(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	release := l.hold()
	var outs sync.Map
	for i := range 50 {
		require.NoError(t, c.Submit(ctxBG, Message{ID: fmt.Sprint(i)}, func(o Outcome, err error) { outs.Store(i, o) }))
	}
	go release()
	require.NoError(t, l.ib.Close())
	for i := range 50 {
		o, _ := outs.Load(i)
		assert.Equal(t, Applied, o, "what was taken is finished")
	}
	require.NoError(t, l.ib.Close(), "again")
	_, err := c.Process(ctxBG, Message{ID: "late"})
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorIs(t, c.Submit(ctxBG, Message{ID: "late"}, func(Outcome, error) {}), ErrClosed)
	assert.ErrorIs(t, l.ib.Update(ctxBG, func(context.Context, *Tx) error { return nil }), ErrClosed)
	assert.ErrorIs(t, l.ib.View(ctxBG, func(context.Context, *Rx) error { return nil }), ErrClosed)
	assert.ErrorIs(t, l.ib.Run(ctxBG), ErrClosed)
	_, err = l.ib.Consumer("new", apply, nil)
	assert.ErrorIs(t, err, ErrClosed)
}

func TestConsumer_Registration(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.consumer("c", nil, nil)
	for name, f := range map[string]func() (*Consumer, error){
		"twice":      func() (*Consumer, error) { return l.ib.Consumer("c", apply, nil) },
		"empty name": func() (*Consumer, error) { return l.ib.Consumer("", apply, nil) },
		"control":    func() (*Consumer, error) { return l.ib.Consumer("a\nb", apply, nil) },
		"no handler": func() (*Consumer, error) { return l.ib.Consumer("x", nil, nil) },
		"bad multiplier": func() (*Consumer, error) {
			return l.ib.Consumer("x", apply, &ConsumerOptions{Retry: RetryPolicy{Multiplier: .5}})
		},
		"max < initial": func() (*Consumer, error) {
			return l.ib.Consumer("x", apply, &ConsumerOptions{Retry: RetryPolicy{Initial: 9e9, Max: 1e9}})
		},
	} {
		_, err := f()
		assert.Error(t, err, name)
	}
	assert.NoError(t, l.ib.Update(ctxBG, func(context.Context, *Tx) error { return nil }))
}
