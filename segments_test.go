package inbox

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	random := func() *footprint {
		var id [32]byte
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		p := newFootprint(id)
		return &p
	}
	f := &filters{}
	const segments = 70 // more than a slab
	in := make([][]*footprint, segments)
	for s := range in {
		if s == 3 || s == 65 {
			continue // not ready
		}
		f.begin(int64(s))
		for range segmentSize {
			p := random()
			f.add(int64(s), p)
			in[s] = append(in[s], p)
		}
	}
	kept := &filters{}
	for s := range int64(segments) {
		if in[s] != nil {
			text, crc := f.encode(s)
			require.NoError(t, kept.decode(s, text, crc))
		}
	}
	for _, f := range []*filters{f, kept} {
		missed := 0
		for s := range in {
			for _, p := range in[s] {
				got := slices.Collect(f.before(segments-1, p))
				if !slices.Contains(got, int64(s)) || !slices.Contains(got, 3) || !slices.Contains(got, 65) ||
					!slices.IsSortedFunc(got, func(a, b int64) int { return cmp.Compare(b, a) }) {
					missed++
				}
			}
		}
		require.Zero(t, missed)
		wrong := 0
		const questions = 50_000
		for range questions {
			wrong += len(slices.Collect(f.before(segments-1, random()))) - 2
		}
		assert.Less(t, float64(wrong)/questions/(segments-2), 1/20_000.)
		assert.NotContains(t, slices.Collect(f.before(8, in[9][0])), int64(9))
		assert.Empty(t, slices.Collect(f.before(-1, in[9][0])))
	}
	assert.Equal(t, []int64{1, 0}, slices.Collect((&filters{}).before(1, in[9][0])), "nothing is known")
	assert.Len(t, slices.Collect((&filters{}).before(200, in[9][0])), 201)

	text, crc := f.encode(9)
	assert.ErrorContains(t, kept.decode(9, text[1:], crc), "24575 bytes, not 24576")
	assert.ErrorContains(t, kept.decode(8, text, crc), "checksum", "another segment's")
	text[r.IntN(len(text))] ^= 1 << r.IntN(8)
	assert.ErrorContains(t, kept.decode(9, text, crc), "checksum")
}

// send processes a message.
func (l *lab) send(c *Consumer, id string, want Outcome) {
	l.t.Helper()
	o, err := c.Process(ctxBG, Message{ID: id})
	require.NoError(l.t, err)
	require.Equal(l.t, want, o, "%q", id)
}

// nextSegment makes the next message the first of a segment, as if the one
// before it were full.
func (l *lab) nextSegment() {
	l.t.Helper()
	require.NoError(l.t, l.ib.do(ctxBG, jumpSegment))
}

// inSegments processes messages, each as the first of a segment.
func (l *lab) inSegments(c *Consumer, ids ...string) {
	l.t.Helper()
	for i, id := range ids {
		if i > 0 {
			l.nextSegment()
		}
		l.send(c, id, Applied)
	}
}

func jumpSegment(w *writer) error {
	seq, err := w.seq()
	if seq%segmentSize != 0 { // never past one that has no message
		w.nextSeq = (seq>>segmentBits + 1) << segmentBits
	}
	return err
}

// pretendKept keeps the background from a segment, until kept is taken back.
func (l *lab) pretendKept(segment int64) {
	l.t.Helper()
	require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
		b, bit := w.filters.of(segment)
		b.kept |= bit
		return nil
	}))
}

// unkeep takes kept back.
func (w *writer) unkeep(segment int64) {
	b, bit := w.filters.of(segment)
	b.kept &^= bit
}

// tamper changes what the program's own statements may not.
func (l *lab) tamper(stmts string) {
	l.t.Helper()
	require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
		_, err := w.conn.exec(query{text: stmts})
		return err
	}))
}

// filters waits until the segments before the newest have their filters.
func (l *lab) filters(n int) {
	l.t.Helper()
	l.eventually(func() bool {
		have := 0
		require.NoError(l.t, l.ib.do(ctxBG, func(w *writer) error {
			for _, b := range w.filters.slabs {
				have += bits.OnesCount64(b.ready & b.kept)
			}
			return nil
		}))
		return have == n
	}, "%d filters", n)
}

// hostileIDs are ids that a database might give back as others.
var hostileIDs = []string{"a", "A", "a\x00b", "a\x00", "\xff\xfe", "ä", "a\u0308", " a", "1", "01", "1.0", "0x1", string(make([]byte, 300))}

// A message is known whatever segment its first copy is in, and whatever the
// filters stand at: not made yet, made, read from the file, damaged, dropped.
func TestSegments(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	const segments = 4
	message := func(segment int, id string) Message {
		return Message{ID: fmt.Sprint(segment, " ", id), Source: fmt.Sprint("source ", segment%2), Payload: []byte(id)}
	}
	for s := range segments {
		if s > 0 {
			l.nextSegment()
		}
		var ms []Message
		for _, id := range hostileIDs {
			ms = append(ms, message(s, id), message(s, id)) // and again at once
		}
		outs, errs := l.outcomes(c, ms...)
		for i := range ms {
			require.NoError(t, errs[i])
			require.Equal(t, []Outcome{Applied, Duplicate}[i%2], outs[i])
		}
	}
	n := segments * len(hostileIDs)
	copies := int64(n)
	again := func(when string) {
		t.Helper()
		for s := range segments {
			for _, id := range hostileIDs {
				o, err := c.Process(ctxBG, message(s, id))
				require.NoError(t, err)
				require.Equal(t, Duplicate, o, "%q of segment %d, %s", id, s, when)
				copies++
			}
		}
		m := message(0, "a")
		m.Payload = []byte("another")
		o, err := c.Process(ctxBG, m)
		require.NoError(t, err)
		assert.Equal(t, Conflict, o, when)
		assert.Equal(t, n, l.effects(""), when)
		assert.Equal(t, copies, l.stats("c").Duplicates)
	}
	reopen := func() {
		l.close()
		l.open()
		c = l.consumer("c", nil, nil)
	}
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error { w.filters = filters{}; return nil }))
	again("without filters")
	reopen()
	l.filters(segments - 1)
	assert.Equal(t, segments-1, value[int](l, `SELECT count(*) FROM inbox_filter`))
	again("with filters out of the file")

	for _, damage := range []string{
		`UPDATE inbox_filter SET bits = zeroblob(24576) WHERE segment = 1`,
		`UPDATE inbox_filter SET bits = x'' WHERE segment = 2`,
		`DELETE FROM inbox_filter WHERE segment = 0`,
		`INSERT INTO inbox_filter VALUES (1 << 50, 1, x''), (-1, 1, x'')`,
	} {
		l.tamper(damage)
	}
	reopen()
	l.filters(segments - 1)
	again("with filters made anew")
	assert.Equal(t, segments-1, value[int](l, `SELECT count(*) FROM inbox_filter WHERE length(bits) = 24576 AND bits <> zeroblob(24576)`))
}

// A program that ends within a segment has not filled its filter: that is made
// from the rows.
func TestSegments_RestartWithin(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	for _, id := range []string{"1", "2", "3"} {
		l.send(l.consumer("c", nil, nil), id, Applied)
		if id < "3" {
			l.close()
			l.open()
		}
	}
	l.nextSegment()
	c := l.ib.consumers["c"]
	for _, made := range []bool{false, true} {
		for _, id := range []string{"1", "2", "3"} {
			l.send(c, id, Duplicate)
		}
		if !made {
			l.send(c, "4", Applied)
			l.filters(1)
		}
	}
}

// Rows that are deleted before their segment's filter is kept: it takes messages
// again, so its filter waits.
func TestSegments_DeletedBeforeKept(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.inSegments(c, "1", "2")
	l.filters(1)
	l.nextSegment()
	l.pretendKept(1) // sealing comes later
	l.send(c, "3", Applied)
	l.tamper(`DELETE FROM inbox_message WHERE seq >= 2 << 13; DELETE FROM effects WHERE seq >= 2 << 13; UPDATE inbox_consumer SET completed = 2`)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		w.unkeep(1)
		w.nextSeq = 0 // as after a lost group
		return w.keep(1)
	}))
	assert.Equal(t, 1, value[int](l, `SELECT count(*) FROM inbox_filter`))
	l.send(c, "4", Applied)
	l.close()
	l.open()
	c = l.consumer("c", nil, nil)
	l.nextSegment()
	for _, id := range []string{"4", "2", "1"} {
		l.send(c, id, Duplicate)
	}
}

// A filter whose transaction is lost is not in the file, and is put there later.
func TestSegments_KeptInALostGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.send(c, "1", Applied)
	l.nextSegment()
	l.pretendKept(0)
	l.send(c, "2", Applied)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
		b, bit := w.filters.of(0)
		assert.NotZero(t, b.ready&bit, "it was filled with its segment")
		return nil
	}))
	require.Error(t, l.ib.do(ctxBG, func(w *writer) error {
		w.unkeep(0)
		if err := w.keep(0); err != nil {
			return err
		}
		return &lostError{errors.New("lost")}
	}))
	_, err := l.ib.seal(ctxBG) // the background may be at it too
	require.NoError(t, err)
	l.eventually(func() bool { return value[int](l, `SELECT count(*) FROM inbox_filter`) == 1 }, "kept")
	l.filters(1)
}

// The administrator finds a message by its id in any segment.
func TestSegments_Selection(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	refuse := true
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if refuse {
			return Permanent(errors.New("not yet"))
		}
		return apply(ctx, tx, m)
	}, nil)
	for s := range 3 {
		l.send(c, fmt.Sprint(s), Dead)
		l.nextSegment()
	}
	refuse = false
	l.run()
	n, err := l.ib.Retry(ctxBG, Selection{Consumer: "c", IDs: []string{"2", "0"}})
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	l.eventually(func() bool { return l.effects("") == 2 }, "applied")
	n, err = l.ib.Discard(ctxBG, Selection{Consumer: "c", IDs: []string{"1"}})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	for s := range 3 {
		l.send(c, fmt.Sprint(s), Duplicate)
	}
}

// A group that begins a segment and is lost leaves no trace of it.
func TestSegments_LostGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE uniq (x UNIQUE); INSERT INTO uniq VALUES (1)`)
	c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		if m.ID == "kill" {
			_, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO uniq VALUES (1)`)
			return err
		}
		return apply(ctx, tx, m)
	}, nil)
	l.send(c, "first", Applied)
	require.NoError(t, l.ib.do(ctxBG, func(w *writer) error { w.nextSeq = segmentSize - 2; return nil }))
	var ms []Message
	for _, id := range []string{"1", "2", "3", "first", "1", "kill", "4", "3"} {
		ms = append(ms, Message{ID: id})
	}
	outs, errs := l.outcomes(c, ms...)
	for i := range ms {
		require.NoError(t, errs[i])
	}
	assert.Equal(t, []Outcome{Applied, Applied, Applied, Duplicate, Duplicate, Pending, Applied, Duplicate}, outs)
	assert.Equal(t, 5, l.effects(""))
}

// Rows that somebody deleted do not bring messages into a segment that has its
// filter already, where they would not be found again.
func TestSegments_DeletedRows(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	l.inSegments(c, "1", "2", "3")
	l.filters(2)
	l.tamper(`DELETE FROM inbox_message WHERE seq > 1; DELETE FROM effects WHERE seq > 1; UPDATE inbox_consumer SET completed = 1`)
	l.close()
	l.open()
	c = l.consumer("c", nil, nil)
	for range 3 {
		l.send(c, "2", map[bool]Outcome{true: Applied, false: Duplicate}[l.effects("2") == 0])
		l.send(c, "1", Duplicate)
	}
	l.nextSegment()
	l.send(c, "4", Applied)
	l.filters(3)
	l.send(c, "2", Duplicate)
	assert.Equal(t, 1, l.effects("2"))
}

// What looks for an identity does it by the index, and whole.
func TestSegments_Plans(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	for text, params := range map[string]int{qLookup.text: 4, qChooseID.text: 6} {
		var plan []string
		require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
			row := make([]driver.Value, 4)
			return w.conn.each(query{text: "EXPLAIN QUERY PLAN " + text}, row, func() error {
				plan = append(plan, fmt.Sprint(row[3]))
				return nil
			}, make([]driver.Value, params)...)
		}))
		assert.Contains(t, strings.Join(plan, "\n"), "USING INDEX inbox_message_identity (<expr>=? AND message_id=? AND consumer=?", text)
	}
}
