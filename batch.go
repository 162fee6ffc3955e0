package inbox

// Batches: a fifth of what an INSERT costs is the statement, not the row. So in a
// large group, messages that are new for certain are inserted many at a time,
// ahead of their turns; then each has its turn, in order. For certain: the
// filters say so (segments.go), which are never wrong about that; and should
// they be, the constraint refuses, and the group is replayed.

import (
	"database/sql/driver"
	"strings"
)

// maxBatch is how many messages one statement inserts: 8 to 64 cost the same.
const maxBatch = 16

// A batch is the rows of the group's jobs from, from + 1, …: those before to are
// in the file ahead of their turns, and then there may be one more, planned.
type batch struct {
	rows              [maxBatch]row
	from, to, planned int
	args              []driver.Value
}

// end forgets the batch, and holds on to no message.
func (b *batch) end() {
	clear(b.rows[:])
	b.from, b.to, b.planned = 0, 0, 0
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

// row is the row of d, whose turn it is, and whether it is in the file already.
func (w *writer) row(d *delivery) (r *row, stored bool, err error) {
	b := &w.batch
	if w.at >= b.planned {
		if err := w.planBatch(d); err != nil {
			return nil, false, err
		}
	}
	return &b.rows[w.at-b.from], w.at < b.to, nil
}

// planBatch plans the row of d, whose turn it is, and of those behind it that
// are fit to share its INSERT. If there are any it runs that.
func (w *writer) planBatch(d *delivery) error {
	b := &w.batch
	seq, err := w.seq()
	if err != nil {
		return err
	}
	b.from, b.to, b.planned = w.at, w.at, w.at
	n := 0
	for n < maxBatch {
		r := &b.rows[n]
		if err := d.plan(w, r, seq+int64(n)); err != nil {
			return err
		}
		b.planned++
		if !w.bare || !r.plain() || !r.like(&b.rows[0]) || w.mayKnow(r) {
			break
		}
		w.enter(r.seq, r.columns) // the next one may be the same
		n++
		if b.planned == len(w.group) {
			break
		}
		var ok bool
		if d, ok = w.group[b.planned].(*delivery); !ok || d.refused() != nil {
			break
		}
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
	b.to = w.at + n
	return nil
}

// plain says that the row is that of a message which is applied at once, or
// stored for later. One with a key that is only stored is not: the next of its
// key must wait for it.
func (r *row) plain() bool {
	return r.lastError == nil && (r.status == statusCompleted || r.status == statusPending && r.key == nil)
}

// like says that r has in common with s what is bound once for a batch.
func (r *row) like(s *row) bool {
	return r.consumer == s.consumer && r.source == s.source && r.status == s.status && r.typ == s.typ && r.stream == s.stream
}

// common and own are the values of a row for qInsertBatch: those that all rows
// of a batch have, and the others.
func (r *row) common(now driver.Value) []driver.Value {
	return []driver.Value{r.consumer, r.source, int64(r.status), r.attempts, now, r.processedAt(now), r.nextAt, r.delay, r.typ, r.stream}
}

func (r *row) own(to []driver.Value) []driver.Value {
	headers, payload := r.kept()
	return append(to, r.seq, r.id, r.hash, r.subject, r.key, r.streamSeq, headers, payload)
}
