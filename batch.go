package inbox

// Batches: half of what an INSERT costs is the statement, not the row. So in a
// large group, messages that are new for certain are inserted many at a time,
// ahead of their turns; then each has its turn, in order. For certain: the
// filters say so (segments.go), which are never wrong about that; and should
// they be, the constraint refuses, and the group is replayed.

import (
	"database/sql/driver"
	"strings"
)

// maxBatch is how many messages one statement inserts.
const maxBatch = 16

// A batch is the rows of the jobs from, from + 1, … to - 1 of the group, which
// are in the file before their turns.
type batch struct {
	rows     [maxBatch]row
	from, to int
	args     []driver.Value
}

// of is the row of the group's job at, nil when it is none of the batch.
func (b *batch) of(at int) *row {
	if at < b.from || at >= b.to {
		return nil
	}
	return &b.rows[at-b.from]
}

// end forgets the batch, and holds on to no message.
func (b *batch) end() {
	clear(b.rows[:])
	b.from, b.to = 0, 0
}

// qInsertBatch are the statements for 2, 3, … maxBatch rows. What their rows
// have in common is bound once. A constraint that refuses one leaves those before
// it in place, OR FAIL: nobody needs them out, since the transaction is given up
// then, and to be able to would cost a copy of each page at every statement.
var qInsertBatch = func() (qs [maxBatch + 1]query) {
	const values = `(?, ?, ?, ?, ?, ?, ?, ?)`
	for n := 2; n <= maxBatch; n++ {
		qs[n] = newQuery(`
			INSERT OR FAIL INTO inbox_message (seq, consumer, source, message_id, hash, status, attempts, failures,
			                                   received_at, processed_at, next_at, retry_delay,
			                                   type, subject, key, stream, stream_seq, headers, payload)
			SELECT column1, ?, ?, column2, column3, ?, ?, 0, ?, ?, ?, ?, ?, column4, column5, ?, column6, column7, column8
			  FROM (VALUES ` + values + strings.Repeat(`, `+values, n-1) + `)`)
	}
	return qs
}()

// insertBatch makes a batch of the messages whose turns are next, if there is
// none and they are fit for one.
func (w *writer) insertBatch() error {
	b := &w.batch
	if !w.bare || w.at < b.to {
		return nil
	}
	seq, err := w.seq()
	if err != nil {
		return err
	}
	n := 0
	for n < maxBatch && w.at+n < len(w.group) {
		d, ok := w.group[w.at+n].(*delivery)
		if !ok || !d.plain() {
			break
		}
		r := &b.rows[n]
		if err := d.plan(w, r, seq+int64(n)); err != nil {
			return err
		}
		if !r.plain() || !r.like(&b.rows[0]) || w.mayKnow(r) {
			break
		}
		w.enter(r.seq, r.columns) // the next one may be the same
		n++
	}
	if n < 2 {
		return nil
	}
	b.args = append(b.args[:0], b.rows[0].common(w.nowValue)...)
	for i := range b.rows[:n] {
		b.args = b.rows[i].own(b.args)
	}
	_, err = w.conn.exec(qInsertBatch[n], b.args...)
	clear(b.args)
	if err != nil {
		return w.fail("storing messages", err)
	}
	w.nextSeq = seq + int64(n)
	b.from, b.to = w.at, w.at+n
	return nil
}

// plain says that nothing about the delivery needs a look of its own. A stored
// message with a key may have to wait for one of the same batch.
func (d *delivery) plain() bool {
	return d.m.invalid == "" && d.fault == nil && d.refused() == nil && (d.m.Key == "" || !d.store && !d.c.paused.Load())
}

// plain says that the row is that of a message which is applied at once, or is
// due at once.
func (r *row) plain() bool {
	return r.lastError == nil && (r.status == statusCompleted || r.status == statusPending && r.nextAt != nil)
}

// like says that r has in common with s what is bound once for a batch.
func (r *row) like(s *row) bool {
	return r.consumer == s.consumer && r.source == s.source && r.status == s.status && r.typ == s.typ && r.stream == s.stream
}

// common and own are the values of a row for qInsertBatch: those that all rows
// of a batch have, and the others.
func (r *row) common(now driver.Value) []driver.Value {
	var processed driver.Value
	if r.status == statusCompleted {
		processed = now
	}
	return []driver.Value{r.consumer, r.source, int64(r.status), r.attempts, now, processed, r.nextAt, r.delay, r.typ, r.stream}
}

func (r *row) own(to []driver.Value) []driver.Value {
	var headers, payload driver.Value
	if r.keep {
		headers, payload = r.headers, r.payload
	}
	return append(to, r.seq, r.id, r.hash, r.subject, r.key, r.streamSeq, headers, payload)
}
