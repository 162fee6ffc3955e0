package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What comes in a large group comes to the same as one by one: outcomes, rows,
// effects and their order.
func TestBatch_AsOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			var groups [][]Message
			for range 3 {
				var g []Message
				for range minBare + r.IntN(4*maxBatch) {
					m := Message{
						ID: fmt.Sprint(r.IntN(400)), Source: pick(r, "", "s"), Type: pick(r, "", "", "", "", "t", "u"), Subject: pick(r, "", "a.b"),
						Key: pick(r, "", "", "", "k", "l"), Payload: []byte(pick(r, "", "x")), Headers: Header{"A": {pick(r, "1", "2")}},
					}
					if seed%2 == 0 { // long batches
						m.ID, m.Source, m.Type = fmt.Sprint(r.IntN(4000)), "", ""
					}
					if r.IntN(150) == 0 {
						m.Type = "fails"
					}
					g = append(g, m)
				}
				groups = append(groups, g)
			}
			deliver := func(together bool, groupTime time.Duration) (story []string) {
				l := newLab(t, func(o *Options) { o.groupTime = groupTime })
				h := func(ctx context.Context, tx *Tx, m *Message) error {
					if m.Type == "fails" {
						return errors.New("no")
					}
					return apply(ctx, tx, m)
				}
				cs := []*Consumer{l.consumer("c", h, nil), l.consumer("d", h, &ConsumerOptions{DropPayload: true})}
				for at, g := range groups {
					switch at {
					case 1:
						l.nextSegment()
					case 2:
						require.NoError(t, l.ib.Pause(ctxBG, "c"))
					}
					var outs []Outcome
					which := rand.New(rand.NewPCG(seed, uint64(at)))
					release, wg := func() {}, &sync.WaitGroup{}
					if together {
						outs = make([]Outcome, len(g))
						release = l.hold()
					}
					for i, m := range g {
						c := cs[0]
						if which.IntN(8) == 0 {
							c = cs[1]
						}
						store := which.IntN(8) == 0
						if !together {
							o, err := c.deliver(ctxBG, m, store)
							assert.NoError(t, err)
							outs = append(outs, o)
							continue
						}
						wg.Add(1)
						m.rule = ruleProducer
						d, err := c.delivery(m)
						require.NoError(t, err)
						d.ctx, d.store = c.ctx, store
						d.done = func(o Outcome, err error) {
							assert.NoError(t, err)
							outs[i] = o
							wg.Done()
						}
						require.NoError(t, l.ib.w.q.push(ctxBG, d))
					}
					release()
					wg.Wait()
					story = append(story, fmt.Sprint(outs))
				}
				require.NoError(t, l.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
					rows, err := rx.QueryContext(ctx, `
						SELECT concat_ws(' ', i.consumer, i.source, message_id, i.type, i.subject, i.key, i.status, i.attempts, i.last_error,
						       payload_hash, quote(i.payload), quote(m.headers), m.processed_at IS NULL, m.next_at IS NULL, m.retry_delay IS NULL, m.failures, duplicates, e.n)
						  FROM inbox i JOIN inbox_message m USING (seq, message_id) LEFT JOIN effects e USING (seq)
						 ORDER BY i.seq`)
					if err != nil {
						return err
					}
					defer rows.Close()
					for rows.Next() {
						var s string
						if err := rows.Scan(&s); err != nil {
							return err
						}
						story = append(story, s)
					}
					return rows.Err()
				}))
				return story
			}
			want := deliver(false, time.Hour)
			for _, groupTime := range []time.Duration{time.Hour, 1} {
				got := deliver(true, groupTime)
				for i := range want {
					require.Equal(t, want[i], got[i]) // not all of them in one message
				}
				assert.Len(t, got, len(want))
			}
		})
	}
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// How many statements store a group tells whether it came in batches.
func TestBatch_Statements(t *testing.T) {
	t.Parallel()
	const n = 4 * maxBatch
	plain := func(int) Message { return Message{} }
	for _, tc := range []struct {
		name string
		of   func(i int) Message
		want int64
	}{
		{"alike", plain, 4},
		{"of different types", func(i int) Message { return Message{Type: strings.Repeat("t", 1+i%2)} }, n},
		{"of two sources, one after the other", func(i int) Message { return Message{Source: strings.Repeat("s", 1+i/(n/2))} }, 4},
		{"with keys", func(i int) Message { return Message{Key: "k"} }, n + 4},                                                       // it asks for each
		{"of different types, with keys", func(i int) Message { return Message{Type: strings.Repeat("t", 1+i%2), Key: "k"} }, n + n}, // once
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, nil)
			c := l.consumer("c", nil, nil)
			group := func(round string) []Message {
				ms := make([]Message, n)
				for i := range ms {
					ms[i] = tc.of(i)
					ms[i].ID = fmt.Sprint(round, i)
				}
				return ms
			}
			l.outcomes(c, group("first")...) // names, the first of the segment
			count := l.counted()
			before := count.run.Load()
			l.outcomes(c, group("then")...)
			const others = 7 // BEGIN, data_version, COMMIT, twice; the counters
			assert.Equal(t, tc.want+n+others, count.run.Load()-before)
		})
	}
}

// Should a filter miss an identity, the constraint does not: the batch is
// refused, and each message gets its turn alone.
func TestBatch_FilterMisses(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	var ms []Message
	for i := range minBare + maxBatch {
		ms = append(ms, Message{ID: fmt.Sprint(i)})
	}
	for _, m := range ms[:3] {
		l.send(c, m.ID, Applied)
	}
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		clear(w.filters.slabs[0].words[:])
		return nil
	}))
	outs, errs := l.outcomes(c, ms...)
	for i := range ms {
		require.NoError(t, errs[i])
		if i < 3 {
			assert.Equal(t, Duplicate, outs[i])
		} else {
			assert.Equal(t, Applied, outs[i])
		}
	}
	assert.Equal(t, len(ms), l.effects(""))
}

// The same identity twice in what would be one batch.
func TestBatch_TwiceInOne(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.send(c, "first of its segment", Applied)
	var ms []Message
	var want []Outcome
	for i := range minBare {
		m := Message{ID: fmt.Sprint(i)}
		other := m
		other.Payload = []byte("other")
		ms, want = append(ms, m, m, other), append(want, Applied, Duplicate, Conflict)
	}
	outs, _ := l.outcomes(c, ms...)
	assert.Equal(t, want, outs)
	assert.Equal(t, minBare+1, l.effects(""))
}

// What is bound once for a batch, its rows have in common.
func TestBatch_Like(t *testing.T) {
	t.Parallel()
	of := func() row {
		return row{seq: 1, consumer: 1, source: 1, status: statusCompleted, attempts: 1, typ: int64(1), stream: int64(1), streamSeq: int64(1)}
	}
	a, b := of(), of()
	b.seq, b.streamSeq = 2, int64(2)
	assert.True(t, a.like(&b))
	for i, change := range []func(r *row){
		func(r *row) { r.consumer = 2 },
		func(r *row) { r.source = 2 },
		func(r *row) { r.status = statusPending },
		func(r *row) { r.typ = nil },
		func(r *row) { r.typ = int64(2) },
		func(r *row) { r.stream = nil },
		func(r *row) { r.stream = int64(2) },
	} {
		b := of()
		change(&b)
		assert.False(t, a.like(&b), i)
		assert.False(t, b.like(&a), i)
	}
}

// A row is in the file ahead of its turn only when nothing can come between.
func TestBatch_Plain(t *testing.T) {
	t.Parallel()
	key := &columns{key: "k"}
	for name, tc := range map[string]struct {
		row  row
		want bool
	}{
		"applied":           {row{status: statusCompleted, columns: &columns{}}, true},
		"applied, key":      {row{status: statusCompleted, columns: key}, true},
		"stored":            {row{status: statusPending, nextAt: int64(1), columns: &columns{}}, true},
		"stored, key":       {row{status: statusPending, nextAt: int64(1), columns: key}, false},
		"waits for its key": {row{status: statusPending, columns: key}, false},
		"failed":            {row{status: statusPending, nextAt: int64(1), lastError: "e", columns: &columns{}}, false},
		"dead":              {row{status: statusDead, lastError: "e", columns: &columns{}}, false},
	} {
		assert.Equal(t, tc.want, tc.row.plain(), name)
	}
}

// Where one may fail and leave those behind it of its key waiting, there are no
// batches: in small groups, and in large ones that run again with savepoints.
func TestBatch_OrderWhenOneFails(t *testing.T) {
	t.Parallel()
	for _, size := range []int{minBare / 2, minBare + maxBatch} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
				if m.ID == "3" {
					return errors.New("not yet")
				}
				return apply(ctx, tx, m)
			}, nil)
			l.send(c, "first of its segment", Applied)
			ms, want := make([]Message, size), make([]Outcome, size)
			for i := range ms {
				ms[i], want[i] = Message{ID: fmt.Sprint(i), Key: "k"}, Applied
				if i >= 3 {
					want[i] = Pending
				}
			}
			outs, errs := l.outcomes(c, ms...)
			assert.Equal(t, want, outs)
			assert.Equal(t, make([]error, size), errs)
		})
	}
}

// A message that must not overtake one which the disk refused is not in the
// file ahead of its turn, which it does not get.
func TestBatch_Refused(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.send(c, "first of its segment", Applied)
	full := errors.New("disk full")
	ln := &line{refused: map[string]error{"k": full}}
	ms := make([]Message, minBare+maxBatch)
	errs, want := make([]error, len(ms)), make([]error, len(ms))
	release := l.hold()
	var wg sync.WaitGroup
	for i := range ms {
		m := Message{ID: fmt.Sprint(i), Key: "l", rule: ruleProducer}
		if i%3 == 2 {
			m.Key, want[i] = "k", full
		}
		d, err := c.delivery(m)
		require.NoError(t, err)
		wg.Add(1)
		d.ctx, d.line, d.done = c.ctx, ln, func(_ Outcome, err error) { errs[i] = err; wg.Done() }
		require.NoError(t, l.ib.w.q.push(ctxBG, d))
	}
	release()
	wg.Wait()
	assert.Equal(t, want, errs)
	assert.Equal(t, 1+len(ms)-len(ms)/3, l.effects(""))
}
