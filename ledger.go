package inbox

// The ledger: every statement on inbox_message, inbox_conflict, inbox_attempt
// and inbox_duplicate that the writer runs. What decides "have I seen this
// identity" is insert, with find (segments.go) for those of earlier messages.

import (
	"database/sql/driver"
	"errors"
)

// A status says how a message stands with its consumer.
type status int64

const (
	statusPending    status = 1 // stored, to be tried again
	statusProcessing status = 2 // leased to an effect handler
	statusDead       status = 3 // given up; waits for Retry or Discard
	statusCompleted  status = 4 // took effect
	statusDiscarded  status = 5 // given up for good; its identity stays known
)

// A row is what insert writes.
type row struct {
	seq, consumer, source int64
	status                status
	attempts, failures    int64
	nextAt                driver.Value // int64 or nil
	delay                 driver.Value
	lastError             driver.Value
	typ                   driver.Value
	stream, streamSeq     driver.Value
	*columns
	keep bool // write headers and payload
}

// kept are the headers and the payload, or NULL.
func (r *row) kept() (headers, payload driver.Value) {
	if !r.keep {
		return nil, nil
	}
	return r.headers, r.payload
}

// processedAt is now for a message that is done with.
func (r *row) processedAt(now driver.Value) driver.Value {
	if r.status == statusCompleted || r.status == statusDead {
		return now
	}
	return nil
}

// columns are the part of a row that its message decides alone, as they are
// bound: whoever delivers it makes them, not the writer.
type columns struct {
	id, hash, subject, key, headers, payload driver.Value
	footprint                                footprint
}

// orNull is s, or NULL when it is empty.
func orNull(s string) driver.Value {
	if s == "" {
		return nil
	}
	return s
}

// orEmpty is b, never NULL: that is a payload which was dropped.
func orEmpty(b []byte) driver.Value {
	if b == nil {
		return []byte{}
	}
	return b
}

const unlessKnown = `ON CONFLICT (seq >> 13, message_id, consumer, source) DO NOTHING`

// Parameters are anonymous: for each numbered or named one the driver makes a
// string at every execution. Most messages are applied at once; theirs is the
// shortest statement.
var (
	qInsertApplied = newQuery(`
		INSERT INTO inbox_message (seq, consumer, source, message_id, hash, status, attempts, failures,
		                           received_at, processed_at,
		                           type, subject, key, stream, stream_seq, headers, payload)
		VALUES (?, ?, ?, ?, ?, 4, 1, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		` + unlessKnown)
	qInsert = newQuery(`
		INSERT INTO inbox_message (seq, consumer, source, message_id, hash, status, attempts, failures,
		                           received_at, processed_at, next_at, retry_delay, last_error,
		                           type, subject, key, stream, stream_seq, headers, payload)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		` + unlessKnown)
)

// insert writes r unless its identity is known: then it returns the row that has
// it, and its hash.
func (w *writer) insert(r *row) (known int64, hash []byte, err error) {
	current := r.seq >> segmentBits
	if known, hash, err = w.find(current-1, r.consumer, r.source, r.columns); err != nil || known != 0 {
		return known, hash, err
	}
	var n int64
	now := w.nowValue
	headers, payload := r.kept()
	if r.status == statusCompleted {
		n, err = w.conn.exec(qInsertApplied, r.seq, r.consumer, r.source, r.id, r.hash,
			now, now, r.typ, r.subject, r.key, r.stream, r.streamSeq, headers, payload)
	} else {
		n, err = w.conn.exec(qInsert, r.seq, r.consumer, r.source, r.id, r.hash, int64(r.status), r.attempts, r.failures,
			now, r.processedAt(now), r.nextAt, r.delay, r.lastError,
			r.typ, r.subject, r.key, r.stream, r.streamSeq, headers, payload)
	}
	if err != nil {
		return 0, nil, w.fail("storing a message", err)
	}
	if n == 1 {
		w.nextSeq = r.seq + 1
		w.enter(r.seq, r.columns)
		return 0, nil, nil
	}
	known, hash, err = w.find(current, r.consumer, r.source, r.columns)
	if err == nil && known == 0 {
		err = w.fail("storing a message", errors.New("its identity is known, and is not there"))
	}
	return known, hash, err
}

var qConflict = newQuery(`
	INSERT INTO inbox_conflict (message, hash, first_seen, last_seen, count, payload)
	VALUES (?1, ?2, ?3, ?3, 1, coalesce(?4, x''))
	ON CONFLICT (message, hash) DO UPDATE SET last_seen = excluded.last_seen, count = count + 1`)

// conflict keeps a refused version of the message in row seq.
func (w *writer) conflict(seq int64, hash, payload []byte) error {
	if _, err := w.conn.exec(qConflict, seq, hash, w.now, payload); err != nil {
		return w.fail("storing a conflict", err)
	}
	return nil
}

var (
	qKeyOpen = newQuery(`
		SELECT 1 FROM inbox_message
		 WHERE consumer = ?1 AND key = ?2 AND key IS NOT NULL AND seq < ?3
		   AND status <= 3 AND (status <> 3 OR ?4)
		 LIMIT 1`)
	qKeyHead = newQuery(`
		SELECT seq FROM inbox_message
		 WHERE consumer = ?1 AND key = ?2 AND key IS NOT NULL
		   AND status <= 3 AND (status <> 3 OR ?3)
		 ORDER BY seq LIMIT 1`)
	qKeyRelease = newQuery(`
		UPDATE inbox_message SET next_at = ?2, retry_delay = 0
		 WHERE seq = ?1 AND status = 1 AND next_at IS NULL`)
	qKeyHold = newQuery(`UPDATE inbox_message SET next_at = NULL WHERE seq = ?1 AND status = 1`)
)

// keyOpen reports whether an earlier message of key than seq must be
// completed first; with deadBlocks, a dead one too.
func (w *writer) keyOpen(consumer int64, key string, seq int64, deadBlocks bool) (bool, error) {
	var v [1]driver.Value
	found, err := w.conn.queryRow(qKeyOpen, v[:], consumer, key, seq, boolInt(deadBlocks))
	if err != nil {
		return false, w.fail("asking for earlier messages of a key", err)
	}
	return found, nil
}

// keyRelease makes the first message of key that is not done due, if it was
// waiting for one that now is. It returns its seq, or 0.
func (w *writer) keyRelease(consumer int64, key string, deadBlocks bool) (int64, error) {
	seq, err := w.conn.releaseKey(consumer, key, deadBlocks, w.now)
	if err != nil {
		return 0, w.fail("releasing the next message of a key", err)
	}
	if seq != 0 {
		w.wake(w.now)
	}
	return seq, nil
}

func (c *writeConn) releaseKey(consumer int64, key string, deadBlocks bool, now int64) (int64, error) {
	var v [1]driver.Value
	found, err := c.queryRow(qKeyHead, v[:], consumer, key, boolInt(deadBlocks))
	if err != nil || !found {
		return 0, err
	}
	seq := v[0].(int64)
	n, err := c.exec(qKeyRelease, seq, now)
	if err != nil || n == 0 {
		return 0, err
	}
	return seq, nil
}

// keyHold makes a message wait for the earlier ones of its key.
func (w *writer) keyHold(seq int64) error {
	if _, err := w.conn.exec(qKeyHold, seq); err != nil {
		return w.fail("holding a message for its key", err)
	}
	return nil
}

var (
	qComplete = newQuery(`
		UPDATE inbox_message SET status = 4, attempts = ?2, failures = 0, processed_at = ?3, next_at = NULL, retry_delay = NULL
		 WHERE seq = ?1`)
	qCompleteBare = newQuery(`
		UPDATE inbox_message SET status = 4, attempts = ?2, failures = 0, processed_at = ?3, next_at = NULL, retry_delay = NULL,
		                         payload = NULL, headers = NULL
		 WHERE seq = ?1`)
	qFail = newQuery(`
		UPDATE inbox_message SET status = ?2, attempts = ?3, failures = ?4, processed_at = ?5, next_at = ?6, retry_delay = ?7, last_error = ?8
		 WHERE seq = ?1`)
	qFailBare = newQuery(`
		UPDATE inbox_message SET status = ?2, attempts = ?3, failures = ?4, processed_at = ?5, next_at = ?6, retry_delay = ?7, last_error = ?8,
		                         headers = ?9, payload = ?10
		 WHERE seq = ?1`)
)

func (w *writer) complete(seq, attempts int64, keep bool) error {
	q := qComplete
	if !keep {
		q = qCompleteBare
	}
	if _, err := w.conn.exec(q, seq, attempts, w.now); err != nil {
		return w.fail("completing a message", err)
	}
	return nil
}

// A failure is a failed attempt, as it is recorded.
type failure struct {
	status             status // pending or dead
	attempts, failures int64
	nextAt, delay      driver.Value
	processedAt        driver.Value
	text               string
}

// failed records f. A row whose payload was not written gets it now.
func (w *writer) failed(seq int64, f failure, written bool, headers, payload driver.Value) (err error) {
	if written {
		_, err = w.conn.exec(qFail, seq, int64(f.status), f.attempts, f.failures, f.processedAt, f.nextAt, f.delay, f.text)
	} else {
		_, err = w.conn.exec(qFailBare, seq, int64(f.status), f.attempts, f.failures, f.processedAt, f.nextAt, f.delay, f.text, headers, payload)
	}
	if err != nil {
		return w.fail("recording a failed attempt", err)
	}
	return nil
}

var (
	qAttempt      = newQuery(`INSERT INTO inbox_attempt (message, attempt, at, error) VALUES (?1, ?2, ?3, ?4)`)
	qAttemptPrune = newQuery(`
		DELETE FROM inbox_attempt
		 WHERE message = ?1
		   AND id <= (SELECT id FROM inbox_attempt WHERE message = ?1 ORDER BY id DESC LIMIT 1 OFFSET 50)`)
	qDuplicate = newQuery(`
		INSERT INTO inbox_duplicate (message, count, last_at) VALUES (?1, 1, ?2)
		ON CONFLICT (message) DO UPDATE SET count = count + 1, last_at = excluded.last_at`)
)

// attempted keeps a failed attempt of the message in row seq, and of its
// attempts the last 50.
func (w *writer) attempted(seq, attempt int64, text string) error {
	_, err := w.conn.exec(qAttempt, seq, attempt, w.now, text)
	if err == nil {
		_, err = w.conn.exec(qAttemptPrune, seq)
	}
	if err != nil {
		return w.fail("recording a failed attempt", err)
	}
	return nil
}

// duplicate counts a delivery of the message in row seq.
func (w *writer) duplicate(seq int64) error {
	if _, err := w.conn.exec(qDuplicate, seq, w.now); err != nil {
		return w.fail("counting a duplicate", err)
	}
	return nil
}

// A stored message is a row as a retry finds it.
type stored struct {
	status             status
	attempts, failures int64
	nextAt, delay      int64
	waiting            bool // for an earlier message of its key
	dropped            bool // the payload
	m                  Message
}

var qLoad = newQuery(`
	SELECT m.status, m.attempts, m.failures, m.next_at, m.retry_delay, m.received_at,
	       s.kind, s.name, m.message_id, t.name, m.subject, m.key, n.name, m.stream_seq, m.headers, m.payload
	  FROM inbox_message m
	  JOIN inbox_name s ON s.id = m.source
	  LEFT JOIN inbox_name t ON t.id = m.type
	  LEFT JOIN inbox_stream i ON i.id = m.stream
	  LEFT JOIN inbox_name n ON n.id = i.stream
	 WHERE m.seq = ?1`)

func (w *writer) loadMessage(seq int64) (r stored, found bool, err error) {
	var v [16]driver.Value
	found, err = w.conn.queryRow(qLoad, v[:], seq)
	if err != nil {
		return r, false, w.fail("reading a message", err)
	}
	if !found {
		return r, false, nil
	}
	r.status = status(v[0].(int64))
	r.attempts, r.failures = v[1].(int64), v[2].(int64)
	r.nextAt, _ = v[3].(int64)
	r.waiting = v[3] == nil
	r.delay, _ = v[4].(int64)
	m := &r.m
	m.Seq, m.ReceivedAt = seq, unixMilli(v[5].(int64))
	m.rule = rule(v[6].(int64))
	m.Source, m.ID = text(v[7]), text(v[8])
	m.Type, m.Subject, m.Key, m.Stream = text(v[9]), text(v[10]), text(v[11]), text(v[12])
	n, _ := v[13].(int64)
	m.StreamSeq = uint64(n)
	m.Headers = decodeHeaders(text(v[14]))
	m.Payload, _ = v[15].([]byte) // nil for an empty one too
	r.dropped = v[15] == nil
	return r, true, nil
}

func text(v driver.Value) string {
	s, _ := v.(string)
	return s
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
