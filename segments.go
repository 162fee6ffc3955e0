package inbox

// Segments: the identities are kept in segments of 8,192 messages, in order of
// arrival. A UNIQUE constraint decides within the newest one; the earlier ones,
// which do not change any more, are looked into before: only those that may
// have the identity by their filters (filter.go), so nearly never for a new
// message. A filter is filled while its segment is, and then kept in the file.
// One that lacks identities, since the program was started meanwhile, or is
// damaged, is made from the rows in the background; until then its segment is
// looked into every time.

import (
	"context"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"time"
)

const (
	segmentBits = 13 // as in schema/0002_segments.sql and in the statements: seq >> 13
	segmentSize = 1 << segmentBits
	// maxSeq is no number of a message: a larger one is damage, and would ask
	// for memory that no machine has.
	maxSeq = 1 << 40
)

// sealAgain is how long the background waits after trouble.
const sealAgain = 30 * time.Second

// segments is what the writer knows of them.
type segments struct {
	filters filters
	newest  int64         // the one that was last committed to
	keeping []int64       // whose filter this transaction puts into the file
	grown   chan struct{} // holds a token when newest is another one
}

var qLookup = newQuery(`
	SELECT seq, hash FROM inbox_message
	 WHERE seq >> 13 = ? AND message_id = ? AND consumer = ? AND source = ?`)

// find finds the row of an identity in the segments from newest on backwards;
// seq 0: it is not there.
func (w *writer) find(newest, consumer, source int64, c *columns) (seq int64, hash []byte, err error) {
	for s := range w.filters.before(newest, &c.footprint) {
		var v [2]driver.Value
		found, err := w.conn.queryRow(qLookup, v[:], s, c.id, consumer, source)
		if err != nil {
			return 0, nil, w.fail("looking for an identity", err)
		}
		if found {
			hash, _ = v[1].([]byte)
			return v[0].(int64), hash, nil
		}
	}
	return 0, nil, nil
}

// mayKnow reports whether the identity of r may be in the file.
func (w *writer) mayKnow(r *row) bool {
	for range w.filters.before(r.seq>>segmentBits, &r.footprint) {
		return true
	}
	return false
}

// enter puts the identity of a new row into the filter of its segment. When
// its transaction is lost it stays there, which does no harm.
func (s *segments) enter(seq int64, c *columns) {
	if seq%segmentSize == 0 || seq == 1 {
		s.filters.begin(seq >> segmentBits)
	}
	s.filters.add(seq>>segmentBits, &c.footprint)
}

// segmentsCommitted follows a commit: what it put into the file is there, and
// the background is told when it began another segment.
func (w *writer) segmentsCommitted() {
	for _, segment := range w.keeping {
		b, bit := w.filters.of(segment)
		b.kept |= bit
	}
	w.keeping = w.keeping[:0]
	if newest := (w.nextSeq - 1) >> segmentBits; newest > w.newest {
		w.newest = newest
		select {
		case w.grown <- struct{}{}:
		default:
		}
	}
}

var (
	qFilters = newQuery(`SELECT segment, crc, bits FROM inbox_filter WHERE segment BETWEEN 0 AND 134217727`)
	qFilter  = newQuery(`INSERT OR REPLACE INTO inbox_filter (segment, crc, bits) VALUES (?, ?, ?)`)
)

// load reads the filters that are in the file, before the writer runs.
func (s *segments) load(c *writeConn, log *slog.Logger) error {
	s.grown = make(chan struct{}, 1)
	var v [3]driver.Value
	if _, err := c.queryRow(qMaxSeq, v[:1]); err != nil {
		return err
	}
	last := v[0].(int64)
	if last >= maxSeq {
		return fmt.Errorf("%w: a message has the number %d", ErrCorrupt, last)
	}
	s.newest = last >> segmentBits
	err := c.each(qFilters, v[:], func() error {
		segment, _ := v[0].(int64)
		crc, _ := v[1].(int64)
		data, _ := v[2].([]byte)
		if err := s.filters.decode(segment, data, crc); err != nil {
			log.Warn("the filter over a segment of earlier messages is damaged; it is made anew", "segment", segment, "error", err)
		}
		return nil
	})
	if segment, _ := s.unkept(); segment >= 0 {
		s.grown <- struct{}{}
	}
	return err
}

// unkept is the newest full segment whose filter is not in the file, -1 when
// there is none.
func (s *segments) unkept() (segment int64, ready bool) {
	for segment = s.newest - 1; segment >= 0; segment-- {
		if b, bit := s.filters.of(segment); b.kept&bit == 0 {
			return segment, b.ready&bit != 0
		}
	}
	return -1, false
}

// sealing keeps the filters of full segments in the file, until the inbox is
// closed.
func (ib *Inbox) sealing(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ib.w.grown:
		case <-again:
		}
		again = nil
		sealed, err := true, error(nil)
		for sealed && err == nil {
			sealed, err = ib.seal(ctx)
		}
		if err != nil && !ib.closing.Load() {
			ib.say(slog.LevelWarn, "filters", "a filter over earlier messages could not be kept: new messages may take longer, now or after the next start", "error", err)
			again = time.After(sealAgain)
		}
	}
}

// seal does it for one segment; false: there is none.
func (ib *Inbox) seal(ctx context.Context) (sealed bool, err error) {
	var segment int64
	var ready bool
	err = ib.do(ctx, func(w *writer) (err error) {
		if segment, ready = w.unkept(); ready {
			err = w.keep(segment)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	if segment < 0 || ready {
		return ready, nil
	}
	rows, err := ib.footprints(ctx, segment)
	if err != nil {
		return false, err
	}
	err = ib.do(ctx, func(w *writer) error {
		var v [1]driver.Value
		if _, err := w.conn.queryRow(qInSegment, v[:], segment<<segmentBits, (segment+1)<<segmentBits); err != nil {
			return w.fail("counting a segment", err)
		}
		if v[0] != int64(len(rows)) { // a damaged index or reader, a name that is not there
			return fmt.Errorf("inbox: segment %d has %v messages, and %d identities were found", segment, v[0], len(rows))
		}
		w.filters.begin(segment)
		for i := range rows {
			w.filters.add(segment, &rows[i])
		}
		return w.keep(segment)
	})
	return err == nil, err
}

var qInSegment = newQuery(`SELECT count(*) FROM inbox_message NOT INDEXED WHERE seq >= ? AND seq < ?`)

// keep puts the filter of a segment into the file. From then on it must take no
// more messages: it does, when somebody deleted the rows of later ones.
func (w *writer) keep(segment int64) error {
	next, err := w.seq()
	if err != nil {
		return err
	}
	if w.newest = min(w.newest, next>>segmentBits); segment >= w.newest {
		return nil
	}
	data, crc := w.filters.encode(segment)
	if _, err := w.conn.exec(qFilter, segment, crc, data); err != nil {
		return w.fail("keeping a filter", err)
	}
	w.keeping = append(w.keeping, segment)
	return nil
}

// footprints are those of the identities in a full segment.
func (ib *Inbox) footprints(ctx context.Context, segment int64) (ps []footprint, err error) {
	err = ib.View(ctx, func(ctx context.Context, rx *Rx) error {
		rows, err := rx.QueryContext(ctx, `
			SELECT c.name, s.kind, s.name, m.message_id
			  FROM inbox_message m INDEXED BY inbox_message_identity
			  JOIN inbox_name c ON c.id = m.consumer JOIN inbox_name s ON s.id = m.source
			 WHERE m.seq >> 13 = ?`, segment)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var consumer, source, id string
			var kind rule
			if err := rows.Scan(&consumer, &kind, &source, &id); err != nil {
				return err
			}
			ps = append(ps, newFootprint(identityDigest(consumer, kind, source, id)))
		}
		return rows.Err()
	})
	return ps, err
}
