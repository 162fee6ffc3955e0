package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRetryPolicy_Decide(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	var def RetryPolicy
	require.NoError(t, def.setDefaults())
	none := RetryPolicy{Jitter: -1, MaxAttempts: 3}
	require.NoError(t, none.setDefaults())
	endless := RetryPolicy{MaxAttempts: -1, Jitter: -1}
	require.NoError(t, endless.setDefaults())
	const now = 1_000_000
	for _, tt := range []struct {
		name               string
		p                  RetryPolicy
		attempts, failures int64
		err                error
		want               status
		delay              time.Duration
		counted            int64
	}{
		{"first", none, 0, 0, boom, statusPending, time.Second, 1},
		{"second", none, 1, 1, boom, statusPending, 2 * time.Second, 2},
		{"last", none, 2, 2, boom, statusDead, 0, 3},
		{"permanent", none, 0, 0, Permanent(boom), statusDead, 0, 1},
		{"permanent, wrapped", none, 0, 0, fmt.Errorf("wrapped: %w", Permanent(boom)), statusDead, 0, 1},
		{"after", none, 0, 0, RetryAfter(time.Minute, boom), statusPending, time.Minute, 1},
		{"after, in an outage", none, 0, 0, Outage(RetryAfter(time.Minute, boom)), statusPending, time.Minute, 0},
		{"after, negative", none, 0, 0, RetryAfter(-time.Minute, boom), statusPending, 0, 1},
		{"after, the last", none, 2, 2, RetryAfter(time.Minute, boom), statusDead, 0, 3},
		{"outage does not count", none, 2, 2, Outage(boom), statusPending, 4 * time.Second, 2},
		{"outage, for long", none, 2, 500, Outage(boom), statusPending, time.Hour, 2},
		{"permanent outage", none, 0, 0, Outage(Permanent(boom)), statusDead, 0, 0},
		{"no limit", endless, 1 << 40, 1 << 40, boom, statusPending, time.Hour, 1<<40 + 1},
	} {
		f := tt.p.decide(tt.attempts, tt.failures, tt.err, now, .5)
		assert.Equal(t, tt.want, f.status, tt.name)
		assert.Equal(t, tt.counted, f.attempts, tt.name)
		if tt.want == statusPending {
			assert.EqualValues(t, now+tt.delay.Milliseconds(), f.nextAt, tt.name)
			assert.EqualValues(t, tt.delay.Milliseconds(), f.delay, tt.name)
		}
	}
	assert.Equal(t, 20, def.MaxAttempts)
	assert.NoError(t, Permanent(nil))
	assert.NoError(t, RetryAfter(1, nil))
	assert.NoError(t, Outage(nil))
}

func TestRetryPolicy_JitterBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := RetryPolicy{
			Initial:    time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "initial")),
			Multiplier: rapid.Float64Range(1, 10).Draw(t, "multiplier"),
			Jitter:     rapid.Float64Range(0.001, 1).Draw(t, "jitter"),
		}
		p.Max = p.Initial * time.Duration(rapid.Int64Range(1, 1000).Draw(t, "max"))
		require.NoError(t, p.setDefaults())
		n := rapid.Int64Range(1, 10_000).Draw(t, "failures")
		d := p.delay(n, rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "rnd"))
		plain := math.Min(float64(p.Initial)*math.Pow(p.Multiplier, float64(n-1)), float64(p.Max))
		assert.GreaterOrEqual(t, float64(d), plain*(1-p.Jitter)-1)
		assert.LessOrEqual(t, float64(d), math.Max(plain*(1+p.Jitter)+1, float64(time.Millisecond)))
	})
}

// TestRun_Backoff runs the schedule on a fake clock: attempts come when they
// are due, not before, and end with the message dead.
func TestRun_Backoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(start))
			assert.Equal(t, len(at), m.Attempt)
			return errors.New("boom")
		}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Second, Max: 10 * time.Second, Jitter: -1, MaxAttempts: 6}})
		l.run()
		o, err := c.Process(ctxBG, Message{ID: "1"})
		require.NoError(t, err)
		require.Equal(t, Pending, o)
		pass(time.Minute) // of the bubble's time
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, at, 6)
		for i, want := range []time.Duration{0, 1, 3, 7, 15, 25} {
			assert.InDelta(t, float64(want*time.Second), float64(at[i]), float64(50*time.Millisecond), "attempt %d", i+1)
		}
		assert.Equal(t, "dead", l.status("1"))
		assert.Equal(t, 1, l.alerts.count(AlertDead))
	})
}

func TestRun_RetryAfterAndOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		start := time.Now()
		var last, n atomic.Int64
		c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
			last.Store(int64(time.Since(start)))
			switch k := n.Add(1); {
			case k == 1:
				return RetryAfter(time.Minute, errors.New("come back"))
			case k < 40:
				return Outage(errors.New("the printer is off"))
			}
			assert.Equal(t, 2, m.Attempt, "an outage does not use up attempts")
			return apply(ctx, tx, m)
		}, &ConsumerOptions{Retry: RetryPolicy{MaxAttempts: 2, Max: 5 * time.Second}})
		l.run()
		_, err := c.Process(ctxBG, Message{ID: "1"})
		require.NoError(t, err)
		pass(time.Minute - time.Second)
		synctest.Wait()
		assert.EqualValues(t, 1, n.Load())
		pass(2 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 2, n.Load())
		assert.InDelta(t, float64(time.Minute), float64(last.Load()), float64(50*time.Millisecond))
		pass(4 * time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 40, n.Load())
		assert.Equal(t, "completed", l.status("1"))
	})
}

// TestRun_ClockJumps sets the clock ten years forward and back: no retry is
// stranded, none is lost.
func TestRun_ClockJumps(t *testing.T) {
	t.Parallel()
	const decade = 10 * 365 * 24 * time.Hour
	for name, jumps := range map[string][]time.Duration{
		"back": {-decade}, "forward": {decade}, "forward and back": {decade, -decade}, "back and forward": {-decade, decade},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				t.Parallel()
				clock := newFakeClock()
				l := newLab(t, func(o *Options) { o.clock.now = clock.now })
				var fail atomic.Int64
				fail.Store(1)
				handler := func(ctx context.Context, tx *Tx, m *Message) error {
					if fail.Load() > 0 {
						return errors.New("not yet")
					}
					return apply(ctx, tx, m)
				}
				// A wait of 300 ms by the clock, of which a real one passes.
				opts := &ConsumerOptions{Retry: RetryPolicy{Initial: 300 * time.Millisecond, Max: 300 * time.Millisecond, MaxAttempts: -1}}
				c := l.consumer("c", handler, opts)
				stop := l.run()
				o, err := c.Process(ctxBG, Message{ID: "1"})
				require.NoError(t, err)
				require.Equal(t, Pending, o)
				for _, j := range jumps {
					if restart {
						stop()
						l.close()
					}
					clock.add(j)
					if restart {
						l.open()
						c = l.consumer("c", handler, opts)
						stop = l.run()
					}
					// Another fails under the new clock.
					_, err := c.Process(ctxBG, Message{ID: "at " + j.String()})
					require.NoError(t, err)
				}
				fail.Store(0)
				l.eventually(func() bool {
					clock.add(5 * time.Millisecond) // it ticks
					return l.effects("") == 1+len(jumps)
				}, "all applied")
			})
		}
	}
}

// TestRun_OrderByKey: messages of one key take effect in order of arrival,
// across failures, restarts and the poller.
func TestRun_OrderByKey(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			var fail atomic.Bool
			fail.Store(true)
			handler := func(ctx context.Context, tx *Tx, m *Message) error {
				if m.ID == "a1" && fail.Load() || m.ID == "a3" && m.Attempt < 3 {
					return errors.New("not yet")
				}
				return apply(ctx, tx, m)
			}
			opts := &ConsumerOptions{Retry: RetryPolicy{Initial: 5 * time.Millisecond, Max: 10 * time.Millisecond, MaxAttempts: -1}}
			c := l.consumer("c", handler, opts)
			stop := l.run()
			for _, id := range []string{"a1", "b1", "a2", "b2", "a3", "none", "a4", "a5"} {
				key := id[:1]
				if id == "none" {
					key = ""
				}
				o, err := c.Process(ctxBG, Message{ID: id, Key: key})
				require.NoError(t, err)
				if key == "a" {
					assert.Equal(t, Pending, o, id)
				} else {
					assert.Equal(t, Applied, o, id)
				}
			}
			other := l.consumer("other", nil, nil)
			o, err := other.Process(ctxBG, Message{ID: "a9", Key: "a"})
			require.NoError(t, err)
			assert.Equal(t, Applied, o, "a key belongs to its consumer")
			if restart {
				stop()
				l.close()
				l.open()
				c = l.consumer("c", handler, opts)
				l.run()
			}
			o, err = c.Process(ctxBG, Message{ID: "a6", Key: "a"})
			require.NoError(t, err)
			assert.Equal(t, Pending, o)
			assert.Zero(t, l.effects("a2"))
			fail.Store(false)
			l.eventually(func() bool { return l.status("a6") == "completed" }, "the key flows again")
			order := value[string](l, `SELECT group_concat(id) FROM (SELECT id FROM effects WHERE id LIKE 'a%' AND id <> 'a9' ORDER BY n)`)
			assert.Equal(t, "a1,a2,a3,a4,a5,a6", order)
		})
	}
}

func TestRun_DeadBlocksItsKeyOrNot(t *testing.T) {
	t.Parallel()
	for _, passes := range []bool{false, true} {
		t.Run(fmt.Sprintf("DeadPasses %v", passes), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			handler := func(ctx context.Context, tx *Tx, m *Message) error {
				if m.ID == "bad" {
					return Permanent(errors.New("never"))
				}
				if m.ID == "late" && m.Attempt < 3 {
					return errors.New("not yet")
				}
				return apply(ctx, tx, m)
			}
			opts := &ConsumerOptions{DeadPasses: passes, Retry: RetryPolicy{Initial: time.Millisecond}}
			c := l.consumer("c", handler, opts)
			l.run()
			process := func(id string) Outcome {
				o, err := c.Process(ctxBG, Message{ID: id, Key: "k"})
				require.NoError(t, err)
				return o
			}
			assert.Equal(t, Dead, process("bad"))
			if passes {
				assert.Equal(t, Applied, process("1"))
				assert.Equal(t, Pending, process("late"))
				assert.Equal(t, Pending, process("2"))
				l.eventually(func() bool { return l.effects("2") == 1 }, "passed the dead one, in order")
				return
			}
			assert.Equal(t, Pending, process("1"))
			assert.Equal(t, Pending, process("2"))
			n, err := l.ib.Discard(ctxBG, Selection{Consumer: "c", IDs: []string{"bad"}})
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			l.eventually(func() bool { return l.effects("2") == 1 }, "the key flows again")
			assert.Equal(t, "1,2", value[string](l, `SELECT group_concat(id) FROM (SELECT id FROM effects ORDER BY n)`))
			assert.Equal(t, Duplicate, process("bad"), "discarded, but known")
			assert.Equal(t, 1, value[int](l, `SELECT payload IS NULL FROM inbox WHERE message_id = 'bad'`))
		})
	}
	t.Run("the policy changes", func(t *testing.T) {
		t.Parallel()
		l := newLab(t, nil)
		handler := func(ctx context.Context, tx *Tx, m *Message) error {
			if m.ID == "bad" {
				return Permanent(errors.New("never"))
			}
			return apply(ctx, tx, m)
		}
		c := l.consumer("c", handler, nil)
		for _, id := range []string{"bad", "1", "2"} {
			_, err := c.Process(ctxBG, Message{ID: id, Key: "k"})
			require.NoError(t, err)
		}
		l.close()
		l.open()
		l.consumer("c", handler, &ConsumerOptions{DeadPasses: true})
		l.run()
		l.eventually(func() bool { return l.effects("") == 2 }, "let through")
	})
}

func TestRetryReplayDiscard(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.replays = true
	var bad atomic.Bool
	bad.Store(true)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if bad.Load() && m.ID[0] == 'd' {
			return Permanent(errors.New("never"))
		}
		return apply(ctx, tx, m)
	}, nil)
	l.run()
	for _, id := range []string{"d1", "d2", "d3", "c1", "c2"} {
		_, err := c.Process(ctxBG, Message{ID: id, Source: "s", Payload: []byte(id)})
		require.NoError(t, err)
	}
	seq := value[int](l, `SELECT seq FROM inbox_message WHERE message_id = 'd1'`)

	for name, sel := range map[string]Selection{
		"empty": {Consumer: "c"}, "no consumer": {All: true}, "all and ids": {Consumer: "c", All: true, IDs: []string{"d1"}},
		"unknown consumer": {Consumer: "x", All: true}, "no such id": {Consumer: "c", IDs: []string{"zz"}},
		"not dead": {Consumer: "c", IDs: []string{"c1"}}, "other source": {Consumer: "c", IDs: []string{"d1"}, Source: "t"},
	} {
		n, err := l.ib.Retry(ctxBG, sel)
		assert.Error(t, err, name)
		assert.Zero(t, n, name)
	}
	bad.Store(false)
	n, err := l.ib.Retry(ctxBG, Selection{Consumer: "c", IDs: []string{"d1", "c1", "zz"}, Source: "s"})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	l.eventually(func() bool { return l.status("d1") == "completed" }, "retried")
	assert.Equal(t, seq, value[int](l, `SELECT seq FROM inbox_message WHERE message_id = 'd1'`), "the same row")
	assert.Equal(t, 1, value[int](l, `SELECT attempts FROM inbox WHERE message_id = 'd1'`))

	n, err = l.ib.Discard(ctxBG, Selection{Consumer: "c", IDs: []string{"d2", "d2"}})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	_, err = l.ib.Retry(ctxBG, Selection{Consumer: "c", IDs: []string{"d2"}})
	assert.ErrorIs(t, err, ErrNoMatch, "gone for good")
	n, err = l.ib.Retry(ctxBG, Selection{Consumer: "c", All: true})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	l.eventually(func() bool { return l.status("d3") == "completed" }, "retried")

	o, err := c.Process(ctxBG, Message{ID: "c1", Source: "s", Payload: []byte("c1")})
	require.NoError(t, err)
	assert.Equal(t, Duplicate, o)
	n, err = l.ib.Replay(ctxBG, Selection{Consumer: "c", IDs: []string{"c1"}})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	l.eventually(func() bool { return l.effects("c1") == 2 }, "replayed, which was the intention")
	n, err = l.ib.Replay(ctxBG, Selection{Consumer: "c", From: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	assert.Zero(t, n)
	n, err = l.ib.Replay(ctxBG, Selection{Consumer: "c", From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	assert.Equal(t, 4, n)
	l.eventually(func() bool { return l.effects("") == 9 }, "replayed by time")
	assert.Equal(t, 5, value[int](l, `SELECT count(*) FROM inbox`), "the same rows, never a copy")
}

// TestReplay_ByIDsInOrder: whatever the order of the ids, and however many, a
// key's messages run in the order of their arrival.
func TestReplay_ByIDsInOrder(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.replays = true
	c := l.consumer("c", nil, nil)
	const n = 2*changeBatch + 50
	var ms []Message
	var ids []string
	for i := range n {
		id := fmt.Sprintf("%05d", i)
		ms = append(ms, Message{ID: id, Key: "k"})
		ids = append(ids, id, id)
	}
	l.outcomes(c, ms...)
	slices.Reverse(ids)
	l.update(`DELETE FROM effects`)
	got, err := l.ib.Replay(ctxBG, Selection{Consumer: "c", IDs: ids})
	require.NoError(t, err)
	assert.Equal(t, n, got)
	l.run()
	l.eventually(func() bool { return l.effects("") == n }, "replayed")
	assert.Empty(t, values[string](l, `SELECT id FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM effects) WHERE before > id`), "out of order")
}

// TestAttempts: each failed attempt is kept with its error, the last fifty of a
// message.
func TestAttempts(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.Attempt > 60 {
			return apply(ctx, tx, m)
		}
		return fmt.Errorf("attempt %d", m.Attempt)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Millisecond, Multiplier: 1, MaxAttempts: -1}})
	_, err := c.Process(ctxBG, Message{ID: "other", Payload: []byte("x")})
	require.NoError(t, err)
	l.run()
	l.eventually(func() bool { return l.status("other") == "completed" }, "applied")
	texts := values[string](l, `SELECT attempt || ': ' || error FROM inbox_attempts`)
	require.Len(t, texts, 50)
	assert.Equal(t, "11: attempt 11", texts[0])
	assert.Equal(t, "60: attempt 60", texts[49])
}

func TestReplay_ManyInOrder(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.replays = true
	c := l.consumer("c", nil, nil)
	const n = 2*changeBatch + 17
	for i := range n {
		require.NoError(t, c.Submit(ctxBG, Message{ID: fmt.Sprintf("%05d", i), Key: "k"}, func(Outcome, error) {}))
	}
	l.update(`SELECT 1`)
	got, err := l.ib.Replay(ctxBG, Selection{Consumer: "c", All: true})
	require.NoError(t, err)
	require.Equal(t, n, got)
	l.run()
	l.eventually(func() bool { return l.effects("") == 2*n }, "replayed")
	assert.Equal(t, 1, value[int](l, `SELECT (SELECT group_concat(id) FROM (SELECT id FROM effects WHERE n > ?1 ORDER BY n)) =
	                                         (SELECT group_concat(id) FROM (SELECT id FROM effects WHERE n > ?1 ORDER BY id))`, n), "in their order")
}

func TestPauseResume(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	stop := l.run()
	require.NoError(t, l.ib.Pause(ctxBG, "c"))
	assert.True(t, c.Paused())
	o, err := c.Process(ctxBG, Message{ID: "1", Key: "k"})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	_, err = c.Receive(ctxBG, Message{ID: "2", Key: "k"})
	require.NoError(t, err)
	stop()
	l.close()
	l.open()
	c = l.consumer("c", nil, nil)
	assert.True(t, c.Paused(), "it lasts over a restart")
	l.run()
	o, err = c.Process(ctxBG, Message{ID: "3", Key: "k"})
	require.NoError(t, err)
	assert.Equal(t, Pending, o)
	assert.Zero(t, l.effects(""))
	require.NoError(t, l.ib.Resume(ctxBG, "c"))
	l.eventually(func() bool { return l.effects("") == 3 }, "resumed")
	assert.Equal(t, "1,2,3", value[string](l, `SELECT group_concat(id) FROM (SELECT id FROM effects ORDER BY n)`))
	assert.ErrorIs(t, l.ib.Pause(ctxBG, "nobody"), ErrUnknownConsumer)
}

// TestRun_RedeliveryMeetsRetry: a message is redelivered while the poller
// retries its row, again and again; it takes effect once.
func TestRun_RedeliveryMeetsRetry(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.Attempt < 20 {
			return errors.New("not yet")
		}
		return apply(ctx, tx, m)
	}, &ConsumerOptions{Retry: RetryPolicy{Initial: time.Millisecond, Max: time.Millisecond, MaxAttempts: 100}})
	l.run()
	_, err := c.Process(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for l.status("1") != "completed" {
				o, err := c.Process(ctxBG, Message{ID: "1"})
				assert.NoError(t, err)
				assert.Equal(t, Duplicate, o)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 1, l.effects("1"))
	assert.Equal(t, 20, value[int](l, `SELECT attempts FROM inbox`))
}

// TestRun_UnknownConsumer: rows of a consumer that is not registered wait.
func TestRun_UnknownConsumer(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("old", nil, nil)
	_, err := c.Receive(ctxBG, Message{ID: "1"})
	require.NoError(t, err)
	l.close()
	l.open()
	l.run()
	other := l.consumer("new", nil, nil)
	_, err = other.Receive(ctxBG, Message{ID: "2"})
	require.NoError(t, err)
	l.eventually(func() bool { return l.status("2") == "completed" }, "the poller came past")
	assert.Equal(t, "pending", l.status("1"))
	assert.Equal(t, 0, value[int](l, `SELECT attempts FROM inbox WHERE message_id = '1'`))
	l.consumer("old", nil, nil)
	l.eventually(func() bool { return l.status("1") == "completed" }, "it is back")
}

func TestStats(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	var mu sync.Mutex
	var outs []Outcome
	l.close()
	l.opts.Observer.Delivered = func(c string, o Outcome) {
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, "c", c)
		outs = append(outs, o)
	}
	var failed atomic.Int64
	l.opts.Observer.Failed = func(c, id string, attempt int, err error) { failed.Add(1) }
	l.open()
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		switch m.ID {
		case "dead":
			return Permanent(errors.New("never"))
		case "later":
			return RetryAfter(time.Hour, errors.New("later"))
		case "twice":
			if m.Attempt == 1 {
				return RetryAfter(0, errors.New("again"))
			}
		}
		return apply(ctx, tx, m)
	}, nil)
	before := time.Now().Add(-time.Second)
	for _, m := range []Message{{ID: "1"}, {ID: "1"}, {ID: "1", Payload: []byte("other")}, {ID: "dead"}, {ID: "later"}, {ID: "twice"}} {
		_, err := c.Process(ctxBG, m)
		require.NoError(t, err)
	}
	l.run()
	l.eventually(func() bool { return l.status("twice") == "completed" }, "retried")
	s, err := l.ib.Stats(ctxBG)
	require.NoError(t, err)
	got := s.Consumers["c"]
	assert.WithinRange(t, got.OldestPending, before, time.Now().Add(time.Second))
	got.OldestPending = time.Time{}
	assert.Equal(t, ConsumerStats{Pending: 1, Completed: 2, Dead: 1, Applied: 2, Duplicates: 1, Conflicts: 1, Retries: 1, Failures: 3}, got)
	assert.Positive(t, s.DatabaseBytes)
	assert.Positive(t, s.WALBytes)
	assert.GreaterOrEqual(t, s.Commits.Count, uint64(7))
	assert.Equal(t, s.Commits.Count, s.GroupSizes.Count)
	l.eventually(func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(outs) > 6 && outs[len(outs)-1] == Applied
	}, "the observer is told after the commit")
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []Outcome{Applied, Duplicate, Conflict, Dead, Pending, Pending}, outs[:6])
	assert.EqualValues(t, 3, failed.Load())
}
